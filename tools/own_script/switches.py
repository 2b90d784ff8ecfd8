"""Techniques as switches: here those on torch's settings and on optimizers.

A switch enables a technique from outside a script, when a model or an optimizer is created or first
used.
"""

import inspect

import torch

from tools.own_script.changes import START, Change
from tools.own_script.user_code import Ended

SWITCHES = {}  # classes by technique
CONVOLUTION = "float32 of convolutions"  # not set by torch.set_float32_matmul_precision
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)
# Options that their fused forms honour; any other one has to be the default.
OF_FUSED = (
    "params lr betas eps weight_decay amsgrad maximize foreach fused capturable momentum dampening "
    "nesterov lr_decay initial_accumulator_value decoupled_weight_decay"
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


class FusedOptimizer(Switch):
    """Let the optimizer update all parameters in one kernel, which has to honour its options."""

    name = "fused_optimizer"
    already = "fused"
    changes = [
        Change(kind.__name__, argument=("fused", "True"), excluded=("foreach",)) for kind in FUSED
    ]

    def obstacle(self, inspector):
        optimizers = self.watch.steps.optimizers
        if any(map(fused_class, optimizers)):
            return self.ignored()
        names = dict.fromkeys(name for name, _ in optimizers.values())
        return f"its optimizers ({', '.join(names)}) have no fused form"

    def ignored(self):
        """Return which option of an optimizer its fused form ignores, or ""."""
        for optimizer in filter(fused_class, self.watch.steps.optimizers):
            kind = fused_class(optimizer)
            options = inspect.signature(kind).parameters
            for name in sorted(options.keys() - OF_FUSED.split()):
                default = options[name].default
                if any(group.get(name, default) != default for group in optimizer.param_groups):
                    return f"the fused form of {kind.__name__} ignores {name}"
        return ""

    def optimizer_made(self, optimizer):
        if not fused_class(optimizer):
            return
        if self.ignored():
            raise Ended(self.ignored(), "unsupported")
        for options in (optimizer.defaults, *optimizer.param_groups):
            options["fused"] = True
            options["foreach"] = False
        optimizer._step_supports_amp_scaling = True
        self.reason = ""

    def problem(self, products):
        if not any(group.get("fused") for group in self.watch.groups()):
            self.reason = self.reason or "a checkpoint of the optimizer replaces it"
        return super().problem(products) or self.ignored()


def fused_class(optimizer):
    """Return the class of FUSED whose step an optimizer takes, or None."""
    step = inspect.unwrap(type(optimizer).step)
    for kind in FUSED:
        if isinstance(optimizer, kind) and inspect.unwrap(kind.step) is step:
            return kind
    return None


class CudnnBenchmark(Switch):
    """Let cuDNN try its algorithms for each shape of a convolution, and keep the fastest.

    Gains: time if shapes stay the same
    Costs: seconds for each new shape
    See: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "cudnn_benchmark"
    already = "cudnn_benchmark"
    changes = (Change(START, "torch.backends.cudnn.benchmark = True"),)

    def obstacle(self, inspector):
        if inspector.device != "cuda":
            return "cuDNN runs on NVIDIA GPUs"
        return "" if has_convolution(inspector.modules) else "has no convolution"

    def start(self):
        torch.backends.cudnn.benchmark = True
        self.reason = ""


def has_convolution(modules):
    return any(isinstance(module, torch.nn.Conv2d) for module in modules)
