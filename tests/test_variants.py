"""Scripts made by merging diffs: what they contain, and what is said where they cannot be made."""

import ast
import re
from collections import Counter
from contextlib import suppress
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

from Utils.base.errors import Unsupported, UserError
from Utils.device.cpu import CPU
from Utils.harness import batch_trials, held_out_loss, run_record
from Utils.harness.settings import check_need
from Utils.results import rows_file
from Utils.run import Run, execute
from Utils.scripts import diffs, ladder, variants
from Utils.scripts.identity import Identity

REPOSITORY = ladder.Ladder(ladder.tracked())
TECHNIQUES = REPOSITORY.scripts
RUNGS = [script.name for script in REPOSITORY if script.at_top_level and script.parent]
FUSED = ["flash_attention", "padded_vocabulary"]
NEEDS = {  # of techniques whose diff does not apply to the baseline by itself
    "all_together": ["brainFloat16", "torch_compile", "bfloat16_residual"],
    "all_together_float8": ["brainFloat16", *FUSED, "fused_cross_entropy"],
    "bfloat16_residual": ["brainFloat16"],
    "chunked_loss": ["brainFloat16", "torch_compile"],
    "cuda_graphs": ["torch_compile", "asynchronous_logging"],
    "cudnn_attention": ["flash_attention"],
    "explicit_mask": ["flash_attention"],
    "flex_attention": ["flash_attention"],
    "fully_sharded": ["torch_compile", "flash_attention"],
    "fused_cross_entropy": FUSED,
    "gradient_accumulation": ["brainFloat16"],
    "gradient_compression": ["distributed_data_parallel"],
    "inductor_tuning": ["torch_compile"],
    "max_autotune": ["torch_compile"],
    "no_sync": ["distributed_data_parallel"],
    "optimizer_in_backward": ["torch_compile"],
    "paged_optimizer": ["8bit_optimizer"],
    "regional_compilation": ["torch_compile"],
    "selective_checkpointing": ["gradient_checkpointing"],
    "small_card": ["torch_compile"],
    "stochastic_rounding": ["fused_optimizer"],
    "streaming_dataset": ["prefetching_loader"],
    "zero_redundancy": ["distributed_data_parallel"],
}


def words(code):
    return Counter(re.findall(r"\w+|[^\w\s]", code))


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_alone_is_the_baseline_with_its_diff(name):
    """Its words are the baseline's, with those added and removed that its own diff adds and
    removes."""
    code = variants.together([name], REPOSITORY)
    ast.parse(code)
    rung = words(TECHNIQUES[name].code)
    parent = words(TECHNIQUES[TECHNIQUES[name].parent].code)
    baseline = words(TECHNIQUES["no_optimization"].code)
    assert words(code) == baseline + (rung - parent) - (parent - rung)


@pytest.mark.parametrize("name", RUNGS[:-2])
def test_the_whole_without_a_rung_and_with_it_again_is_the_whole(name):
    whole, technique = TECHNIQUES["fused_optimizer"], TECHNIQUES[name]
    code = variants.without([name], "fused_optimizer", REPOSITORY)
    assert code != whole.code
    ast.parse(code)
    assert diffs.merge(code, TECHNIQUES[technique.parent].code, technique.code) == whole.code


@pytest.mark.parametrize("name", [t.name for t in TECHNIQUES.values() if t.parent])
def test_a_diff_that_does_not_apply_alone_says_what_it_needs(name):
    code = variants.together([name], REPOSITORY)
    if code is not None:
        assert name not in NEEDS
        ast.parse(code)
        return
    needs = variants.needs(name, REPOSITORY)
    assert needs == NEEDS.get(name, needs)
    ast.parse(variants.together([*needs, name], REPOSITORY))
    with pytest.raises(UserError, match=f"it needs {' and '.join(needs)}$"):
        variants.find(f"no_optimization+{name}", REPOSITORY)


def test_known_needs_are_of_scripts_that_exist():
    assert NEEDS.keys() <= TECHNIQUES.keys()


def test_every_variant_of_every_script_is_python_or_says_why_not():
    for whole in TECHNIQUES:
        for name in REPOSITORY.line(whole)[1:]:
            code = variants.without([name], whole, REPOSITORY)
            if code is None:
                child = variants.builds_on(name, whole, REPOSITORY)
                assert name in REPOSITORY.line(child)[:-1] and child in REPOSITORY.line(whole)
            else:
                ast.parse(code)


def test_a_variant_is_a_script_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "FOLDER", tmp_path / "variants")
    variant = variants.find("fused_optimizer-torch_compile", REPOSITORY)
    assert variant.path == tmp_path / "variants" / "fused_optimizer-torch_compile.py"
    doc, code = ladder.split(variant.path.read_text())
    assert code == variant.code and "torch.compile" not in code and "fused=True" in code
    assert doc.startswith("fused_optimizer without torch_compile")
    assert "\nParent: fused_optimizer\n" in doc and variant.parent == "fused_optimizer"
    assert variant.command == [str(variant.path)]
    assert variants.find("flash_attention", REPOSITORY) == TECHNIQUES["flash_attention"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fused_optimizer-8bit_optimizer", "fused_optimizer does not descend from 8bit_optimizer"),
        ("fused_optimizer-no_optimization", "does not descend from no_optimization"),
        ("flash_attention+fused_optimizer", "is no_optimization.fused_optimizer"),
        ("all_together-flash_attention", "fused_cross_entropy builds on it"),
        ("no_optimization+nonsense", "no technique 'no_optimization.nonsense'"),
        ("fused_optimizer-torch_compile+flash_attention", "no technique"),
        ("no_optimization+torch_compile+torch_compile", "no technique"),
        ("no_optimization+no_optimization", "no technique"),
        ("no_optimization+torch_compile+cuda_graphs", "cuda_graphs needs asynchronous_logging"),
        ("no_optimization+fused_optimizer+8bit_optimizer", "8bit_optimizer changes the same words"),
        ("all_together-flash_attention-tensorFloat32", "builds on flash_attention"),
        ("no_optimization+fused_optimizer+zero_redundancy", "needs distributed_data_parallel"),
        ("zero_redundancy-distributed_data_parallel", "zero_redundancy builds on it"),
    ],
)
def test_what_is_no_variant_is_refused_in_one_line(name, words):
    with pytest.raises(UserError, match=words):
        variants.find(name, REPOSITORY)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_set_is_the_same_script_from_above_and_from_below(n):
    """The baseline with some diffs is the whole without the others, a few of all such sets."""
    line = REPOSITORY.line("fused_optimizer")[1:]
    for names in list(combinations(line, n))[::3]:
        others = [name for name in line if name not in names]
        code = variants.together(names, REPOSITORY)
        assert code == variants.without(others, "fused_optimizer", REPOSITORY)
        ast.parse(code)


