"""Scripts of others as bases: their batches, their rows, their ladders."""

import ast
import re
import shutil
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch

from tests import forked
from tests.rows import records_in, rows_of
from Utils.analysis import make_line, recipe_lines, recipe_page, recommendation, result_tables
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.command_line import Parser
from Utils.base.setting_table import OF_A_RUN
from Utils.device import device_choice
from Utils.harness import batch_units, step_work
from Utils.harness.settings import Settings, settle
from Utils.launch import duration
from Utils.results import rows_file, selection
from Utils.scripts import bases, ladder

EXAMPLES = ("causal_lm", "plain_loop", "vision")
TINY = ["--steps", "4", "--warmup", "1", "--device", "cpu", "--min-seconds", "0"]
BROKEN = """
import torch
from Utils.run import Run, run_script


def main(args):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {early}
    with Run(args, model, optimizer) as run:
        for n, batch in enumerate(run.steps([torch.zeros(3, 2)] * {batches})):
            {late}
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            run.log(loss.item())


if __name__ == "__main__":
    run_script(main, __doc__)
"""


# The size of a batch ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch, unit, size",
    [
        ((torch.zeros(4, 8, dtype=torch.long),) * 2, "tokens", (4, 8)),
        ({"mask": torch.ones(4, 8), "ids": torch.zeros(4, 9, dtype=torch.long)}, "tokens", (4, 9)),
        (UserDict(ids=torch.zeros(2, 5, dtype=torch.long)), "tokens", (2, 5)),
        (torch.zeros(40, dtype=torch.long), "tokens", (1, 40)),
        ([{"image": torch.zeros(6, 3, 8, 8)}, [torch.zeros(6)]], "images", (6, 1)),
        (SimpleNamespace(x=torch.zeros(7, 2)), "samples", (7, 1)),
        ("text", "samples", (0, 1)),
    ],
)
def test_a_batch_is_any_nest_of_tensors(batch, unit, size):
    assert batch_units.size(batch, unit) == size


def settled(sizes, **given):
    args = SimpleNamespace(
        batch_size=16, requested_batch_size=16, seq_len=64, unit="rows", notes=[]
    )
    vars(args).update(given)
    batches = batch_units.OwnBatches(args)
    batches.sizes = sizes
    batches.settle()
    return args


def test_the_recorded_batch_is_that_of_the_usual_step():
    args = settled([(128, 1)] * 3 + [(5, 1)])
    assert (args.batch_size, args.requested_batch_size, args.seq_len) == (128, 128, 1)
    assert args.notes == ["5 to 128 rows a step"]
    assert settled([(0, 1)]).notes == ["its batches hold no tensors, so their rows are not counted"]


def test_flops_are_counted_from_a_repeated_call():
    model = torch.nn.Linear(8, 4, bias=False)
    call = step_work.FirstCall(model)
    model(torch.zeros(3, 8))
    model(torch.zeros(5, 8))
    assert call.flops() == 2 * (2 * 3 * 8 * 4)  # no gradient of the input
    assert step_work.FirstCall(model).flops() is None


# Runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_names_its_base_and_unit(name, tmp_path):
    path = paths.ROOT / "examples" / f"{name}.py"
    file = tmp_path / "results.csv"
    done = forked.python(path, *TINY, "--results-file", file)
    assert done.returncode == 0, done.stderr
    rows = rows_file.read(file)
    unit, shape = {
        "causal_lm": ("tokens", (1, 64)),
        "plain_loop": ("samples", (128, 1)),
        "vision": ("images", (64, 1)),
    }[name]
    assert set(rows.base) == {name} and set(rows.unit) == {unit} and len(rows) == 4
    assert (rows.batch_size[0], rows.seq_len[0]) == shape
    assert rows.commit[0].removesuffix("-dirty").endswith(bases.digest(path.read_text()))
    (record,) = records_in(tmp_path)
    assert record["limits"]["flops_per_token"] > 0


def test_a_stranger_changes_ten_lines_at_most():
    source = (paths.ROOT / "examples" / "plain_loop.py").read_text()
    assert 1 <= source.count("# changed") <= 10


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_ladder_of_an_example_is_as_told(name):
    scripts = bases.ladder_of(bases.find(name), ladder.group("ladder"))
    refused = [bases.last(script.name) for script in scripts if bases.refusal(script)]
    assert (
        refused
        == {
            "causal_lm": [],
            "plain_loop": ["flash_attention", "8bit_optimizer"],
            "vision": ["flash_attention", "8bit_optimizer"],
        }[name]
    )
    for script in scripts:
        ast.parse(script.path.read_text())


