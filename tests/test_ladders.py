"""Ladders as values: lines, pairs, groups, float16, and the identity of a script."""

import json

import pytest

from Utils.base import paths
from Utils.base.errors import UserError
from Utils.scripts import ladder, variants
from Utils.scripts.identity import VARIABLE, Identity, changes, told_identity
from Utils.scripts.ladder import BASELINE, FLOAT16, Ladder, Technique

REPOSITORY = ladder.repository()
RUNGS = ["tensorFloat32", "brainFloat16", "torch_compile", "flash_attention", "fused_optimizer"]


def script(name, parent, **fields):
    doc = f"A script.\n\nParent: {parent}\n"
    facts = ladder.facts(doc)
    return Technique(name, paths.ROOT / f"{name}.py", doc, "", **facts, **fields)


def ladder_of(**parents):
    """A Ladder of scripts with these parents by name."""
    scripts = {name: script(name, parent) for name, parent in parents.items()}
    return Ladder(scripts, base="base")


def test_ladder_is_its_scripts_parents_before_children():
    names = [technique.name for technique in REPOSITORY]
    assert names == list(REPOSITORY.scripts) and len(REPOSITORY) == len(names)
    assert names[0] == REPOSITORY.base == BASELINE
    for technique in list(REPOSITORY)[1:]:
        assert names.index(technique.parent) < names.index(technique.name)


def test_ladder_get_names_what_there_is():
    assert REPOSITORY.get("torch_compile").name == "torch_compile"
    with pytest.raises(UserError, match="no technique 'nonsense'; choose base, child$"):
        ladder_of(base="none", child="base").get("nonsense")


def test_ladder_line_is_from_the_base_to_a_script():
    assert REPOSITORY.line("fused_optimizer") == [BASELINE, *RUNGS]
    assert REPOSITORY.line(BASELINE) == [BASELINE]
    assert ladder.line("flash_attention") == [BASELINE, *RUNGS[:4]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "nonsense does not descend from base: see nonsense"),
        ("orphan", "orphan does not descend from base: see gone"),
        ("grandchild", "orphan does not descend from base: see gone"),
        ("first", "second does not descend from base: see first"),
        ("own_parent", "own_parent does not descend from base: see own_parent"),
    ],
)
def test_ladder_line_names_what_does_not_descend(name, words):
    parents = {"base": "none", "orphan": "gone", "grandchild": "orphan"}
    circle = {"first": "second", "second": "first", "own_parent": "own_parent"}
    with pytest.raises(UserError, match=f"^{words}$"):
        ladder_of(**parents, **circle).line(name)


def test_ladder_part_has_the_same_order_and_still_knows_its_lines():
    part = REPOSITORY.part(["fused_optimizer", BASELINE, "torch_compile", "nonsense"])
    assert list(part.scripts) == [BASELINE, "torch_compile", "fused_optimizer"]
    assert part.line("fused_optimizer") == REPOSITORY.line("fused_optimizer")
    again = part.part(["fused_optimizer"])
    assert again.line("fused_optimizer") == REPOSITORY.line("fused_optimizer")
    with pytest.raises(UserError, match="no technique"):
        part.get("flash_attention")


def test_ladder_pairs_are_of_a_script_and_its_nearest_ancestor():
    def pairs(*names):
        return {tuple(sorted(pair)) for pair in REPOSITORY.part(names).pairs()}

    assert pairs(BASELINE, "tensorFloat32") == {(BASELINE, "tensorFloat32")}
    assert pairs(BASELINE, "flash_attention", "fused_optimizer") == {
        ("flash_attention", BASELINE),
        ("flash_attention", "fused_optimizer"),
    }
    siblings = pairs("8bit_optimizer", "fused_optimizer", "brainFloat16")
    assert siblings == {("8bit_optimizer", "brainFloat16"), ("brainFloat16", "fused_optimizer")}
    assert pairs("flash_attention") == pairs() == set()


def test_ladder_pairs_end_where_parents_go_round_in_a_circle():
    circle = ladder_of(base="none", first="second", second="third", third="second", alone="alone")
    assert circle.part(["first", "base", "alone"]).pairs() == set()
    assert circle.part(["third", "second"]).pairs() == {frozenset(("second", "third"))}


def test_ladder_group_has_its_scripts_and_what_they_are_compared_with():
    assert list(REPOSITORY.group("ladder").scripts) == [BASELINE, *RUNGS, "8bit_optimizer"]
    outside = REPOSITORY.beyond()
    assert "padded_vocabulary" in outside and not outside & {BASELINE, *RUNGS}
    group = REPOSITORY.group("beyond").scripts.keys()
    assert group == outside | {REPOSITORY.get(name).parent for name in outside} | {BASELINE}
    assert REPOSITORY.group("everything").scripts == REPOSITORY.scripts
    assert REPOSITORY.group("ablation") is REPOSITORY.group("torch_compile") is None


def test_ladder_last_rung_ends_the_longest_line():
    assert REPOSITORY.last_rung() == "fused_optimizer"
    assert ladder.repository(bfloat16=False).last_rung() == "float16_fused_optimizer"


