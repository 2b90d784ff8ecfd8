"""Memory by kind, what was compiled, the environment."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import forked
from Utils.base import paths
from Utils.harness import memory_kinds, run_record
from Utils.harness.memory_kinds import GradientWatch

MIB = 2**20


def device(peak):
    return SimpleNamespace(peak_memory_mib=lambda: peak, reserved_memory_mib=lambda: None)


def model_of(*sizes):
    """Parameters of so many MiB each."""
    model = torch.nn.Module()
    for i, size in enumerate(sizes):
        model.register_parameter(f"p{i}", torch.nn.Parameter(torch.zeros(size * MIB // 4)))
    return model


def train(model, optimizer, free_at_once=False):
    """One step, watched. Returns the bytes of gradients seen at most."""
    watch = GradientWatch(model)
    hooks = []
    if free_at_once:
        for p in model.parameters():
            hooks.append(p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None)))
    with watch:
        sum(p.sum() for p in model.parameters()).backward()
    if optimizer:
        optimizer.step()
    return watch.peak


def test_memory_is_told_by_kind():
    model = model_of(4, 2)
    model.register_buffer("b", torch.zeros(MIB // 4))
    model.tied = model.p0  # counts once, as does a view
    model.register_buffer("view", model.p0.detach()[:10])
    optimizer = torch.optim.AdamW([model.p0, model.p1])
    gradients = train(model, optimizer)
    memory = memory_kinds.memory(device(40), model, optimizer, gradients)
    assert memory == {
        "peak_mib": 40,
        "reserved_mib": None,
        "weights_mib": 7.0,
        "gradients_mib": 6.0,
        "optimizer_state_mib": 12.0,
        "rest_mib": 15.0,
        "off_device_mib": 0.0,
    }
    unwatched = memory_kinds.memory(device(40), model, optimizer, None)
    assert unwatched == memory | {"gradients_mib": None, "rest_mib": None}


def test_a_gradient_that_is_freed_at_once_counts_alone():
    assert train(model_of(4, 2, 1), None) == 7 * MIB
    assert train(model_of(4, 2, 1), None, free_at_once=True) == 4 * MIB


def test_several_optimizers_are_one_state():
    model = model_of(1, 2)
    one_each = {p: torch.optim.AdamW([p]) for p in model.parameters()}
    train(model, None)
    for optimizer in one_each.values():
        optimizer.step()
    for several in (one_each, list(one_each.values())):
        assert memory_kinds.memory(device(99), model, several, 0)["optimizer_state_mib"] == 6.0
        assert memory_kinds.training(model, several)["optimizer"] == "torch.optim.adamw.AdamW"


def test_a_parameter_without_a_say_in_the_loss_is_missed():
    model = model_of(1, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model.p0.sum().backward()
    optimizer.step()
    found = memory_kinds.training(model, optimizer)
    assert found["parameters"] == 3 * MIB // 4 and found["updated_parameters"] == MIB // 4


def compile_once(backend, cache):
    """Compile for one shape, in a process that has compiled nothing, and check what is recorded."""
    forked.forget_compiled()
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "torch._dynamo.utils")
        assert run_record.compilation() is None and run_record.compiled_graphs() == 0
    assert run_record.compilation() is None
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.specialize_int = True
    product = torch.compile(lambda x: x @ x.T, backend=backend)  # which needs no C++
    product(torch.ones(3, 3)), product(torch.ones(3, 3))
    assert run_record.compilation() == {"graphs": 1, "recompilations": 0, "cache": cache}
    return product


def recompile():
    product = compile_once("eager", None)
    product(torch.ones(4, 3)), product(torch.ones(5, 3))
    assert run_record.compilation() == {"graphs": 3, "recompilations": 2, "cache": None}


def test_recompilations_are_counted(tmp_path):
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for main in (recompile, *(partial(compile_once, "inductor", it) for it in ("cold", "warm"))):
        done = forked.call(main, variables=own)
        assert done.returncode == 0, done.stderr


def test_the_record_has_what_repeating_takes_and_no_paths(monkeypatch, settle, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    monkeypatch.setenv("CUDA_HOME", "/home/somebody/cuda")
    monkeypatch.setenv("SECRET", "hidden")
    args = settle()
    record = run_record.record(args, "ok")
    assert record["threads"] == torch.get_num_threads()
    assert record["variables"]["OMP_PROC_BIND"] == "close"
    assert "CUDA_HOME" not in record["variables"] and "SECRET" not in record["variables"]
    assert f"PyTorch version: {torch.__version__}" in record["collect_env"]
    (kept,) = tmp_path.glob("collect_env-*.txt")
    kept.write_text("kept")
    assert run_record.record(args, "ok")["collect_env"] == "kept"


@pytest.mark.parametrize("optimizer", [None, []])
def test_a_loop_without_an_optimizer_can_be_recorded(optimizer):
    found = memory_kinds.training(torch.nn.Identity(), optimizer)
    assert found == {"parameters": 0, "updated_parameters": 0, "optimizer": ""}
    assert memory_kinds.memory(device(1), torch.nn.Identity(), optimizer, 0)["rest_mib"]
