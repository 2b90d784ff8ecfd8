"""Rows -> medians, ratios, intervals, verdicts, table."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

from tests.helpers.rows import ladder_runs, rows_of, study_of
from Utils.analysis import intervals, result_tables
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.results import rows_file, selection, study


@pytest.fixture
def read(tmp_path):
    """Appends runs to a results file and reads it back, as the tools do."""

    def read(*runs):
        for run in runs:
            rows_file.append(tmp_path / "results.csv", run)
        return selection.plain(rows_file.read(tmp_path / "results.csv"))

    return read


def lines_of(rows, records=None):
    """The lines of the summary of rows that are all shown."""
    return summarize(study_of(rows, records)).lines


def table_of(rows, records=None, **how):
    return result_tables.table(summarize(study_of(rows, records)), **how)


def cells_of(text, title=None):
    """The first table, or the one under a title: dict of technique to dict of column to text."""
    after = text if title is None else text.partition(f"{title}:\n\n")[2]
    lines = after.partition("\n\n")[0].splitlines()
    header, _, *body = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body}


def test_medians_and_ratios_leave_warm_up_out(read):
    rows = read(
        rows_of("no_optimization", [900, 900, 100, 102, 104]),
        rows_of("tensorFloat32", [9000, 9, 50, 51, 52]),
        rows_of("brainFloat16", [1, 1, 25, 25.5, 26]),
    )
    lines = lines_of(rows)
    assert list(lines.index) == ["no_optimization", "tensorFloat32", "brainFloat16"]
    assert list(lines.step_ms) == pytest.approx([102, 51, 25.5])
    assert [ratio.value for ratio in lines.speedup] == pytest.approx([1, 2, 4])
    assert [ratio.value for ratio in lines.parent_speedup[1:]] == pytest.approx([2, 2])
    assert not lines.parent_speedup.iloc[0]
    assert lines.tokens_per_second.iloc[0] == pytest.approx(1 * 64 / 0.102)
    assert lines.first_step_s.iloc[1] == 9.0
    assert {ratio.verdict for ratio in lines.speedup} == {"inconclusive"}


def test_a_ratio_is_paired_within_rounds(read):
    """A machine twice as slow in one round says nothing about the technique."""
    runs = []
    for r, drift in enumerate((1, 2, 1.5, 3)):
        runs.append(rows_of("no_optimization", [0, 0, *[100 * drift] * 5], round=r))
        runs.append(rows_of("tensorFloat32", [0, 0, *[80 * drift] * 5], round=r))
    line = lines_of(read(*runs)).loc["tensorFloat32"]
    ratio = line.parent_speedup
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.25, 1.25, 1.25))
    assert ratio.verdict == "faster" and line.rounds == 4


def test_losses_that_agree_to_the_last_bit_are_exact(read):
    third = 1 / 3
    lines = lines_of(
        read(
            rows_of("no_optimization", [9, 9, 9], loss=third),
            rows_of("tensorFloat32", [9, 9, 9], loss=third),
            rows_of("brainFloat16", [9, 9, 9], loss=np.nextafter(third, 1)),
        )
    )
    assert list(lines.parity[1:]) == ["exact", "numerics changed"]
    assert [str(loss) for loss in lines.loss_difference] == ["", "0", "+0.0000"]


def test_a_loss_that_is_not_finite_is_no_missing_value(read):
    runs = [
        rows_of(name, [9, 9, 9], loss=loss, round=r)
        for r in range(3)
        for name, loss in (("no_optimization", 5.0), ("tensorFloat32", float("nan") if r else 5.0))
    ]
    rows = read(*runs)
    line = lines_of(rows).loc["tensorFloat32"]
    assert line.loss_difference.verdict == "diverged" and line.parity == "numerics changed"
    assert table_of(rows).count("diverged") == 1


def test_the_newest_run_decides_which_rows_are_compared(read):
    rows = read(
        rows_of("no_optimization", [9, 9, 100], device="Old GPU"),
        rows_of("tensorFloat32", [9, 9, 50], device="Old GPU"),
        rows_of("no_optimization", [9, 9, 40], device="New GPU"),
        rows_of("no_optimization", [9, 9, 41], device="New GPU", seq_len=128),
        rows_of("tensorFloat32", [9, 9, 20], device="New GPU"),
    )
    chosen, left_out = selection.select(rows)
    assert set(chosen.device) == {"New GPU"} and set(chosen.seq_len) == {64}
    assert lines_of(chosen).speedup["tensorFloat32"].value == pytest.approx(2)
    assert "2 runs of gpt2 1x64 on Old GPU" in left_out and "1x128 on New GPU" in left_out
    chosen, _ = selection.select(rows, "old")
    assert set(chosen.device) == {"Old GPU"}
    with pytest.raises(UserError, match="device named 'H100'; there are Old GPU"):
        selection.select(rows, "H100")


@pytest.mark.parametrize(
    "other",
    [{"commit": "0000000"}, {"torch": "2.11"}, {"model": "gpt2-xl"}, {"dataset": "synthetic"}],
)
def test_unlike_runs_are_never_mixed(other, read):
    rows = read(
        rows_of("tensorFloat32", [9, 9, 50]), rows_of("no_optimization", [9, 9, 9], **other)
    )
    chosen, left_out = selection.select(rows)
    assert set(chosen.technique) == {"no_optimization"} and "1 run of" in left_out


def test_runs_in_several_processes_are_left_out_though_they_are_newer(read):
    alone = rows_of("no_optimization", [9, 9, 9])
    several = rows_of("distributed_data_parallel", [5, 5, 5], world_size=2)
    chosen, left_out = selection.select(read(alone, several))
    assert set(chosen.world_size) == {1} and left_out == "left out: 1 run in several processes"
    no_others = read().query("world_size == 2")
    assert len(selection.select(no_others)[0]) == 3 and selection.select(no_others)[1] == ""
    assert "on 2 x Test GPU" in selection.groups(no_others)[0][0]


def test_an_idea_on_a_dirty_tree_is_compared_with_its_commits_runs(read):
    idea = rows_of("my_own", [9, 9, 50], commit="abc1234-dirty")
    chosen, left_out = selection.select(read(rows_of("no_optimization", [9, 9, 100]), idea))
    assert lines_of(chosen).speedup["my_own"].value == pytest.approx(2) and not left_out
    assert "commit abc1234, abc1234-dirty" in table_of(chosen)


def test_a_repeated_run_replaces_the_older_one(read):
    rows = read(rows_of("no_optimization", [9, 9, 100]), rows_of("no_optimization", [9, 9, 90]))
    chosen, left_out = selection.select(rows)
    assert lines_of(chosen).step_ms["no_optimization"] == pytest.approx(90)
    assert left_out == "left out: 1 run repeated since"


def test_the_table_has_six_columns_and_says_each_remark_once(read):
    effect = "TF32: no effect expected on this device"
    rows = read(
        rows_of("no_optimization", [9, 9, 100, 100], loss=4.25),
        rows_of("tensorFloat32", [9, 9, 50, 50], note=effect),
        rows_of("fused_optimizer", [9, 9, 50, 50], note=effect),  # scripts between did not run
        rows_of("8bit_optimizer", [], status="unsupported", note="needs bitsandbytes"),
        rows_of("my_own", [9, 9, 25, 25]),
    )
    text = table_of(rows)
    cells = cells_of(text)
    assert cells["no_optimization"] == {
        "time a step": "100.0 ms",
        "over the script before": "",
        "over the baseline": "1.00x",
        "peak memory": "900 MiB",
        "loss": "4.250",
    }
    assert cells["tensorFloat32"]["over the script before"] == "2.00x"
    assert cells["tensorFloat32"]["loss"] == "5.000, model changed"
    assert cells["8bit_optimizer"]["time a step"] == "unsupported"
    assert f"- tensorFloat32: {effect}\n" in text and text.count(effect) == 1
    assert "- 8bit_optimizer: unsupported: needs bitsandbytes\n" in text
    assert cells["my_own"]["over the baseline"] == "4.00x"
    assert "commit abc1234" in text
    assert text.endswith("\n\nOne round: no interval. ROUNDS=4 gives intervals.")


def own_runs(*names, **places):
    """Runs of a user's script with switches, each twice as fast as the one before."""
    for n, name in enumerate(names):
        yield rows_of(name, [9, 9, 800 / 2**n], base="train", **places.get(name, {}))


