"""Techniques as switches: here those on torch's settings, on optimizers and on loaders.

A switch enables a technique from outside a script, when a model, an optimizer or a loader is
created or first used.
"""

import inspect

import torch
from torch.utils import data

from tools.own_script.changes import START, Change
from tools.own_script.models import parameters_of
from tools.own_script.replaced import replace, unwatched
from tools.own_script.user_code import Ended
from Utils.device import device_choice

SWITCHES = {}  # classes by technique
CONVOLUTION = "float32 of convolutions"  # not set by torch.set_float32_matmul_precision
# Options of torch's optimizers that their forms honour; any other one has to be the default.
OF_ADAM = "lr betas eps foreach fused"
FUSED_ADAM = f"{OF_ADAM} weight_decay amsgrad maximize capturable"
FUSED = {
    torch.optim.AdamW: FUSED_ADAM,
    torch.optim.Adam: f"{FUSED_ADAM} decoupled_weight_decay",
    torch.optim.SGD: "lr momentum dampening weight_decay nesterov maximize foreach fused",
    torch.optim.Adagrad: (
        "lr lr_decay weight_decay initial_accumulator_value eps maximize foreach fused"
    ),
}
# bitsandbytes decays the weights of both as AdamW does.
KEPT_BY_EIGHT_BIT = {"params", "lr", "betas", "eps", "weight_decay"}
EIGHT_BIT = {torch.optim.AdamW: f"{OF_ADAM} weight_decay", torch.optim.Adam: OF_ADAM}
OF_LOADER = (
    "batch_size shuffle sampler batch_sampler collate_fn drop_last generator pin_memory "
    "pin_memory_device in_order"
)


class Switch:
    """One technique. A script of the same name, if there is one, states its gains and costs.

    name: the technique. needs: names of checks in `Utils.device.capabilities`. already: key of
    `Inspector.in_script`. on_models: it changes a module that holds trained parameters, if there is
    one. changes: Changes of a script that do the same. lines: more that a person has to place.
    reason: why it has no effect; "" once it has one.
    """

    name = ""
    needs = ()
    already = ""
    on_models = False
    changes = ()
    lines = ()

    def __init_subclass__(cls):
        SWITCHES[cls.name] = cls

    def __init__(self, watch):
        self.watch = watch
        self.reason = "nothing that it applies to was made or called"

    def refusal(self, inspector):
        """Return why it cannot be enabled on the script of an Inspector, or ""."""
        # A compiled function hides its models.
        has_models = inspector.models or "compiled" in inspector.in_script
        if self.on_models and not has_models:
            return "no module that is called holds a trained parameter"
        if self.already not in inspector.in_script:
            return self.obstacle(inspector)
        place = inspector.in_script[self.already]
        return "already in your script" + (f" ({place})" if place else "")

    def obstacle(self, inspector):
        """Return what else a script has to have, or have not, for an effect, or ""."""
        return ""

    def start(self):
        """Enable it before the script begins."""

    def optimizer_made(self, optimizer):
        """Enable it on an optimizer."""

    def model_called(self, module, method):
        """Enable it on a model before its first call. method: its name, None if it is __call__."""

    def problem(self, products):
        """Return why a run that has ended does not measure it, or "".

        products: the Counters of matrix products by type in a step of this run, and of the script
        without switches; None for those that were not observed.
        """
        return self.reason and f"no effect: {self.reason}"

    def no_effect(self, products, types):
        """Return that there are no matrix products of these types, or ""."""
        if products is None or types & products.keys():
            return ""
        if not products:
            return "no effect: it has no matrix products"
        return f"no effect: its matrix products are in {' and '.join(sorted(products))}"


class TensorFloat32(Switch):
    """Multiply float32 matrices as TF32 on tensor cores, by a setting of torch."""

    name = "tensorFloat32"
    needs = ("tf32",)
    already = "tf32"
    changes = (Change(START, 'torch.set_float32_matmul_precision("high")'),)

    def start(self):
        torch.set_float32_matmul_precision("high")
        self.reason = ""

    def obstacle(self, inspector):
        place = inspector.places.get("tf32")
        overridden = f"your script sets this precision itself ({place})" if place else ""
        return overridden or self.no_effect(inspector.products, {"float32", "tf32"})

    def problem(self, products):
        run, _ = products
        has_half = any(hasattr(switch, "dtype") for switch in self.watch.switches)
        return super().problem(products) or ("" if has_half else self.no_effect(run, {"tf32"}))


class OptimizerSwitch(Switch):
    """A switch that gives optimizers another form, which has to honour all their options.

    forms: classes of optimizers that have a form of this technique, with the options that it
    honours. lacks: the form, in words. types: of parameters that it does not take.
    """

    forms = {}
    lacks = ""
    types = set()

    def kind_of(self, optimizer):
        """Return the class of `forms` whose step an optimizer takes, or None."""
        step = inspect.unwrap(type(optimizer).step)
        for kind in self.forms:
            if isinstance(optimizer, kind) and inspect.unwrap(kind.step) is step:
                return kind
        return None

    def refusal(self, inspector):
        if not any(map(self.kind_of, self.watch.steps.optimizers)):
            names = dict.fromkeys(name for name, _ in self.watch.steps.optimizers.values())
            return f"its optimizers ({', '.join(names)}) have no {self.lacks}"
        return super().refusal(inspector) or self.ignored()

    def ignored(self):
        """Return which type or option of an optimizer its form does not take, or ""."""
        for optimizer in filter(self.kind_of, self.watch.steps.optimizers):
            types = self.types & {p.dtype for p in parameters_of(optimizer.param_groups)}
            if types:
                return f"the {self.lacks} has no parameters of {' and '.join(map(str, types))}"

            kind = self.kind_of(optimizer)
            options = inspect.signature(kind).parameters
            honoured = f"params {self.forms[kind]}".split()
            for name in sorted(options.keys() - honoured):
                default = options[name].default
                if any(group.get(name, default) != default for group in optimizer.param_groups):
                    return f"the {self.lacks} of {kind.__name__} ignores {name}"
        return ""

    def optimizer_made(self, optimizer):
        if self.kind_of(optimizer):
            if self.ignored():
                raise Ended(self.ignored(), "unsupported")
            self.convert(optimizer)
            self.reason = ""

    def convert(self, optimizer):
        """Give an optimizer its form."""

    def problem(self, products):
        return super().problem(products) or self.ignored()


