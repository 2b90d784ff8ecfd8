"""What a study knows of its scripts: lines, changes, techniques, order; which rows it holds."""

import pandas as pd
import pytest

from tests.helpers.rows import rows_of, study_of, write_record
from Utils.base.errors import UserError
from Utils.results import rows_file, study
from Utils.scripts import ladder
from Utils.scripts.identity import Identity
from Utils.scripts.ladder import FLOAT16

BASE = "no_optimization"
SWITCHES = ("tensorFloat32", "brainFloat16", "torch_compile")
ALL = "train+tensorFloat32+brainFloat16+torch_compile"
GRAPHS = "train+tensorFloat32+brainFloat16+cuda_graphs"


def runs(*names, base=BASE, **identities):
    """Rows of a run of each script, those of a user's by the switches in their names."""
    made = []
    for name in names:
        place = identities.get(name)
        made += rows_of(name, [9, 9, 9], base=base, **vars(place) if place else {})
    return pd.DataFrame(made)


def own_rows():
    """Rows of a user's script with switches: three on each other, one that replaces the last."""
    names = ["train+" + "+".join(SWITCHES[:n]) for n in range(1, 4)]
    graphs = Identity("own", ALL, "+cuda_graphs-torch_compile")
    alone = Identity("ablation", "train", "+torch_compile")
    without = Identity("ablation", ALL, "-tensorFloat32")
    return runs(
        "train",
        *names,
        GRAPHS,
        "train+torch_compile",
        "train+brainFloat16+torch_compile",
        base="train",
        **{GRAPHS: graphs, "train+torch_compile": alone},
        **{"train+brainFloat16+torch_compile": without},
    )


def test_study_base_is_that_of_its_rows():
    ours = study_of(runs(BASE, "tensorFloat32"))
    assert (ours.base, ours.is_ours) == (BASE, True)
    own = study_of(own_rows())
    assert (own.base, own.is_ours) == ("train", False)


def test_study_identity_of_a_script_is_that_of_its_newest_run():
    rows = pd.DataFrame(
        [
            *rows_of("idea", [9, 9, 9], run_id="2", parent="tensorFloat32", change="+idea"),
            *rows_of("idea", [9, 9, 9], run_id="1", parent=BASE, change="+idea"),
        ]
    )
    assert study_of(rows).identities == {"idea": Identity("ladder", "tensorFloat32", "+idea")}


def test_study_line_goes_from_the_base_to_a_script():
    own = study_of(own_rows())
    assert own.line("train") == ["train"]
    names = ["train+" + "+".join(SWITCHES[:n]) for n in range(1, 4)]
    assert own.line(ALL) == ["train", *names]
    assert own.line(GRAPHS) == ["train", *names, GRAPHS]
    assert own.line("train+torch_compile") == ["train", "train+torch_compile"]


def test_study_line_ends_where_parents_go_round():
    parents = {"a": "b", "b": "a", "c": "c"}
    places = {name: Identity("ladder", parent, f"+{name}") for name, parent in parents.items()}
    circle = study_of(runs(*places, **places))
    assert circle.line("a") == ["b", "a"] and circle.techniques("a") == {"a", "b"}
    assert circle.line("c") == ["c"]
    assert {*circle.order} == {"a", "b", "c"}


def test_study_fills_gaps_in_a_line_by_the_repository():
    """Scripts of the line that were not measured are known all the same."""
    rows = study_of(runs(BASE, "flash_attention"))
    assert rows.line("flash_attention") == ladder.line("flash_attention")
    assert rows.techniques("flash_attention") == {*ladder.line("flash_attention")[1:]}
    assert rows.change("torch_compile") == [("+", "torch_compile")]
    own = study_of(runs("train", "train+torch_compile", base="train"))
    assert own.parent("torch_compile") == ""  # a user's script has no part of our line


def test_study_line_of_an_unknown_script_is_itself():
    rows = study_of(runs(BASE, "an_idea"))
    assert rows.line("an_idea") == ["an_idea"]
    assert rows.techniques("an_idea") == frozenset() and rows.change("an_idea") == []


def test_study_change_has_signs_and_techniques():
    own = study_of(own_rows())
    assert own.change("train") == []
    assert own.change("train+tensorFloat32") == [("+", "tensorFloat32")]
    assert own.change(GRAPHS) == [("+", "cuda_graphs"), ("-", "torch_compile")]


def test_study_leaves_out_is_of_scripts_that_only_lack_techniques():
    own = study_of(own_rows())
    assert own.leaves_out("train+brainFloat16+torch_compile")
    for name in ("train", "train+torch_compile", ALL, GRAPHS):
        assert not own.leaves_out(name)


def test_study_techniques_follow_parents_and_changes():
    own = study_of(own_rows())
    assert own.techniques("train") == frozenset()
    assert own.techniques(ALL) == {*SWITCHES}
    assert own.techniques(GRAPHS) == {"tensorFloat32", "brainFloat16", "cuda_graphs"}
    assert own.techniques("train+torch_compile") == {"torch_compile"}
    assert own.techniques("train+brainFloat16+torch_compile") == {"brainFloat16", "torch_compile"}