COMPILED = "train+tensorFloat32+torch_compile"
GRAPHS = {
    "suite": "own",
    "parent": COMPILED,
    "change": "+cuda_graphs-torch_compile",
}


def test_a_users_script_has_a_ladder_of_short_names(read):
    """Each switch from the second on bears its own name; it is compared with its parent."""
    names = ["train", "train+tensorFloat32", COMPILED, "train+tensorFloat32+cuda_graphs"]
    rows = read(*own_runs(*names, **{names[-1]: GRAPHS}))
    lines = lines_of(rows)
    assert [*lines.index] == names
    assert [*lines.label] == ["train", "train+tensorFloat32", "+torch_compile", "+cuda_graphs"]
    assert [*lines.parent[1:]] == names[:3] and pd.isna(lines.parent["train"])
    assert [ratio.value for ratio in lines.parent_speedup[1:]] == pytest.approx([2, 2, 2])
    assert [ratio.value for ratio in lines.speedup] == pytest.approx([1, 2, 4, 8])
    cells = cells_of(table_of(rows))
    assert cells["+cuda_graphs"]["over the baseline"] == "8.00x"


def test_a_short_name_that_is_not_the_only_one_is_written_out(read):
    """Two scripts add one switch, and of another one the parent was not measured."""
    twice = "train+brainFloat16+torch_compile"
    orphan = "train+float16+fused_optimizer"
    rows = read(
        *own_runs("train", "train+tensorFloat32", "train+brainFloat16", COMPILED, twice, orphan)
    )
    labels = lines_of(rows).label
    assert {name for name in labels.index if labels[name] != name} == set()
    without_change = rows.assign(change="")
    assert [*lines_of(without_change).label] == [*labels.index]
    fewer = rows[~rows.technique.isin(["train+brainFloat16", twice])]
    assert lines_of(fewer).label[COMPILED] == "+torch_compile"
    assert lines_of(fewer).label[orphan] == orphan


