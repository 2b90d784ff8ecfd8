"""A running script as the look at it sees it: the techniques that it has, and its operators.

In each run the operators of one step are observed, so that a switch that changes no matrix product
is known. The rest is observed in the first run alone, which is not timed.
"""

import pickle
import random
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, _utils
from torch.utils.flop_counter import flop_registry

from tools.own_script import insertion_points
from tools.own_script.model_switches import attention_of, is_transformers
from tools.own_script.switches import CONVOLUTION, SWITCHES
from tools.own_script.unwatched import unwatched
from tools.own_script.user_code import call_site
from tools.own_script.watch import replace
from Utils.base.errors import Unsupported
from Utils.device import capabilities, measured_ceilings
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS
from Utils.harness import run_record

WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item"}
PRODUCT = re.compile("mm|mv|dot|conv|rnn|attention|linear")


def of_tensors(device, partners=()):
    """Return the device object of a torch.device, without making it torch's current device.

    partners: process ids that are not other processes on a GPU.
    """
    if device.type == "cuda":
        return CUDA(device, partners=partners, select=False)
    return MPS(device) if device.type == "mps" else CPU()


@dataclass
class Loader:
    """A DataLoader of the script."""

    site: str
    iterable: bool
    workers: int


class Look(TorchDispatchMode):
    """The techniques, loaders and operators of a running script. Sites are file:line of its code.

    watch: its Watch. first: number of steps before the one whose operators are observed; None for
    no such step, or after it. Compiled graphs would hide them, and are compiled anew if they are
    observed: then there is no such step either.

    products: a Counter of that step's matrix products by type, None if it was not observed. waits:
    operators in it at which the host waits for the GPU, {(operator, site): times}. flop: FLOP of
    that step, 0 if they cannot be counted.

    in_script: sites by technique that the script has already: autocast (to 16 bits), compiled,
    tf32, fused, workers, checkpointing, cudnn_benchmark. random: a dataset draws random numbers.
    on_device: samples are on a GPU. `result` sets device (its type), modules (of the models) and
    optimizers (their classes).
    """

    def __init__(self, watch, first):
        super().__init__()
        self.watch = watch
        self.first = first
        self.products = None
        self.waits = Counter()
        self.flop = 0
        self.sdpa = False
        self.in_script = {}
        self.sites = defaultdict(str)  # of the script, by technique
        self.loaders = []
        self.random = False
        self.on_device = False

    def install(self):
        """Observe what the script has already."""
        self.watch.calls.leaf_called = partial(self.watch.observe, "autocast", self._leaf_called)
        replace(torch.autocast, "__enter__", partial(self._noted, "autocast"))
        replace(torch, "compile", partial(self._noted, "compiled"))
        replace(torch, "set_float32_matmul_precision", partial(self._noted, "tf32"))
        replace(DataLoader, "__init__", self._loader_made)
        replace(_utils.fetch._MapDatasetFetcher, "fetch", self._fetched)

    def _noted(self, technique, usual, *args, **kwargs):
        self.sites[technique] = call_site(self.watch.folder)
        return usual(*args, **kwargs)

    def _leaf_called(self, module):
        device = next((p.device.type for p in module.parameters()), None)
        enabled = device and torch.is_autocast_enabled(device)
        if enabled and torch.get_autocast_dtype(device) in (torch.bfloat16, torch.float16):
            self.in_script.setdefault("autocast", self.sites["autocast"])

    def _loader_made(self, usual, loader, dataset, *args, **kwargs):
        usual(loader, dataset, *args, **kwargs)
        site = call_site(self.watch.folder)
        self.loaders.append(Loader(site, isinstance(dataset, IterableDataset), loader.num_workers))
        if loader.num_workers:
            self.sites.setdefault("workers", site)

    def _fetched(self, usual, fetcher, indices):
        before = self.watch.observe("loaders", _random_state)
        batch = usual(fetcher, indices)
        self.watch.observe("loaders", self._batch_made, batch, before)
        return batch

    def _batch_made(self, batch, random_state):
        self.random |= random_state != _random_state()
        self.on_device |= not all(getattr(leaf, "is_cpu", True) for leaf in tree_leaves(batch))

    def begin_or_end(self):
        """Begin or end observing, if it is time, at the end of a step or before a model's call.

        Backward restores the modes that it began with, and a mode of the script may have to end
        before this one: within these the next call does it.
        """
        if self.first is None or self.watch.calls.in_backward:
            return
        modes = _get_current_dispatch_mode_stack()
        steps = self.watch.ended_iterations - self.first
        if self.products is None:
            if steps == 0 and not modes and not run_record.compiled_graphs():
                self.products = Counter()
                self.__enter__()
        elif steps > 0 and modes[-1:] == [self]:
            self.first = None
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        if not unwatched.depth:
            self.watch.observe("operators", self._called, operator, args, kwargs, result)
        return result

    def _called(self, operator, args, kwargs, result):
        """Count an operator's products, its FLOP, and whether the host waits for it."""
        library, _, name = operator._schema.name.partition("::")
        if library not in ("aten", "prims", "prim") or PRODUCT.search(name):
            leaves = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            floats = [x for x in leaves if x.is_floating_point() or x.is_complex()]
            self.products.update(_type(name, tensor) for tensor in floats[:1])
        if operator._overloadpacket in flop_registry:
            self.flop += flop_registry[operator._overloadpacket](*args, **kwargs, out_val=result)

        self.sdpa |= "scaled_dot_product" in name
        waits = name in WAITS and args[0].device == self.watch.parameters()[0].device
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            waits = source.device.type != "cpu" and result.device.type == "cpu"
        # Operators of an optimizer on a CPU are one kernel on a GPU, so they do not count.
        if waits and not self.watch.stepping:
            name = "a copy to the host" if "copy" in name else name
            self.waits[name, call_site(self.watch.folder)] += 1

    def result(self, hardware):
        """Return a dict for JSON: what was observed, and for each switch its refusal and lines."""
        # Models and optimizers, with the places where they are created and called.
        watch = self.watch
        self.device = hardware.torch_device.type
        self.modules = [child for model in watch.models for child in model.module.modules()]
        names, made_at = zip(*watch.optimizer_sites.values(), strict=True)
        self.optimizers = list(dict.fromkeys(names))

        # Techniques that the script has already.
        self.sites["fused"] = made_at[0]
        is_fused = any(group.get("fused") for group in watch.groups())
        checkpoints = any(getattr(m, "is_gradient_checkpointing", False) for m in self.modules)
        techniques = {
            "fused": is_fused,
            "tf32": measured_ceilings.matmul_precision() != "highest",
            "compiled": run_record.compiled_graphs(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "workers": "workers" in self.sites,
            "checkpointing": checkpoints,
        }
        self.in_script |= {name: self.sites[name] for name, has in techniques.items() if has}

        # With dropout, attention has other operators on a CPU.
        self.sdpa |= "sdpa" in map(attention_of, self.modules)

        self.places = self._places()
        measured_ceilings.stored_or_measured(hardware)
        return {
            "switches": {name: self._of_switch(name, hardware) for name in SWITCHES},
            "precision": capabilities.precision(hardware),
            "waits": [[operator, site, times] for (operator, site), times in self.waits.items()],
            "loaders": [vars(loader) for loader in self.loaders],
            "random_samples": self.random,
            "places": self.places,
            "flop": self.flop,
            "products": self.products,
            "failures": [*watch.failures.values()],
            "device": self.device,
            "in_script": list(self.in_script),
            "methods": [(type(m.module).__name__, m.method) for m in watch.models if "." in m.name],
        }

    def _places(self):
        """Return the places at which lines are added, pairs (fields of a line, place) by kind."""
        start = insertion_points.after_import(sys.modules["__main__"].__file__)

        models = []
        for model in self.watch.models:
            expression = model.expression or "model"
            children = model.module.named_modules()
            paths = [path for path, child in children if is_transformers(child)]  # "" for itself
            forward = f"{expression}.{model.method}"
            fields = {
                "device": self.device,
                "model": expression,
                "transformer": ".".join(filter(None, [expression, *paths[:1]])),
                "forward": forward,
                "variable": forward.replace(".", "_"),
            }
            models.append((fields, model.made_at or f"before {model.site}"))

        loader_sites = [loader.site for loader in self.loaders if not loader.iterable]
        places = {
            "start": [({}, start or "before the model is made")],
            "model": models,
            "loader": [({}, site) for site in dict.fromkeys(loader_sites)],
            "anywhere": [({}, "")],
        }
        for name, site in dict.fromkeys(self.watch.optimizer_sites.values()):
            places.setdefault(name, []).append(({}, site))
        return places

    def _of_switch(self, name, hardware):
        switch = SWITCHES[name](self.watch)
        refusal = switch.refusal(self)
        try:
            for need in switch.needs:
                limit = capabilities.check(need, hardware)
                if isinstance(limit, capabilities.WithoutEffect):
                    raise Unsupported(limit)
        except Unsupported as problem:
            refusal = refusal or str(problem)

        return {
            "refusal": refusal,
            "needs": switch.needs,
            "lines": switch.lines_at(self.places),
        }


def _random_state():
    """Return the states of all random number generators, bytes to compare."""
    return pickle.dumps([torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()])


def _type(name, tensor):
    """Return the type of a product, by its first operand."""
    if tensor.dtype != torch.float32:
        return str(tensor.dtype).removeprefix("torch.")
    if "conv" in name:
        return CONVOLUTION
    backend = torch.backends.mkldnn if tensor.is_cpu else torch.backends.cuda
    return "tf32" if backend.matmul.fp32_precision in ("tf32", "bf16") else "float32"
