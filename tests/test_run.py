"""The measured loop, the command line, and what happens when a run goes wrong."""

import itertools
import re
import runpy
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch._functorch import config as functorch

import no_optimization
from tests.helpers import checkouts, forked, processes, watched
from tests.helpers.refusal import refused
from tests.helpers.rows import records_in
from tests.helpers.stand_ins import FakeCuda, FakeNvml, busy_nvml
from Utils.base import paths
from Utils.base.errors import Unsupported, UserError
from Utils.base.progress_display import ProgressDisplay
from Utils.data import TokenBatches
from Utils.device.cuda import CUDA
from Utils.harness import (
    held_out_loss,
    progress_bar,
    ranks,
    script_start,
    settings,
    step_clock,
)
from Utils.harness.settings import check_needs
from Utils.results import rows_file
from Utils.run import Run

TINY = ["--model=gpt2-tiny", "--dataset=synthetic", "--device=cpu", "--steps=2"]


def record_of(args):
    return records_in(args.results_file.parent)[-1]


def test_step_on_a_gpu_is_between_events_and_nothing_is_asked_in_timed_steps(settle):
    """METHOD: "a boundary is a CUDA event in the current stream, read after the run"; "Counters are
    read before and after the timed steps". DESIGN: "no synchronization of ours inside the loop".
    """
    cuda = FakeCuda()
    nvml = FakeNvml(cuda.calls)
    hardware = CUDA(torch.device("cpu"), cuda, nvml)
    args = settle("--steps=6", "--warmup=2").replace(hardware=hardware)
    nvml.calls.clear()
    for run in watched.idle_steps(args):
        nvml.answers["DeviceGetTotalEnergyConsumption gpu"] += 7000
        nvml.calls.append("step")
        run.log(1.0)

    calls = ["nvml" if name.startswith("nvml") else name for name in cuda.calls]
    counters = ["nvml"] * 3
    boundary = ["Event", "record"]
    step = ["step", *boundary]
    stretch = [*boundary, *step, "step", *counters, *boundary, *step * 4]
    memory = ["max_memory_allocated", "max_memory_reserved"]
    end = [*counters, *memory, "synchronize", *["elapsed_time"] * 6, *["nvml"] * 8]
    assert calls == [*counters, *stretch, "wait", "synchronize", *end]
    assert list(rows_file.read(args.results_file).step_ms) == [10.0] * 6
    quality = record_of(args)["quality"]
    assert (quality["energy_j"], quality["grade"]) == (7 * 4, "clean")


def test_step_on_a_cpu_contains_the_wait_for_its_batch(settle, monkeypatch, capsys):
    """METHOD: "It contains the wait for the batch (also recorded as `data_ms`)"; "On a CPU a
    boundary is `time.perf_counter()`"; "The first step [...] is reported by itself".
    """
    clock = SimpleNamespace(now=0.0)

    class Slow(TokenBatches):
        def __getitem__(self, step):
            clock.now += 3
            return super().__getitem__(step)

    for module in ("time", "Utils.device.cpu", "Utils.run"):
        monkeypatch.setattr(f"{module}.perf_counter", lambda: clock.now)
    monkeypatch.setattr("Utils.device.cpu.CPU.counters", lambda device: {"clock_s": clock.now})
    monkeypatch.setattr("Utils.device.cpu.CPU.peak_memory_mib", lambda device: 1234)
    args = settle("--steps=7", "--warmup=1", "--batch-size=1000")
    for number, run in enumerate(watched.idle_steps(args, Slow)):
        clock.now += number
        run.log(1.5)

    rows = rows_file.read(args.results_file)
    assert list(rows.step_ms) == [3000, 4000, 5000, 6000, 7000, 8000, 9000]
    assert set(rows.data_ms) == {3000} and set(rows.first_step_s) == {3}
    assert record_of(args)["quality"]["clock_s"] == 39
    said = capsys.readouterr()
    assert said.out == (
        "no_optimization: median 6,500.0 ms (p20-p80 5,000.0-8,000.0), 2,462 tokens/s, first step "
        "3.0 s, peak memory 1,234 MiB, loss 1.500  (waits for data 46% of the time)\n"
    )
    (*_, last) = rows.assign(held_out_loss=2.0).to_dict("records")
    assert ", loss 2.000" in progress_bar.last_line(args, [last], [])
    title, *lines = said.err.splitlines()  # a line every ten seconds
    assert title.endswith(": gpt2-tiny, 1000x16 tokens a step, synthetic, 7 steps")
    assert lines[2] == "  step 4/7  5,000.0 ms  3,200 tokens/s  loss 1.500" and len(lines) == 4


