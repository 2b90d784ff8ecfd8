"""The promises of the ladder, held by every tracked script with a parent. No exclusions."""

import ast
import dataclasses
import math
import re
import subprocess
from functools import partial

import pytest

from tests.helpers import forked, processes
from tools.virtual_gpu import checks
from Utils.analysis import result_tables
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.device import capabilities
from Utils.device.cpu import CPU
from Utils.harness import batch_trials
from Utils.results import rows_file, study
from Utils.scripts import diffs, ladder

TECHNIQUES = ladder.tracked()
BELOW_BASELINE = [t for t in TECHNIQUES.values() if t.parent]
TECHNIQUES_PAGE = (paths.ROOT / "docs/TECHNIQUES.md").read_text()
STEPS, WARMUP = 6, 3


def by_name(techniques):
    return pytest.mark.parametrize("technique", techniques, ids=lambda technique: technique.name)


def test_the_seven_rungs_stand_in_order():
    ours = " ".join(name for name, t in TECHNIQUES.items() if t.path.parent == paths.ROOT)
    rungs = "no_optimization tensorFloat32 brainFloat16 torch_compile flash_attention"
    assert ours == f"{rungs} fused_optimizer 8bit_optimizer"


def test_every_script_is_a_technique():
    """No script at the top level or in beyond/ escapes the tests by lacking a Parent: line.
    A script that is not tracked is someone's own."""
    command = ["git", "-C", str(paths.ROOT), "ls-files", "*.py", "beyond/**/*.py"]
    tracked = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    files = [paths.ROOT / name for name in tracked if "/" not in name or name.startswith("beyond/")]
    scripts = {path.stem for path in files if "run_script(main, __doc__)" in path.read_text()}
    assert scripts <= set(TECHNIQUES)


def test_parents_form_one_tree_with_the_baseline_at_its_root():
    for technique in TECHNIQUES.values():
        line = [technique.name]
        while (parent := TECHNIQUES[line[-1]].parent) is not None:
            assert parent in TECHNIQUES, f"{line[-1]}: its parent {parent} does not exist"
            assert parent not in line, f"{technique.name}: its parents go round in a circle"
            line.append(parent)
        assert line[-1] == "no_optimization"


def split_kernels(technique):
    """The technique without custom kernels, and how many lines these have: the functions that
    Triton compiles, and the autograd functions that launch them."""
    lines, body = technique.code.splitlines(), ast.parse(technique.code).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    jitted = [f for f in functions if any(ast.unparse(d) == "triton.jit" for d in f.decorator_list)]
    launch = re.compile("|".join(rf"\b{f.name}\[" for f in jitted))
    kernels = jitted + [
        node
        for node in body
        if jitted
        and isinstance(node, ast.ClassDef)
        and [ast.unparse(base) for base in node.bases] == ["torch.autograd.Function"]
        and launch.search(ast.unparse(node))
    ]
    own = set()
    for node in kernels:
        first = min(part.lineno for part in [node, *node.decorator_list])
        own |= {*range(first - 1, node.end_lineno)}
    rest = "\n".join(line for i, line in enumerate(lines) if i not in own) + "\n"
    return dataclasses.replace(technique, code=rest), len(own)


@by_name(BELOW_BASELINE)
def test_a_script_is_its_parent_plus_one_idea(technique):
    own, parent = (split_kernels(t)[0] for t in (technique, TECHNIQUES[technique.parent]))
    lines = diffs.diff(own, parent, context=0)
    changed = [line for line in lines[2:] if line[0] in "+-" and line[1:].strip()]
    assert 1 <= len(changed) <= 12, "\n".join(changed)


@by_name(TECHNIQUES.values())
def test_the_docstring_explains_and_the_script_fits_a_page(technique):
    labels = re.findall(r"^(\w+): ", technique.doc.split("\n", 1)[1], re.MULTILINE)
    assert labels == ["Parent", "Needs", "Gains", "Costs", "See"]
    assert technique.headline.endswith(".") and len(technique.headline) < 98
    kernels = split_kernels(technique)[1]
    assert 40 <= len(technique.path.read_text().splitlines()) - kernels <= 80
    assert kernels <= 80
    functions = [n.name for n in ast.parse(technique.code).body if isinstance(n, ast.FunctionDef)]
    assert functions[-1] == "main"
    assert technique.code.endswith('if __name__ == "__main__":\n    run_script(main, __doc__)\n')


@pytest.fixture(scope="module")
def recipes():
    """What make would run for all techniques."""
    command = ["make", "-n", "PYTHON=python3", *TECHNIQUES]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@by_name(TECHNIQUES.values())
def test_it_has_a_target_and_a_row_in_the_list_of_techniques(technique, recipes):
    assert f"python3 {' '.join(technique.command).removeprefix(f'{paths.ROOT}/')} PYTHON" in recipes
    assert f"- [{technique.name}](#{technique.name.lower()})" in TECHNIQUES_PAGE


def test_the_virtual_gpu_expects_something_of_scripts_that_exist():
    tables = {"ladder", "signatures", "forecast_error", "quality", "gpu_tests"}
    assert checks.EXPECTED.keys() - tables <= TECHNIQUES.keys()
    for table in ("signatures", "forecast_error"):
        assert checks.EXPECTED[table].keys() <= TECHNIQUES.keys()


