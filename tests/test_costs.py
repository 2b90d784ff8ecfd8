"""How long runs take: by those of this suite, by rows, by a forecast, or by constants."""

from types import SimpleNamespace

import pytest

from tests.helpers.rows import rows_of
from Utils.base import tool_packages
from Utils.launch import suite_child
from Utils.launch.costs import Costs
from Utils.results import rows_file
from Utils.scripts import ladder


def test_costs_are_those_of_the_nearest_ancestor_or_constants():
    args = SimpleNamespace(steps=50, warmup=5, min_seconds=20.0)
    costs = Costs(args, ladder.repository())
    assert costs.seconds(["tensorFloat32", "torch_compile"]) == 2 * (8 + 50) + 25

    costs = Costs(args, ladder.repository(), {"no_optimization": 1.0, "brainFloat16": 0.1})
    seconds = [costs.seconds([name]) for name in ("tensorFloat32", "torch_compile", "a loop")]
    assert seconds == pytest.approx([8 + 50, 8 + 25 + 20.5, 8 + 25 + 50])

    costs.add("brainFloat16", 12.0, {"pace_s": 0.2, "left": 45})
    costs.add("torch_compile", 42.0, {"pace_s": 0.1, "left": 45})
    assert costs.seconds(["flash_attention"]) == pytest.approx(12 + 30 + 4.5)


def test_duration_is_by_rows_of_this_device_or_forecast(settle, monkeypatch):
    """README: "table, charts; says how long it takes". DESIGN: "What this machine only emulates is
    shown once and then left out of the line".
    """
    args = settle("--batch-size=2").replace(rounds=3, precision=None)
    scripts = ladder.repository("float32").part({"no_optimization", "brainFloat16"})
    steps = {"no_optimization": 1.5, "brainFloat16": 90.0}
    lines = []
    for tool in (None, SimpleNamespace(step_s=lambda args: steps)):
        monkeypatch.setattr(tool_packages, "find", lambda *names, tool=tool: tool)
        lines.append(suite_child.duration(scripts, args))

    here = {"device": args.hardware.name, "model": args.model, "seq_len": 16, "batch_size": 2}
    for name, step_ms, changed in (
        ("no_optimization", 2e3, {}),
        ("no_optimization", 9e3, {"device": "another"}),
        ("brainFloat16", 9e4, {}),
    ):
        rows = rows_of(name, [9e3, *[step_ms] * 4], **here | changed)
        rows_file.append(args.results_file, rows)
    lines.append(suite_child.duration(scripts, args))

    # Three runs of 8 s and 50 steps, and one of 8 s and two steps: 184, 437 and 512 s.
    line = "3 rounds of 2 scripts: about {} min ({})"
    estimates = (4, "roughly"), (8, "by forecast"), (9, "by rows of this device")
    assert lines == [line.format(*estimate) for estimate in estimates]
