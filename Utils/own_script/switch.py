"""A technique as a switch, thrown from outside when a model, an optimizer or a loader is made or
first used."""

import functools
import inspect

import torch

from Utils.scripts import ladder

SWITCHES = {}  # classes, by the names of their techniques


class Switch:
    """One technique. Its docstring has the facts that a script's has.

    name: of the technique. already: key of `Look.in_script`.
    lines: to add to a script, pairs of the code and where, a key of `Look.sites`.
    reason: why it has no effect; "" from the moment at which it took effect.
    """

    name = ""
    already = ""
    lines = ()

    def __init_subclass__(cls):
        SWITCHES[cls.name] = cls

    def __init__(self, watch):
        self.watch = watch
        self.reason = "nothing that it applies to was made or called"

    @property
    def needs(self):
        return ladder.facts(inspect.cleandoc(self.__doc__)).needs

    def refusal(self, look):
        """Return why it cannot be thrown at the script of a Look, or ""."""
        return look.has(self.already)

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
    elif isinstance(output, list | tuple):
        values = map(in_float32, output)
        return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)
    return output
