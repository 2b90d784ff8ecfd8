"""The operators of one step of a script: its matrix products by type."""

import re
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from Utils.harness import run_record

PRODUCT = re.compile("mm|mv|dot|conv|rnn|attention|linear")
CONVOLUTION = "float32 of convolutions"  # not set by torch.set_float32_matmul_precision


class OperatorWatch(TorchDispatchMode):
    """Observes the operators of the step after `first` steps.

    Compiled graphs would hide them, and are compiled anew if they are observed: then there is no
    such step. products: a Counter by type, None if no step was observed.
    """

    def __init__(self, watch, first):
        super().__init__()
        self.watch = watch
        self.first = first
        self.products = None
        self.is_active = False

    def begin_or_end(self):
        """Begin or end observing, if it is time, at the end of a step or before a model's call.

        Backward restores the modes that it began with, and a mode of the script may have to end
        before this one: within these the next call does it.
        """
        has_ended = self.products is not None and not self.is_active
        if has_ended or self.watch.calls.in_backward:
            return
        modes = _get_current_dispatch_mode_stack()
        is_time = self.watch.ended_iterations == self.first and self.products is None
        if is_time and not modes and not run_record.compiled_graphs():
            self.products = Counter()
            self.is_active = True
            self.__enter__()
        elif self.is_active and self.watch.ended_iterations > self.first and modes[-1:] == [self]:
            self.is_active = False
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        self.watch.observe("operators", self.called, operator, args, kwargs, result)
        return result

    def called(self, operator, args, kwargs, result):
        """Count an operator that is a product."""
        name = operator._schema.name
        is_library = not name.startswith(("aten::", "prims::", "prim::"))
        if not is_library and not PRODUCT.search(name.removeprefix("aten::")):
            return
        leaves = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        floats = [x for x in leaves if x.is_floating_point() or x.is_complex()]
        if floats:
            self.products[_type(name, floats[0])] += 1


def _type(name, tensor):
    """Return the type of a product, by its first operand."""
    if tensor.dtype != torch.float32:
        return str(tensor.dtype).removeprefix("torch.")
    if "conv" in name:
        return CONVOLUTION
    backend = torch.backends.mkldnn if tensor.is_cpu else torch.backends.cuda
    return "tf32" if backend.matmul.fp32_precision in ("tf32", "bf16") else "float32"