def test_a_set_has_one_name_whichever_way_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "FOLDER", tmp_path)
    swapped = variants.find("no_optimization+fused_optimizer+brainFloat16", REPOSITORY)
    assert swapped.name == swapped.path.stem == "no_optimization+brainFloat16+fused_optimizer"
    assert swapped.identity.change == "+brainFloat16+fused_optimizer"
    less = variants.find("fused_optimizer-flash_attention-torch_compile", REPOSITORY)
    assert less.name == "fused_optimizer-torch_compile-flash_attention"
    assert less.identity == Identity(
        "ablation", "fused_optimizer", "-torch_compile-flash_attention"
    )
    assert less.doc.startswith("fused_optimizer without torch_compile and flash_attention")


def test_changes_that_touch_are_both_made_and_others_are_not():
    def merged(mine, theirs, base="a b c d e"):
        code = diffs.merge(*(text.replace(" ", "; ") for text in (mine, base, theirs)))
        return code and code.replace("; ", " ")

    assert merged("a B c d e", "a b C d e") == "a B C d e"
    assert merged("a c d e", "a b X c d e") == "a X c d e"
    assert merged("a b d e", "a b c X d e") == "a b X d e"
    assert merged("X a b c d e", "a b c d") == "X a b c d"
    assert merged("a b X c d e", "a b Y c d e") is None  # in which order?
    assert merged("a b X d e", "a b Y d e") is None
    assert merged("a X d e", "a b Y d e") is None
    assert merged("a b c d e", "a b ( d e") is None  # no Python
    same = 'a = """\n<<<<<<< b\n======= quoted\n\n  é"""\n'
    assert diffs.merge(same, same, same + "x") == same + "x"


def every_variant():
    """Each technique alone, and without each other the last rung and the scripts that have no
    children: with these come all diffs of their lines."""
    leaves = {*TECHNIQUES} - {t.parent for t in TECHNIQUES.values()}
    names = [f"no_optimization+{name}" for name in [*TECHNIQUES][1:]]
    for whole in ["fused_optimizer", *sorted(leaves)]:
        names += [f"{whole}-{name}" for name in REPOSITORY.line(whole)[1:]]
    known = {technique.code for technique in TECHNIQUES.values()}  # which run elsewhere
    for name in names:
        with suppress(UserError):
            variant = variants.find(name, REPOSITORY)
            if variant.code not in known:
                known.add(variant.code)
                yield variant


def lacks_something_here(script):
    """Tell whether a CPU does not meet one of a script's needs."""
    args = SimpleNamespace(hardware=CPU(), batch_size=4, world_size=1, dataset="")
    try:
        for need in script.needs:
            check_need(need, args)
    except Unsupported:
        return True
    return False


@pytest.mark.slow
def test_every_variant_runs_and_trains(tmp_path, monkeypatch):
    """In this process, without compiling and without processes that load data, which would take
    minutes: what a merge could spoil is the script."""
    monkeypatch.setattr(variants, "FOLDER", tmp_path / "variants")
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: None)
    loader = torch.utils.data.DataLoader

    def in_process(batches, sampler=None, **options):
        return loader(batches, batch_size=None, sampler=sampler)

    monkeypatch.setattr(torch.utils.data, "DataLoader", in_process)
    monkeypatch.setattr(run_record, "_collect_env", str)
    # Slow and the same for all.
    monkeypatch.setattr(held_out_loss, "loss", lambda args, model: None)
    monkeypatch.setattr(batch_trials, "largest_batch", lambda args, *_, **__: 2 * args.batch_size)
    text = tmp_path / "text.txt"
    text.write_text("Nobody wrote these scripts, and they have to train all the same. " * 200)
    flags = f"--model gpt2-tiny --steps 2 --warmup 1 --dataset {text} --device cpu"
    flags += " --batch-size 4 --seq-len 2 --results-file"
    ran = []
    for variant in every_variant():
        path = tmp_path / f"{variant.name}.csv"
        try:
            execute(variant, [*flags.split(), str(path)], Run)
        except Unsupported:
            assert lacks_something_here(variant), variant.name
            continue
        finally:
            torch.use_deterministic_algorithms(False)
            torch.set_float32_matmul_precision("highest")
        ran.append(variant.name)
        losses = [float(row["loss"]) for row in rows_file.text_rows(path)]
        assert 10.5 < losses[0] < 11.2 and len(set(losses)) == 2, (variant.name, losses)
    assert len(ran) > 60
