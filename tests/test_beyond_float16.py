"""The ladder of GPUs without bfloat16."""

import contextlib
from functools import partial

import torch

from tests.helpers.watched import STEPS
from Utils.harness import memory_kinds, run_record
from Utils.results import rows_file, study
from Utils.run import Run, execute
from Utils.scripts import ladder


def test_float16_overflow_skips_the_update_and_halves_the_scale(train, no_bfloat16, monkeypatch):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: scaler)
    watch = train("float16_fused_optimizer", "--seq-len=4")
    assert scaler.get_scale() == 2.0 ** (100 - STEPS)
    assert all(torch.equal(p, watch.first[n]) for n, p in watch.model.named_parameters())
    assert memory_kinds.updates(watch.optimizer) == 0


def test_float16_takes_the_place_of_bfloat16_under_the_name_of_a_script(
    tmp_path, no_bfloat16, monkeypatch
):
    """Its losses are those of its diff on the float16 line; skipped updates are told."""
    monkeypatch.setattr(torch, "compile", lambda model: model)
    monkeypatch.setattr(run_record, "compilation", lambda: None)  # of tests before, in this process
    path = tmp_path / "results.csv"
    flags = "--model=gpt2-tiny --dataset=synthetic --device=cpu --steps=3 --warmup=1 --batch-size=2"
    flags = f"{flags} --seq-len=8 --min-seconds=0 --results-file={path}".split()
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
        "no_sync": "needs bfloat16: its diff has no place in float16",
        "untied_weights": "in float16; 3 of 3 updates skipped: gradients overflowed",
    }
    losses = {name: list(part.loss) for name, part in rows.groupby("technique", observed=True)}
    assert losses["fused_optimizer"] == losses["float16_fused_optimizer"]
    assert study.choose(rows, path).ladder.replaced == ladder.FLOAT16
