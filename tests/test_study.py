"""Studies: lines, changes, techniques and order of their scripts; which rows they hold."""

import numpy as np
import pandas as pd
import pytest

from tests.helpers.rows import frame, rows_of, study_of
from Utils.analysis.levels import levels_of
from Utils.results import rows_file, selection
from Utils.scripts.identity import Identity

BASE = "no_optimization"


def runs(*names, base=BASE, **identities):
    """Rows of a run of each script, with its Identity, by default that of its name."""
    made = []
    for name in names:
        columns = identities[name].place if name in identities else {}
        made += rows_of(name, [9, 9, 9], base=base, **columns)
    return pd.DataFrame(made)


# A user's script x with techniques, under names that tell nothing: Identity, line, techniques.
OF_OWN = """\
x | own | x |
a | own x +tensorFloat32 | x a | tensorFloat32
b | own a +torch_compile | x a b | tensorFloat32 torch_compile
c | own b +cuda_graphs-torch_compile | x a b c | tensorFloat32 cuda_graphs
d | ablation x +torch_compile | x d | torch_compile
e | ablation b -tensorFloat32 | x a b e | torch_compile
y | own z +tensorFloat32 | z y | torch_compile tensorFloat32
z | own y +torch_compile | y z | tensorFloat32 torch_compile
"""
OF_OWN = {line[0]: [*map(str.split, line.split("|")[1:])] for line in OF_OWN.splitlines()}
OWN = runs(*OF_OWN, base="x", **{name: Identity(*OF_OWN[name][0]) for name in OF_OWN})


@pytest.mark.parametrize("name", OF_OWN)
def test_study_follows_parents_and_changes(name):
    """A circle of parents ends."""
    own = study_of(OWN)
    _, line, techniques = OF_OWN[name]
    assert own.lineage(name) == line
    assert own.techniques(name) == {*techniques}
    assert own.leaves_out(name) == (name == "e")


@pytest.mark.parametrize("base", ["-m pkg.train", "pkg/train.py", "-m train", "train.py"])
def test_selection_finds_a_script_whose_name_another_has_taken(base):
    names = ["pkg/train", "train"]
    rows = frame([rows_of(name, [9, 9, 9], base=name) for name in names])
    selected, _ = selection.select(rows, base=base)
    assert selected.base.unique() == ["pkg/train" if "pkg" in base else "train"]


def counted(runs):
    """Return the rounds of the runs that count, and texts on others. runs: rounds and records."""
    rows = [rows_of(run_id[0], [9], run_id=run_id, round=r) for run_id, (r, _) in runs.items()]
    records = {run_id: record for run_id, (_, record) in runs.items()}
    counted, texts = selection.counted_runs(frame(rows), records)
    return dict(zip(counted.run_id, counted["round"], strict=True)), texts


def test_study_counts_the_rounds_of_each_command():
    """METHOD: "Rounds of several commands add up". Runs without a suite keep their round."""
    x, y = {"suite_id": "x"}, {"suite_id": "y"}
    runs = {"a1": (0, {}), "a2": (0, x), "a3": (2, x), "a4": (0, y), "a5": (1, y)}
    assert counted(runs) == ({"a2": 0, "a3": 2, "a4": 4, "a5": 5}, ["1 run repeated since"])


def test_study_leaves_out_a_run_that_another_program_disturbed():
    """METHOD: "A run is left out only if another program computed on the GPU and did not while its
    partners ran".
    """
    beside = {"quality": {"other_processes": ["game (7)"]}}
    runs = {"a-1": (0, {}), "b-1": (0, beside), "a-2": (1, beside), "b-2": (1, beside)}
    assert counted(runs) == ({"a-1": 0, "a-2": 1, "b-2": 1}, ["b of round 0, beside game (7)"])


def timed(*runs):
    """Return the rows of timed steps. runs: "technique round token milliseconds-by-turn ..."."""
    rows = []
    for number, run in enumerate(runs):
        name, r, token, *by_turn = run.split()
        steps = np.repeat(np.array(by_turn, float), 3)  # the first of a turn is warm-up
        rows += rows_of(name, [*steps], round=int(r), run_id=f"20260101T{number:06}Z-{token}")
    table = pd.DataFrame(rows, columns=rows_file.COLUMNS)
    return selection.timed(table.assign(phase=np.where(table.step % 3, "timed", "warmup")))


def test_selection_counts_the_newest_run_with_its_partners():
    """CONTRIBUTING: "are results: they stay in"."""
    rows = timed(
        "b 0 0000 7",
        "a 0 0001 100",
        "b 0 0001 80",
        "b 0 0002 160",
        "c 0 0002 100",
    )
    chosen, _ = selection.counted_runs(rows, {})
    assert [*(chosen.technique + chosen.run_id.str[-2:]).unique()] == ["a01", "b01", "b02", "c02"]
    ratio = levels_of(chosen, {}, "a").ratio("a", "c")
    assert ratio.value == pytest.approx(2)  # 100 / 80 x 160 / 100
