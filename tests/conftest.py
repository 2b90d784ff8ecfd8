"""Fixtures of all tests."""

import importlib
import os
import signal
from functools import partial
from unittest import mock

import pytest
import torch

import no_optimization
from tests.helpers import watched
from Utils.base import paths
from Utils.base.errors import Unsupported
from Utils.device.capabilities import CHECKS
from Utils.harness import held_out_loss
from Utils.harness.settings import check_needs
from Utils.scripts import ladder

os.environ.pop("MAKELEVEL", None)  # errors name flags where make was not called
os.environ |= paths.kernel_variables()


@pytest.fixture(autouse=True, scope="session")
def few_held_out_tokens():
    """Evaluate 128 tokens, not 2,048, which takes a second for a run of a few steps."""
    held_out_loss.TOKENS = 128


@pytest.fixture(autouse=True)
def same_process_state():
    """Restore what scripts set for their whole process: a later test may fork it."""
    # A job in the background ignores Ctrl-C, and so would every process that a test starts. A
    # launcher of ranks leaves a handler of its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = dict(os.environ)
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    os.environ.clear()
    os.environ.update(environment)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def path(tmp_path):
    """The path of a results file."""
    return tmp_path / "results.csv"


@pytest.fixture
def no_bfloat16(monkeypatch):
    """Have every device have float16 and no bfloat16, as a T4."""
    lacking = mock.Mock(side_effect=Unsupported("native bfloat16"))
    monkeypatch.setitem(CHECKS, "bfloat16", lacking)
    monkeypatch.setitem(CHECKS, "float16", lambda device: None)


@pytest.fixture
def settle(tmp_path):
    """Function of flags that returns the Settings of a tiny run, its results in a folder."""
    return partial(watched.settle, no_optimization, tmp_path)


@pytest.fixture
def train(tmp_path):
    """A few steps of a script's own main, not compiled: train("fused_optimizer") is its Watch."""

    def train(name, *flags, config=None, **options):
        script = importlib.import_module(ladder.get(name).module)
        args = watched.settle(script, tmp_path, *flags)
        args = args.replace(config=config or args.config)
        check_needs(args)
        return watched.train(script, args, **options)

    return train
