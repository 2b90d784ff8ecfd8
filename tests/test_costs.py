"""How long runs take: by those of this suite, by rows, by a forecast, or by constants."""

from types import SimpleNamespace

import pytest

from tests.helpers.rows import rows_of
from Utils.base import tool_packages
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.device.cpu import CPU
from Utils.harness import settings
from Utils.launch import suite_child, suite_runner
from Utils.launch.costs import Costs
from Utils.results import rows_file
from Utils.scripts import ladder


def costs_of(*args, **options):
    args = Parser("", "", *RUN_SETTINGS).parse_args(["--min-seconds=0", *args])
    return Costs(args, ladder.repository(), **options)


def test_costs_are_by_constants_before_anything_is_measured():
    costs = costs_of()
    assert costs.seconds(["no_optimization"]) == 8 + 50 * 1
    assert costs.seconds(["no_optimization", "fused_optimizer"]) == 2 * 58 + 25
    assert costs.seconds(["fused_optimizer"], 10, again=True) == 8 + 0.4 * 25 + 10


def test_costs_of_a_script_are_those_of_its_nearest_ancestor():
    costs = costs_of("--min-seconds=20", step_s={"no_optimization": 1.0, "brainFloat16": 0.1})
    assert costs.seconds(["torch_compile"]) == pytest.approx(8 + 25 + 20.5)  # 5 steps of warm-up
    assert costs.seconds(["tensorFloat32"]) == 8 + 50
    assert costs.seconds(["another_loop"]) == 8 + 25 + 50  # as the slowest

    costs.add("brainFloat16", 12.0, {"pace_s": 0.2, "left": 45})
    costs.add("torch_compile", 42.0, {"pace_s": 0.1, "left": 45})
    assert costs.seconds(["flash_attention"]) == pytest.approx(12 + 30 + 4.5)
    assert costs.seconds(["flash_attention"], again=True) == pytest.approx(12 + 0.4 * 30 + 4.5)
    costs.add("torch_compile", 17.0, {"pace_s": 0.1, "left": 45})
    assert costs.seconds(["flash_attention"], again=True) == pytest.approx(12 + 5 + 4.5)


def duration_of(word, path, *flags, precision="bfloat16"):
    """Return the line on the duration of a suite."""
    flags = ["--device=cpu", "--model=gpt2-tiny", f"--results-file={path}", *flags]
    args = Parser("", "", *RUN_SETTINGS, "precision").parse_args(flags, settings.Settings())
    settings.resolve(args)
    return suite_child.duration(
        suite_runner.techniques_named([word], ladder.repository(precision)), args
    )


def test_duration_is_by_rows_of_this_device_else_by_forecast(tmp_path, monkeypatch):
    """README: "table, charts; says how long it takes"."""
    path = tmp_path / "results.csv"
    flags = ["--batch-size=2", "--seq-len=32", "--rounds=3"]
    line = "3 rounds of 1 script: about {} min ({})"
    steps = SimpleNamespace(step_s=lambda args: {"no_optimization": 1.5})
    monkeypatch.setattr(tool_packages, "find", lambda *names: None)
    assert duration_of("no_optimization", path, *flags) == line.format(3, "roughly")
    monkeypatch.setattr(tool_packages, "find", lambda *names: steps)
    assert duration_of("no_optimization", path, *flags) == line.format(5, "by forecast")

    shape = {"device": CPU().name, "model": "gpt2-tiny", "seq_len": 32, "batch_size": 2}
    for step_ms, changed in ((2e3, {}), (9e3, {"seq_len": 64}), (9e3, {"device": "another"})):
        rows_file.append(path, rows_of("no_optimization", [9e3, *[step_ms] * 4], **shape | changed))
    # 3 x (8 s for a start + 50 steps of 2 s)
    assert duration_of("no_optimization", path, *flags) == line.format(6, "by rows of this device")


def test_duration_has_two_steps_of_what_is_emulated(tmp_path, monkeypatch):
    """DESIGN: "What this machine only emulates is shown once and then left out of the line"."""
    forecast = SimpleNamespace(step_s=lambda args: {"no_optimization": 1.0, "brainFloat16": 90.0})
    monkeypatch.setattr(tool_packages, "find", lambda *names: forecast)
    line = duration_of("ladder", tmp_path / "results.csv", precision="float32")
    # 7 runs of 8 + 50 s, five of them compiled in 25 s, and a start with 2 steps: 719 s
    assert line == "1 round of 7 scripts: about 12 min (roughly)"