class FusedOptimizer(OptimizerSwitch):
    """Let the optimizer update all parameters in one kernel."""

    name = "fused_optimizer"
    already = "fused"
    changes = [
        Change(kind.__name__, arguments={"fused": "True"}, excluded=("foreach",)) for kind in FUSED
    ]
    forms = FUSED
    lacks = "fused form"

    def convert(self, optimizer):
        for options in (optimizer.defaults, *optimizer.param_groups):
            options["fused"] = True
            options["foreach"] = False
        optimizer._step_supports_amp_scaling = True

    def problem(self, products):
        if not any(group.get("fused") for group in self.watch.groups()):
            self.reason = self.reason or "a checkpoint of the optimizer replaces it"
        return super().problem(products)


class EightBitOptimizer(OptimizerSwitch):
    """Keep the moments of Adam and AdamW in 8 bits, with optimizers from bitsandbytes."""

    name = "8bit_optimizer"
    needs = ("bitsandbytes",)
    changes = [
        Change(
            kind.__name__,
            function=f"bitsandbytes.optim.{kind.__name__}8bit",
            excluded=inspect.signature(kind).parameters.keys() - KEPT_BY_EIGHT_BIT,
            imports=("bitsandbytes",),
        )
        for kind in EIGHT_BIT
    ]
    forms = EIGHT_BIT
    lacks = "form of 8 bits"
    types = {torch.float64, torch.complex64, torch.complex128}

    def kind_of(self, optimizer):
        kind = getattr(optimizer, "replaced_class", type(optimizer))
        return kind if kind in EIGHT_BIT else None

    @unwatched
    def convert(self, optimizer):
        import bitsandbytes  # noqa: PLC0415  (an optional package)

        kind = type(optimizer)
        form = getattr(bitsandbytes.optim, f"{kind.__name__}8bit")
        defaults = optimizer.defaults
        honoured = {name: defaults[name] for name in KEPT_BY_EIGHT_BIT & defaults.keys()}
        made = form(optimizer.param_groups, **honoured)
        # The other options are kept, to be checked, also in groups that are added.
        made.defaults = defaults | made.defaults
        vars(optimizer).update(vars(made))
        optimizer.__class__ = type(kind.__name__, (form, kind), {"replaced_class": kind})


class CudnnBenchmark(Switch):
    """Let cuDNN try its algorithms for each shape of a convolution, and keep the fastest.

    Gains: time if shapes stay the same
    Costs: seconds for each new shape
    See: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "cudnn_benchmark"
    already = "cudnn_benchmark"
    changes = (Change(START, "torch.backends.cudnn.benchmark = True"),)

    def refusal(self, inspector):
        if inspector.device != "cuda":
            return "cuDNN runs on NVIDIA GPUs"
        if not has_convolution(inspector.modules):
            return "has no convolution"
        return super().refusal(inspector)

    def start(self):
        torch.backends.cudnn.benchmark = True
        self.reason = ""


class PrefetchingLoader(Switch):
    """Let two workers prepare batches, for a GPU in pinned memory."""

    name = "prefetching_loader"
    already = "workers"

    @property
    def changes(self):
        arguments = {"num_workers": "2", "persistent_workers": "True"}
        if device_choice.has_cuda():
            arguments["pin_memory"] = "True"
        return (Change("DataLoader", arguments=arguments, imports=()),)

    def refusal(self, inspector):
        if not inspector.loaders:
            return "has no DataLoader"
        if all(loader.iterable for loader in inspector.loaders):
            return "each of two workers would yield all samples of an IterableDataset"
        return super().refusal(inspector)

    def start(self):
        replace(data.DataLoader, "__init__", self._made)
        if device_choice.has_cuda():
            replace(torch.Tensor, "to", self._copied)
            replace(torch.Tensor, "cuda", self._copied)

    def _made(self, usual, loader, dataset, *args, **kwargs):
        if takes_workers(dataset, args, kwargs):
            kwargs["num_workers"] = 2
            kwargs["persistent_workers"] = True
            kwargs["multiprocessing_context"] = "fork"
            if device_choice.has_cuda():
                kwargs["pin_memory"] = True
            self.reason = ""
        usual(loader, dataset, *args, **kwargs)

    def _copied(self, usual, tensor, *args, **kwargs):
        """Copy a tensor, without waiting for the copy if it is from pinned memory."""
        if len(args) < 2 and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)  # has no effect on copies within the host
        return usual(tensor, *args, **kwargs)


def takes_workers(dataset, args, kwargs):
    """Return whether a loader with these arguments can have workers, and sets none."""
    set_options = {name for name, value in kwargs.items() if value}
    is_set = len(args) > 4 or not set_options <= {*OF_LOADER.split()}
    return not is_set and not isinstance(dataset, data.IterableDataset)


def has_convolution(modules):
    return any(isinstance(module, torch.nn.Conv2d) for module in modules)
