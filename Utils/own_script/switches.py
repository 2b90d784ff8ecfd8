"""The switches of precision, compilation, attention, optimizer, memory and convolution."""

import os
import sys

import torch
from torch import nn

from Utils.harness import compile_stats
from Utils.own_script.switch import InPlace, Switch, in_float32, is_transformers

BACKEND = os.environ.get("COMPILE_BACKEND", "inductor")  # tests set a faster one
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)
NOT_TRANSFORMERS = "needs a model of transformers; in another one it is an edit"


class TensorFloat32(Switch):
    """Multiply float32 matrices as TF32 on tensor cores, by a setting of torch.

    Needs: tf32
    Gains: time
    Costs: 10 bits of mantissa in matrix products.
    See: https://docs.pytorch.org/docs/stable/notes/cuda.html
    """

    name = "tensorFloat32"

    @classmethod
    def refusal(cls, seen):
        return seen.has("tf32")

    @classmethod
    def lines(cls, seen):
        return [('torch.set_float32_matmul_precision("high")', "before the model is made")]

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
    dtype = torch.bfloat16

    @classmethod
    def refusal(cls, seen):
        return seen.has("autocast")

    @classmethod
    def lines(cls, seen):
        code = f'with torch.autocast("{seen.device}", {cls.dtype}):  # around the forward'
        return [(code, model.site) for model in seen.models]

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
    mode = None

    @classmethod
    def refusal(cls, seen):
        return seen.has("compiled")

    @classmethod
    def lines(cls, seen):
        mode = f', mode="{cls.mode}"' if cls.mode else ""
        code = f"model.forward = torch.compile(model.forward{mode})"
        return [(code, f"before {model.site}") for model in seen.models]

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
    replaces = ("torch_compile",)
    mode = "reduce-overhead"

    @classmethod
    def refusal(cls, seen):
        called = seen.calls_per_step > 1
        reason = "the model is called several times a step, whose outputs CUDA graphs overwrite"
        return seen.has("compiled") or reason * called


class FlashAttention(Switch):
    """Let a model of transformers compute attention by scaled_dot_product_attention.

    Needs: nothing
    Gains: time, memory
    Costs: nothing
    See: https://huggingface.co/docs/transformers/attention_interface
    """

    name = "flash_attention"

    @classmethod
    def refusal(cls, seen):
        if seen.eager_attention:
            return ""
        if seen.sdpa:
            return "already in your script: it calls scaled_dot_product_attention"
        return "needs an edit: replace the attention by scaled_dot_product_attention"

    @classmethod
    def lines(cls, seen):
        return [('model.set_attn_implementation("sdpa")', f"before {m.site}") for m in seen.models]

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

    @classmethod
    def refusal(cls, seen):
        names = {kind.__name__ for kind in FUSED}
        fitting = names.intersection(seen.optimizers)
        none = f"its optimizers ({', '.join(seen.optimizers)}) have no fused form"
        return seen.has("fused") or ("" if fitting else none)

    @classmethod
    def lines(cls, seen):
        return [("fused=True,  # an argument of the optimizer", site) for site in seen.made_at]

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
    replaces = ("fused_optimizer",)

    @classmethod
    def refusal(cls, seen):
        if {"Adam", "AdamW"} & set(seen.optimizers):
            return ""
        return f"its optimizers ({', '.join(seen.optimizers)}) have no form of 8 bits"

    @classmethod
    def lines(cls, seen):
        code = "bitsandbytes.optim.AdamW8bit(...)  # in place of torch.optim.AdamW"
        return [(code, site) for site in seen.made_at]

    def start(self):
        import bitsandbytes  # optional

        for name in ("AdamW", "Adam"):
            usual = getattr(torch.optim, name)
            eight_bit = self._class(usual, getattr(bitsandbytes.optim, f"{name}8bit"))
            setattr(torch.optim, name, eight_bit)
            setattr(sys.modules[f"torch.optim.{name.lower()}"], name, eight_bit)

    def _class(self, usual, eight_bit):
        switch = self
        unknown = {"fused", "foreach", "capturable", "maximize", "differentiable"}

        class Replaced(eight_bit):
            def __init__(self, params, *args, **kwargs):
                known = {name: x for name, x in kwargs.items() if name not in unknown}
                super().__init__(params, *args, **known)
                switch.took_effect()

        Replaced.__name__ = usual.__name__
        return Replaced


class GradientCheckpointing(Switch):
    """Let a model of transformers keep the inputs of its layers alone, and compute their
    activations again in the backward.

    Needs: nothing
    Gains: memory
    Costs: a second forward
    See: https://huggingface.co/docs/transformers/perf_train_gpu_one
    """

    name = "gradient_checkpointing"

    @classmethod
    def refusal(cls, seen):
        return seen.has("checkpointing") or ("" if seen.transformers else NOT_TRANSFORMERS)

    @classmethod
    def lines(cls, seen):
        return [("model.gradient_checkpointing_enable()", f"before {m.site}") for m in seen.models]

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

    @classmethod
    def refusal(cls, seen):
        return "" if seen.convolution else "the model has no Conv2d"

    @classmethod
    def lines(cls, seen):
        code = "model.to(memory_format=torch.channels_last)  # and the images too"
        return [(code, f"before {model.site}") for model in seen.models]

    def model_called(self, module, method):
        if not any(isinstance(child, nn.Conv2d) for child in module.modules()):
            return
        module.to(memory_format=torch.channels_last)
        module.register_forward_pre_hook(_images_last, with_kwargs=True)
        self.took_effect()


def _images_last(module, args, kwargs):
    def last(value):
        images = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if images else value

    return tuple(map(last, args)), {name: last(value) for name, value in kwargs.items()}


class CudnnBenchmark(Switch):
    """Let cuDNN try its algorithms for each shape of a convolution, and keep the fastest.

    Needs: nothing
    Gains: time where shapes stay the same
    Costs: seconds for each new shape
    See: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "cudnn_benchmark"

    @classmethod
    def refusal(cls, seen):
        if seen.device != "cuda":
            return "cuDNN runs on NVIDIA GPUs"
        return seen.has("cudnn_benchmark") or ("" if seen.convolution else "has no convolution")

    @classmethod
    def lines(cls, seen):
        return [("torch.backends.cudnn.benchmark = True", "before the model is made")]

    def start(self):
        torch.backends.cudnn.benchmark = True
        self.took_effect()