def test_in_float16_rungs_are_of_the_ladder_and_what_they_replace_of_no_group():
    in_float16 = ladder.repository(bfloat16=False)
    assert in_float16.replaced == FLOAT16 and REPOSITORY.replaced == {}
    names = [BASELINE, "tensorFloat32", *FLOAT16.values()]
    rungs = in_float16.group("ladder")
    assert sorted(rungs.scripts) == sorted(names)
    assert {rung.identity.suite for rung in rungs} == {"ladder"}
    for word in ("ladder", "beyond", "everything"):
        assert not in_float16.group(word).scripts.keys() & FLOAT16.keys()
    assert REPOSITORY.get("float16_compile").identity.suite == "beyond"
    assert in_float16.beyond() == REPOSITORY.beyond() - {*FLOAT16.values()}


def test_in_float16_a_diff_is_on_the_float16_line():
    in_float16 = ladder.repository(bfloat16=False)
    padded = in_float16.get("padded_vocabulary")
    parent = in_float16.get("float16_fused_optimizer")
    assert padded.identity == Identity("beyond", parent.name, "+padded_vocabulary")
    assert "torch.float16" in padded.code and "bfloat16" not in padded.code
    assert "float16" in padded.needs and "bfloat16" not in padded.needs
    assert padded.note == "in float16" and not parent.note
    for name, instead in FLOAT16.items():
        replaced = in_float16.get(name)
        assert replaced.code == in_float16.get(instead).code
        assert replaced.needs == in_float16.get(instead).needs
    assert in_float16.get("all_together_float8").misfit
    assert in_float16.get("gradient_checkpointing").code


def test_variants_of_a_float16_ladder_are_in_float16(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "FOLDER", tmp_path)
    in_float16 = ladder.repository(bfloat16=False)
    variant = variants.find("float16_fused_optimizer-float16_attention", in_float16)
    assert "torch.float16" in variant.code and "float16" in variant.needs
    change = "-float16_attention"
    assert variant.identity == Identity("ablation", "float16_fused_optimizer", change)


def test_ablation_is_a_ladder_of_scripts_and_variants(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "FOLDER", tmp_path)
    ablation = variants.ablation("fused_optimizer", REPOSITORY)
    names = list(ablation.scripts)
    assert names[0] == ablation.base == BASELINE
    assert {*REPOSITORY.group("ladder").scripts} <= {*names}
    for name in RUNGS[1:]:
        assert ablation.get(f"{BASELINE}+{name}").identity.change == f"+{name}"
    for name in RUNGS[:-1]:
        pair = frozenset((f"fused_optimizer-{name}", "fused_optimizer"))
        assert pair in ablation.pairs()
    suites = {script.identity.suite for script in ablation if "+" in script.name}
    assert suites == {"ablation"} and ablation.get("flash_attention").suite == "ladder"
    line = variants.ablation("flash_attention", REPOSITORY)
    assert "fused_optimizer" not in line.scripts and "8bit_optimizer" not in line.scripts


def test_of_rows_is_the_ladder_by_which_rows_were_measured():
    def is_in_float16(*names, bfloat16):
        scripts = ladder.repository(bfloat16)
        return bool(ladder.of_rows({n: scripts.get(n).identity for n in names}).replaced)

    assert not ladder.of_rows({}).replaced
    for names in (["torch_compile"], ["padded_vocabulary"], [BASELINE, "float16_compile"]):
        assert is_in_float16(*names, bfloat16=False)
        assert not is_in_float16(*names, bfloat16=True)
    assert not is_in_float16(BASELINE, "tensorFloat32", bfloat16=False)
    switches = {"train": Identity("own"), "train+float16": Identity("own", "train", "+float16")}
    assert not ladder.of_rows(switches).replaced


@pytest.mark.parametrize(
    ("name", "path", "parent", "identity"),
    [
        (BASELINE, paths.ROOT / "no_optimization.py", None, Identity("ladder")),
        ("a", paths.ROOT / "a.py", "b", Identity("ladder", "b", "+a")),
        ("a", paths.ROOT / "beyond" / "memory" / "a.py", "b", Identity("beyond", "b", "+a")),
        ("a", paths.ROOT.parent / "a.py", "b", Identity("beyond", "b", "+a")),
        ("b-a", variants.FOLDER / "b-a.py", "b", Identity("ablation", "b", "-a")),
        ("b+c+d", variants.FOLDER / "b+c+d.py", "b", Identity("ablation", "b", "+c+d")),
    ],
)
def test_identity_of_a_script_by_itself_is_by_where_it_lies(name, path, parent, identity):
    assert ladder.identity(name, path, parent) == identity


def test_identity_of_a_script_by_itself_is_that_of_its_ladder():
    for technique in REPOSITORY:
        by_itself = ladder.identity(technique.name, technique.path, technique.parent)
        assert by_itself == technique.identity


def test_told_identity_is_for_the_script_of_that_name_alone(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert told_identity("torch_compile") is None
    technique = REPOSITORY.get("torch_compile")
    told = technique.environment()[VARIABLE]
    assert json.loads(told)["name"] == "torch_compile"
    monkeypatch.setenv(VARIABLE, told)
    assert told_identity("torch_compile") == technique.identity
    assert told_identity("flash_attention") is None


def test_changes_are_signs_and_techniques():
    assert changes("+a-b") == [("+", "a"), ("-", "b")]
    assert changes("+8bit_optimizer") == [("+", "8bit_optimizer")]
    assert changes("") == []
