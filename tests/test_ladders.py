"""Ladders as values: lines, pairs, groups, float16, the identity of a script, and variants."""

import ast
from itertools import combinations

import pytest

from tests.helpers.refusal import refused
from Utils.base import paths
from Utils.launch import suite_runner
from Utils.scripts import diffs, ladder, variants
from Utils.scripts.identity import Identity
from Utils.scripts.ladder import BASELINE, FLOAT16, Ladder, Technique

REPOSITORY = ladder.repository()
TRACKED = ladder.tracked()
IN_FLOAT16 = ladder.repository("float16")


def ladder_of(**parents):
    """Return a Ladder of scripts with these parents by name."""
    scripts = {}
    for name, parent in parents.items():
        doc = f"A script.\n\nParent: {parent}\n"
        path = paths.ROOT / f"{name}.py"
        scripts[name] = Technique(name, path, doc, "", **ladder.docstring_facts(doc))
    return Ladder(scripts, base="base")


def test_ladder_facts_are_those_of_a_docstring():
    doc = (
        "A.\n\nParent: b\nNeeds:  tf32, package x; c\nCosts:  approximate\n        sums\nOther: d\n"
    )
    facts = {"Parent": "b", "Needs": "tf32, package x; c", "Costs": "approximate sums"}
    assert [*ladder.docstring_facts(doc).values()] == ["b", ("tf32", "package x"), facts]
    assert ladder.docstring_facts("A.") == {"parent": None, "needs": (), "facts": {}}
    assert REPOSITORY.get("muon").stated_parity == "another optimizer"
    assert REPOSITORY.get("fused_optimizer").stated_parity == ""


def test_ladder_has_one_script_of_a_name(tmp_path):
    for name in ("a.py", "beyond/memory/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""A.\n\nParent: none\n"""\n')
    with refused(r"^a.py and beyond/memory/a.py have one name; rename one$"):
        ladder.techniques(tmp_path)


@pytest.mark.parametrize(
    "name, words",
    [
        ("grandchild", "orphan does not descend from base: see gone"),
        ("first", "second does not descend from base: see first"),
    ],
)
def test_suite_refuses_an_unknown_or_cyclic_parent_before_it_runs(name, words):
    parents = {"base": "none", "orphan": "gone", "grandchild": "orphan"}
    scripts = ladder_of(**parents, first="second", second="first")
    with refused(f"^{words}$"):
        suite_runner.techniques_named([name], scripts)


def test_ladder_in_float16_has_other_rungs_and_diffs_on_them():
    rungs = [name for name in IN_FLOAT16.group("ladder").scripts if name in TRACKED]
    assert rungs == [BASELINE, "tensorFloat32", *FLOAT16.values()]
    assert IN_FLOAT16.beyond() == REPOSITORY.beyond() - {*FLOAT16.values()}

    padded = IN_FLOAT16.get("padded_vocabulary")
    assert padded.identity == Identity("beyond", "float16_fused_optimizer", "+padded_vocabulary")
    assert "torch.float16" in padded.code and "bfloat16" not in padded.code
    assert padded.needs == ("float16", "compile") and padded.note == "in float16"
    assert IN_FLOAT16.get("torch_compile").code == REPOSITORY.get("float16_compile").code

    reason = "needs bfloat16: in float16 its gradients underflow before they are scaled"
    assert IN_FLOAT16.get("fused_cross_entropy").misfit == reason
    assert IN_FLOAT16.get("all_together").misfit == reason
    assert "in float16 gradients are still scaled" in IN_FLOAT16.get("gradient_clipping").misfit


def test_ladder_in_float16_is_there_without_git(monkeypatch):
    """What rows name is found; what would be merged does not run, and says why."""
    monkeypatch.setenv("PATH", "")
    diffs.merge.cache_clear()
    scripts = ladder.repository("float16")
    assert scripts.parents() == IN_FLOAT16.parents()
    reason = "merging variants needs git; install git"
    assert scripts.get("padded_vocabulary").misfit == reason


def test_ladder_in_float32_has_bfloat16_where_it_is_emulated():
    scripts = ladder.repository("float32")
    in_bfloat16 = [t.name for t in scripts if "torch.bfloat16" in t.code and not t.misfit]
    assert in_bfloat16 == ["brainFloat16"]  # emulated
    flash = scripts.get("flash_attention")
    assert flash.code == variants.without(in_bfloat16, flash.name, REPOSITORY)


def test_identity_of_a_script_by_itself_is_by_where_it_lies():
    for script in REPOSITORY:
        assert ladder.identity(script.name, script.path, script.parent) == script.identity
    for folder, suite in ((paths.ROOT.parent, "beyond"), (variants.FOLDER, "ablation")):
        assert ladder.identity("b+a", folder / "b+a.py", "b").suite == suite


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_variant_is_the_same_script_from_above_and_from_below(n):
    """The baseline with some diffs is the script without the others, a few of all such sets."""
    line = REPOSITORY.lineage("fused_optimizer")[1:]
    for names in list(combinations(line, n))[::3]:
        omitted = [name for name in line if name not in names]
        code = variants.together(names, REPOSITORY)
        assert code == variants.without(omitted, "fused_optimizer", REPOSITORY)
        ast.parse(code)


def test_variant_is_a_script_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("Utils.scripts.variants.FOLDER", tmp_path / "variants")
    variant = variants.find("fused_optimizer-torch_compile", REPOSITORY)
    assert variant.path == variants.FOLDER / "fused_optimizer-torch_compile.py"
    doc, code = ladder.split(variant.path.read_text())
    assert code == variant.code and "torch.compile" not in code and "fused=True" in code
    assert doc.startswith("fused_optimizer without torch_compile.\n")
    assert variant.needs == ("tf32", "bfloat16") and variant.command == [str(variant.path)]
    assert variant.identity == Identity("ablation", "fused_optimizer", "-torch_compile")

    several = variants.find("no_optimization+flash_attention+brainFloat16", REPOSITORY)
    assert several.name == "no_optimization+brainFloat16+flash_attention"
    assert several.headline == "brainFloat16 and flash_attention alone, on the baseline."
    assert several.needs == ("bfloat16",) and several.change == "+brainFloat16+flash_attention"
