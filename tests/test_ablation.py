"""What a technique is worth alone, in the ladder and at the end, from rows whose truth is known."""

import numpy as np
import pandas as pd
import pytest

from tests import processes
from tests.known import copy_project
from tests.rows import rows_of
from tests.test_suite import STAND_IN
from Utils.analysis import attribution
from Utils.analysis.attribution import WAYS
from Utils.analysis.intervals import INCONCLUSIVE
from Utils.base.errors import UserError
from Utils.commands import __main__ as commands
from Utils.draw import ratio_charts
from Utils.results import rows_file, selection
from Utils.scripts import ladder, variants

WHOLE = "fused_optimizer"
PLAN = attribution.plan(WHOLE)
SHARED = {"torch_compile", "flash_attention"}  # of these two, each saves what the other would


def truth(name):
    """Milliseconds of a script or variant: every technique halves the step, but the second of
    SHARED saves nothing."""
    if parts := variants.parse(name):
        whole, sign, names = parts
        line = {*names} if sign == "+" else {*ladder.line(whole)[1:]} - {*names}
    else:
        line = {*ladder.line(name)[1:]}
    halvings = len(line) - (line >= SHARED)
    return 800 / 2**halvings


@pytest.fixture(scope="module")
def rows():
    noise = np.random.default_rng(0)
    made = []
    for r in range(4):
        drift = 1 + 0.1 * r
        for name in PLAN:
            ms = truth(name) * drift * np.exp(0.002 * noise.standard_normal(6))
            made += rows_of(name, list(ms), round=r)
    return pd.DataFrame(made)


def test_the_plan_runs_each_rung_alone_and_the_whole_without_each():
    assert len(PLAN) == len(set(PLAN))
    rungs = [t.name for t in ladder.tracked().values() if t.at_top_level]
    assert set(rungs) <= set(PLAN)
    alone = {f"no_optimization+{name}" for name in rungs[2:]}  # the first stands on the baseline
    left_out = {f"{WHOLE}-{name}" for name in ladder.line(WHOLE)[1:-1]}
    assert set(PLAN) - set(rungs) == alone | left_out


def test_known_credits_come_out_with_their_intervals(rows):
    lines = attribution.credits(rows, WHOLE)
    assert list(lines.index) == [*ladder.line(WHOLE)[1:], "8bit_optimizer"]
    for name, line in lines.iterrows():
        alone = line.alone
        assert alone.value == pytest.approx(2, rel=0.01) and alone.low < alone.value < alone.high
        assert [alone.low, alone.high] == pytest.approx([2, 2], rel=0.02)
        assert alone.verdict == "faster"
        in_ladder = 1 if name == "flash_attention" else 2
        assert line.ladder.value == pytest.approx(in_ladder, rel=0.01)
        if name == "8bit_optimizer":
            assert not line["last"]
        else:
            assert line["last"].value == pytest.approx(1 if name in SHARED else 2, rel=0.01)


def test_a_sentence_says_where_the_order_decides_and_nowhere_else(rows):
    lines = attribution.credits(rows, WHOLE)
    assert {name for name, text in lines.says.items() if text} == SHARED
    text = attribution.table(lines)
    assert text.count("\n- ") == 2 and "| tensorFloat32 " in text
    assert f"\n- torch_compile: {lines.says['torch_compile']}\n" in text


def test_a_batch_of_its_own_is_compared_by_tokens():
    """Steps of four times the tokens that take twice as long are twice as fast."""
    own = {"batch_size": 4, "requested_batch_size": 1}
    made = [row for r in range(2) for row in rows_of("fused_optimizer", [100] * 4, round=r)]
    made += [row for r in range(2) for row in rows_of("larger_batch", [200] * 4, round=r, **own)]
    lines = attribution.credits(pd.DataFrame(made), "larger_batch")
    assert lines.ladder["larger_batch"].value == pytest.approx(2)


def test_with_one_round_nothing_is_claimed(rows):
    lines = attribution.credits(rows[rows["round"] == 0], WHOLE)
    assert (lines.says == "").all()
    assert {ratio.verdict for ratio in lines.alone} == {INCONCLUSIVE}


def test_rows_tell_whose_ablation_they_are(rows):
    assert attribution.whole_of(rows) == WHOLE
    assert attribution.whole_of(rows[rows.technique.isin(ladder.techniques())]) is None
    alone = rows[~rows.technique.str.contains("-")]
    assert attribution.whole_of(alone) == attribution.last_rung()
    later = rows_of("cuda_graphs-fused_optimizer", [9, 9, 9], run_id="29990101T000000.000000Z-0000")
    assert attribution.whole_of(pd.concat([pd.DataFrame(later), rows])) == "cuda_graphs"


