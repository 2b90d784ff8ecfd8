"""Strong and weak scaling: which runs, and what is made of their rows."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.helpers.rows import rows_of
from tools.forecast.gpus import ImaginedGPU
from Utils.analysis import intervals, several_processes
from Utils.base.errors import UserError
from Utils.commands import __main__ as commands
from Utils.commands import scaling as scaling_command
from Utils.device import device_choice
from Utils.draw import ratio_charts
from Utils.launch import rank_launcher
from Utils.results import rows_file
from Utils.scripts import ladder


def rows_from(step_ms, plan, rounds=5, noise=0.0):
    """Rows of those runs in rounds that drift; step_ms: of (processes, global batch)."""
    random, made = np.random.default_rng(0), []
    for r in range(rounds):
        for n, B in plan:
            ms = step_ms(n, B) * (1 + r) * np.exp(noise * random.standard_normal())
            own = {"round": r, "world_size": n, "batch_size": B, "note": ""}
            made += rows_of("distributed_data_parallel", [9 * ms, 9 * ms, *[ms] * 5], **own)
    return pd.DataFrame(made)


def values(estimates):
    return [estimate.value for estimate in estimates]


def line(found, kind, n):
    (own,) = found[(found.scaling == kind) & (found.processes == n)].itertuples()
    return own


def test_both_kinds_meet_in_one_run_at_the_fewest_processes():
    assert several_processes.shapes([1, 2, 4], 8) == [(1, 8), (2, 8), (4, 8), (2, 16), (4, 32)]
    assert several_processes.shapes([2, 4], 8) == [(2, 8), (4, 8), (4, 16)]


def test_an_automatic_batch_fits_one_process_and_is_shared_evenly_by_more(monkeypatch):
    auto = SimpleNamespace(batch_size="auto", model="gpt2", seq_len="auto", device="cpu")
    assert scaling_command.batch(auto, [1, 2, 3]) == 6
    # One process alone has to take all of it: 16 sequences of 124M fit on this GPU, 128 would not.
    gpu = ImaginedGPU("a GPU", 80 * 2**30)
    monkeypatch.setattr(device_choice, "choose", lambda wanted: gpu)
    assert [scaling_command.batch(auto, counts) for counts in ([1, 2, 4, 8], [1, 3])] == [16, 15]
    asked = SimpleNamespace(batch_size=8)
    assert scaling_command.batch(asked, [1, 2, 4]) == 8
    with pytest.raises(UserError, match="3 processes cannot share it evenly; try --batch-size 3"):
        scaling_command.batch(asked, [1, 3])


def test_perfect_scaling_is_an_efficiency_of_1_and_none_at_all_of_1_over_n():
    counts, plan = [1, 2, 4], several_processes.shapes([1, 2, 4], 8)
    perfect = several_processes.efficiencies(rows_from(lambda n, B: 10 * B / n, plan), counts, 8)
    assert values(perfect.efficiency) == pytest.approx([1] * 6)
    assert values(perfect.speedup) == pytest.approx([1, 2, 4] * 2)
    none = several_processes.efficiencies(rows_from(lambda n, B: 10 * B, plan), counts, 8)
    assert values(none.efficiency) == pytest.approx([1, 1 / 2, 1 / 4] * 2)
    assert values(none.speedup) == pytest.approx([1] * 6)


def test_efficiency_has_an_interval_over_rounds_whose_drift_cancels():
    """Amdahl: a step of strong scaling has 4 ms that no number of processes makes shorter."""
    counts, plan = [1, 4], several_processes.shapes([1, 4], 8)
    rows = rows_from(lambda n, B: 4 + 10 * B / n, plan, noise=0.01)
    found = several_processes.efficiencies(rows, counts, 8)
    strong, weak = line(found, "strong", 4), line(found, "weak", 4)
    assert strong.efficiency.value == pytest.approx(84 / 24 / 4, rel=0.03)
    assert weak.efficiency.value == pytest.approx(24 / 24, rel=0.03)
    for own in (strong, weak):
        share = own.efficiency
        assert share.low < share.value < share.high < share.low + 0.1
    fewest = line(found, "strong", 1)
    rates = strong.tokens_per_second / fewest.tokens_per_second
    assert rates == pytest.approx(fewest.step_ms / strong.step_ms)  # the same batch
    assert rates == pytest.approx(strong.speedup.value)
    said = several_processes.scaling_table(found, "words")
    assert said.count("faster") == 2 and "% to " in said and "Holm's correction" in said
    by_round = rows[rows.phase == "timed"].groupby(["world_size", "batch_size", "round"])
    step_ms = by_round.step_ms.median()
    uncorrected = [intervals.speedup(step_ms[1, 8] * B / 8, step_ms[4, B]) for B in (8, 32)]
    assert [strong.speedup, weak.speedup] == intervals.holm(uncorrected)


def test_one_round_has_no_interval_and_says_so():
    plan = several_processes.shapes([1, 2], 4)
    found = several_processes.efficiencies(rows_from(lambda n, B: B, plan, rounds=1), [1, 2], 4)
    assert not any(share.interval for share in found.efficiency)
    assert "nan" not in several_processes.scaling_table(found, "words")


def test_a_number_of_processes_that_failed_is_left_out():
    plan = several_processes.shapes([1, 2, 4], 4)
    rows = rows_from(lambda n, B: B, [one for one in plan if one[0] != 2])
    assert list(several_processes.efficiencies(rows, [1, 2, 4], 4).processes) == [1, 4, 1, 4]


def test_the_chart_has_the_ideal_line_and_both_kinds():
    plan = several_processes.shapes([1, 2, 4], 4)
    found = several_processes.efficiencies(rows_from(lambda n, B: 10 * B, plan), [1, 2, 4], 4)
    (axes,) = ratio_charts.scaling(found, "words").axes
    ideal = axes.get_lines()[0]
    assert list(ideal.get_xdata()) == [1, 2, 4] and list(ideal.get_ydata()) == [1, 2, 4]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [text.split(":")[0] for text in texts] == ["ideal", "strong", "weak"]
    assert {"50%", "25%"} <= {text.get_text() for text in axes.texts}


def test_rounds_are_interleaved_and_every_other_one_goes_backwards(tmp_path, monkeypatch, capsys):
    """With runs that only leave their rows."""
    ran = []

    def stand_in(name, command, count, threads, **variables):
        flags = [word for word in command if "=" in word]
        given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        ran.append((int(given["round"]), count, int(given["batch-size"]), threads))
        columns = {"world_size": count, "batch_size": ran[-1][2], "round": ran[-1][0], "note": ""}
        rows_file.append(file, rows_of(name, [1.0] * 4, **columns))
        return 0

    file = tmp_path / "results.csv"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rank_launcher, "launch", stand_in)
    monkeypatch.setattr("Utils.device.device_choice.available", lambda wanted: (2, "2 cores"))
    every = lambda name, path: {row["run_id"] for row in rows_file.text_rows(path)}  # noqa: E731
    monkeypatch.setattr("Utils.results.rows_file.run_ids_of", every)
    flags = ["--gpus=1 2", "--device=cpu", "--rounds=2", f"--results-file={file}"]
    assert commands.main("scaling", *flags) == 0
    one = [(1, 2), (2, 2), (2, 4)]
    assert ran == [(r, n, B, 1) for r, plan in ((0, one), (1, one[::-1])) for n, B in plan]
    assert "plots/scaling.png" in capsys.readouterr().out
    assert ladder.get(rank_launcher.DEFAULT)
    with pytest.raises(UserError, match="there are 2 cores here; give 2 or fewer"):
        commands.main("scaling", "--gpus=1 8", "--device=cpu")
    with pytest.raises(UserError, match="nothing to compare with"):
        commands.main("scaling", "--gpus=2", "--device=cpu")
