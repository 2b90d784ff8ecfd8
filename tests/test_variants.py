"""Scripts made by merging diffs: what they contain, and what is said where they cannot be made."""

import ast
import re
from collections import Counter
from contextlib import suppress
from itertools import combinations

import pytest

from tests.helpers import forked
from Utils.base.errors import UserError
from Utils.harness import batch_trials
from Utils.results import rows_file
from Utils.scripts import ladder, variants
from Utils.scripts.identity import Identity

REPOSITORY = ladder.Ladder(ladder.tracked())
TECHNIQUES = REPOSITORY.scripts
RUNGS = [script.name for script in REPOSITORY if script.at_top_level and script.parent]
FUSED = ["flash_attention", "padded_vocabulary"]
NEEDS = {  # of a few techniques whose diff does not apply to the baseline by itself
    "all_together_float8": [
        "brainFloat16",
        "flash_attention",
        "padded_vocabulary",
        "fused_cross_entropy",
    ],
    "cuda_graphs": ["torch_compile", "asynchronous_logging"],
    "gradient_accumulation": ["brainFloat16"],
    "zero_redundancy": ["distributed_data_parallel"],
}


def words(code):
    ast.parse(code)
    return Counter(re.findall(r"\w+|[^\w\s]", code))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where variants are written to."""
    monkeypatch.setattr(variants, "FOLDER", tmp_path / "variants")


@pytest.mark.parametrize("name", [t.name for t in REPOSITORY if t.parent])
def test_variant_of_a_diff_alone_is_the_baseline_with_it_or_says_what_it_needs(name):
    code = variants.together([name], REPOSITORY)
    if name in RUNGS:
        rung = words(TECHNIQUES[name].code)
        parent = words(TECHNIQUES[TECHNIQUES[name].parent].code)
        baseline = words(TECHNIQUES["no_optimization"].code)
        assert words(code) == baseline + (rung - parent) - (parent - rung)
    if code is not None:
        assert name not in NEEDS and words(code)
        return

    needs = variants.needs(name, REPOSITORY)
    assert needs == NEEDS.get(name, needs)
    assert words(variants.together([*needs, name], REPOSITORY))
    with pytest.raises(UserError, match=f"it needs {' and '.join(needs)}$"):
        variants.find(f"no_optimization+{name}", REPOSITORY)


def test_variant_without_a_technique_is_python_or_says_why_not():
    for script in TECHNIQUES:
        line = REPOSITORY.lineage(script)
        for name in line[1:]:
            code = variants.without([name], script, REPOSITORY)
            if code is None:
                child = variants.builds_on(name, script, REPOSITORY)
                assert name in REPOSITORY.lineage(child)[:-1] and child in line
            else:
                assert words(code)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_variant_is_the_same_script_from_above_and_from_below(n):
    """The baseline with some diffs is the script without the others, a few of all such sets."""
    line = REPOSITORY.lineage("fused_optimizer")[1:]
    for names in list(combinations(line, n))[::3]:
        omitted = [name for name in line if name not in names]
        code = variants.together(names, REPOSITORY)
        assert code == variants.without(omitted, "fused_optimizer", REPOSITORY) and words(code)


def test_variant_is_a_script_beside_the_others():
    variant = variants.find("fused_optimizer-torch_compile", REPOSITORY)
    assert variant.path == variants.FOLDER / "fused_optimizer-torch_compile.py"
    doc, code = ladder.split(variant.path.read_text())
    assert code == variant.code and "torch.compile" not in code and "fused=True" in code
    assert doc.startswith("fused_optimizer without torch_compile.\n")
    assert variant.needs == ("tf32", "bfloat16") and variant.command == [str(variant.path)]
    assert variant.identity == Identity("ablation", "fused_optimizer", "-torch_compile")
    assert variants.find("flash_attention", REPOSITORY) == TECHNIQUES["flash_attention"]

    several = variants.find("no_optimization+flash_attention+brainFloat16", REPOSITORY)
    assert several.name == "no_optimization+brainFloat16+flash_attention"
    assert several.headline == "brainFloat16 and flash_attention alone, on the baseline."
    assert several.needs == ("bfloat16",) and several.change == "+brainFloat16+flash_attention"

    in_float16 = ladder.repository("float16")
    variant = variants.find("float16_fused_optimizer-float16_attention", in_float16)
    assert "torch.float16" in variant.code and "float16" in variant.needs


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fused_optimizer-8bit_optimizer", "fused_optimizer does not descend from 8bit_optimizer"),
        ("flash_attention+fused_optimizer", "is no_optimization.fused_optimizer"),
        ("all_together-flash_attention", "fused_cross_entropy builds on it"),
        ("no_optimization+nonsense", "no technique 'no_optimization.nonsense'"),
        ("fused_optimizer-torch_compile+flash_attention", "no technique"),
        ("no_optimization+torch_compile+torch_compile", "no technique"),
        ("no_optimization+no_optimization", "no technique"),
        ("no_optimization+torch_compile+cuda_graphs", "cuda_graphs needs asynchronous_logging"),
        ("no_optimization+fused_optimizer+8bit_optimizer", "8bit_optimizer changes the same words"),
        ("all_together-flash_attention-tensorFloat32", "builds on flash_attention"),
        ("zero_redundancy-distributed_data_parallel", "zero_redundancy builds on it"),
    ],
)
def test_variant_that_cannot_be_is_refused_in_one_line(name, reason):
    with pytest.raises(UserError, match=reason):
        variants.find(name, REPOSITORY)


def test_variants_of_an_ablation_are_a_ladder():
    ablation = variants.ablation("fused_optimizer", REPOSITORY)
    added = [f"no_optimization+{name}" for name in RUNGS[1:]]
    removed = [f"fused_optimizer-{name}" for name in RUNGS[:4]]
    assert {*ablation.scripts} == {"no_optimization", *RUNGS, *added, *removed}
    assert next(iter(ablation)).name == ablation.base == "no_optimization"
    assert {frozenset((name, "fused_optimizer")) for name in removed} < ablation.pairs()
    assert {ablation.get(name).suite for name in added + removed} == {"ablation"}
    scripts = variants.ablation("flash_attention", REPOSITORY).scripts
    assert "flash_attention-torch_compile" in scripts and "fused_optimizer" not in scripts


def test_variant_is_loaded_from_its_text():
    main = variants.load("def main():\n    return 3\n")
    assert main() == 3 and main.__module__.startswith("merged_")


def every_variant():
    """Yield each technique alone, and without each of their line the scripts with no children."""
    leaves = {*TECHNIQUES} - {t.parent for t in TECHNIQUES.values()}
    names = [f"no_optimization+{name}" for name in [*TECHNIQUES][1:]]
    for script in ["fused_optimizer", *sorted(leaves)]:
        names += [f"{script}-{name}" for name in REPOSITORY.lineage(script)[1:]]
    codes = {technique.code for technique in REPOSITORY}  # which run elsewhere
    for name in names:
        with suppress(UserError):
            variant = variants.find(name, REPOSITORY)
            if variant.code not in codes:
                codes.add(variant.code)
                yield variant


@pytest.mark.slow
def test_variant_of_every_script_trains(tmp_path, monkeypatch):
    """Eagerly: what a merge could spoil is the script."""
    monkeypatch.setattr(batch_trials, "largest_batch", lambda args, *_, **__: 2 * args.batch_size)
    text = tmp_path / "text.txt"
    text.write_text("These scripts are generated, and they have to train all the same. " * 200)
    file = tmp_path / "results.csv"
    flags = ["--model=gpt2-tiny", "--steps=2", "--warmup=1", f"--dataset={text}", "--device=cpu"]
    flags += ["--batch-size=4", "--seq-len=2", f"--results-file={file}"]
    made = [*every_variant()]
    for variant, done in zip(made, forked.run_eagerly(made, flags), strict=True):
        assert done.returncode == 0, (variant.name, done.stderr)

    rows = rows_file.read(file)
    status = rows.groupby("technique", observed=True).status.first()
    assert {*status.index} == {variant.name for variant in made}
    assert {*status} == {"ok", "unsupported"} and (status == "ok").sum() > 60
    losses = rows[rows.status == "ok"].groupby("technique", observed=True).loss
    assert losses.first().between(10.5, 11.2).all()
    still = losses.nunique().loc[lambda different: different < 2].index
    assert all("linear_cross_entropy" in name for name in still)  # rounded to 8 bits
