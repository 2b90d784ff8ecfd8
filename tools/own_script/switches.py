"""Techniques as switches: here those on torch's settings, on optimizers and on loaders.

A switch enables a technique from outside a script, when a model, an optimizer or a loader is
created or first used.
"""

import sys

import torch
from torch.utils import data

from tools.own_script.watch import replace
from Utils.device import device_choice

SWITCHES = {}  # classes by technique
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)


class Switch:
    """One technique. A script of the same name, if there is one, states its gains and costs.

    name: the technique. needs: names of checks in `Utils.device.capabilities`. already: key of
    `Look.in_script`. lines: pairs (code to add to a script, position, a key of `sites` in look.py).
    reason: why it has no effect; "" once it has one.
    """

    name = ""
    needs = ()
    already = ""
    lines = ()

    def __init_subclass__(cls):
        SWITCHES[cls.name] = cls

    def __init__(self, watch):
        self.watch = watch
        self.reason = "nothing that it applies to was made or called"

    def refusal(self, look):
        """Return why it cannot be enabled on the script of a Look, or ""."""
        if self.already not in look.in_script:
            return ""
        site = look.in_script[self.already]
        return "already in your script" + (f" ({site})" if site else "")

    def start(self):
        """Enable it before the script begins."""

    def optimizer_made(self, optimizer):
        """Enable it on an optimizer."""

    def model_called(self, module, method):
        """Enable it on a model before its first call. method: its name, None if it is __call__."""


class TensorFloat32(Switch):
    """Multiply float32 matrices as TF32 on tensor cores, by a setting of torch."""

    name = "tensorFloat32"
    needs = ("tf32",)
    already = "tf32"
    lines = [('torch.set_float32_matmul_precision("high")', "start")]

    def start(self):
        torch.set_float32_matmul_precision("high")
        self.reason = ""


class FusedOptimizer(Switch):
    """Let the optimizer update all parameters in one kernel."""

    name = "fused_optimizer"
    already = "fused"
    lines = [("fused=True,  # an argument of the optimizer", "optimizer")]

    def refusal(self, look):
        if {kind.__name__ for kind in FUSED} & {*look.optimizers}:
            return super().refusal(look)
        return f"its optimizers ({', '.join(look.optimizers)}) have no fused form"

    def optimizer_made(self, optimizer):
        groups = optimizer.param_groups
        has_fused_form = type(optimizer).step in {kind.step for kind in FUSED}
        is_set = any(group.get("fused") or group.get("differentiable") for group in groups)
        if not has_fused_form or is_set:
            return

        for options in (optimizer.defaults, *groups):
            options["fused"] = True
            options["foreach"] = False
        optimizer._step_supports_amp_scaling = True
        self.reason = ""


class EightBitOptimizer(Switch):
    """Keep the moments of Adam and AdamW in 8 bits, with optimizers from bitsandbytes."""

    name = "8bit_optimizer"
    needs = ("bitsandbytes",)
    lines = [("bitsandbytes.optim.AdamW8bit(...)  # in place of torch.optim.AdamW", "optimizer")]

    def refusal(self, look):
        if {"Adam", "AdamW"} & {*look.optimizers}:
            return ""
        return f"its optimizers ({', '.join(look.optimizers)}) have no form of 8 bits"

    def start(self):
        import bitsandbytes  # noqa: PLC0415  (an optional package)

        switch = self
        unknown = {"fused", "foreach", "capturable", "maximize", "differentiable"}
        for name in ("AdamW", "Adam"):

            class Replaced(getattr(bitsandbytes.optim, f"{name}8bit")):
                def __init__(self, params, *args, **kwargs):
                    accepted = {name: x for name, x in kwargs.items() if name not in unknown}
                    super().__init__(params, *args, **accepted)
                    switch.reason = ""

            Replaced.__name__ = name
            setattr(torch.optim, name, Replaced)
            setattr(sys.modules[f"torch.optim.{name.lower()}"], name, Replaced)


class CudnnBenchmark(Switch):
    """Let cuDNN try its algorithms for each shape of a convolution, and keep the fastest.

    Gains: time if shapes stay the same
    Costs: seconds for each new shape
    See: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "cudnn_benchmark"
    already = "cudnn_benchmark"
    lines = [("torch.backends.cudnn.benchmark = True", "start")]

    def refusal(self, look):
        if look.device != "cuda":
            return "cuDNN runs on NVIDIA GPUs"
        return super().refusal(look) if has_convolution(look.modules) else "has no convolution"

    def start(self):
        torch.backends.cudnn.benchmark = True
        self.reason = ""


class PrefetchingLoader(Switch):
    """Let two workers prepare batches, for a GPU in pinned memory."""

    name = "prefetching_loader"
    already = "workers"
    lines = [("num_workers=2, pin_memory=True, persistent_workers=True,", "loader")]

    def refusal(self, look):
        loaders = look.loaders.values()
        if not loaders:
            return "has no DataLoader"
        if all(loader.iterable for loader in loaders):
            return "each of two workers would yield all samples of an IterableDataset"
        if any(loader.on_device for loader in loaders):
            return "its samples lie on the device, which forked workers cannot use"
        return super().refusal(look)

    def start(self):
        replace(data.DataLoader, "__init__", self._made)
        if device_choice.has_cuda():
            replace(torch.Tensor, "to", self._copied)
            replace(torch.Tensor, "cuda", self._copied)

    def _made(self, usual, loader, dataset, *args, **kwargs):
        is_set = len(args) > 4 or kwargs.get("num_workers") or kwargs.get("multiprocessing_context")
        if not is_set and not isinstance(dataset, data.IterableDataset):
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


def has_convolution(modules):
    return any(isinstance(module, torch.nn.Conv2d) for module in modules)