def test_an_ablation_has_lines_of_its_own(read):
    """The table does not show them; verdicts on them are corrected over all."""
    alone = "no_optimization+flash_attention"
    times = {"no_optimization": (100, 0), "tensorFloat32": (50, 10), alone: (80, 1)}
    runs = [
        rows_of(name, [9, 9, ms * (1 + 0.01 * r * noise)], round=r)
        for r in range(3)
        for name, (ms, noise) in times.items()
    ]
    summary = summarize(study.newest(read(*runs)))
    assert [*summary.lines.index] == ["no_optimization", "tensorFloat32"]
    assert [*summary.ablation.index] == [alone]
    assert [*summary.all_lines.index] == [*times]
    assert summary.ablation.speedup.iloc[0].value == pytest.approx(1.25, rel=0.03)
    corrected = summary.ablation.parent_speedup.iloc[0]
    together = lines_of(summary.study.all_rows).parent_speedup
    by_itself = lines_of(summary.study.all_rows.query("technique != 'tensorFloat32'"))
    assert corrected.p == together[alone].p > by_itself.parent_speedup[alone].p
    assert "flash_attention" not in result_tables.table(summary, all_columns=True)


@pytest.mark.parametrize(("rounds", "bold"), [((0, 1), True), ((0, 1, 2), True), ((0,), False)])
def test_bold_follows_the_verdict_over_the_script_before_alone(read, rounds, bold):
    text = table_of(read(*(run for r in rounds for run in ladder_runs(rounds=r + 1))))
    cells = cells_of(text)["tensorFloat32"]
    assert cells["over the script before"].startswith("**") == bold
    assert "**" not in cells["over the baseline"] and ("ROUNDS=4" in text) != bold


def test_a_verdict_takes_two_clean_rounds_of_both(read):
    for r, grade in enumerate(("clean", "tainted", "clean")):
        rows_read = read(
            rows_of("no_optimization", [9, 9, 100 + r], round=r, grade=grade),
            rows_of("tensorFloat32", [9, 9, 50], round=r),
        )
        ratio = lines_of(rows_read).parent_speedup["tensorFloat32"]
        assert (ratio.verdict == "faster") == (r == 2)
        assert bool(ratio.interval) == (r > 0)


def test_a_round_that_failed_is_told_beside_those_that_did_not(read):
    rows = read(
        rows_of("no_optimization", [9, 9, 100]),
        rows_of("no_optimization", [], round=1, status="out_of_memory", note="too big"),
    )
    line = lines_of(rows).loc["no_optimization"]
    assert line.status == "ok" and line.notes == ["round 1: out_of_memory: too big"]


def losses_of(*first_steps):
    """Losses of rounds of two steps, of which the first is given."""
    rounds = {
        (r, s): loss for r, first in enumerate(first_steps) for s, loss in enumerate((first, 9))
    }
    series = pd.Series(rounds)
    series.index.names = ["round", "step"]
    return series


