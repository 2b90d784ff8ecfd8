"""What a technique is worth alone, in the ladder and at the end, from rows whose truth is known."""

import numpy as np
import pandas as pd
import pytest

from tests.helpers import processes
from tests.helpers.rows import rows_of, study_of, techniques_of
from tests.test_suite import STAND_IN
from tools.calibration.known import copy_project
from Utils.analysis import attribution
from Utils.analysis.attribution import WAYS
from Utils.analysis.intervals import INCONCLUSIVE
from Utils.base.errors import UserError
from Utils.commands import __main__ as commands
from Utils.draw import ratio_charts
from Utils.results import rows_file, selection
from Utils.scripts import ladder, variants

WHOLE = "fused_optimizer"
REPOSITORY = ladder.Ladder(ladder.tracked())
PLAN = list(variants.ablation(WHOLE, REPOSITORY).scripts)
SHARED = {"torch_compile", "flash_attention"}  # of these two, each saves what the other would


def truth(name):
    """Milliseconds of a script or variant: every technique halves the step, but the second of
    SHARED saves nothing."""
    techniques = techniques_of(name)
    halvings = len(techniques) - (techniques >= SHARED)
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
    rungs = [*REPOSITORY.group("ladder").scripts]
    assert set(rungs) <= set(PLAN)
    alone = {f"no_optimization+{name}" for name in rungs[2:]}  # the first stands on the baseline
    left_out = {f"{WHOLE}-{name}" for name in REPOSITORY.line(WHOLE)[1:-1]}
    assert set(PLAN) - set(rungs) == alone | left_out


def test_known_credits_come_out_with_their_intervals(rows):
    lines = attribution.credits(study_of(rows), WHOLE)
    assert list(lines.index) == [*REPOSITORY.line(WHOLE)[1:], "8bit_optimizer"]
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
    lines = attribution.credits(study_of(rows), WHOLE)
    assert {name for name, text in lines.says.items() if text} == SHARED
    text = attribution.table(lines)
    assert text.count("\n- ") == 2 and "| tensorFloat32 " in text
    assert f"\n- torch_compile: {lines.says['torch_compile']}\n" in text


def test_a_batch_of_its_own_is_compared_by_tokens():
    """Steps of four times the tokens that take twice as long are twice as fast."""
    own = {"batch_size": 4, "requested_batch_size": 1}
    made = [row for r in range(2) for row in rows_of("fused_optimizer", [100] * 4, round=r)]
    made += [row for r in range(2) for row in rows_of("larger_batch", [200] * 4, round=r, **own)]
    lines = attribution.credits(study_of(pd.DataFrame(made)), "larger_batch")
    assert lines.ladder["larger_batch"].value == pytest.approx(2)


def test_with_one_round_nothing_is_claimed(rows):
    lines = attribution.credits(study_of(rows[rows["round"] == 0]), WHOLE)
    assert (lines.says == "").all()
    assert {ratio.verdict for ratio in lines.alone} == {INCONCLUSIVE}


def test_rows_tell_whose_ablation_they_are(rows):
    scripts = rows[rows.technique.isin(REPOSITORY.scripts)]
    alone = rows[~rows.technique.str.contains("-")]
    assert attribution.whole_of(study_of(rows)) == WHOLE
    assert attribution.whole_of(study_of(scripts)) is None
    assert attribution.whole_of(study_of(alone)) == REPOSITORY.last_rung()
    later = rows_of("cuda_graphs-fused_optimizer", [9, 9, 9], run_id="29990101T000000.000000Z-0000")
    both = pd.concat([pd.DataFrame(later), rows])
    assert attribution.whole_of(study_of(both)) == "cuda_graphs"


def test_rows_of_a_first_run_of_an_ablation_are_of_the_last_rung():
    """It was interrupted: neither the whole nor a script without a technique has run yet."""
    names = ["no_optimization", "no_optimization+fused_optimizer"]
    made = [row for r in range(2) for name in names for row in rows_of(name, [9] * 4, round=r)]
    chosen = study_of(pd.DataFrame(made))
    whole = attribution.whole_of(chosen)
    assert whole == WHOLE
    lines = attribution.credits(chosen, whole)
    assert lines.alone[WHOLE].value == pytest.approx(1)


def test_an_idea_on_the_last_rung_leaves_its_ablation_as_it_is(rows):
    place = {"suite": "ladder", "parent": WHOLE, "change": "+an_idea"}
    ideas = [row for r in range(4) for row in rows_of("an_idea", [9] * 4, round=r, **place)]
    chosen = study_of(pd.concat([rows, pd.DataFrame(ideas)]))
    assert attribution.whole_of(chosen) == WHOLE
    credits = attribution.credits(chosen, WHOLE)
    assert credits.alone["8bit_optimizer"] and credits.ladder["an_idea"]


def test_rows_without_a_change_are_no_ablation_of_a_script():
    made = rows_of("no_optimization", [9] * 4)
    made += rows_of("no_parent", [9] * 4, suite="ablation", parent="", change="")
    made += rows_of("no_change", [9] * 4, suite="ablation", parent="no_optimization", change="")
    chosen = study_of(pd.DataFrame(made))
    whole = attribution.whole_of(chosen)
    assert whole == REPOSITORY.last_rung()
    assert attribution.credits(chosen, whole).empty


