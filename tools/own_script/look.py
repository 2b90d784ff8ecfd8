"""The techniques that a script has already, observed in a run that is not timed."""

import random
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, _utils
from torch.utils.flop_counter import flop_registry

from tools.own_script import insertion_points
from tools.own_script.model_switches import is_transformers
from tools.own_script.operators import OperatorWatch
from tools.own_script.switches import SWITCHES
from tools.own_script.user_code import call_site
from tools.own_script.watch import replace
from Utils.base.errors import Unsupported
from Utils.device import capabilities, measured_ceilings
from Utils.device.cpu import CPU, MPS
from Utils.device.cuda import CUDA
from Utils.harness import run_record

WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item"}


def of_tensors(device):
    """Return the device object of a torch.device, without making it torch's current device."""
    if device.type == "cuda":
        return CUDA(device, select=False)
    return MPS(device) if device.type == "mps" else CPU()


@dataclass
class Loader:
    """A DataLoader of the script.

    on_device: its samples are on a GPU. random: its dataset draws random numbers.
    """

    site: str
    iterable: bool
    workers: int
    on_device: bool = False
    random: bool = False


class Look(OperatorWatch):
    """The techniques, loaders and waits of a running script. Sites are file:line of its code.

    watch: its Watch. in_script: sites by technique that the script has already: autocast (to 16
    bits), compiled, tf32, fused, workers, checkpointing, cudnn_benchmark. loaders: by id of the
    dataset. waits: operators in one step at which the host waits for the GPU, {(operator, site):
    times}. flop: FLOP of that step, 0 if they cannot be counted. `result` sets device (its type),
    modules (of the models) and optimizers (their classes).
    """

    def __init__(self, watch):
        super().__init__(watch, 2)
        self.in_script = {}
        self.loaders = {}
        self.waits = {}
        self.flop = 0
        self.sdpa = False
        self.last_sites = {"autocast": "", "compiled": "", "tf32": ""}
        watch.calls.leaf_called = partial(watch.observe, "autocast", self._leaf_called)

    def install(self):
        replace(torch.autocast, "__enter__", partial(self._noted, "autocast"))
        replace(torch, "compile", partial(self._noted, "compiled"))
        replace(torch, "set_float32_matmul_precision", partial(self._noted, "tf32"))
        replace(DataLoader, "__init__", self._loader_made)
        replace(_utils.fetch._MapDatasetFetcher, "fetch", self._fetched)

    def _noted(self, technique, usual, *args, **kwargs):
        self.last_sites[technique] = call_site(self.watch.folder)
        return usual(*args, **kwargs)

    def _leaf_called(self, module):
        device = next((p.device.type for p in module.parameters()), None)
        enabled = device and torch.is_autocast_enabled(device)
        if enabled and torch.get_autocast_dtype(device) in (torch.bfloat16, torch.float16):
            self.in_script.setdefault("autocast", self.last_sites["autocast"])

    def _loader_made(self, usual, loader, dataset, *args, **kwargs):
        usual(loader, dataset, *args, **kwargs)
        site = call_site(self.watch.folder)
        iterable = isinstance(dataset, IterableDataset)
        self.loaders[id(dataset)] = Loader(site, iterable, loader.num_workers)

    def _fetched(self, usual, fetcher, indices):
        before = self.watch.observe("loaders", _random_state)
        batch = usual(fetcher, indices)
        self.watch.observe("loaders", self._batch_made, fetcher, batch, before)
        return batch

    def _batch_made(self, fetcher, batch, random_state):
        loader = self.loaders.get(id(fetcher.dataset))
        if loader:
            loader.random |= random_state != _random_state()
            tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
            loader.on_device |= any(tensor.device.type != "cpu" for tensor in tensors)

    def called(self, operator, args, kwargs, result):
        """Count an operator's FLOP, and whether the host waits for it."""
        super().called(operator, args, kwargs, result)
        if operator._overloadpacket in flop_registry:
            self.flop += flop_registry[operator._overloadpacket](*args, **kwargs, out_val=result)

        name = operator._schema.name.removeprefix("aten::")
        self.sdpa |= "scaled_dot_product" in name
        waits = name in WAITS and args[0].device == self.watch.parameters()[0].device
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            waits = source.device.type != "cpu" and result.device.type == "cpu"
        # Operators of an optimizer on a CPU are one kernel on a GPU, so they do not count.
        if waits and not self.watch.stepping:
            key = "a copy to the host" if "copy" in name else name, call_site(self.watch.folder)
            self.waits[key] = self.waits.get(key, 0) + 1

    def result(self, hardware):
        """Return a dict for JSON: what was observed, and for each switch its refusal and lines."""
        # Models and optimizers, with the places where they are created and called.
        watch = self.watch
        self.device = hardware.torch_device.type
        self.modules = [child for model in watch.models for child in model.module.modules()]
        self.optimizers = list(dict.fromkeys(name for name, _ in watch.optimizer_sites.values()))
        made_at = list(dict.fromkeys(site for _, site in watch.optimizer_sites.values()))

        # Techniques that the script has already.
        loaders = self.loaders.values()
        with_workers = [loader.site for loader in loaders if loader.workers]
        is_fused = any(group.get("fused") for group in watch.groups())
        checkpoints = any(getattr(m, "is_gradient_checkpointing", False) for m in self.modules)
        techniques = [
            ("fused", is_fused, made_at[0]),
            ("tf32", measured_ceilings.matmul_precision() != "highest", self.last_sites["tf32"]),
            ("compiled", run_record.compiled_graphs(), self.last_sites["compiled"]),
            ("cudnn_benchmark", torch.backends.cudnn.benchmark, ""),
            ("workers", with_workers, "".join(with_workers[:1])),
            ("checkpointing", checkpoints, ""),
        ]
        self.in_script |= {technique: site for technique, has, site in techniques if has}

        # With dropout, attention has other operators on a CPU.
        configs = [module.config for module in self.modules if is_transformers(module)]
        self.sdpa |= any(getattr(c, "_attn_implementation", "") == "sdpa" for c in configs)

        self.places = self._places(loaders)
        # Once per device, and last: it sets the precision of products from the script's own line.
        measured_ceilings.stored_or_measured(hardware)
        return {
            "switches": {name: self._of_switch(name, hardware) for name in SWITCHES},
            "precision": capabilities.precision(hardware),
            "waits": [[operator, site, times] for (operator, site), times in self.waits.items()],
            "loaders": [vars(loader) for loader in loaders],
            "places": self.places,
            "flop": self.flop,
            "products": self.products,
            "failures": [*watch.failures.values()],
            "device": self.device,
            "in_script": list(self.in_script),
        }

    def _places(self, loaders):
        """Return the places at which lines are added, pairs (fields of a line, place) by kind."""
        start = insertion_points.after_import(sys.modules["__main__"].__file__)

        models = []
        for model in self.watch.models:
            expression = model.expression or "model"
            children = model.module.named_modules()
            paths = [path for path, child in children if is_transformers(child) and path]
            is_whole = is_transformers(model.module) or not paths
            forward = f"{expression}.{model.method}"
            fields = {
                "device": self.device,
                "model": expression,
                "transformer": expression if is_whole else f"{expression}.{paths[0]}",
                "forward": forward,
                "variable": forward.replace(".", "_"),
            }
            models.append((fields, model.made_at or f"before {model.site}"))

        places = {
            "start": [({}, start or "before the model is made")],
            "model": models,
            "loader": [({}, loader.site) for loader in loaders if not loader.iterable],
            "anywhere": [({}, "")],
        }
        for name, site in dict.fromkeys(self.watch.optimizer_sites.values()):
            places.setdefault(name, []).append(({}, site))
        return places

    def _of_switch(self, name, hardware):
        switch = SWITCHES[name](self.watch)
        refusal = switch.refusal(self)
        try:
            limits = [capabilities.check(need, hardware) for need in switch.needs]
        except Unsupported as problem:
            refusal = refusal or str(problem)
            limits = []

        return {
            "refusal": refusal,
            "needs": switch.needs,
            "lines": switch.lines_at(self.places),
            "limited": any(limits),
        }


def _random_state():
    """Return the states of all random number generators, to compare them."""
    _, numpy_keys, numpy_position, *_ = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        numpy_keys.tobytes(),
        numpy_position,
    )