def test_study_techniques_of_variants_are_those_of_the_merged_diffs():
    whole = "fused_optimizer"
    names = [f"{whole}-tensorFloat32-flash_attention", f"{BASE}+brainFloat16+{whole}"]
    rows = study_of(runs(BASE, whole, *names))
    assert rows.techniques(names[0]) == {"brainFloat16", "torch_compile", "fused_optimizer"}
    assert rows.techniques(names[1]) == {"brainFloat16", "fused_optimizer"}


def test_study_techniques_need_no_known_name():
    """A name tells nothing: rows say what a script adds to which."""
    places = {
        "x": Identity("own"),
        "x_fast": Identity("own", "x", "+flash_attention"),
        "x_new": Identity("own", "x_fast", "+cuda_graphs-flash_attention"),
    }
    rows = study_of(runs(*places, base="x", **places))
    assert rows.techniques("x_fast") == {"flash_attention"}
    assert rows.techniques("x_new") == {"cuda_graphs"}
    assert rows.order == [*places]


def test_study_order_is_that_of_the_ladder_with_variants_last():
    names = ["fused_optimizer-tensorFloat32", "8bit_optimizer", "untied_weights", "an_idea"]
    names += ["fused_optimizer", "tensorFloat32", BASE, f"{BASE}+flash_attention"]
    order = study_of(runs(*names)).order
    scripts = [name for name in ladder.techniques() if name in names]
    variants = ["fused_optimizer-tensorFloat32", f"{BASE}+flash_attention"]
    assert order == [*scripts, "an_idea", *variants]


def test_study_order_has_parents_before_children_whatever_comes_first():
    own = study_of(own_rows().iloc[::-1])
    scripts = ["train", "train+tensorFloat32", "train+tensorFloat32+brainFloat16", ALL, GRAPHS]
    assert own.order[:5] == scripts and {*own.order[5:]} == own.names("ablation")


def test_study_names_are_those_of_a_suite():
    rows = study_of(runs(BASE, "tensorFloat32", "untied_weights", f"{BASE}+flash_attention"))
    assert rows.names("ladder") == {BASE, "tensorFloat32"}
    assert rows.names("beyond") == {"untied_weights"}
    assert rows.names("ablation") == {f"{BASE}+flash_attention"}
    assert rows.names("own") == set()
    assert GRAPHS in study_of(own_rows()).names("own")


def test_study_beyond_has_scripts_and_switches_of_beyond():
    assert study_of(runs(BASE, "tensorFloat32", "untied_weights")).beyond() == {"untied_weights"}
    assert study_of(own_rows()).beyond() == {GRAPHS}


def test_study_of_float16_knows_the_ladder_of_its_device():
    rung = FLOAT16["torch_compile"]
    parents = ladder.repository(bfloat16=False).parents()
    places = {
        name: Identity(suite, parents[name] or "", f"+{name}")
        for name, suite in ((rung, "ladder"), ("padded_vocabulary", "beyond"))
    }
    rows = study_of(runs(BASE, *places, **places))
    assert rows.line("padded_vocabulary") == ladder.repository(False).line("padded_vocabulary")
    assert rows.ladder.get("padded_vocabulary").parent == FLOAT16["fused_optimizer"]
    in_bfloat16 = study_of(runs(BASE, "torch_compile", rung))
    assert in_bfloat16.ladder.get("padded_vocabulary").parent == "fused_optimizer"


@pytest.fixture
def path(tmp_path):
    """A results file with a ladder and an ablation, and records of all of its runs."""
    path = tmp_path / "results.csv"
    for name in (BASE, "tensorFloat32", f"{BASE}+flash_attention"):
        for torch in ("2.11.0", "2.13.0"):
            run = rows_of(name, [9, 9, 9], torch=torch)
            rows_file.append(path, run)
            write_record(path, run, technique=name, torch=torch)
    return path


def test_newest_holds_an_ablation_beside_what_is_shown(path):
    found = study.newest(rows_file.read(path), path)
    assert {*found.rows.technique} == {BASE, "tensorFloat32"}
    assert {*found.all_rows.technique} == {BASE, "tensorFloat32", f"{BASE}+flash_attention"}
    assert {*found.all_rows.torch} == {"2.13.0"} and "2 runs of" in found.left_out
    assert found.records.keys() == {*found.all_rows.run_id}
    assert {record["torch"] for record in found.records.values()} == {"2.13.0"}


def test_newest_without_an_ablation_has_one_table(path):
    rows = rows_file.read(path)
    found = study.newest(rows[rows.suite != "ablation"])
    assert found.all_rows is found.rows and found.records == {}


def test_newest_shows_an_ablation_where_asked(path):
    found = study.newest(rows_file.read(path), with_ablation=True)
    assert found.all_rows is found.rows and "ablation" in {*found.rows.suite}


def test_newest_of_an_ablation_alone_is_refused(path):
    rows = rows_file.read(path)
    with pytest.raises(UserError, match="only variants"):
        study.newest(rows[rows.suite == "ablation"])


def test_newest_ladder_prefers_the_group_with_the_most_rungs():
    made = runs(BASE, "tensorFloat32", "brainFloat16")
    newer = runs(BASE, "untied_weights").assign(torch="2.14.0")
    both = pd.concat([made, newer])
    assert {*study.newest(both).rows.torch} == {"2.14.0"}
    found = study.newest_ladder(both, None)
    assert {*found.rows.torch} == {"2.13.0"} and "torch 2.14.0" in found.left_out
