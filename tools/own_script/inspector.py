"""What the first run of a script observes: its techniques, loaders and operators."""

import re
import sys
from collections import Counter, defaultdict
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.flop_counter import flop_registry

from tools.own_script import origins
from tools.own_script.changes import START
from tools.own_script.inspection import InspectedSwitch, Inspection, Spot
from tools.own_script.model_switches import is_transformers, type_name
from tools.own_script.replaced import unwatched
from tools.own_script.switches import CONVOLUTION, SWITCHES
from tools.own_script.user_code import Place, call_place
from Utils.base.errors import Unsupported
from Utils.device import capabilities, measured_ceilings
from Utils.harness import run_record

WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "item"}
ATTENTION = "_scaled_dot_product_flash_attention"
for end in ("", "_backward"):  # torch counts no FLOP of attention on a CPU
    operator = getattr(torch.ops.aten, f"{ATTENTION}_for_cpu{end}")
    flop_registry.setdefault(operator, flop_registry[getattr(torch.ops.aten, ATTENTION + end)])
PRODUCT = re.compile("mm|mv|dot|conv|rnn|attention|linear")


class ObservedStep(TorchDispatchMode):
    """Operators of the step after `first` steps, so that a switch that changes none is known.

    watch: its Watch. first: None for no such step, or after it. Compiled graphs would hide
    operators, and are compiled again if observed: then there is no such step either.

    products: a Counter of matrix products by type, None if the step was not observed. waits:
    operators at which the host waits for the GPU, {(operator, Place): times}. flop: FLOP of the
    step. scores: shape of matrices after a softmax. attention: such ones were multiplied.
    """

    products = None
    flop = 0
    scores = None
    attention = False

    def __init__(self, watch, first):
        super().__init__()
        self.watch = watch
        self.first = first
        self.waits = Counter()

    def begin_or_end(self):
        """Begin or end observing, if it is time, at the end of a step or before a model's call.

        Not during backward, nor inside another dispatch mode: then the next call does it.
        """
        if self.first is None or self.watch.in_backward:
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
            tensors = filter(torch.is_tensor, tree_leaves(args))
            floats = [x for x in tensors if x.is_floating_point() or x.is_complex()]
            self.products.update(_type(name, tensor) for tensor in floats[:1])
            if "mm" in name:
                self.attention |= any(x.shape[-2:] == self.scores for x in floats)
        if operator._overloadpacket in flop_registry:
            self.flop += flop_registry[operator._overloadpacket](*args, **kwargs, out_val=result)

        if name == "_softmax" and result.dim() > 2:
            self.scores = result.shape[-2:]
        waits = name in WAITS and args[0].device == self.watch.parameters()[0].device
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            waits = source.device.type != "cpu" and result.device.type == "cpu"
        # Operators of an optimizer on a CPU are one kernel on a GPU, so they do not count.
        if waits and not self.watch.steps.running:
            name = "a copy to the host" if "copy" in name else name
            self.waits[name, call_place(self.watch.folder)] += 1


