"""A few steps of a script's own main, in this process."""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from Utils.data import TokenBatches
from Utils.harness.memory_kinds import GradientWatch
from Utils.harness.settings import parse_args
from Utils.run import Run

STEPS = 5


class Watch(contextlib.ExitStack):
    """A replacement for Run: keeps the model, its first weights, the last batch and the losses."""

    def __init__(self, args, model, optimizer):
        super().__init__()
        self.args = args
        self.model = model
        self.optimizer = optimizer
        self.logged = []
        self.first = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.gradients = GradientWatch(model)
        Watch.last = self

    def steps(self, batches):
        for step in range(STEPS):
            self.batch = batches[step]
            with self.gradients if step == 1 else contextlib.nullcontext():
                yield self.batch

    def log(self, loss):
        self.logged.append(loss)

    @property
    def losses(self):
        """The losses, read after the last step, as a run does."""
        return [float(loss) for loss in self.logged]


class NoSynchronization(TorchDispatchMode):
    """A mode that fails if a tensor is read, which would wait for a device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        reads = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        if function in reads:
            raise RuntimeError("the loop read a tensor")
        return function(*args, **(kwargs or {}))


def idle_steps(args, batches=TokenBatches):
    """Yield the Run of a script that trains nothing, once a step."""
    with Run(args, torch.nn.Identity(), None) as run:
        for _ in run.steps(batches(args)):
            yield run


def settle(script, folder, *flags):
    """Return a script's Settings for a tiny run.

    It has few tokens, as many CPUs emulate bfloat16.
    """
    usual_flags = [
        "--model=gpt2-tiny",
        "--dataset=synthetic",
        "--device=cpu",
        "--seq-len=16",
        f"--results-file={folder / 'results.csv'}",
    ]
    name = script.__name__.rpartition(".")[2]
    return parse_args(script.__doc__, [*usual_flags, *flags], name)


def train(script, args, compile=lambda model, **options: model):
    """Run a script's main and return its Watch.

    compile: the function that replaces torch.compile, or None to keep torch's.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "Run", Watch)
        if compile is not None:
            patch.setattr("torch.compile", compile)
        script.main(args)
    return Watch.last
