"""Notes on the training of a script, step by step, from outside: what it does, not how fast."""

import hashlib
import json
import math
from collections import Counter, defaultdict
from functools import partial

import numpy as np
import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from tools.own_script.model_switches import type_name
from tools.own_script.models import modules_with, parameters_of
from tools.own_script.perturbation import ATTENTION, DROPOUTS, random_state
from Utils.harness import run_record

MOST_ELEMENTS = 1 << 16  # of a tensor that are kept
# Options of an optimizer that do not enter an update.
IMPLEMENTATION = {"params", "foreach", "fused", "capturable", "differentiable"}
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # from fine to coarse


class TrainingNotes:
    """Notes on the steps of a script under a Watch, which `write` leaves in a file.

    steps: a dict a step. Of parameters, they have positions in `names`.
    """

    def __init__(self, watch, perturbation):
        self.watch = watch
        self.perturbation = perturbation
        watch.observer = self
        self.positions = {}  # by parameter
        self.names = []
        self.arrays = {}  # samples of first values and first gradients, by names in the file
        self.types = set()
        self.draws = False
        self.has_workers = False
        self.steps = []
        self._begin_step()

        iterators = dataloader._BaseDataLoaderIter
        watch.after("inputs", iterators, "__next__", self._batch_made)
        watch.after("inputs", iterators, "_next_index", self._indexed)
        watch.after("precision", torch.autocast, "__enter__", self._autocast_begins)
        for name in DROPOUTS:
            watch.after("dropout", functional, name, self._dropped)
        watch.after("dropout", functional, ATTENTION, self._attention_dropped)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            watch.after("clipping", torch.nn.utils, name, partial(self._clipped, name))

    def _begin_step(self):
        self.calls = Counter()  # model calls with and without gradients, backwards
        self.inputs = {"loader": Inputs(), "model": Inputs()}
        self.indices = []
        self.dropout = Counter()  # number of elements, by probability
        self.options = []
        self.clipping = []
        self.norms = {}  # of gradients, by position of the parameter
        self.updates = Counter()  # of each parameter
        self.pending = []  # optimizers that have a closure to call

    def begins(self):
        """Note the values of new parameters, and perturb them, before a model is called."""
        trained = self.watch.parameters()
        if len(trained) == len(self.positions):
            return
        for name, parameter in _named(trained):
            if parameter not in self.positions:
                position = self.positions[parameter] = len(self.positions)
                self.names.append(name)
                self.arrays[f"value {position}"] = sample(parameter)
        self.perturbation.begins()
        self.values = [*map(sample, self.positions)]

    def called(self, args):
        """Note a model's call."""
        mode = "forwards" if torch.is_grad_enabled() else "forwards without gradients"
        self.calls[mode] += 1
        if mode == "forwards":
            self.inputs["model"].add(args)
        self.state = random_state()

    def returned(self, output):
        """Note what a model's call has returned."""
        if torch.is_grad_enabled():
            self.draws |= self.state != random_state()
            leaves = filter(torch.is_tensor, tree_leaves(output))
            self.types |= {x.dtype for x in leaves if x.is_floating_point()}

    def backward_ended(self):
        """Note a backward, and the gradients of an optimizer that has called its closure."""
        self.calls["backwards"] += 1
        for optimizer in self.pending:
            self._note_gradients(optimizer)
        self.pending = []

    def _batch_made(self, batch, iterator):
        if torch.is_grad_enabled():
            self.inputs["loader"].add(batch)

    def _indexed(self, index, iterator):
        if torch.is_grad_enabled():
            self.indices += tree_leaves(index)
            self.has_workers |= bool(iterator._num_workers)

    def _autocast_begins(self, result, autocast):
        if torch.is_autocast_enabled(autocast.device):
            self.types.add(torch.get_autocast_dtype(autocast.device))

    def _dropped(self, result, x, p=0.5, training=True, *args, keys=1, **kwargs):
        if p and training and torch.is_grad_enabled() and not self.watch.in_backward:
            self.dropout[f"{p:g}"] += x.numel() * keys

    def _attention_dropped(self, result, q, k, v, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        self._dropped(result, q[..., 0], dropout_p, keys=k.shape[-2])

    def _clipped(self, name, result, parameters, limit, *args, **kwargs):
        acts = result is not None and float(result) > limit
        self.clipping.append([name, float(limit), acts])

    def step_begins(self, optimizer, closures):
        """Note what an optimizer is about to take, unless it has a closure to call first.

        closures: the arguments of its step.
        """
        self.begins()
        if any(map(callable, closures)):
            self.pending.append(optimizer)
        else:
            self._note_gradients(optimizer)

        for group in optimizer.param_groups:
            options = {k: group[k] for k in group.keys() - IMPLEMENTATION}
            for name, value in options.items():
                if torch.is_tensor(value):  # a learning rate
                    options[name] = value.tolist()
            self.options.append([options, [self.positions[p] for p in group["params"]]])

    def _note_gradients(self, optimizer):
        """Note the gradients that an optimizer takes, without the scale of a GradScaler."""
        scale = 1 / float(getattr(optimizer, "grad_scale", None) or 1)
        if getattr(optimizer, "found_inf", None):
            self.calls["skipped updates"] += 1
        for parameter in parameters_of(optimizer.param_groups):
            if parameter.grad is not None:
                position = self.positions[parameter]
                self.updates[position] += 1
                norm = torch.linalg.vector_norm(dense(parameter.grad).float()).item()
                self.norms[position] = norm * scale
                name = f"gradient {position}"
                if name not in self.arrays:
                    self.arrays[name] = sample(parameter.grad) * scale

    def step_ended(self, iteration):
        """Add the notes of a step."""
        values = [*map(sample, self.positions)]
        updates = [new - old for new, old in zip(values, self.values, strict=True)]
        self.values = values

        step = {
            **self.calls,
            "updates": max(self.updates.values(), default=0),
            "inputs": {source: inputs.notes() for source, inputs in self.inputs.items()},
            "indices": self.indices,
            "dropout": self.dropout,
            "options": self.options,
            "clipping": self.clipping,
            "loss": sum(map(float, iteration.losses)) if iteration.losses else None,
            "gradient norm": math.hypot(*self.norms.values()),
            "input": max(inputs.norm for inputs in self.inputs.values()),
            "changed": [position for position, update in enumerate(updates) if update.any()],
            "update": math.hypot(*map(np.linalg.norm, updates)),
            "random numbers": hashlib.sha256(random_state()).hexdigest(),
        }

        self.steps.append(step)
        self._begin_step()

    def write(self, file, observed):
        """Write the notes to a file that NumPy reads. observed: the ObservedStep of the run."""
        types = set(map(type_name, self.types))
        states = [[*optimizer.state.values()] for optimizer in self.watch.steps.optimizers]
        types_of_states = [getattr(x, "dtype", None) for x in tree_leaves(states)]

        notes = {
            "steps": self.steps,
            "names": self.names,
            "shapes": [[*p.shape] for p in self.positions],
            "draws": self.draws,
            "has_workers": self.has_workers,
            "types": sorted(types.union(observed.products or ())),
            "flop": observed.flop,
            "is_compiled": bool(run_record.compiled_graphs()),
            "has_8_bits": torch.uint8 in types_of_states,
            "failures": [*self.watch.failures.values()],
        }
        np.savez(file, notes=json.dumps(notes, default=str), **self.arrays)


class Inputs:
    """The inputs of a step, of all its batches together, so that it does not matter how many.

    digests: by type, for each number of a tensor in a batch: integers in int64, floats in each
    coarser type.
    """

    def __init__(self):
        self.samples = 0
        self.elements = 0
        self.norm = 0.0
        self.digests = defaultdict(lambda: defaultdict(hashlib.sha256))

    def add(self, batch):
        """Add a batch, or the arguments of a model's call."""
        tensors = [leaf.detach() for leaf in tree_leaves(batch) if torch.is_tensor(leaf)]
        if tensors and tensors[0].ndim:
            self.samples += len(tensors[0])

        for number, tensor in enumerate(tensors):
            self.elements += tensor.numel()
            types = [torch.int64]
            if tensor.is_floating_point():
                types = TYPES[TYPES.index(tensor.dtype) :]
                self.norm = math.hypot(self.norm, torch.linalg.vector_norm(tensor.float()))
            for dtype in types:
                flat = tensor.to(dtype).reshape(-1).cpu()
                self.digests[number][type_name(dtype)].update(flat.view(torch.uint8).numpy().data)

    def notes(self):
        """Return the notes on them, in types of JSON."""
        digests = []
        for of_tensor in self.digests.values():
            digests.append({name: digest.hexdigest() for name, digest in of_tensor.items()})
        return vars(self) | {"digests": digests}


def sample(tensor):
    """Return at most MOST_ELEMENTS elements of a tensor or a few more, always the same ones."""
    flat = dense(tensor.detach()).reshape(-1)
    step = flat.numel() // MOST_ELEMENTS | 1
    return flat[::step].to("cpu", torch.promote_types(flat.dtype, torch.float32)).numpy().copy()


def dense(tensor):
    return tensor.to_dense() if tensor.is_sparse else tensor


def _named(parameters):
    """Yield (name, parameter) in the order of the modules that hold them, the largest first."""
    trained = dict.fromkeys(parameters)
    modules = modules_with(parameters)
    for module in sorted(modules, key=lambda module: -len([*module.parameters()])):
        for name, parameter in module.named_parameters():
            if parameter in trained:
                del trained[parameter]
                yield f"{type(module).__name__}.{name}", parameter
    for number, parameter in enumerate(trained):
        yield f"tensor {number}", parameter
