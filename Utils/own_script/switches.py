"""The switches but float16: precision, compilation, attention, optimizer, memory, convolution and
loader."""

import os
import sys

import torch
from torch import nn
from torch.utils import data

from Utils.device import device_choice
from Utils.harness import compile_stats
from Utils.own_script.switch import InPlace, Switch, in_float32, is_transformers
from Utils.own_script.watch import replace

BACKEND = os.environ.get("COMPILE_BACKEND", "inductor")  # tests set a faster one
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)


class TensorFloat32(Switch):
    """Multiply float32 matrices as TF32 on tensor cores, by a setting of torch.

    Needs: tf32
    Gains: time
    Costs: 10 bits of mantissa in matrix products.
    See: https://docs.pytorch.org/docs/stable/notes/cuda.html
    """

    name = "tensorFloat32"
    already = "tf32"
    lines = [('torch.set_float32_matmul_precision("high")', "start")]

    def start(self):
        torch.set_float32_matmul_precision("high")
        self.took_effect()


class BrainFloat16(Switch):
    """Run the forward of each model under autocast to bfloat16. Its outputs return to float32, so
    the loss and all that follows is computed as before.

    Needs: bfloat16
    Gains: time, memory
    Costs: 8 bits of mantissa in matrix products.
    See: https://docs.pytorch.org/docs/stable/amp.html
    """

    name = "brainFloat16"
    already = "autocast"
    lines = [('with torch.autocast("{device}", torch.bfloat16):  # around the forward', "call")]
    dtype = torch.bfloat16

    def model_called(self, module, method):
        device = next(module.parameters()).device.type

        def under_autocast(forward):
            def cast(*args, **kwargs):
                with torch.autocast(device, self.dtype):
                    output = forward(*args, **kwargs)
                self.took_effect()
                return in_float32(output)

            return cast

        if method:
            InPlace(module, method, under_autocast(getattr(module, method)))
        else:
            self.watch.calls.wrap(module, under_autocast)
        self.reason = "its model is called inside a compiled function"


class TorchCompile(Switch):
    """Compile the forward of each model. The names of its parameters stay, unlike with
    `torch.compile(model)`, which puts `_orig_mod.` in front of them.

    Needs: compile
    Gains: time, memory
    Costs: minutes before the first step.
    See: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """

    name = "torch_compile"
    already = "compiled"
    lines = [("model.forward = torch.compile(model.forward)", "before the call")]
    mode = None

    def model_called(self, module, method):
        name = method or "forward"
        options = {"mode": self.mode} if BACKEND == "inductor" else {}
        InPlace(module, name, torch.compile(getattr(module, name), backend=BACKEND, **options))
        self.reason = "torch.compile found nothing to compile"

    def end(self):
        if compile_stats.compiled_graphs():
            self.took_effect()


class CudaGraphs(TorchCompile):
    """Compile the forward of each model, and replay its kernels as CUDA graphs.

    Needs: compile, cuda_graphs
    Gains: time where the host cannot launch kernels as fast as the GPU runs them
    Costs: memory for the graphs; a model that is called several times a step may fail.
    See: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
    """

    name = "cuda_graphs"
    mode = "reduce-overhead"
    lines = [(f'model.forward = torch.compile(model.forward, mode="{mode}")', "before the call")]

    def refusal(self, look):
        several = look.watch.calls_per_step > 1
        reason = "the model is called several times a step, whose outputs CUDA graphs overwrite"
        return super().refusal(look) or reason * several


class FlashAttention(Switch):
    """Let a model of transformers compute attention by scaled_dot_product_attention.

    Needs: nothing
    Gains: time, memory
    Costs: nothing
    See: https://huggingface.co/docs/transformers/attention_interface
    """

    name = "flash_attention"
    lines = [('model.set_attn_implementation("sdpa")', "before the call")]

    def refusal(self, look):
        if any(map(eager_attention, look.modules)):
            return ""
        if look.sdpa:
            return "already in your script: it calls scaled_dot_product_attention"
        return "needs an edit: replace the attention by scaled_dot_product_attention"

    def model_called(self, module, method):
        for child in module.modules():
            if eager_attention(child):
                child.set_attn_implementation("sdpa")
                self.took_effect()


def eager_attention(module):
    config = getattr(module, "config", None)
    eager = getattr(config, "_attn_implementation", None) == "eager"
    return eager and is_transformers(module)


class FusedOptimizer(Switch):
    """Let the optimizer update all parameters in one kernel.

    Needs: nothing
    Gains: time
    Costs: nothing
    See: https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
    """

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
        self.took_effect()