@pytest.mark.parametrize(
    "early, batches, late, status, words",
    [
        ("open('no_such_file')", 9, "pass", 1, "No such file"),
        ("pass", 9, "assert n < 3, 'step 3'", 1, "AssertionError: step 3 (broken.py, line 12)"),
        ("pass", 0, "pass", 2, "the batches end after 0 steps"),
    ],
)
def test_a_base_that_fails_says_so_in_one_line(tmp_path, early, batches, late, status, words):
    script = tmp_path / "broken.py"
    script.write_text(BROKEN.format(early=early, batches=batches, late=late))
    file = tmp_path / "results.csv"
    flags = [*TINY, "--steps", "6", "--results-file", file]
    done = forked.python(script, *flags, variables={"SUITE": "test"})
    assert done.returncode == status
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    if status == 1:
        (record,) = records_in(tmp_path)
        assert "Traceback" in record["traceback"][0]


def test_a_base_that_fails_before_its_main_function_leaves_a_row(tmp_path):
    script = tmp_path / "broken.py"
    source = BROKEN.format(early="pass", batches=9, late="pass")
    script.write_text(source.replace("def main", "DATA = open('no_such_file')\n\n\ndef main"))
    file = tmp_path / "results.csv"
    command = ["Utils.launch.run_base", script]
    flags = [*TINY, "--results-file", file]
    done = forked.python(*command, *flags, variables={"SUITE": "test"})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("broken: failed: FileNotFoundError") and "(broken.py, line 6)" in line
    assert list(rows_file.read(file).status) == ["failed"]


def test_batches_begin_again_after_an_epoch(tmp_path):
    script = tmp_path / "short.py"
    script.write_text(BROKEN.format(early="pass", batches=2, late="pass"))
    file = tmp_path / "results.csv"
    done = forked.python(script, *TINY, "--steps", "7", "--results-file", file)
    assert done.returncode == 0, done.stderr
    assert len(rows_file.read(file)) == 7


# Results ----------------------------------------------------------------------------------------


MINE = {"base": "mine", "unit": "images", "model": "mine", "dataset": "mine", "seq_len": 1}


@pytest.fixture
def frame(tmp_path):
    """Return the rows of a ladder of ours and of one of a base, as a frame."""

    def made(*more):
        lines = rows_of("no_optimization", [9.0] * 8) + rows_of("tensorFloat32", [3.0] * 8)
        for technique, ms in (("mine", 8.0), ("mine+tensorFloat32", 4.0)):
            lines += rows_of(technique, [ms] * 8, batch_size=32, **MINE)
        # Before it has trained, a base's batch is not known: it has the shape of the settings.
        why = {"status": "unsupported", "note": "why", "batch_size": 1, **MINE, "seq_len": 64}
        lines += rows_of("mine+tensorFloat32+brainFloat16", [], **why)
        for line in more:
            lines += line
        file = tmp_path / "results.csv"
        rows_file.append(file, lines)
        return rows_file.read(file)

    return made


def test_results_of_different_bases_are_never_mixed(frame):
    rows, left_out = selection.select(frame())
    assert set(rows.technique) == {
        "mine",
        "mine+tensorFloat32",
        "mine+tensorFloat32+brainFloat16",
    }
    assert "2 runs of gpt2 1x64" in left_out
    lines = summarize(rows)
    assert lines.speedup["mine+tensorFloat32"].value == pytest.approx(2)
    assert lines.parent_speedup["mine+tensorFloat32"].value == pytest.approx(2)
    assert lines.tokens_per_second["mine"] == pytest.approx(32 / 8e-3)
    assert lines.status.iloc[-1] == "unsupported" and lines.label.iloc[-1] == "+brainFloat16"
    assert "mine: 32 images a step" in selection.describe(rows)
    ours, _ = selection.select(frame(), base="no_optimization")
    assert set(ours.technique) == {"no_optimization", "tensorFloat32"}
    assert summarize(ours).speedup["tensorFloat32"].value == pytest.approx(3)


def test_lengths_that_vary_do_not_part_the_rounds(tmp_path):
    lines = []
    for r, length in enumerate((57, 61)):
        columns = MINE | {"unit": "tokens", "seq_len": length, "dataset": "mine, varying lengths"}
        lines += rows_of("mine", [8.0] * 8, round=r, batch_size=32, **columns)
    rows_file.append(tmp_path / "results.csv", lines)
    rows, left_out = selection.select(rows_file.read(tmp_path / "results.csv"))
    assert rows["round"].nunique() == 2 and not left_out
    assert "32 sequences of varying length a step" in selection.describe(rows)


def test_an_ablation_of_a_base_is_no_part_of_its_ladder(frame):
    two = "mine+tensorFloat32+torch_compile"
    alone = [
        rows_of(name, [4.0] * 8, batch_size=32, **MINE) for name in (two, "mine+torch_compile")
    ]
    known = frame(*alone)
    rows, _ = selection.select(known)
    assert two in set(rows.technique) and "mine+torch_compile" not in set(rows.technique)
    rows, _ = selection.select(known, with_variants=True)
    assert selection.variants_in(rows) == ["mine+torch_compile"]