def test_record_says_how_to_repeat_the_run_and_its_seed_does(settle):
    """Runs of one seed have the same losses to the last bit, of another seed others."""
    forked.forget_compiled()
    losses = []
    for seed in (7, 7, 8):
        args = settle("--steps=4", "--warmup=3", f"--seed={seed}")
        no_optimization.main(args)
        losses.append(list(rows_file.read(args.results_file).loss[-4:]))
    assert losses[0] == losses[1] != losses[2]

    record = record_of(args)
    settings = record["settings"].values()
    assert [*settings] == [4, 3, 1, 16, "gpt2-tiny", "synthetic", 8]
    assert record["updated_parameters"] == args.config.parameters()
    assert record["before_update"]["loss"] == losses[-1][0]


def test_held_out_loss_is_of_2048_tokens():
    """METHOD: "the weights of every run are evaluated on the same 2,048 held-out tokens"."""
    as_imported = runpy.run_path(held_out_loss.__file__)  # tests evaluate fewer, see conftest.py
    assert as_imported["TOKENS"] == 2048


@pytest.mark.parametrize("warmup, kept_at", [(2, []), (4, [3])])
def test_warmup_has_room_for_what_would_slow_a_timed_step(warmup, kept_at, settle, monkeypatch):
    """METHOD: "runs on a CPU keep freed memory from their last warm-up step on"."""
    steps = []
    monkeypatch.setattr(
        "Utils.device.cpu.CPU.keep_freed_memory", lambda device: steps.append(len(run.losses))
    )
    args = settle("--steps=5", f"--warmup={warmup}")
    for run in watched.idle_steps(args):
        run.log(1.0)
    assert steps == kept_at
    assert (record_of(args)["memory"]["gradients_mib"] is None) == (warmup < 3)


def test_commit_says_when_the_tree_is_not_clean(tmp_path, monkeypatch):
    """DESIGN: "No number without its device, its versions, its commit"."""
    monkeypatch.setattr("Utils.base.paths.ROOT", tmp_path)
    assert paths.commit() == ""
    script = tmp_path / "a.py"
    script.touch()
    checkouts.commit(tmp_path)
    (tmp_path / "results.csv").touch()
    clean = paths.commit()
    assert re.fullmatch(r"[0-9a-f]{7}", clean)

    # A script that is not committed marks its own rows; an edited one those of variants too.
    idea = tmp_path / "my_idea.py"
    idea.touch()
    assert [paths.commit(script), paths.commit(), paths.commit(idea)] == [
        clean,
        clean,
        f"{clean}-dirty",
    ]
    script.write_text("edited")
    assert {paths.commit(script), paths.commit()} == {f"{clean}-dirty"}


def test_script_says_that_it_needs_docstrings():
    done = processes.python("no_optimization.py", PYTHONOPTIMIZE="2")
    assert "docstrings are read here; unset PYTHONOPTIMIZE, and omit -OO" in done.stderr