class EightBitOptimizer(Switch):
    """Keep the moments of Adam and AdamW in 8 bits, by optimizers of bitsandbytes.

    Needs: bitsandbytes
    Gains: memory
    Costs: time on most GPUs; moments are rounded to 8 bits.
    See: https://huggingface.co/docs/bitsandbytes/optimizers
    """

    name = "8bit_optimizer"
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
                    known = {name: x for name, x in kwargs.items() if name not in unknown}
                    super().__init__(params, *args, **known)
                    switch.took_effect()

            Replaced.__name__ = name
            setattr(torch.optim, name, Replaced)
            setattr(sys.modules[f"torch.optim.{name.lower()}"], name, Replaced)


class GradientCheckpointing(Switch):
    """Let a model of transformers keep the inputs of its layers alone, and compute their
    activations again in the backward.

    Needs: nothing
    Gains: memory
    Costs: a second forward
    See: https://huggingface.co/docs/transformers/perf_train_gpu_one
    """

    name = "gradient_checkpointing"
    already = "checkpointing"
    lines = [("model.gradient_checkpointing_enable()", "before the call")]

    def refusal(self, look):
        if any(map(is_transformers, look.modules)):
            return super().refusal(look)
        return "needs a model of transformers; in another one it is an edit"

    def model_called(self, module, method):
        for child in module.modules():
            if is_transformers(child) and child.supports_gradient_checkpointing:
                options = {"use_reentrant": False}
                child.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
                self.took_effect()
                return


class ChannelsLast(Switch):
    """Store images and filters of convolutions with their channels last, as tensor cores read them.

    Needs: nothing
    Gains: time, mostly in 16 bits
    Costs: nothing
    See: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    name = "channels_last"
    lines = [("model.to(memory_format=torch.channels_last)  # images too", "before the call")]

    def refusal(self, look):
        return "" if has_convolution(look.modules) else "the model has no Conv2d"

    def model_called(self, module, method):
        if not has_convolution(module.modules()):
            return
        module.to(memory_format=torch.channels_last)
        module.register_forward_pre_hook(_images_last, with_kwargs=True)
        self.took_effect()


def _images_last(module, args, kwargs):
    def last(value):
        images = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if images else value

    return tuple(map(last, args)), {name: last(value) for name, value in kwargs.items()}


def has_convolution(modules):
    return any(isinstance(module, nn.Conv2d) for module in modules)


class CudnnBenchmark(Switch):
    """Let cuDNN try its algorithms for each shape of a convolution, and keep the fastest.

    Needs: nothing
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
        self.took_effect()


class PrefetchingLoader(Switch):
    """Let two workers prepare the batches of a DataLoader, in pinned memory on a GPU, from which
    copies to it do not wait.

    Needs: nothing
    Gains: time where the script waits for its batches
    Costs: two processes; transforms that draw at random draw other numbers.
    See: https://docs.pytorch.org/docs/stable/data.html
    """

    name = "prefetching_loader"
    already = "workers"
    lines = [("num_workers=2, pin_memory=True, persistent_workers=True,", "loader")]

    def refusal(self, look):
        loaders = look.loaders.values()
        if not loaders:
            return "has no DataLoader"
        if look.has("workers"):
            return look.has("workers")
        if all(loader.iterable for loader in loaders):
            return "each of two workers would yield all samples of an IterableDataset"
        if any(loader.on_device for loader in loaders):
            return "its samples lie on the device, which forked workers cannot use"
        return ""

    def start(self):
        replace(data.DataLoader, "__init__", self._made)
        if device_choice.has_cuda():
            replace(torch.Tensor, "to", self._copied)
            replace(torch.Tensor, "cuda", self._copied)

    def _made(self, usual, loader, dataset, *args, **kwargs):
        asked = len(args) > 4 or kwargs.get("num_workers") or kwargs.get("multiprocessing_context")
        if not asked and not isinstance(dataset, data.IterableDataset):
            kwargs["num_workers"] = 2
            kwargs["persistent_workers"] = True
            kwargs["multiprocessing_context"] = "fork"
            if device_choice.has_cuda():
                kwargs["pin_memory"] = True
            self.took_effect()
        usual(loader, dataset, *args, **kwargs)

    def _copied(self, usual, tensor, *args, **kwargs):
        """Copy a tensor; one from pinned memory to a GPU without waiting for it."""
        to_gpu = usual.__name__ == "cuda" or any(
            str(target).startswith("cuda") or isinstance(target, int)
            for target in (*args[:1], kwargs.get("device"))
        )
        waits = "non_blocking" not in kwargs and len(args) < 2
        if to_gpu and waits and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs["non_blocking"] = True
        return usual(tensor, *args, **kwargs)
