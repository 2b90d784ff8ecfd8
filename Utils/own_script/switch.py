"""A technique as a switch, thrown from outside when a model, an optimizer or a loader is made or
first used."""

import functools
import types

import torch

from Utils.scripts import ladder


class Ended(BaseException):
    """Ends the script: no `except Exception` catches it.

    status: of its rows. reason: of a run without timing.
    """

    def __init__(self, status="ok", reason=""):
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Switch:
    """One technique. Its docstring has the facts that a script's has.

    name: of the technique. replaces: names of techniques that it takes the place of.
    reason: why it has no effect; "" from the moment at which it took effect.
    """

    name = ""
    replaces = ()

    def __init__(self, watch):
        self.watch = watch
        self.reason = "nothing that it applies to was made or called"

    @classmethod
    def facts(cls):
        """Return the `ladder.Facts` of its docstring."""
        return ladder.facts("\n".join(line.strip() for line in cls.__doc__.splitlines()))

    @classmethod
    def refusal(cls, seen):
        """Return why it cannot be thrown at a script, or "". seen: `look.Seen`."""
        return ""

    @classmethod
    def lines(cls, seen):
        """Return the lines to add to the script, a list of (code, place)."""
        return []

    def start(self):
        """Throw it before the script begins."""

    def optimizer_made(self, optimizer):
        """Throw it at an optimizer."""

    def model_called(self, module, method):
        """Throw it at a model before its first call. method: name of the one by which it is called,
        None where the module itself is."""

    def end(self):
        """Judge after the last step whether it took effect."""

    def took_effect(self):
        self.reason = ""


class InPlace:
    """A callable in place of a method of one module. Copies and pickles of the module get their
    usual method."""

    def __init__(self, module, name, function):
        functools.update_wrapper(self, getattr(module, name))
        self.module = module
        self.name = name
        self.function = function
        setattr(module, name, self)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo):
        copied = memo[id(self.module)]
        return types.MethodType(getattr(type(copied), self.name), copied)

    def __reduce__(self):
        return getattr, (self.module, self.name)  # the module's copy has its class's alone


def is_transformers(module):
    return hasattr(module, "config") and hasattr(module, "set_attn_implementation")


def in_float32(output):
    """Return an output of a model with its 16-bit tensors in float32, where gradients flow to them
    or none are taken. Containers keep their types."""
    if isinstance(output, torch.Tensor):
        half = output.dtype in (torch.bfloat16, torch.float16)
        needed = output.requires_grad or not torch.is_grad_enabled()
        return output.float() if half and needed else output
    if isinstance(output, dict):  # one of transformers as well
        for key, value in output.items():
            output[key] = in_float32(value)
        return output
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*map(in_float32, output))
    if isinstance(output, list | tuple):
        return type(output)(map(in_float32, output))
    return output