OWN = {  # milliseconds of a user's script with switches; its ablation has the last two
    ("train", "own", "", ""): 800,
    ("train+tensorFloat32", "own", "train", "+tensorFloat32"): 400,
    ("train+tensorFloat32+torch_compile", "own", "train+tensorFloat32", "+torch_compile"): 100,
    ("train+tensorFloat32+cuda_graphs", "own", "train+tensorFloat32+torch_compile",
     "+cuda_graphs-torch_compile"): 50,
    ("train+torch_compile", "ablation", "train", "+torch_compile"): 160,
}  # fmt: skip


@pytest.fixture
def own():
    """A study of a user's script with two switches, and one that takes the place of the second."""
    made = []
    for (name, suite, parent, change), ms in OWN.items():
        for r in range(3):
            place = {"suite": suite, "parent": parent, "change": change}
            steps = [ms * (1 + 0.01 * r)] * 4
            made += rows_of(name, steps, round=r, base="train", **place)
    return study_of(pd.DataFrame(made))


def test_an_ablation_of_a_users_script_is_known_by_its_rows(own):
    assert attribution.whole_of(own) == "train+tensorFloat32+torch_compile"
    rows = own.all_rows
    assert attribution.whole_of(study_of(rows[rows.suite == "own"])) is None
    with_whole = rows.assign(
        parent=rows.parent.where(rows.suite == "own", "train+tensorFloat32+torch_compile"),
        change=rows.change.where(rows.suite == "own", "-tensorFloat32"),
    )
    assert attribution.whole_of(study_of(with_whole)) == "train+tensorFloat32+torch_compile"


def test_credits_of_a_users_script_are_of_its_switches(own):
    """A script with one of two switches is that one alone, and the whole without the other."""
    lines = attribution.credits(own, "train+tensorFloat32+torch_compile")
    assert [*lines.index] == ["tensorFloat32", "torch_compile"]  # not what has another place
    values = {name: [ratio.value for ratio in line[[*WAYS]]] for name, line in lines.iterrows()}
    assert values["tensorFloat32"] == pytest.approx([2, 2, 1.6])
    assert values["torch_compile"] == pytest.approx([5, 4, 4])


def test_a_switch_in_the_place_of_another_has_no_pair_in_the_ladder(own):
    lines = attribution.credits(own, "train+tensorFloat32+cuda_graphs")
    assert not lines.ladder["cuda_graphs"]
    assert lines["last"]["cuda_graphs"].value == pytest.approx(8)


def test_techniques_of_no_script_in_the_line_have_no_credit(rows):
    """Such as those of another ablation."""
    others = [rows_of("no_optimization+padded_vocabulary", [9] * 4, round=r) for r in range(4)]
    more = pd.concat([rows, pd.DataFrame([row for run in others for row in run])])
    assert "padded_vocabulary" not in attribution.credits(study_of(more), WHOLE).index


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
    credits = attribution.credits(study_of(pd.DataFrame(made)), "brainFloat16")
    assert told in credits.says["tensorFloat32"]


def test_an_ablation_of_fewer_rounds_than_the_ladder_says_so():
    made = [row for r in range(8) for row in rows_of("no_optimization", [9, 9, 9], round=r)]
    for r in range(4, 8):
        made += rows_of("no_optimization+fused_optimizer", [9, 9, 9], round=r)
    chosen, _ = selection.select(pd.DataFrame(made), with_variants=True)
    assert "4 to 8 rounds" in selection.describe(chosen)
    assert ", 8 rounds" in selection.describe(chosen[chosen.technique == "no_optimization"])


def test_what_cannot_be_tried_is_not_planned():
    planned = variants.ablation("cuda_graphs", REPOSITORY).scripts
    assert {"cuda_graphs", REPOSITORY.get("cuda_graphs").parent} <= planned.keys()
    assert "no_optimization+cuda_graphs" not in planned
    assert "no_optimization+torch_compile" in planned
    assert "cuda_graphs-torch_compile" not in planned


def test_no_table_of_the_ladder_shows_variants(rows):
    chosen, left_out = selection.select(rows)
    assert set(chosen.technique) == {*REPOSITORY.group("ladder").scripts} and left_out == ""
    kept, _ = selection.select(rows, with_variants=True)
    assert set(kept.technique) == set(PLAN)
    only = rows[rows.technique.str.contains(r"[+-]")]
    with pytest.raises(UserError, match="only variants"):
        selection.select(only)


def test_the_chart_has_a_point_for_every_figure(rows):
    lines = attribution.credits(study_of(rows), WHOLE)
    axes = ratio_charts.ablation(rows, lines, WHOLE).axes[0]
    drawn = [line for line in axes.lines if line.get_marker() in ("o", "^", "s")]
    points = np.concatenate([line.get_xdata() for line in drawn])
    expected = [ratio.value for way in WAYS for ratio in lines[way] if ratio]
    assert sorted(points[~np.isnan(points)]) == sorted(expected)
    shown = [text.get_text() for text in axes.texts]
    assert shown.count("2.00x") >= 10
    assert [label.get_text() for label in axes.get_yticklabels()] == list(lines.index)


@pytest.mark.slow
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
