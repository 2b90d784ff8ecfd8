"""Techniques as switches; here those at torch's settings, an optimizer or a loader.

A switch is thrown from outside when a model, an optimizer or a loader is made or first used.
"""

import sys

import torch
from torch.utils import data

from tools.own_script.watch import replace
from Utils.device import device_choice

SWITCHES = {}  # classes, by the names of their techniques
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)


class Switch:
    """One technique. Its gains and costs are those of the script of its name, if there is one.

    name: of the technique. needs: of `Utils.device.capabilities`. already: key of `Look.in_script`.
    lines: to add to a script, pairs of the code and where, a key of `sites` in look.py. reason: why
    it has no effect; "" once it has.
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
        """Return why it cannot be thrown at the script of a Look, or ""."""
        if self.already not in look.in_script:
            return ""
        site = look.in_script[self.already]
        return "already in your script" + (f" ({site})" if site else "")

    def start(self):
        """Throw it before the script begins."""

    def optimizer_made(self, optimizer):
        """Throw it at an optimizer."""

    def model_called(self, module, method):
        """Throw it at a model before its first call, of a method, or of itself with None."""


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
        plain = type(optimizer).step in {kind.step for kind in FUSED}
        asked = any(group.get("fused") or group.get("differentiable") for group in groups)
        if not plain or asked:
            return
        for options in (optimizer.defaults, *groups):
            options["fused"] = True
            options["foreach"] = False
        optimizer._step_supports_amp_scaling = True
        self.reason = ""


class EightBitOptimizer(Switch):
    """Keep the moments of Adam and AdamW in 8 bits, by optimizers of bitsandbytes."""

    name = "8bit_optimizer"
    needs = ("bitsandbytes",)
    lines = [("bitsandbytes.optim.AdamW8bit(...)  # in place of torch.optim.AdamW", "optimizer")]

    def refusal(self, look):
        if {"Adam", "AdamW"} & {*look.optimizers}:
            return ""
        return f"its optimizers ({', '.join(look.optimizers)}) have no form of 8 bits"

    def start(self):
        import bitsandbytes  # optional

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

    Gains: time where shapes stay the same
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
        asked = len(args) > 4 or kwargs.get("num_workers") or kwargs.get("multiprocessing_context")
        if not asked and not isinstance(dataset, data.IterableDataset):
            kwargs |= {"num_workers": 2, "persistent_workers": True}
            kwargs |= {"multiprocessing_context": "fork"}
            if device_choice.has_cuda():
                kwargs["pin_memory"] = True
            self.reason = ""
        usual(loader, dataset, *args, **kwargs)

    def _copied(self, usual, tensor, *args, **kwargs):
        """Copy a tensor; one from pinned memory without waiting for it."""
        if len(args) < 2 and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)  # of no effect within the host
        return usual(tensor, *args, **kwargs)


def has_convolution(modules):
    return any(isinstance(module, torch.nn.Conv2d) for module in modules)
