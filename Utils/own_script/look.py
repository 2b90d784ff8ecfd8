"""What a script has already, seen where it acts, in a run that is not timed."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, _utils
from torch.utils.flop_counter import flop_registry

from Utils.harness import compile_stats
from Utils.own_script.switch import is_transformers
from Utils.own_script.user_code import call_site
from Utils.own_script.watch import replace

HALF = (torch.bfloat16, torch.float16)
WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item"}


@dataclass
class Loader:
    """A DataLoader of the script. on_device: its samples lie on a GPU. random: they are drawn at
    random. site: where it is made."""

    site: str
    iterable: bool
    workers: int
    on_device: bool = False
    random: bool = False


class Look:
    """Fills itself while a script runs. watch: its Watch. Sites are file:line of the user's code.

    in_script: sites by what the script has already: autocast (to 16 bits), compiled, tf32, fused,
    workers, checkpointing, cudnn_benchmark. loaders: by ids of their datasets. waits: operators by
    which the host waits for the GPU, in one step: {(operator, site): times}. flop: of that step,
    None where it cannot be counted. Known at the end: device, its type; modules of the models;
    optimizers, their classes; sites to which a Switch may add lines.
    """

    def __init__(self, watch):
        self.watch = watch
        self.in_script = {}
        self.loaders = {}
        self.waits = {}
        self.flop = None
        self.sdpa = False
        self.operators = None
        self.last_sites = {"autocast": "", "compiled": "", "tf32": ""}
        watch.calls.leaf_called = self._leaf_called

    def install(self):
        replace(torch.autocast, "__enter__", self._noting("autocast"))
        replace(torch, "compile", self._noting("compiled"))
        replace(torch, "set_float32_matmul_precision", self._noting("tf32"))
        replace(DataLoader, "__init__", self._loader_made)
        replace(_utils.fetch._MapDatasetFetcher, "fetch", self._fetched)

    def has(self, technique):
        """Return why a technique is refused that the script has already, or ""."""
        if technique not in self.in_script:
            return ""
        site = self.in_script[technique]
        return "already in your script" + (f" ({site})" if site else "")

    def _noting(self, technique):
        """Return a replacement of a function, which notes where it is called."""

        def noted(usual, *args, **kwargs):
            self.last_sites[technique] = call_site(self.watch.folder)
            return usual(*args, **kwargs)

        return noted

    def _leaf_called(self, module):
        device = next((p.device.type for p in module.parameters()), None)
        enabled = device and torch.is_autocast_enabled(device)
        if enabled and torch.get_autocast_dtype(device) in HALF:
            self.in_script.setdefault("autocast", self.last_sites["autocast"])

    def _loader_made(self, usual, loader, dataset, *args, **kwargs):
        usual(loader, dataset, *args, **kwargs)
        site = call_site(self.watch.folder)
        iterable = isinstance(dataset, IterableDataset)
        self.loaders[id(dataset)] = Loader(site, iterable, loader.num_workers)

    def _fetched(self, usual, fetcher, indices):
        before = _random_state()
        batch = usual(fetcher, indices)
        if loader := self.loaders.get(id(fetcher.dataset)):
            loader.random |= before != _random_state()
            tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
            loader.on_device |= any(tensor.device.type != "cpu" for tensor in tensors)
        return batch

    def begin_counting(self):
        """Count the operators and operations of the iteration that begins."""
        if not compile_stats.compiled_graphs():
            self.operators = Operators(self)
            self.operators.__enter__()

    def end_counting(self):
        if self.operators:
            self.operators.__exit__(None, None, None)
            self.flop = self.operators.flop or None

    def end(self, device):
        """Look at what is there after the last step. device: torch.device of the models."""
        watch = self.watch
        self.device = device.type
        self.modules = [child for model in watch.models for child in model.module.modules()]
        self.optimizers = list(dict.fromkeys(name for name, _ in watch.optimizer_sites.values()))
        made_at = list(dict.fromkeys(site for _, site in watch.optimizer_sites.values()))
        called_at = [model.site for model in watch.models]
        loaders = self.loaders.values()
        self.sites = {
            "start": ["before the model is made"],
            "optimizer": made_at,
            "call": called_at,
            "before the call": [f"before {site}" for site in called_at],
            "loader": [loader.site for loader in loaders if not loader.iterable],
            "anywhere": [""],
        }
        if any(group.get("fused") for group in watch.groups()):
            self.in_script["fused"] = made_at[0]
        if torch.get_float32_matmul_precision() != "highest":
            self.in_script["tf32"] = self.last_sites["tf32"]
        if compile_stats.compiled_graphs():
            self.in_script["compiled"] = self.last_sites["compiled"]
        if torch.backends.cudnn.benchmark:
            self.in_script["cudnn_benchmark"] = ""
        if with_workers := [loader for loader in loaders if loader.workers]:
            self.in_script["workers"] = with_workers[0].site
        if any(getattr(m, "is_gradient_checkpointing", False) for m in self.modules):
            self.in_script["checkpointing"] = ""
        # With dropout a CPU takes other operators for it.
        configs = [module.config for module in self.modules if is_transformers(module)]
        self.sdpa |= any(getattr(c, "_attn_implementation", "") == "sdpa" for c in configs)


class Operators(TorchDispatchMode):
    """Counts floating-point operations, and notes the operators of a step that wait for the GPU and
    those of fused attention.

    Those of optimizers on a CPU are torch's: on a GPU they are not called.
    """

    def __init__(self, look):
        super().__init__()
        self.look = look
        self.device = look.watch.parameters()[0].device
        self.flop = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        look = self.look
        name = operator._schema.name.removeprefix("aten::")
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        if operator._overloadpacket in flop_registry:
            self.flop += flop_registry[operator._overloadpacket](*args, **kwargs, out_val=result)
        if "scaled_dot_product" in name:
            look.sdpa = True
        waits = name in WAITS and args[0].device == self.device
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            waits = source.device.type != "cpu" and result.device.type == "cpu"
        if waits and not look.watch.stepping:
            key = "a copy to the host" if "copy" in name else name, call_site(look.watch.folder)
            look.waits[key] = look.waits.get(key, 0) + 1
        return result


def _random_state():
    of_numpy = np.random.get_state()
    state = torch.get_rng_state().numpy().tobytes(), random.getstate()
    return *state, of_numpy[1].tobytes(), of_numpy[2]