@pytest.mark.parametrize(
    ("off", "label"),
    [
        ((0, 0, 0), "exact"),
        ((1e-7, 0, 0), "numerics changed"),
        ((0.0018, -0.0006, 0.0017), "numerics changed"),  # what bfloat16 does at 4x256
        ((0.0041, -0.0011, 0.0034), "numerics changed"),  # and at 1x64
        ((0.009, -0.002, 0.007), "model changed"),  # what a wrong mask does at 4x256
        ((0.108, 0.108, 0.108), "model changed"),
    ],
)
def test_the_first_loss_tells_rounding_from_another_model(off, label):
    baseline = losses_of(10.95, 11.02, 10.98)
    own = losses_of(*(10.95, 11.02, 10.98) + np.array(off))
    assert intervals.parity(baseline, own, "gpt2") == label


def test_a_script_of_few_bits_or_of_another_optimizer_is_known_by_its_docstring(read):
    names = ("no_optimization", "torch_compile", "float8_linear", "linear_cross_entropy", "muon")
    losses = (5.0, 5.0 + 0.02, 5.0 + 0.02, 5.0 + 0.06, 5.0 - 0.5)
    rows = [rows_of(name, [9] * 3, loss=loss) for name, loss in zip(names, losses, strict=True)]
    rows = read(*rows)
    lines = lines_of(rows)
    few_bits = ["numerics changed"] * 2
    assert list(lines.parity[1:]) == ["model changed", *few_bits, "another optimizer"]
    assert lines.loss["muon"] == 4.5 and lines.loss_difference["muon"].verdict == ""
    assert "4.500, another optimizer" in table_of(rows)


def test_parameters_that_are_never_updated_are_another_model(read):
    rows = read(
        rows_of("no_optimization", [9, 9, 9], loss=5.0),
        rows_of("tensorFloat32", [9, 9, 9], loss=5.0 + 1e-7),
    )
    full, part = ({"updated_parameters": n} for n in (124, 123))
    ids = dict(zip(rows.technique, rows.run_id, strict=True))
    records = {ids["no_optimization"]: full, ids["tensorFloat32"]: full}
    assert lines_of(rows, records).parity["tensorFloat32"] == "numerics changed"
    records[ids["tensorFloat32"]] = part
    assert lines_of(rows, records).parity["tensorFloat32"] == "model changed"


def record_of(**parts):
    memory = {"weights_mib": 475.0, "gradients_mib": 475.0, "optimizer_state_mib": 950.0}
    return {
        "memory": memory | {"rest_mib": 700.0, "reserved_mib": None},
        "compile": None,
        "updated_parameters": 124,
        "limits": {
            "flops_per_token": 1e9,
            "precision": "bfloat16",
            "datasheet_tflops": 100.0,
            "ceilings": {"matmul_tflops": {"bfloat16": 50.0}, "bandwidth_gb_s": 1.0},
            "floor_ms": 25.0,
        },
        "quality": {"used_memory_mib": 3000.0, "mean_power_w": 500.0},
        **parts,
    }


def test_memory_limits_and_cost_come_from_the_records(read):
    rows = read(rows_of("no_optimization", [9, 9, 100], batch_size=10, seq_len=1000))
    records = {rows.run_id[0]: record_of()}
    line = lines_of(rows, records).loc["no_optimization"]
    assert (line.weights_mib, line.optimizer_state_mib, line.rest_mib) == (475, 950, 700)
    assert line.grade == "clean"
    # 10,000 tokens in 0.1 s are 100,000 tokens/s, at 1e9 FLOP a token 100 TFLOP/s
    assert line.tflops == pytest.approx(100)
    assert line.ceiling_share == pytest.approx(2) and line.mfu == pytest.approx(1)
    assert line.floor_speedup == pytest.approx(4)
    assert line.hours_per_billion == pytest.approx(1e9 / 100_000 / 3600)
    assert line.kwh_per_billion == pytest.approx(0.5 * 1e9 / 100_000 / 3600)
    text = table_of(rows, records=records, price=2.5, all_columns=True)
    memory = cells_of(text, "Peak memory by kind")["no_optimization"]
    assert memory["optimizer state (MiB)"] == "950" and memory["peak (GiB)"] == "0.88"
    assert "reserved by torch (MiB)" not in memory
    limits = cells_of(text, "Distance from the limit")["no_optimization"]
    assert limits["of the measured ceiling"] == "200%" and limits["headroom"] == "4.0x"
    cost = cells_of(text, "Cost of 10^9 tokens")["no_optimization"]
    assert cost["cost at 2.50 an hour"] == "6.94" and cost["mean power (W)"] == "500"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [({"reserved_memory_mib": 9.0}, True), ({}, False),
     ({"reserved_memory_mib": 9.0, "model": "gpt2-tiny"}, False)],
)  # fmt: skip
def test_the_cost_of_10_9_tokens_is_of_a_gpu_and_of_no_tiny_model(read, columns, shown):
    rows = read(rows_of("no_optimization", [9, 9, 100], **columns))
    assert ("Cost of 10^9" in table_of(rows, all_columns=True)) == shown
    assert "Cost of 10^9" not in table_of(rows)