@pytest.mark.parametrize(
    ("alone_ms", "last_ms", "told"),
    [
        (100, 50, "1.00x alone and 2.00x added last to brainFloat16; it gains more in combination"),
        (200, 125, "0.50x alone and 0.80x added last to brainFloat16; it gains more in"),
        (125, 200, "0.80x alone and 0.50x added last to brainFloat16; it gains less in"),
    ],
)
def test_a_technique_that_differs_with_others_is_told_so(alone_ms, last_ms, told):
    made = []
    for r in range(3):
        names = {"no_optimization": 100, "tensorFloat32": alone_ms}
        names |= {"brainFloat16-tensorFloat32": 100, "brainFloat16": last_ms}
        for name, ms in names.items():
            made += rows_of(name, [ms * (1 + 0.01 * r)] * 4, round=r)
    assert told in attribution.credits(pd.DataFrame(made), "brainFloat16").says["tensorFloat32"]


def test_an_ablation_of_fewer_rounds_than_the_ladder_says_so():
    made = [row for r in range(8) for row in rows_of("no_optimization", [9, 9, 9], round=r)]
    for r in range(4, 8):
        made += rows_of("no_optimization+fused_optimizer", [9, 9, 9], round=r)
    chosen, _ = selection.select(pd.DataFrame(made), with_variants=True)
    assert "4 to 8 rounds" in selection.describe(chosen)
    assert ", 8 rounds" in selection.describe(chosen[chosen.technique == "no_optimization"])


def test_what_cannot_be_tried_is_not_planned():
    assert {*attribution.names_of("cuda_graphs", "cuda_graphs")} == {"ladder", "last"}
    assert {*attribution.names_of("torch_compile", "cuda_graphs")} == {"alone", "ladder"}


def test_no_table_of_the_ladder_shows_variants(rows):
    chosen, left_out = selection.select(rows)
    rungs = {t.name for t in ladder.tracked().values() if t.at_top_level}
    assert set(chosen.technique) == rungs and left_out == ""
    kept, _ = selection.select(rows, with_variants=True)
    assert set(kept.technique) == set(PLAN)
    only = rows[rows.technique.str.contains(r"[+-]")]
    with pytest.raises(UserError, match="only variants"):
        selection.select(only)


def test_the_chart_has_a_point_for_every_figure(rows):
    lines = attribution.credits(rows, WHOLE)
    axes = ratio_charts.ablation(rows, lines, WHOLE).axes[0]
    drawn = [line for line in axes.lines if line.get_marker() in ("o", "^", "s")]
    points = np.concatenate([line.get_xdata() for line in drawn])
    expected = [ratio.value for way in WAYS for ratio in lines[way] if ratio]
    assert sorted(points[~np.isnan(points)]) == sorted(expected)
    shown = [text.get_text() for text in axes.texts]
    assert shown.count("2.00x") >= 10
    assert [label.get_text() for label in axes.get_yticklabels()] == list(lines.index)


def test_a_small_ablation_runs_from_the_command_line(tmp_path):
    """With stand-ins that train nothing; merging their diffs makes variants as of any scripts."""
    project, code = copy_project(tmp_path), STAND_IN
    for name, parent, place in (
        ("no_optimization", "none", "row = "),
        ("tensorFloat32", "no_optimization", "row = "),
        ("brainFloat16", "tensorFloat32", "results.append("),
    ):
        if parent != "none":
            code = code.replace(place, f"{name} = True\n{place}")
        (project / f"{name}.py").write_text(code.replace("Parent: none", f"Parent: {parent}"))
    words = ["-m", "Utils.commands", "ablate", "T=brainFloat16", "--steps=4", "--warmup=1"]
    done = processes.command(*words, cwd=project, CACHE_DIR=str(project / ".cache"))
    rows = rows_file.read(project / "results.csv")
    assert set(rows.technique) == {
        *("no_optimization", "tensorFloat32", "brainFloat16"),
        *("no_optimization+brainFloat16", "brainFloat16-tensorFloat32"),
    }
    assert set(rows.status) == {"ok"}
    assert (project / "plots" / "ablation.png").stat().st_size > 10_000
    assert "| brainFloat16 " in done.stdout and "added last" in done.stdout


def test_the_baseline_has_nothing_to_leave_out():
    with pytest.raises(UserError, match="no technique that could be left out"):
        commands.main("ablate", "T=no_optimization")
