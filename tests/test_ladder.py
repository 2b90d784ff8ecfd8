"""The promises of the ladder, held by every tracked script with a parent. No exclusions."""

import dataclasses
import math
import re

import pytest

from tests.helpers import forked, processes
from tests.helpers.stand_ins import doubled_batch
from Utils.base import paths
from Utils.base.errors import Unsupported
from Utils.commands import __main__ as commands
from Utils.harness.settings import check_needs
from Utils.results import rows_file
from Utils.scripts import diffs, ladder

TECHNIQUES = ladder.tracked()
by_name = pytest.mark.parametrize("technique", TECHNIQUES.values(), ids=lambda t: t.name)
PAGE = (paths.ROOT / "docs/TECHNIQUES.md").read_text()
KERNEL = re.compile(r"@triton\.jit|class \w+\(torch\.autograd\.Function\)")
STEPS, WARMUP = 6, 3
TINY = [
    "--model=gpt2-tiny",
    "--device=cpu",
    "--batch-size=4",
    "--seq-len=4",
    f"--steps={STEPS}",
    f"--warmup={WARMUP}",
]


def split_kernels(technique):
    """Return the technique without custom kernels, and how many lines these have.

    They are the functions that Triton compiles, and the autograd functions that launch them.
    """
    blocks = technique.code.split("\n\n\n")
    kernels = [block for block in blocks if KERNEL.match(block)]
    rest = "\n\n\n".join(block for block in blocks if block not in kernels)
    lines = sum(len(block.splitlines()) for block in kernels)
    return dataclasses.replace(technique, code=rest), lines


@by_name
def test_ladder_script_is_its_parent_plus_one_idea_on_a_page(technique):
    """README: "Every other script is its parent plus one idea"."""
    code, kernels = split_kernels(technique)
    line = ladder.lineage(technique.name)  # raises for an unknown parent and for a circle
    assert line[0] == "no_optimization" and line[-1] == technique.name
    if technique.parent:
        lines = diffs.diff(code, split_kernels(TECHNIQUES[technique.parent])[0], context=0)
        changed = [line for line in lines[2:] if re.match(r"[+-]\s*\S", line)]
        assert 1 <= len(changed) <= 12, "\n".join(changed)

    assert [*technique.facts] == ["Parent", "Needs", "Gains", "Costs", "See"]
    assert re.fullmatch(r".{10,96}\.", technique.headline)
    assert 40 <= len(technique.path.read_text().splitlines()) - kernels <= 80 >= kernels
    assert re.findall(r"(?m)^def (\w+)", technique.code)[-1] == "main"
    assert technique.code.endswith('if __name__ == "__main__":\n    run_script(main, __doc__)\n')


@pytest.fixture(scope="module")
def recipes():
    """What make would run for all techniques."""
    return processes.run("make", "-n", "PYTHON=python3", *TECHNIQUES).stdout


@by_name
def test_ladder_script_has_a_target_a_row_in_the_list_and_known_needs(technique, recipes, settle):
    """DESIGN: "every script has a Makefile target and a row in docs/TECHNIQUES.md"."""
    command = " ".join(technique.command).removeprefix("-P ").removeprefix(f"{paths.ROOT}/")
    assert f"python3 {command} PYTHON" in recipes
    assert f"\n| [{technique.name}](../{technique.path.relative_to(paths.ROOT)})" in PAGE
    args = settle("--batch-size=4").replace(needs=technique.needs)
    try:
        check_needs(args)
    except Unsupported as reason:
        assert str(reason)


def test_diff_shows_the_technique_and_nothing_else(capsys):
    """README: "All that fused_optimizer.py changes (`make diff T=fused_optimizer`)"."""
    commands.main("diff", "T=fused_optimizer")
    shown = capsys.readouterr().out
    assert shown.startswith(TECHNIQUES["fused_optimizer"].doc)
    assert [line for line in shown.splitlines() if re.match(r"[+-][^+-]", line)] == [
        "-    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)",
        "+    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)",
    ]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Rows of every technique at the tiny model, with torch.compile.

    Inductor generates C++ for the seven; children of flash_attention, which come last, find its
    kernels in the cache. The others' graphs are traced, differentiated and partitioned as well, but
    run operation by operation. larger_batch takes twice the batch.
    """
    path = tmp_path_factory.mktemp("smoke") / "results.csv"
    forked.prepare_compiler()
    order = sorted(TECHNIQUES.values(), key=lambda t: t.parent == "flash_attention")

    with pytest.MonkeyPatch.context() as patch:
        doubled_batch(patch)
        flags = [*TINY, f"--results-file={path}"]
        ended = forked.run(order, flags)
    for done in ended:
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        # Python's tracker of semaphores may warn at the end of a busy fork; a script has no part.
        assert not re.search("^(?!.*resource_tracker).*warning", said, re.I | re.M), said
    return rows_file.read(path)


@pytest.mark.slow
@by_name
def test_ladder_script_runs_compiled_or_says_why_not(technique, smoke):
    """And its losses fall together with the baseline's."""
    rows_of = dict(iter(smoke.groupby("technique", observed=True)))
    ours = rows_of[technique.name]
    if set(ours.status) == {"unsupported"}:
        assert len(ours) == 1 and ours.note.item()
        return

    assert list(ours.status) == ["ok"] * STEPS
    assert list(ours.phase) == ["warmup"] * WARMUP + ["timed"] * (STEPS - WARMUP)
    assert (ours.step_ms > ours.data_ms).all() and (ours.peak_memory_mib > 50).all()

    if "different batches" in str(ours.note.iloc[0]) or technique.stated_parity:
        # a wrong gradient would not lower it
        assert ours.held_out_loss.iloc[0] < math.log(50_257) - 0.1
    elif (ours.batch_size == ours.requested_batch_size).all():
        # bfloat16 has 8 significant bits, so 2^-8 of the loss is what rounding may explain
        baseline = rows_of["no_optimization"].loss.to_numpy()
        assert ours.loss.to_numpy() == pytest.approx(baseline, rel=2**-8)
