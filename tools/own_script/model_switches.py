"""The switches on models: precision, compilation, attention, recomputation, convolution."""

import os

import torch
from torch.utils._pytree import tree_map, tree_map_only

from tools.own_script.changes import Change
from tools.own_script.models import parameters_of
from tools.own_script.replaced import InPlace, unwatched
from tools.own_script.switches import CONVOLUTION, Switch, has_convolution
from tools.own_script.user_code import Ended
from Utils.harness import run_record

BY_HAND = 'with torch.autocast("{device}", torch.bfloat16): ...  # the model and the loss'
# What a script gets for its models under autocast.
AUTOCAST = '''def autocast_method(model, name, device):
    """Run a method of a model under autocast to bfloat16; its outputs return to float32."""
    method = getattr(type(model), name)

    @functools.wraps(method)
    def autocast(self, *args, **kwargs):
        with torch.autocast(device, torch.bfloat16):
            output = method(self, *args, **kwargs)
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda x: x.float() if x.dtype == torch.bfloat16 else x, output
        )

    setattr(model, name, autocast.__get__(model))'''
BACKEND = os.environ.get("COMPILE_BACKEND", "inductor")  # tests set a faster one


class BrainFloat16(Switch):
    """Run the forward of each model under autocast to bfloat16; its outputs return to float32."""

    name = "brainFloat16"
    needs = ("bfloat16",)
    already = "autocast"
    on_models = True
    dtype = torch.bfloat16
    changes = (
        Change(
            "model",
            code='autocast_method({model}, "{method}", "{device}")',
            helper=AUTOCAST,
            words=BY_HAND,
        ),
    )

    def obstacle(self, inspector):
        types = {"float32", "tf32", CONVOLUTION} | {"float16", "bfloat16"} - {type_name(self.dtype)}
        return self.no_effect(inspector.products, types)

    def problem(self, products):
        problem = super().problem(products)
        run, base = products
        if problem or run is None or base is None:
            return problem
        name = type_name(self.dtype)
        return "" if run[name] > base.get(name, 0) else self.no_effect(run, {""})

    def model_called(self, module, method):
        device = next(module.parameters()).device.type
        models = self.watch.models
        forward = getattr(module, method) if method else models.implementation(module)

        def cast(*args, **kwargs):
            with torch.autocast(device, self.dtype):
                output = forward(*args, **kwargs)
            self.reason = ""
            return tree_map(in_float32, output)

        if method:
            InPlace(module, method, cast)
        else:
            models.replace(module, cast)
        self.reason = "its model is called inside a compiled function"


class Float16(BrainFloat16):
    """Run the forward of each model under autocast to float16, and scale the loss.

    Gradients are unscaled right after each backward, so clipping and logging need no change.
    Several optimizers share the scale. A step whose gradients overflow is skipped, and the scale is
    halved.

    Gains: time, memory
    Costs: 10 bits of mantissa and a small range; steps that overflow are lost.
    See: https://docs.pytorch.org/docs/stable/amp.html
    """

    name = "float16"
    needs = ("float16",)
    dtype = torch.float16
    kept = ()

    changes = ()
    lines = (
        "with torch.autocast(device, torch.float16): ...  # the forward and the loss",
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()  # a GradScaler",
    )

    def obstacle(self, inspector):
        if self.watch.own_scaler:
            return "already in your script: a GradScaler"
        if self.watch.used_closure:
            return "its optimizer calls a closure, in which a loss scale would have to be kept"
        return super().obstacle(inspector)

    def model_called(self, module, method):
        super().model_called(module, method)
        if self.watch.loss_scale is None:
            self.scaler = torch.amp.GradScaler(next(module.parameters()).device.type)
            self.watch.loss_scale = self

    @unwatched
    def scaled(self, losses):
        """Return losses times the scale. Scale earlier gradients too: backward adds to them."""
        if self.watch.steps.running:
            raise Ended("backward runs inside the optimizer's step", "unsupported")
        parameters = self.watch.parameters()
        scale = self.scaler.scale(torch.ones((), device=parameters[0].device))
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, scale)
        self.scaler.update(scale)  # the same scale: it forgets that gradients were unscaled
        return self.scaler.scale(losses)

    @unwatched
    def unscale(self):
        for optimizer in self.watch.steps.optimizers:
            self.scaler.unscale_(optimizer)

    @unwatched
    def step_begins(self, optimizer):
        """Skip the step after an overflow: parameters without a gradient are not updated."""
        for overflow in self.scaler._found_inf_per_device(optimizer).values():
            if all(group.get("fused") for group in optimizer.param_groups):
                optimizer.found_inf = overflow  # its kernel reads it: the host does not wait
            elif overflow:
                self.kept = [(p, p.grad) for p in parameters_of(optimizer.param_groups)]
                for p, _ in self.kept:
                    p.grad = None

    def step_ended(self):
        for p, gradient in self.kept:
            p.grad = gradient
        self.kept = ()

    @unwatched
    def iteration_ended(self):
        if any(map(self.scaler._found_inf_per_device, self.watch.steps.optimizers)):
            self.scaler.update()


