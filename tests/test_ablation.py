"""What a technique is worth alone, in the ladder and at the end, from rows whose truth is known."""

import pandas as pd
import pytest

from tests.helpers.known import switched_runs
from tests.helpers.rows import REPOSITORY, frame, rows_of, study_of, techniques_of
from tests.helpers.terminal import printed
from Utils.analysis import attribution
from Utils.analysis.summary import summarize
from Utils.draw import ratio_charts
from Utils.scripts import variants

WHOLE = "fused_optimizer"
PLAN = list(variants.ablation(WHOLE, REPOSITORY).scripts)


def rows_from(times, rounds=4, **columns):
    """Rows of scripts with these milliseconds a step, on a machine that gets slower."""
    runs = []
    for r in range(rounds):
        for name, ms in times.items():
            runs.append(rows_of(name, [ms * (1 + 0.1 * r)] * 4, round=r, **columns))
    return frame(runs)


def truth(name):
    """Milliseconds of a script or variant: every technique halves the step, but of torch_compile
    and flash_attention the second saves nothing.
    """
    techniques = techniques_of(name)
    return 800 / 2 ** (len(techniques) - (techniques >= {"torch_compile", "flash_attention"}))


@pytest.fixture(scope="module")
def rows():
    return rows_from({name: truth(name) for name in PLAN})


def test_ablation_plan_has_each_rung_alone_and_the_whole_without_each():
    rungs = [*REPOSITORY.group("ladder").scripts]
    alone = {f"no_optimization+{name}" for name in rungs[2:]}  # the first stands on the baseline
    left_out = {f"{WHOLE}-{name}" for name in REPOSITORY.lineage(WHOLE)[1:-1]}
    plan = variants.ablation(WHOLE, REPOSITORY)
    assert {*plan.scripts} == {*rungs} | alone | left_out
    assert next(iter(plan)).name == plan.base == "no_optimization"
    assert {frozenset((name, WHOLE)) for name in left_out} < plan.pairs()
    assert WHOLE not in variants.ablation("flash_attention", REPOSITORY).scripts

    planned = variants.ablation("cuda_graphs", REPOSITORY).scripts.keys()
    assert not {"no_optimization+cuda_graphs", "cuda_graphs-torch_compile"} & planned


PRINTED = """\
technique            alone, on the     on the scripts     added last, to
                          baseline          before it     all the others
---------------  -----------------  -----------------  -----------------
tensorFloat32   *2.00x (2.00-2.00)**2.00x (2.00-2.00)**2.00x (2.00-2.00)*
brainFloat16    *2.00x (2.00-2.00)**2.00x (2.00-2.00)**2.00x (2.00-2.00)*
torch_compile   *2.00x (2.00-2.00)**2.00x (2.00-2.00)* 1.00x (1.00-1.00)
flash_attention *2.00x (2.00-2.00)* 1.00x (1.00-1.00)  1.00x (1.00-1.00)
fused_optimizer *2.00x (2.00-2.00)**2.00x (2.00-2.00)**2.00x (2.00-2.00)*
8bit_optimizer  *2.00x (2.00-2.00)**2.00x (2.00-2.00)*
"""


def test_ablation_table_and_chart_of_known_effects(rows, capsys, monkeypatch):
    """Credits of each technique in each way, and a point for each."""
    lines = attribution.credits_of(summarize(study_of(rows)), WHOLE)
    text = printed(capsys, monkeypatch, lines, command=lambda t: print(attribution.table(t)))
    assert text == PRINTED

    axes = ratio_charts.ablation(rows, lines, WHOLE).axes[0]
    drawn = [line.get_xdata() for line in axes.lines if line.get_marker() in ("o", "^", "s")]
    points = sum(map(list, drawn), [])
    assert sorted(points) == pytest.approx([1] * 3 + [2] * 14)


def test_ablation_is_of_the_script_that_rows_leave_techniques_out_of(rows):
    later = rows_from({"cuda_graphs-fused_optimizer": 9}, run_id="29990101T000000")
    # A first ablation that was interrupted has neither the whole nor a script without a technique.
    first = rows_from({"no_optimization": 9, f"no_optimization+{WHOLE}": 9})
    alone = {"suite": "ablation", "parent": "train", "change": "+torch_compile"}
    alone = rows_of("train+torch_compile", [9] * 3, base="train", **alone)
    own = frame([*switched_runs(*[[9] * 3] * 4), alone])

    for chosen, ablated in (
        (rows, WHOLE),
        (rows[rows.technique.isin(REPOSITORY.scripts)], None),
        (pd.concat([later, rows]), "cuda_graphs"),
        (first, REPOSITORY.last_rung()),
        (own, "train+tensorFloat32+torch_compile"),
    ):
        assert attribution.ablated_script(study_of(chosen)) == ablated