def test_run_notes_what_to_hold_against_its_timing(settle, monkeypatch, capsys):
    """METHOD: "a run is disturbed if"."""
    monkeypatch.setattr("Utils.harness.run_record.compilation", lambda: {"recompilations": 2})
    monkeypatch.setattr("Utils.harness.run_record.compiled_graphs", [1, 0, 0].pop)
    hardware = CUDA(torch.device("cpu"), FakeCuda(), busy_nvml())
    swapped = (SimpleNamespace(sin=n * 2**30) for n in itertools.count())
    monkeypatch.setattr("psutil.swap_memory", lambda: next(swapped))
    args = settle("--steps=3", "--warmup=1").replace(hardware=hardware)
    for run in watched.idle_steps(args):
        run.log(float("nan"))

    assert args.outcome.notes[:4] == [
        "the loss is not finite",
        "torch.compile compiled in a timed step",
        "the machine read 1,024 MiB from its swap",
        "2 recompilations by torch.compile; TORCH_LOGS=recompiles says why",
    ]
    reasons = ["pid 4711, 1,234 MiB on the GPU", "hw thermal slowdown"]
    row = rows_file.read(args.results_file).iloc[0]
    assert (row.note, row.grade) == ("; ".join(args.outcome.notes), "tainted")
    assert record_of(args)["quality"]["reasons"] == reasons
    assert capsys.readouterr().out.endswith(f"; disturbed: {' and '.join(reasons)})\n")


def test_loop_that_leaves_early_is_told_so(settle):
    args = settle("--steps=5", "--warmup=2")
    with pytest.raises(RuntimeError, match="run.log once a step"):
        with Run(args, torch.nn.Identity(), None) as run:
            for _ in run.steps(TokenBatches(args)):
                run.log(1.0)
                break
    assert not args.results_file.exists()


def test_rounds_by_hand_are_a_suite(settle):
    """METHOD: "One process per run"."""
    with mock.patch("os.execve") as start:
        settle("--rounds=2")
    words = start.call_args.args[1]
    suite = ["-P", "-m", "Utils.commands", "suite", "no_optimization"]
    assert words[1:6] == suite and words[-1] == "--rounds=2"


TOO_LARGE = "out of memory: 4x16 does not fit {}; try BATCH_SIZE=2"
RECORDED = "; the rows of its run were recorded"


@pytest.mark.parametrize(
    "need, error, code, line",
    [
        ("tf32", Unsupported("needs a GPU"), 0, "unsupported: needs a GPU"),
        ("tf32", ValueError("shapes\ndiffer"), 1, "failed: ValueError: shapes differ"),
        ("tf32", RuntimeError("Can't allocate memory"), 1, TOO_LARGE),
        ("tf32", UserError("no text", "give some"), 2, "error: no text; give some"),
        ("batch multiple of 0", None, 2, "error: Needs: 'batch multiple of 0' is unknown"),
        ("wings", None, 2, "error: Needs: 'wings' is unknown; choose tf32"),
        ("tf32", KeyboardInterrupt(), 130, "interrupted; nothing was recorded"),
        ("", KeyboardInterrupt(), 130, f"interrupted{RECORDED}"),
        ("", ValueError("x"), 1, f"ValueError: x{RECORDED}"),
    ],
)
def test_run_that_fails_is_one_line_a_row_and_an_exit_code(need, error, code, line, settle, capsys):
    """DESIGN: "An unsupported technique is a row with a reason, not a crash and not a gap"; "A
    killed run leaves the file as it was". CONTRIBUTING: "An unknown name prints the known ones".

    One without a need fails after a run, which a full stdout cannot fail, and others within it.
    """

    def script(args):
        steps = watched.idle_steps(args)
        if need:
            check_needs(args)
            next(steps)
            steps.throw(error)
        with open("/dev/full", "w") as full, mock.patch("sys.stdout", full):
            for run in steps:
                run.log(1.0)
        raise error

    args = settle("--batch-size=4", "--steps=2", "--warmup=1").replace(needs=(need,))
    with pytest.raises(SystemExit) as stop:
        script_start.call(script, args)
    assert stop.value.code == code

    line = line.format(args.hardware.name)
    said = capsys.readouterr().err
    assert ("Traceback" in said) == isinstance(error, ValueError)
    assert said.strip().splitlines()[-1].startswith(f"no_optimization: {line}")
    rows = rows_file.read_as_texts(args.results_file)
    ends = [f"{row['status'].replace('_', ' ')}: {row['note']}{row['step_ms']}" for row in rows]
    if need:
        assert ends == [line] * (code < 2)
    else:
        assert {row["status"] for row in rows} == {"ok"}