class TorchCompile(Switch):
    """Compile the forward of each model, so that its parameters keep their names."""

    name = "torch_compile"
    needs = ("compile",)
    already = "compiled"
    on_models = True
    mode = None
    options = ""

    @property
    def changes(self):
        is_called = Change("called model", f"{{model}}.compile({self.options})")
        options = ", ".join(filter(None, ["{model}.{method}", self.options]))
        return is_called, Change("method", f"{{model}}.{{method}} = torch.compile({options})")

    def model_called(self, module, method):
        name = method or "forward"
        options = {"mode": self.mode} if BACKEND == "inductor" else {}
        InPlace(module, name, torch.compile(getattr(module, name), backend=BACKEND, **options))
        self.reason = "torch.compile found nothing to compile"

    def problem(self, products):
        return "" if run_record.compiled_graphs() else super().problem(products)


class CudaGraphs(TorchCompile):
    """Compile the forward of each model, and replay its kernels as CUDA graphs."""

    name = "cuda_graphs"
    needs = ("compile", "cuda_graphs")
    mode = "reduce-overhead"
    options = 'mode="reduce-overhead"'


class FlashAttention(Switch):
    """Let a transformers model compute attention by scaled_dot_product_attention."""

    name = "flash_attention"
    changes = (Change("transformer", '{model}{child}.set_attn_implementation("sdpa")'),)

    def obstacle(self, inspector):
        implementations = {*map(attention_of, inspector.modules)}
        if "eager" in implementations:
            return ""
        if "sdpa" in inspector.places or "sdpa" in implementations:
            return "already in your script: it calls scaled_dot_product_attention"
        if inspector.products is not None and not inspector.attention:
            return "it has no attention"
        return "needs an edit: replace the attention by scaled_dot_product_attention"

    def model_called(self, module, method):
        for child in module.modules():
            if attention_of(child) == "eager":
                child.set_attn_implementation("sdpa")
                self.reason = ""


def attention_of(module):
    """Return how a transformers model computes attention, "" for another module."""
    return getattr(module.config, "_attn_implementation", "") if is_transformers(module) else ""


class GradientCheckpointing(Switch):
    """Let a transformers model recompute activations in the backward, layer by layer."""

    name = "gradient_checkpointing"
    already = "checkpointing"
    changes = (
        Change(
            "transformer",
            "{model}{child}.gradient_checkpointing_enable(\n"
            '    gradient_checkpointing_kwargs={{"use_reentrant": False}}\n)',
        ),
    )

    def obstacle(self, inspector):
        if any(map(is_transformers, inspector.modules)):
            return ""
        return "needs a model of transformers; in another one it is an edit"

    def model_called(self, module, method):
        for child in module.modules():
            if is_transformers(child) and child.supports_gradient_checkpointing:
                options = {"use_reentrant": False}
                child.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
                self.reason = ""
                return


class ChannelsLast(Switch):
    """Store images and filters of convolutions with their channels last, as tensor cores read them.

    Gains: time, mostly in 16 bits
    Costs: nothing
    See: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    name = "channels_last"
    on_models = True
    changes = (Change("model", "{model}.to(memory_format=torch.channels_last)"),)

    def obstacle(self, inspector):
        return "" if has_convolution(inspector.modules) else "the model has no Conv2d"

    def model_called(self, module, method):
        if not has_convolution(module.modules()):
            return
        module.to(memory_format=torch.channels_last)
        module.register_forward_pre_hook(_images_last, with_kwargs=True)
        self.reason = ""


def _images_last(module, args, kwargs):
    def last(x):
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x

    return tree_map_only(torch.Tensor, last, (args, kwargs))


def type_name(dtype):
    return str(dtype).removeprefix("torch.")


def is_transformers(module):
    return hasattr(module, "config") and hasattr(module, "set_attn_implementation")


def in_float32(leaf):
    """Return a part of a model's output with 16-bit tensors in float32, for tree_map.

    With gradients enabled, tensors without a gradient stay in 16 bits.
    """
    if isinstance(leaf, dict):  # a class that pytree does not know
        leaf.update(tree_map(in_float32, dict(leaf)))
    if not torch.is_tensor(leaf) or leaf.dtype not in (torch.bfloat16, torch.float16):
        return leaf
    return leaf.float() if leaf.requires_grad or not torch.is_grad_enabled() else leaf
