"""The ladder of GPUs without bfloat16, and memory that is not the device's."""

import contextlib
from argparse import Namespace
from functools import partial
from types import SimpleNamespace
from unittest import mock

import torch

from tests.helpers.stand_ins import gpu
from tests.helpers.watched import STEPS
from Utils.base.errors import Unsupported
from Utils.device import device_choice
from Utils.device.capabilities import CHECKS
from Utils.harness import memory_kinds, run_record
from Utils.launch import suite_runner
from Utils.results import rows_file, study
from Utils.run import Run, execute
from Utils.scripts import ladder

T4 = gpu(capability=(7, 5))


def test_memory_of_state_that_lies_elsewhere_is_no_part_of_the_peak():
    """METHOD: "State that a technique keeps off the device [...] no part of the peak"."""
    model = torch.nn.Linear(256, 1024, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.state[model.weight] = {
        "here": torch.zeros(2**18),
        "elsewhere": torch.zeros(2**19, device="meta"),
    }
    device = SimpleNamespace(peak_memory_mib=lambda: 10.0, reserved_memory_mib=lambda: None)
    kinds = memory_kinds.memory_by_kind(device, model, optimizer, 0)
    assert (kinds["off_device_mib"], kinds["rest_mib"]) == (2.0, 10.0 - 1.0 - 1.0)


def test_float16_overflow_skips_the_update_and_halves_the_scale(train, monkeypatch):
    monkeypatch.setitem(CHECKS, "float16", lambda device: None)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: scaler)
    watch = train("float16_fused_optimizer", "--seq-len=4")
    assert scaler.get_scale() == 2.0 ** (100 - STEPS)
    assert all(torch.equal(p, watch.first[n]) for n, p in watch.model.named_parameters())
    assert memory_kinds.updates(watch.optimizer) == 0


def test_float16_takes_the_place_of_bfloat16_under_the_name_of_a_script(tmp_path, monkeypatch):
    """Its losses are those of its diff on the float16 line; skipped updates are told."""
    no_bfloat16 = mock.Mock(side_effect=Unsupported("native bfloat16"))
    monkeypatch.setitem(CHECKS, "bfloat16", no_bfloat16)
    monkeypatch.setitem(CHECKS, "float16", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    monkeypatch.setattr(run_record, "compilation", lambda: None)  # of tests before, in this process
    path = tmp_path / "results.csv"
    flags = "--model=gpt2-tiny --dataset=synthetic --device=cpu --steps=3 --warmup=1 --batch-size=2"
    flags = [*flags.split(), "--seq-len=8", "--min-seconds=0", f"--results-file={path}"]
    for name in ("no_sync", "fused_optimizer", "float16_fused_optimizer"):
        with contextlib.suppress(SystemExit):  # of no_sync, after its row
            execute(ladder.get(name), flags, Run, passes=lambda error: False)
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**100)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    execute(ladder.get("untied_weights"), flags, Run)
    rows = rows_file.read(path)

    assert dict(rows.groupby("technique", observed=True).note.first()) == {
        "fused_optimizer": "in float16",
        "float16_fused_optimizer": "",
        "no_sync": "needs bfloat16: in float16 its diff has no place at 'loss.backward()'",
        "untied_weights": "in float16; 3 of 3 updates skipped: gradients overflowed",
    }
    losses = {name: list(part.loss) for name, part in rows.groupby("technique", observed=True)}
    assert losses["fused_optimizer"] == losses["float16_fused_optimizer"]
    measured = study.newest(rows)
    assert measured.ladder.replaced == ladder.FLOAT16


def test_float16_scripts_are_the_ladder_of_a_gpu_without_bfloat16(monkeypatch, capsys):
    """README: "On a T4, V100 or RTX 20 `make all` runs the seven in float16"."""
    monkeypatch.setattr(device_choice, "choose", lambda name: T4)
    monkeypatch.setattr(suite_runner, "version", lambda package: "2.13.0")
    on_t4 = suite_runner.ladder_of_device(Namespace(device="auto")).group("ladder")
    names = ["no_optimization", "tensorFloat32", *ladder.FLOAT16.values()]
    assert list(on_t4.scripts) == names and "float16" in capsys.readouterr().out
