"""The techniques that a script has already, observed in a run that is not timed."""

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.flop_counter import flop_registry

from tools.own_script import insertion_points
from tools.own_script.model_switches import attention_of, is_transformers
from tools.own_script.operators import product_type
from tools.own_script.switches import SWITCHES
from tools.own_script.user_code import call_site
from tools.own_script.watch import replace
from Utils.base.errors import Unsupported
from Utils.device import capabilities, measured_ceilings
from Utils.device.cpu import CPU, MPS
from Utils.device.cuda import CUDA
from Utils.harness import run_record

FIRST = 2  # steps before the one whose operators are observed
WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item"}


def of_tensors(device):
    """Return the device object of a torch.device, without making it torch's current device."""
    if device.type == "cuda":
        return CUDA(device, select=False)
    return MPS(device) if device.type == "mps" else CPU()


@dataclass
class Loader:
    """A DataLoader of the script."""

    site: str
    iterable: bool
    workers: int


class Look(TorchDispatchMode):
    """The techniques, loaders and waits of a running script. Sites are file:line of its code.

    The operators of one step are observed. Compiled graphs would hide them, and are compiled anew
    if they are observed: then there is no such step.

    watch: its Watch. in_script: sites by technique that the script has already: autocast (to 16
    bits), compiled, tf32, fused, workers, checkpointing, cudnn_benchmark. loaders: by id of the
    dataset. waits: operators in one step at which the host waits for the GPU, {(operator, site):
    times}. products: a Counter of matrix products by type, None if no step was observed. flop: FLOP
    of that step, 0 if they cannot be counted. `result` sets device (its type), modules (of the
    models) and optimizers (their classes).
    """

    def __init__(self, watch):
        super().__init__()
        self.watch = watch
        self.in_script = {}
        self.loaders = {}
        self.waits = Counter()
        self.products = None
        self.is_active = False
        self.flop = 0
        self.sdpa = False
        self.last_sites = defaultdict(str)  # by technique
        watch.calls.leaf_called = partial(watch.observe, "autocast", self._leaf_called)

    def install(self):
        replace(torch.autocast, "__enter__", partial(self._noted, "autocast"))
        replace(torch, "compile", partial(self._noted, "compiled"))
        replace(torch, "set_float32_matmul_precision", partial(self._noted, "tf32"))
        replace(DataLoader, "__init__", self._loader_made)

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

    def begin_or_end(self):
        """Begin or end observing, if it is time, at the end of a step or before a model's call.

        Backward restores the modes that it began with, and a mode of the script may have to end
        before this one: within these the next call does it.
        """
        if self.watch.calls.in_backward:
            return

        modes = _get_current_dispatch_mode_stack()
        is_time = self.watch.ended_iterations == FIRST and self.products is None
        if is_time and not modes and not run_record.compiled_graphs():
            self.products = Counter()
            self.is_active = True
            self.__enter__()
        elif self.is_active and self.watch.ended_iterations > FIRST and modes[-1:] == [self]:
            self.is_active = False
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        self.watch.observe("operators", self._called, operator, args, kwargs, result)
        return result

    def _called(self, operator, args, kwargs, result):
        """Count an operator if it is a product, its FLOP, and whether the host waits for it."""
        product = product_type(operator, args)
        if product:
            self.products[product] += 1
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
            self.waits[key] += 1

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
        self.sdpa |= "sdpa" in map(attention_of, self.modules)

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
            "failures": list(watch.failures.values()),
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