def test_an_update_of_fewer_bytes_has_no_floor(read):
    rows = read(rows_of("no_optimization", [9, 9, 100]))
    small = record_of()
    small["memory"]["optimizer_state_mib"] = 242.0  # two moments of 8 bits
    line = lines_of(rows, {rows.run_id[0]: small}).loc["no_optimization"]
    assert np.isnan(line.floor_ms) and np.isnan(line.floor_speedup) and line.tflops > 0


def test_the_verdicts_over_the_parents_are_a_column_on_request(read):
    times = {"no_optimization": (100, 102), "tensorFloat32": (50, 51)}
    times |= {"brainFloat16": (100, 102), "torch_compile": (100, 101.9)}
    runs = [rows_of(name, [9, 9, ms[r]], round=r) for r in range(2) for name, ms in times.items()]
    cells = cells_of(table_of(read(*runs), all_columns=True), "Time and loss")
    verdicts = [row["verdict"] for row in cells.values()]
    assert verdicts == ["", "faster", "slower", "no detectable difference"]


def test_without_records_what_is_not_known_is_left_out(read):
    rows = read(rows_of("no_optimization", [9, 9, 100]))
    text = table_of(rows, all_columns=True)
    assert "weights" not in text and "from the limit" not in text and "nan" not in text


def test_tainted_runs_are_marked_with_their_reason(read):
    runs = [
        rows_of("no_optimization", [9, 9, 9]),
        rows_of("no_optimization", [9, 9, 9], round=1, note="loud", grade="tainted"),
        rows_of("tensorFloat32", [9, 9, 9]),
    ]
    rows = read(*runs)
    records = {run_id: record_of() for run_id in rows.run_id}
    records[runs[1][0]["run_id"]]["quality"] = {"reasons": ["slowed by 8%", "hot"]}
    said = "tainted in 1 of 2 rounds: slowed by 8% and hot"
    for known, text in ((records, said), ({}, said.partition(":")[0])):
        lines = lines_of(rows, known)
        assert [*lines.quality] == [text, "clean"]
        assert lines.notes["no_optimization"] == ["loud"]


@pytest.mark.parametrize(
    ("own", "steps"),
    [
        ([3050, 60, 50, 50, 50], 49),  # 3010 ms more than usual less 600, at 50 saved a step
        ([3050, 150, 150, 150, 150], np.inf),
        ([590, 50, 50, 50], 0),
    ],
)
def test_compiling_has_paid_when_its_extra_warm_up_is_saved(own, steps, read):
    """The parent's usual step is 100 ms, its first one 700."""
    rows = read(
        rows_of("no_optimization", [100] * 5),
        rows_of("tensorFloat32", [100] * 5),
        rows_of("brainFloat16", [700, 100, 100, 100, 100]),
        rows_of("torch_compile", own),
        rows_of("flash_attention", own),
    )
    compiled = {"compile": {"graphs": 1, "recompilations": 2, "cache": "cold"}}
    records = {
        run_id: record_of(**(compiled if name in ("torch_compile", "flash_attention") else {}))
        for name, run_id in zip(rows.technique, rows.run_id, strict=True)
    }
    lines = lines_of(rows, records)
    assert lines.break_even_steps["torch_compile"] == steps
    assert lines.break_even_steps.drop("torch_compile").isna().all()  # flash's parent compiles too
    cells = cells_of(table_of(rows, records=records, all_columns=True), "Compilation")
    assert cells["torch_compile"]["compiled"] == "1 graph, cold cache; 2 recompiled"
    text = {49: "49 steps", np.inf: "never", 0: "0 steps"}[steps]
    assert cells["torch_compile"]["breaks even after"] == text


