"""What a script has already, seen where it acts, in a run that is not timed."""

import random
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, _utils, dataloader
from torch.utils.flop_counter import flop_registry

from Utils.harness import compile_stats
from Utils.own_script.switch import is_transformers
from Utils.own_script.switches import eager_attention
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


@dataclass
class Seen:
    """What was seen of a script. Sites are file:line of the user's code.

    own: sites by what the script has already: autocast (to 16 bits), compiled, tf32, fused,
    workers, checkpointing, cudnn_benchmark. optimizers: their classes; made_at: their sites.
    waits: operators by which the host waits for the GPU, in one step: {(operator, site): times}.
    flop: of one step, None where it cannot be counted.
    """

    folder: str
    device: str = "cpu"
    own: dict = field(default_factory=dict)
    optimizers: list = field(default_factory=list)
    made_at: list = field(default_factory=list)
    models: list = field(default_factory=list)
    loaders: list = field(default_factory=list)
    calls_per_step: int = 1
    losses_per_step: int = 0
    own_scaler: bool = False
    closure: bool = False
    sdpa: bool = False
    transformers: bool = False
    eager_attention: bool = False
    convolution: bool = False
    waits: dict = field(default_factory=dict)
    flop: int | None = None

    def has(self, technique):
        """Return why a technique is refused that the script has already, or ""."""
        if technique not in self.own:
            return ""
        site = self.own[technique]
        return "already in your script" + (f" ({site})" if site else "")


class Look:
    """Fills a Seen while a script runs. watch: its Watch."""

    def __init__(self, watch):
        self.watch = watch
        self.seen = Seen(watch.folder)
        self.autocast_site = ""
        self.tf32_site = ""
        self.compile_site = None
        self.loaders = {}
        self.operators = None
        watch.calls.leaf_called = self._leaf_called

    def install(self):
        replace(torch.autocast, "__enter__", self._autocast)
        replace(torch, "compile", self._compile)
        replace(torch, "set_float32_matmul_precision", self._precision)
        replace(DataLoader, "__init__", self._loader_made)
        replace(_utils.fetch._MapDatasetFetcher, "fetch", self._fetched)
        replace(dataloader._SingleProcessDataLoaderIter, "_next_data", self._single_process)

    def _autocast(self, usual, context):
        self.autocast_site = call_site(self.seen.folder)
        return usual(context)

    def _leaf_called(self, module):
        device = next((p.device.type for p in module.parameters()), None)
        enabled = device and torch.is_autocast_enabled(device)
        if enabled and torch.get_autocast_dtype(device) in HALF:
            self.seen.own.setdefault("autocast", self.autocast_site)

    def _compile(self, usual, *args, **kwargs):
        self.compile_site = call_site(self.seen.folder)
        return usual(*args, **kwargs)

    def _precision(self, usual, precision):
        self.tf32_site = call_site(self.seen.folder)
        return usual(precision)

    def _loader_made(self, usual, loader, dataset, *args, **kwargs):
        usual(loader, dataset, *args, **kwargs)
        site = call_site(self.seen.folder)
        iterable = isinstance(dataset, IterableDataset)
        self.loaders[id(dataset)] = Loader(site, iterable, loader.num_workers)

    def _fetched(self, usual, fetcher, indices):
        before = _random_state()
        samples = usual(fetcher, indices)
        if id(fetcher.dataset) in self.loaders and before != _random_state():
            self.loaders[id(fetcher.dataset)].random = True
        return samples

    def _single_process(self, usual, iterator):
        batch = usual(iterator)
        loader = self.loaders.get(id(iterator._dataset))
        if loader and any(t.device.type != "cpu" for t in _tensors(batch)):
            loader.on_device = True
        return batch

    def begin_counting(self):
        """Count the operators and operations of the iteration that begins."""
        if not compile_stats.compiled_graphs():
            self.operators = Operators(self.seen, self.watch)
            self.operators.__enter__()

    def end_counting(self):
        if self.operators:
            self.operators.__exit__(None, None, None)
            self.seen.flop = self.operators.flop or None

    def end(self, hardware, losses_per_step):
        """Return the Seen of a script after its last step."""
        seen = self.seen
        watch = self.watch
        seen.device = hardware.torch_device.type
        seen.losses_per_step = losses_per_step
        seen.own_scaler = watch.own_scaler
        seen.closure = watch.used_closure
        seen.models = watch.models
        seen.calls_per_step = watch.calls_per_step
        optimizers = watch.optimizers.values()
        sites = watch.optimizer_sites.values()
        seen.optimizers = list(dict.fromkeys(name for name, _ in sites))
        seen.made_at = list(dict.fromkeys(site for _, site in sites))
        if any(group.get("fused") for opt in optimizers for group in opt.param_groups):
            seen.own["fused"] = seen.made_at[0]
        if torch.get_float32_matmul_precision() != "highest":
            seen.own["tf32"] = self.tf32_site
        if compile_stats.compiled_graphs():
            seen.own["compiled"] = self.compile_site or ""
        if torch.backends.cudnn.benchmark:
            seen.own["cudnn_benchmark"] = ""
        seen.loaders = list(self.loaders.values())
        with_workers = [loader for loader in seen.loaders if loader.workers]
        if with_workers:
            seen.own["workers"] = with_workers[0].site
        modules = [child for model in watch.models for child in model.module.modules()]
        seen.convolution = any(isinstance(m, torch.nn.Conv2d) for m in modules)
        seen.transformers = any(is_transformers(m) for m in modules)
        seen.eager_attention = any(eager_attention(m) for m in modules)
        # With dropout a CPU takes other operators for it.
        configs = [getattr(m, "config", None) for m in modules if is_transformers(m)]
        seen.sdpa |= any(getattr(c, "_attn_implementation", "") == "sdpa" for c in configs)
        if any(getattr(m, "is_gradient_checkpointing", False) for m in modules):
            seen.own["checkpointing"] = ""
        return seen


class Operators(TorchDispatchMode):
    """Counts floating-point operations, and notes the operators of a step that wait for the GPU and
    those of fused attention.

    Those of optimizers on a CPU are torch's: on a GPU they are not called.
    """

    def __init__(self, seen, watch):
        super().__init__()
        self.seen = seen
        self.watch = watch
        self.flop = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator._schema.name.removeprefix("aten::")
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        if operator._overloadpacket in flop_registry:
            self.flop += flop_registry[operator._overloadpacket](*args, **kwargs, out_val=result)
        if "scaled_dot_product" in name:
            self.seen.sdpa = True
        copies = name in ("_to_copy", "copy_") and _to_host(args, result)
        reads = name in WAITS and args[0].device == self.watch.parameters()[0].device
        if (reads or copies) and not self.watch.stepping:
            site = call_site(self.seen.folder)
            key = ("a copy to the host" if "copy" in name else name, site)
            self.seen.waits[key] = self.seen.waits.get(key, 0) + 1
        return result


def _to_host(args, result):
    source = args[-1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    return source.device.type != "cpu" and result.device.type == "cpu"


def _random_state():
    state = torch.get_rng_state().numpy().tobytes(), random.getstate()
    try:
        import numpy  # the script's own, if it has it
    except ImportError:
        return state
    return (*state, numpy.random.get_state()[1].tobytes(), numpy.random.get_state()[2])


def _tensors(batch):
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
