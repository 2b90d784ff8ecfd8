"""Scripts made by merging diffs: what they contain, and what is said where they cannot be made."""

import ast
from itertools import combinations

import pytest

from tests.helpers.rows import REPOSITORY
from Utils.scripts import ladder, variants
from Utils.scripts.identity import Identity


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where variants are written to."""
    monkeypatch.setattr(variants, "FOLDER", tmp_path / "variants")


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_variant_is_the_same_script_from_above_and_from_below(n):
    """The baseline with some diffs is the script without the others, a few of all such sets."""
    line = REPOSITORY.lineage("fused_optimizer")[1:]
    for names in list(combinations(line, n))[::3]:
        omitted = [name for name in line if name not in names]
        code = variants.together(names, REPOSITORY)
        assert code == variants.without(omitted, "fused_optimizer", REPOSITORY)
        ast.parse(code)


def test_variant_is_a_script_beside_the_others():
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


def test_variant_is_loaded_from_its_text():
    main = variants.load("def main():\n    return 3\n")
    assert main() == 3 and main.__module__.startswith("merged_")