class Inspector(ObservedStep):
    """Observes the techniques and the loaders of a script, too.

    frames: those in which modules were made, by id, until the models among them are known: they
    keep their variables alive.
    places: where the script calls the techniques that it has. in_script: these techniques, with the
    place or None: autocast (to 16 bits), compiled, tf32, fused, checkpointing, cudnn_benchmark.
    `result` sets device (its type), models, and their modules.
    """

    finds_places = True

    def __init__(self, watch, first):
        super().__init__(watch, first)
        self.places = {}
        self.in_script = {}
        self.loaders = []
        self.frames = {}
        self.spots = defaultdict(list)

        watch.after("places", torch.nn.Module, "__init__", self._module_made)
        watch.after("places", torch.optim.Optimizer, "__init__", self._optimizer_made)
        after = partial(watch.after, "techniques")
        after(torch.autocast, "__enter__", self._autocast_begins)
        after(torch, "compile", partial(self._technique_called, "compiled"))
        after(torch, "set_float32_matmul_precision", partial(self._technique_called, "tf32"))
        after(
            torch.nn.functional,
            "scaled_dot_product_attention",
            partial(self._technique_called, "sdpa"),
        )
        after(DataLoader, "__init__", self._loader_made)

    def begin_or_end(self):
        super().begin_or_end()
        if self.watch.ended_iterations and self.finds_places:
            self.watch.observe("places", self._find_models)
            self.finds_places = False
            self.frames.clear()

    def _module_made(self, result, module, *args, **kwargs):
        if self.finds_places:
            self.frames[id(module)] = origins.frames_of_user()

    def _technique_called(self, technique, *args, **kwargs):
        self.places[technique] = call_place(self.watch.folder)

    def _autocast_begins(self, result, autocast):
        dtype = torch.get_autocast_dtype(autocast.device)
        if torch.is_autocast_enabled(autocast.device) and dtype in (torch.bfloat16, torch.float16):
            self.in_script.setdefault("autocast", call_place(self.watch.folder))

    def _loader_made(self, result, loader, *args, **kwargs):
        self.loaders.append([call_place(self.watch.folder), loader.num_workers])

    def _optimizer_made(self, result, optimizer, *args, **kwargs):
        if self.finds_places:
            self.spots[type(optimizer).__name__].append(origins.of_call(optimizer))

    def result(self, hardware, **measured):
        """Return the Inspection. measured: fields version, row, record and profile of it."""
        watch = self.watch
        self.device = hardware.torch_device.type
        self.models = [model for model in watch.models.seen if model.module() is not None]
        self.modules = [child for model in self.models for child in model.module().modules()]

        # The techniques that settings of the script show.
        _, self.places["fused"] = next(iter(watch.steps.optimizers.values()))
        has = {
            "fused": any(group.get("fused") for group in watch.groups()),
            "tf32": measured_ceilings.matmul_precision() != "highest",
            "compiled": run_record.compiled_graphs(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "checkpointing": any(
                getattr(module, "is_gradient_checkpointing", False) for module in self.modules
            ),
        }
        self.in_script |= {name: self.places.get(name) for name in has if has[name]}

        measured_ceilings.stored_or_measured(hardware)  # once per device
        return Inspection(
            device=self.device,
            precision=capabilities.precision(hardware),
            switches={name: self._of_switch(name, hardware) for name in SWITCHES},
            spots=self.spots,
            in_script=[*self.in_script],
            methods=[(type(m.module()).__name__, m.method) for m in self.models if "." in m.name],
            loaders=self.loaders,
            waits=[[operator, place, n] for (operator, place), n in self.waits.items()],
            flop=self.flop,
            products=self.products,
            failures=[*watch.failures.values()],
            **measured,
        )

    def _find_models(self):
        """Find the Spots of models, while the frames that made them are known."""
        spots = self.spots
        spots[START].append(Spot(sys.modules["__main__"].__file__, None, {}))
        for model in self.watch.models.seen:
            module = model.module()
            if module is None:
                continue
            spot = origins.of_model(module, self.frames.get(id(module), ()))
            spot.fields.update(method=model.method, device=next(module.parameters()).device.type)
            spots["model"].append(spot)
            spots["method" if "." in model.name else "called model"].append(spot)

            paths = [path for path, child in module.named_modules() if is_transformers(child)]
            if paths:  # "" is the model itself
                spot.fields["child"] = f'.get_submodule("{paths[0]}")' if paths[0] else ""
                spots["transformer"].append(spot)

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
        spots = [spot for change in switch.changes for spot in self.spots.get(change.kind, ())]
        places = [str(Place(spot.file, spot.location[0])) for spot in spots if spot.location]
        return InspectedSwitch(refusal, switch.needs, list(dict.fromkeys(places)))


def _type(name, tensor):
    """Return the type of a product, by its first operand."""
    if tensor.dtype != torch.float32:
        return type_name(tensor.dtype)
    if "conv" in name:
        return CONVOLUTION
    backend = torch.backends.mkldnn if tensor.is_cpu else torch.backends.cuda
    return "tf32" if backend.matmul.fp32_precision in ("tf32", "bf16") else "float32"