@pytest.mark.parametrize(
    "name, value", [("RANK", "abc"), ("RANK", "5"), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "9" * 22)]
)
def test_ranks_of_no_launcher_are_refused(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with refused("start the run with torchrun"):
        ranks.from_environment()


@pytest.mark.parametrize(
    "line, reason",
    [
        ("sys.exit(0)", "before the end of its `with Run` block"),
        ("return", "before the end of its `with Run` block"),
        ("os.chdir('elsewhere')", ""),
    ],
)
def test_script_that_ends_without_a_result_says_so(line, reason, tmp_path, monkeypatch):
    """Its rows are in the file that was named at the start, whatever folder it goes to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    code = Path(no_optimization.__file__).read_text()
    code = code.replace("def main(args):", f"def main(args):\n    import os, sys; {line}")
    (tmp_path / "idea.py").write_text(code)
    flags = [*TINY, "--warmup=1", "--results-file=r.csv"]
    done = forked.python("idea.py", *flags)
    assert (done.returncode, done.stderr.count("\n") <= 1) == (int(bool(reason)), bool(reason))
    assert reason in done.stderr and "Traceback" not in done.stderr
    assert rows_file.read("r.csv").status.iloc[-1] == ("failed" if reason else "ok")


LONG = "from Utils.base.errors import run_command; run_command('x', lambda: print('y' * 99999))"


@pytest.mark.parametrize(
    "code, streams, code_and_output",
    [
        (LONG, "| true", (1, "")),
        (LONG, "> /dev/full", (1, "")),
        (LONG, ">&-", (1, "")),
        # The number of a closed stderr is not that of the next file.
        ("import Utils.base, sys; print(open(sys.executable).fileno())", "2>&-", (0, "3\n")),
    ],
)
def test_command_whose_streams_are_closed_or_full_ends_quietly(code, streams, code_and_output):
    command = f'set -o pipefail; {sys.executable} -c "{code}" {streams}'
    done = processes.run("bash", "-c", command)
    assert (done.returncode, done.stdout) == code_and_output and done.stderr == ""


@pytest.fixture
def clock_of(monkeypatch):
    """A StepClock of these stretches, whose nth mark is n s after the one before."""

    def clock_of(*stretches):
        clock = step_clock.StepClock(
            SimpleNamespace(
                mark=partial(next, itertools.accumulate(itertools.count(1))),
                elapsed_ms=lambda marks: [1e3 * (b - a) for a, b in itertools.pairwise(marks)],
                counters=lambda: {"steps": len(clock.timed), "beside_cpu_s": clock.before_s},
                wait=lambda mark: mark,
            )
        )
        monkeypatch.setattr("Utils.harness.step_clock.stretches", lambda *_: stretches)
        return clock

    return clock_of


@pytest.mark.parametrize(
    "steps_until_late, timed",
    [
        (1, "wt"),  # the rest of the warm-up is left out
        (3, "wwwt"),
        (4, "wwwt"),
        (5, "wwwtt"),
        (9, "wwwtttwtt"),  # it is complete
    ],
)
def test_steps_end_after_the_time_of_a_command(steps_until_late, timed, clock_of, monkeypatch):
    """MEASURE: "A run that would exceed the limit is cut after a step".

    The time between two stretches counts for none.
    """
    clock = clock_of((3, 3), (3, 0), (3, 1))
    late = mock.Mock(side_effect=lambda: len(clock.timed) >= steps_until_late)
    monkeypatch.setattr("Utils.harness.step_clock.monotonic", lambda: 61.0 * late())
    args = settings.Settings(steps=9, warmup=3, minutes=1)

    assert len([*clock.steps(args, nullcontext, lambda: None, False)]) == len(timed)
    assert "".join("wt"[is_timed] for is_timed in clock.timed) == timed
    assert clock.length == len(timed)
    assert clock.step_ms()[1:5] == [3000, 4000, 6000, 7000][: len(timed) - 1]
    is_cut = len(timed) < 9
    assert args.outcome.notes == [f"cut after {len(timed)} of 9 steps: out of time"] * is_cut
    growth = clock.counter_growth()
    assert growth["steps"] in (timed.count("t"), timed.count("t") + 1)
    assert growth["before_s"] > 0 and growth["after_s"] > 0


def test_run_on_a_gpu_has_steps_added_until_they_last(settle):
    """METHOD: "a run on a GPU warms up for at least a fifth of `MIN_SECONDS` (10 s) and times steps
    for at least `MIN_SECONDS` [...] Losses and memory are those after step `STEPS`"; "The harness
    waits for the device only while the clock is stopped".
    """
    cuda = FakeCuda()  # 10 ms a step
    hardware = CUDA(torch.device("cpu"), cuda=cuda)
    args = settle("--steps=6", "--warmup=2", "--min-seconds=0.25").replace(hardware=hardware)
    cuda.calls.clear()
    no_optimization.main(args)

    rows = rows_file.read(args.results_file)
    # 50 ms of warm-up in all, 250 ms of timed steps, and one step more after the pause in which
    # losses are compared.
    assert list(rows.phase) == ["warmup"] * 5 + ["timed"] + ["warmup"] + ["timed"] * 24
    assert rows.held_out_loss.notna().all()
    calls = [name for name in cuda.calls if name in ("record", "synchronize")]
    # After the boundaries of two steps of warm-up, before any timed step.
    assert calls.index("synchronize") == 3
    assert calls.count("record") == 34  # 31 steps, and one more for each of three stretches


@pytest.mark.parametrize(
    "min_seconds, slowest_rank_s, stretches",
    [
        (0.6, None, [(2, 2), (4, 4), (66, 6)]),  # the pause is in the warm-up
        (0.25, 0.025, [(2, 2), (4, 1), (8, 1)]),  # all ranks take the slowest's steps
    ],
)
def test_run_has_as_many_timed_steps_as_asked_or_more(
    min_seconds, slowest_rank_s, stretches, monkeypatch
):
    """Of 6 steps of 10 ms, where 2 are warm-up."""
    world_size = 2 if slowest_rank_s else 1
    args = settings.Settings(steps=6, warmup=2, min_seconds=min_seconds, world_size=world_size)
    clock = SimpleNamespace(timed=[False], step_ms=lambda: [10], length=6)
    monkeypatch.setattr("Utils.harness.ranks.gather", lambda pace_s: [pace_s, slowest_rank_s])
    assert [*step_clock.stretches(args, clock)] == stretches


def test_display_has_lines_above_its_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with ProgressDisplay("title", 3) as display:
        display.show_steps(2, "loss 1.5")
        display.say("a line")
    bars = r"\rtitle .* 2/3 , loss 1.5 .*\r +\ra line\n\rtitle .* 2/3 , loss 1.5 .*\r +\r$"
    assert re.search(bars, capsys.readouterr().err)


LEAVES_ITS_GRAPH = """
import torch

@torch.compiler.disable
def cross_entropy(logits, targets):
    pass

def main(args):
    pass
"""


def test_start_of_a_script_that_leaves_its_graph_has_no_cache_of_autograd():
    """Otherwise fused_cross_entropy fails in its second run."""
    script = {}
    exec(LEAVES_ITS_GRAPH, script)
    with functorch.patch(enable_autograd_cache=True):
        script_start.prepare(script["main"])
        assert not functorch.enable_autograd_cache