def test_the_table_names_base_and_unit(frame):
    rows, left_out = selection.select(frame())
    text = result_tables.table(rows, left_out)
    assert "images/s" in text and "tokens/s" not in text
    assert "Cost of 10^9 images" in text and "mine: 32 images a step" in text


def test_the_time_of_a_ladder_is_told_from_the_steps_of_its_base(tmp_path, monkeypatch):
    monkeypatch.setattr(bases, "FOLDER", tmp_path / "bases")
    script, file = tmp_path / "mine.py", tmp_path / "results.csv"
    script.write_text(BROKEN.format(early="pass", batches=9, late="pass"))
    base = bases.find(str(script))
    scripts = bases.ladder_of(base, ladder.group("ladder"))
    flags = [f"--results-file={file}", *TINY]
    args = Parser("", "", *OF_A_RUN, "precision").parse_args(flags, Settings())
    settle(args)
    lines = duration.sentences(scripts, args, base)
    assert lines == ["how long this takes is known once mine has run here"]
    here = device_choice.choose("cpu").name
    rows_file.append(file, rows_of("mine", [60_000.0] * 4, device=here, **MINE))
    (line,) = duration.sentences(scripts, args, base)
    told = re.fullmatch(
        r"1 round of (\d) scripts takes about (\d+) min \(roughly, by the steps of mine\)", line
    )
    assert int(told[2]) > 4 * int(told[1]) > 12  # of a minute each


def test_the_recipe_of_a_base_is_a_script_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(bases, "FOLDER", tmp_path / "bases")
    script = tmp_path / "mine.py"
    script.write_text(BROKEN.format(early="pass", batches=9, late="pass"))
    bases.find(str(script))
    lines = []
    for r in range(4):
        for name, ms in (
            ("mine", 8.0),
            ("mine+tensorFloat32", 4.0),
            ("mine+tensorFloat32+brainFloat16", 4.01),
        ):
            steps = [ms + 0.01 * r] * 8
            lines += rows_of(name, steps, round=r, batch_size=3, **MINE)
    rows_file.append(tmp_path / "results.csv", lines)
    rows, _ = selection.select(rows_file.read(tmp_path / "results.csv"), with_variants=True)
    found = recommendation.recommend(rows)
    entry = found.fastest
    assert entry.name == "mine+tensorFloat32" and entry.base == "mine"
    assert entry.speedup.value == pytest.approx(2, rel=0.01)
    assert make_line.target(rows) == "all BASE=mine"
    text = recipe_lines.script(entry, found.described)
    assert 'set_float32_matmul_precision("high")' in text and "Base:   mine, " in text
    assert "Against mine: 2.0" in recipe_page.text(found, {})


def test_a_ladder_is_run_from_any_path(tmp_path):
    """It says that it compiles, and has torch.compile do nothing, so that its scripts start at
    once."""
    script = tmp_path / "elsewhere" / "mine.py"
    script.parent.mkdir()
    net = "import torch\nfrom torch.nn import Linear as Net\ntorch.compile = lambda net: net\n"
    (script.parent / "nets.py").write_text(net)
    source = BROKEN.format(early="pass", batches=9, late="pass")
    source = source.replace("torch.nn.Linear(2, 2)", "torch.compile(Net(2, 2))")
    script.write_text(source.replace("from Utils", "from nets import Net\nfrom Utils"))
    file, cache = tmp_path / "results.csv", tmp_path / "cache"
    cache.mkdir()
    for report in paths.CACHE.glob("collect_env-*"):  # seconds for each of the processes
        shutil.copy(report, cache)
    flags = [*TINY, "--results-file", file, "--base", script]
    flags += ["--without", "tensorFloat32 flash_attention 8bit_optimizer"]
    done = forked.python("Utils.commands", "suite", *flags, variables={"CACHE_DIR": str(cache)})
    assert done.returncode == 0, done.stderr
    rows = rows_file.read(file)
    status = rows.groupby("technique").status.first()
    compiled = "mine+brainFloat16+torch_compile"
    ran = ["mine", "mine+brainFloat16", "mine+brainFloat16+fused_optimizer"]
    assert dict(status) == {**dict.fromkeys(ran, "ok"), compiled: "unsupported"}
    assert "torch.compile already" in rows[rows.technique == compiled].note.iloc[0]
    assert set(rows.base) == {"mine"} and set(rows[rows.status == "ok"].batch_size) == {3}
    assert "+fused_optimizer" in done.stdout and "samples/s" in done.stdout


def test_a_script_that_is_no_technique_is_none():
    assert ladder.techniques().keys().isdisjoint(EXAMPLES)