def test_whether_compiling_pays_is_left_open_where_the_interval_leaves_it_open(read):
    runs = []
    for r, ms in enumerate((50, 150, 99, 101)):
        runs += [rows_of("brainFloat16", [700, 100, 100, 100], round=r)]
        runs += [rows_of("torch_compile", [3000, ms, ms, ms], round=r)]
    rows = read(*runs)
    records = {run_id: record_of(compile={"graphs": 1, "recompilations": 0, "cache": "cold"})
               for run_id in rows.run_id[rows.technique == "torch_compile"]}  # fmt: skip
    assert np.isnan(lines_of(rows, records).break_even_steps["torch_compile"])


def test_every_time_divides_to_the_ratio_printed_beside_it(read):
    """Seven rounds that drift, in turns; a batch of its own; and one that lacks a round."""
    random = np.random.default_rng(7)
    speed = {"no_optimization": 1, "tensorFloat32": 0.8, "brainFloat16": 0.4, "larger_batch": 0.9}
    own_batch = {"batch_size": 4, "requested_batch_size": 1}
    runs = []
    for r in range(7):
        drift = np.exp(0.05 * (-1) ** r + 0.1 * random.standard_normal())
        for name, factor in speed.items():
            if (name, r) != ("brainFloat16", 3):
                steps = 100 * factor * drift * np.exp(0.1 * random.standard_normal(9))
                columns = own_batch if name == "larger_batch" else {}
                runs.append(rows_of(name, list(steps), round=r, **columns))
    rows = read(*runs)
    lines = lines_of(rows)
    for name, line in lines.iterrows():
        assert line.tokens_per_second == pytest.approx(64e3 / line.step_ms)
        pairs = (line.base, line.speedup), (line.parent, line.parent_speedup)
        for reference, ratio in pairs:
            if name != "brainFloat16" and ratio and reference != "brainFloat16":
                assert lines.step_ms[reference] / line.step_ms == pytest.approx(ratio.value)
    assert not any(lines.notes[name] for name in speed if name != "brainFloat16")
    assert lines.notes["brainFloat16"] == [
        "ratio to no_optimization from 6 common rounds: it has 7, this 6",
        "ratio to tensorFloat32 from 6 common rounds: it has 7, this 6",
    ]
    for name, cells in cells_of(table_of(rows)).items():
        if name in ("tensorFloat32", "larger_batch"):
            divides(cells_of(table_of(rows))["no_optimization"], cells)


def divides(baseline, cells):
    """Check that a printed ratio lies between the quotients that the printed times allow."""
    times = [row["time a step"].removesuffix(" ms").replace(",", "") for row in (baseline, cells)]
    for text in times:
        assert len(text.replace(".", "").lstrip("0")) >= 4, text
    half = [0.5 * 10.0 ** -len(text.partition(".")[2]) for text in times]
    fewest, most = (
        (float(times[0]) + sign * half[0]) / (float(times[1]) - sign * half[1]) for sign in (-1, 1)
    )
    ratio = float(cells["over the baseline"].partition("x")[0])
    assert fewest - 0.005 <= ratio <= most + 0.005, (times, ratio)


PAGES = [path.parent / "README.md" for path in selection.shared_files()]


@pytest.mark.parametrize(
    "page", [paths.ROOT / "README.md", *PAGES], ids=lambda p: p.parent.parent.name
)
def test_printed_times_divide_to_the_printed_ratios_beside_them(page):
    lines = page.read_text().replace("<wbr>", "").splitlines()
    starts = [
        i for i, line in enumerate(lines) if line.startswith("| script ") and "a step" in line
    ]
    assert starts
    for start in starts:
        table = "\n".join([*lines[start:], ""])
        cells = cells_of(table)
        timed = [row for row in cells.values() if row["over the baseline"]]
        assert len(timed) > 1
        for row in timed:
            divides(cells["no_optimization"], row)


@pytest.mark.parametrize("width", [60, 140])
def test_a_table_is_as_wide_as_the_terminal_and_never_wider_than_100(width):
    main, terminal = pty.openpty()
    file = max(selection.shared_files(), key=lambda path: path.stat().st_size)
    command = [sys.executable, "-m", "Utils.commands", "table", f"RESULTS_FILE={file}", "ALL=1"]
    environment = {**os.environ, "COLUMNS": str(width)}
    with subprocess.Popen(command, stdout=terminal, cwd=paths.ROOT, env=environment) as process:
        os.close(terminal)
        text = b""
        with suppress(OSError):  # as a terminal ends
            while part := os.read(main, 2**16):
                text += part
    assert process.returncode == 0
    lines = re.sub(r"\x1b\[\d+m", "", text.decode()).splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    assert lines[0].startswith("script ") and "|" not in lines[0]