def test_diff_shows_the_technique_and_nothing_else():
    shown = processes.command("-m", "Utils.commands", "diff", "T=fused_optimizer").stdout
    assert shown.startswith(TECHNIQUES["fused_optimizer"].doc)
    assert [line for line in shown.splitlines() if re.match(r"[+-][^+-]", line)] == [
        "-    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)",
        "+    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)",
    ]


FLAGS = ["--model=gpt2-tiny", "--device=cpu", "--batch-size=4", "--seq-len=4"]
FLAGS += [f"--steps={STEPS}", f"--warmup={WARMUP}"]


def rows_of_runs(path, run):
    """Return the rows of every technique at the tiny model, which `run` starts.

    run: function of the techniques and their flags. larger_batch takes twice the batch: its trials
    are processes, which tests/test_beyond_kernels.py starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_trials, "largest_batch", lambda args, *_, **__: 2 * args.batch_size)
        order = sorted(TECHNIQUES.values(), key=lambda t: t.parent == "flash_attention")
        ended = run(order, [*FLAGS, f"--results-file={path}"])
    for done in ended:
        said = done.stdout + done.stderr
        # Python's tracker of semaphores may warn at the end of a busy fork; a script has no part.
        lines = [line for line in said.splitlines() if "resource_tracker" not in line]
        warned = re.search("warning", "\n".join(lines), re.IGNORECASE)
        assert done.returncode == 0 and not warned, said
    return rows_file.read(path)


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    """Rows of every technique, without torch.compile."""
    return rows_of_runs(tmp_path_factory.mktemp("eager") / "results.csv", forked.run_eagerly)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Rows of every technique with torch.compile, and their table.

    Inductor generates C++ for the seven; children of flash_attention, which come last, find its
    kernels in the cache. The others' graphs are traced, differentiated and partitioned as well, but
    run operation by operation.
    """
    forked.prepare_compiler()
    run = partial(forked.run, generate=lambda t: t.at_top_level)
    rows = rows_of_runs(tmp_path_factory.mktemp("smoke") / "results.csv", run)
    return rows, result_tables.table(summarize(study.newest(rows)))


@pytest.mark.slow
@by_name(TECHNIQUES.values())
def test_it_runs_or_says_why_not(technique, smoke):
    rows, table = smoke
    own = rows[rows.technique == technique.name]
    assert f"| {technique.name}" in table
    if set(own.status) == {"unsupported"}:
        assert len(own) == 1 and own.note.item()
        return
    assert list(own.status) == ["ok"] * STEPS
    assert list(own.phase) == ["warmup"] * WARMUP + ["timed"] * (STEPS - WARMUP)
    assert list(own.step) == list(range(STEPS))
    assert (own.step_ms > own.data_ms).all() and (own.data_ms > 0).all()
    assert own.first_step_s.iloc[0] == pytest.approx(own.step_ms.iloc[0] / 1e3, abs=1e-3)
    assert own.peak_memory_mib.iloc[0] > 50


@pytest.mark.slow
def test_a_script_of_a_folder_runs_by_its_own_command(tmp_path):
    """As a user starts it, which for those at the top level other tests do."""
    words = [*TECHNIQUES["data_on_device"].command, "--model=gpt2-tiny", "--device=cpu"]
    words += ["--steps=2", "--warmup=1", "--batch-size=1", "--seq-len=16"]
    words.append(f"--results-file={tmp_path / 'r.csv'}")
    done = processes.command(*words, TORCHDYNAMO_DISABLE="1")  # it is compiled above
    assert done.stdout.startswith("data_on_device: median")
    assert list(rows_file.read(tmp_path / "r.csv").status) == ["ok"] * 2


@by_name(BELOW_BASELINE)
def test_losses_fall_together_with_the_baselines(technique, eager):
    check_losses(technique, eager)


@pytest.mark.slow
@by_name(BELOW_BASELINE)
def test_compiled_losses_fall_together_with_the_baselines(technique, smoke):
    check_losses(technique, smoke[0])


def check_losses(technique, rows):
    baseline = rows[rows.technique == "no_optimization"].loss.to_numpy()
    own = rows[(rows.technique == technique.name) & (rows.status == "ok")]
    own = own[own.batch_size == own.requested_batch_size].loss.to_numpy()  # the baseline's batches
    assert baseline[0] == pytest.approx(math.log(50_257), abs=0.3)
    held_out, untrained = rows.groupby("technique").held_out_loss.first(), math.log(50_257)
    assert held_out["no_optimization"] < untrained - 0.1
    streamed = "other batches" in str(rows[rows.technique == technique.name].note.iloc[0])
    if len(own) and (streamed or technique.stated_parity):
        assert held_out[technique.name] < untrained - 0.1  # a wrong gradient would not lower it
    elif len(own):
        # bfloat16 has 8 significant bits, so 2^-8 of the loss is what rounding may explain
        assert own == pytest.approx(baseline, rel=2**-8)


def test_a_technique_without_effect_on_this_device_says_so(eager):
    rows = eager
    notes = rows.groupby("technique").note.first()
    assert notes["tensorFloat32"] == capabilities.check("tf32", CPU())
    assert notes["no_optimization"] == ""
