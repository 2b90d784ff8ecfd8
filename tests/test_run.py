"""The measured loop, the command line, and what happens when a run goes wrong."""

import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import no_optimization
from tests.helpers import forked
from tests.helpers.rows import records_in, rows_of
from tests.helpers.stand_ins import FakeCuda, FakeNvml
from tools.calibration import watched
from tools.calibration.harness_cost import empty_steps, stopwatch_steps
from Utils.base import paths
from Utils.base.paths import commit
from Utils.data import TokenBatches
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.harness import run_record, script_start
from Utils.harness.settings import check_needs, parse_args
from Utils.results import rows_file
from Utils.run import Run

BASELINE = str(paths.ROOT / "no_optimization.py")
TINY = ["--model", "gpt2-tiny", "--dataset", "synthetic", "--device", "cpu"]


def record_of(args):
    return records_in(args.results_file.parent)[-1]


def test_a_gpu_run_has_one_event_a_boundary_and_synchronizes_at_the_end_alone(settle):
    args = settle("--steps", "6", "--warmup", "2")
    fake = FakeCuda()
    args.hardware = CUDA(torch.device("cpu"), cuda=fake)
    fake.calls.clear()
    no_optimization.main(args)
    calls = [name for name in fake.calls if name != "Event" and not name.startswith("get_device")]
    assert calls[:8] == ["record"] * 7 + ["synchronize"]
    assert calls.count("record") == 7
    assert calls[8] == "max_memory_allocated"
    assert calls[-7:] == ["synchronize"] + ["elapsed_time"] * 6
    rows = rows_file.read(args.results_file)
    assert len(rows) == 6 and set(rows.device) == {args.hardware.name}


def test_a_loop_that_logs_tensors_never_waits_for_the_device(settle):
    args = settle("--steps", "5", "--warmup", "1")
    weight = torch.zeros((), requires_grad=True)
    with Run(args, torch.nn.Identity(), torch.optim.SGD([weight])) as measured:
        with watched.NoSynchronization():
            for _ in measured.steps(TokenBatches(args)):
                measured.log((weight + 1.5).detach())
    assert list(rows_file.read(args.results_file).loss) == [1.5] * 5


@pytest.mark.timing
def test_step_times_agree_with_an_independent_stopwatch(settle):
    rows, stopwatch = stopwatch_steps(settle("--steps", "25", "--batch-size", "4"))
    assert rows.step_ms[:-1].sum() == pytest.approx(sum(stopwatch), rel=0.01)
    assert list(rows.step_ms[5:-1]) == pytest.approx(stopwatch[5:], rel=0.02)


@pytest.mark.timing
def test_waiting_for_data_is_in_the_step_and_by_itself(settle):
    class Slow(TokenBatches):
        def __getitem__(self, step):
            time.sleep(0.03)
            return super().__getitem__(step)

    args = settle("--steps", "4", "--warmup", "1")
    for run in watched.idle_steps(args, Slow):
        time.sleep(0.02)
        run.log(1.0)
    rows = rows_file.read(args.results_file)
    assert rows.data_ms.min() >= 30 and rows.step_ms.min() >= 50
    assert rows.data_ms.median() < 45 and rows.step_ms.median() < 75  # a sleep may last longer


@pytest.mark.timing
def test_the_harness_adds_less_than_half_a_percent_to_the_shortest_default_step(settle):
    """420 ms: less than any script's median step in the reference results. Drawing the batch
    is part of any training, yet counted in."""
    rows = empty_steps(settle("--steps", "300"))
    assert rows.step_ms[5:].mean() < 0.005 * 420


@pytest.mark.slow
def test_the_same_seed_gives_the_same_losses_and_another_seed_others(settle):
    losses = []
    for seed in (0, 0, 1):
        args = settle("--steps", "4", "--warmup", "1", "--seed", str(seed))
        no_optimization.main(args)
        rows = rows_file.read(args.results_file)
        losses.append(list(rows[rows.run_id == args.run_id].loss))
    assert losses[0] == losses[1] != losses[2]


def test_the_record_says_how_to_repeat_the_run(settle):
    forked.forget_compiled()
    args = settle("--steps", "4", "--warmup", "3", "--seed", "7")
    no_optimization.main(args)
    record = record_of(args)
    assert record["settings"]["seed"] == 7 and record["settings"]["steps"] == 4
    assert (record["settings"]["batch_size"], record["settings"]["seq_len"]) == (1, 16)
    assert record["versions"]["torch"] == torch.__version__
    assert record["parameters"] == args.config.parameters()
    assert record["optimizer"] == "torch.optim.adamw.AdamW"
    assert record["dataset_facts"]["tokens"] > 1_000_000
    assert record["compile"] is None


class Keeping(CPU):
    """Notes when a run begins to keep freed memory, by the number of its readings until then."""

    def __init__(self):
        super().__init__()
        self.marks, self.kept_at = 0, []

    def mark(self):
        self.marks += 1
        return super().mark()

    def keep_freed_memory(self, grows=False):
        self.kept_at.append((self.marks, grows))


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [0, 1, 2, 3, 4])
def test_no_step_is_watched_or_changes_malloc_that_could_slow_a_timed_one(warmup, settle):
    args = settle("--steps", "5", "--warmup", str(warmup))
    args.hardware = Keeping()
    no_optimization.main(args)
    # At the end of the last step but one of the warm-up: so many boundaries were before.
    assert args.hardware.kept_at == ([(warmup - 1, False)] if warmup >= 3 else [])
    assert (record_of(args)["memory"]["gradients_mib"] is None) == (warmup < 3)


def test_the_commit_says_when_the_tree_is_not_clean(tmp_path, monkeypatch):
    def git(*command):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)

    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert commit() == ""
    git("init")
    (tmp_path / "a.py").write_text("a = 1\n")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "a")
    clean = commit()
    assert re.fullmatch(r"[0-9a-f]{7}", clean)
    (tmp_path / "results.csv").write_text("x\n")
    assert commit() == clean
    (tmp_path / "my_idea.py").write_text("b = 1\n")
    assert commit() == clean + "-dirty"


def test_a_loss_that_is_not_finite_and_recompilations_are_noted(settle, monkeypatch):
    compiled = {"graphs": 3, "recompilations": 2, "cache": "warm"}
    monkeypatch.setattr(run_record, "compilation", lambda: compiled)
    args = settle("--steps", "3", "--warmup", "1")
    for run in watched.idle_steps(args):
        run.log(float("nan"))
    note = rows_file.read(args.results_file).note[0]
    assert "2 recompilations by torch.compile; TORCH_LOGS=recompiles says why" in note
    assert "not finite" in note


@pytest.mark.parametrize(("leave_after", "log"), [(9, False), (2, True)])
def test_a_loop_that_does_not_log_or_leaves_early_is_told_so(leave_after, log, settle):
    args = settle("--steps", "5", "--warmup", "2")
    with pytest.raises(RuntimeError, match="run.log once a step"):
        with Run(args, torch.nn.Identity(), None) as measured:
            for _, _ in zip(range(leave_after), measured.steps(TokenBatches(args)), strict=False):
                if log:
                    measured.log(1.0)
    assert not args.results_file.exists()


def gpu_run(args, nvml, cuda, joules=7):
    """A run on a stand-in for a GPU, which takes so much energy a step: its record's quality."""
    args.hardware = CUDA(torch.device("cpu"), cuda, nvml)
    nvml.calls.clear()
    for run in watched.idle_steps(args):
        nvml.energy_mj += joules * 1000
        run.log(1.0)
    return record_of(args)["quality"]


@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_energy_is_that_of_the_timed_steps(warmup, settle):
    quality = gpu_run(settle("--steps", "6", "--warmup", str(warmup)), FakeNvml(), FakeCuda())
    assert quality["energy_j"] == 7 * (6 - warmup)
    assert quality["grade"] == "clean" and quality["temperature_c"] == 61


@pytest.mark.parametrize("warmup", [0, 2])
def test_nothing_is_asked_between_the_boundaries_of_timed_steps(warmup, settle):
    cuda = FakeCuda()
    gpu_run(settle("--steps", "6", "--warmup", str(warmup)), FakeNvml(cuda.calls), cuda)
    calls = [name for name in cuda.calls if name == "record" or name.startswith("nvml")]
    marks = [place for place, name in enumerate(calls) if name == "record"]
    assert marks[-1] - marks[warmup] == 6 - warmup and len(marks) == 7
    assert calls[marks[warmup] - 1].startswith("nvml")  # just before the first timed step
    asked = cuda.calls.index("nvmlDeviceGetPowerUsage")
    assert cuda.calls.index("synchronize") < cuda.calls.index("elapsed_time") < asked


def test_a_tainted_run_says_so_in_its_rows_and_its_record(settle, capsys):
    nvml = FakeNvml()
    nvml.compute.append(SimpleNamespace(pid=4711, usedGpuMemory=1234 * 2**20))
    nvml.names, nvml.reasons = {4711: "python3"}, 0x40
    args = settle("--steps", "3", "--warmup", "1")
    args.notes.append("another note")
    reasons = ["python3 (pid 4711, 1,234 MiB) on the GPU", "hw thermal slowdown"]
    assert gpu_run(args, nvml, FakeCuda())["reasons"] == reasons
    rows = rows_file.read(args.results_file)
    assert set(rows.grade) == {"tainted"} and set(rows.note) == {"; ".join(args.notes)}
    said = capsys.readouterr().out
    assert "  (another note; " in said and f"; tainted: {' and '.join(reasons)})\n" in said


def test_the_quality_of_a_run_on_a_cpu_is_that_of_its_timed_steps(settle):
    args = settle("--steps", "4", "--warmup", "1")
    no_optimization.main(args)
    quality = record_of(args)["quality"]
    timed = rows_file.read(args.results_file).step_ms[1:].to_list()
    assert sum(timed) / 1e3 < quality["clock_s"] < sum(timed) / 1e3 + 1
    assert quality["drift"] == pytest.approx(timed[-1] / timed[0] - 1, abs=1e-3)
    assert quality["own_cpu_s"] > 0 and quality["all_cpu_s"] > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--steps 0", "--steps: '0' is not a whole number from 1 up"),
        ("--batch-size -1", "--batch-size: '-1' is not auto or a whole number from 1 up"),
        ("--seq-len 4096", "gpt2-tiny takes 1024 tokens at most"),
        ("--warmup 50", "leaves no step to time"),
        ("--model gpt5", "--model gpt5: choose gpt2-tiny, gpt2,"),
        ("--device tpu", "choose auto, cpu, cuda"),
        ("--device cuda:99", "--device cuda:99: torch"),
        ("--step 5", "unrecognized arguments: --step"),
        ("--results-file /nowhere/results.csv", "/nowhere/results.csv: No such file"),
        ("--results-file damaged.csv", "damaged.csv:1: unknown header"),
    ],
)
def test_what_cannot_be_asked_for_is_answered_in_one_line(
    flags, words, settle, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("damaged.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit) as ended:
        settle(*flags.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1 and words in said and said.startswith("no_optimization: error: ")


def test_help_is_the_docstring_even_with_percent_signs(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_args("Saves 50% of %s.\n\nParent: none", ["--help"], "x")
    assert ended.value.code == 0
    assert "Saves 50% of %s.\n\nParent: none" in capsys.readouterr().out


@pytest.mark.slow
def test_rounds_by_hand_are_processes_with_their_own_seed(tmp_path):
    path = tmp_path / "results.csv"
    flags = ["--steps", "3", "--warmup", "1", "--seed", "5", "--rounds", "2"]
    flags += ["--results-file", "results.csv"]
    done = forked.python(BASELINE, *TINY, *flags, before=lambda: os.chdir(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr and done.stderr.count("starts\n") == 2  # on no terminal
    rows = rows_file.read(path)
    assert list(rows.groupby("run_id")["round"].first()) == [0, 1]
    assert [record["settings"]["seed"] for record in records_in(tmp_path)] == [5, 6]


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar(tmp_path):
    flags = [*TINY, "--steps=30", f"--results-file={tmp_path / 'results.csv'}"]
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    with (tmp_path / "output").open("w+") as output:
        with open(theirs, "w") as terminal:
            process = forked.start(forked.of_script(BASELINE, *flags), output, terminal)
        shown = b""
        with suppress(OSError):  # the terminal's other side is closed
            while select.select([ours], [], [], 60)[0]:
                shown += os.read(ours, 4096)
        process.join()
        last = output.seek(0) or output.read()
    shown = shown.decode()
    assert shown.count("\r") > 2 and "first step" in shown
    assert re.search(r"no_optimization .*\d+/30 .* ms +[\d,]+ tokens/s +loss \d", shown)
    assert re.fullmatch(
        r"no_optimization: median [\d.,]+ ms \(p20-p80 .*\), [\d,]+ tokens/s, first step .* s, "
        r"peak memory [\d,]+ MiB, loss [\d.]+(  \(tainted: .*\))?\n",
        last,
    )


def ended(args, main):
    """The exit code of a process whose script is `main`; an exception is raised by it."""
    error, script = main, main
    if isinstance(error, Exception):

        def script(args):
            raise error

    with pytest.raises(SystemExit) as stop:
        script_start.call(script, args)
    return stop.value.code


def only_row(args):
    (row,) = rows_file.text_rows(args.results_file)
    assert not row["step"] and not row["step_ms"] and not row["loss"]
    return row


@pytest.mark.parametrize("need", ["bfloat61", "torchao", "package", "batch multiple of 0"])
def test_an_unknown_need_is_an_error_of_the_author(need, settle, capsys):
    args = settle()
    args.needs = (need,)
    assert ended(args, check_needs) == 2
    assert f"{need!r} is unknown; choose from tf32" in capsys.readouterr().err
    assert not args.results_file.exists()


@pytest.mark.parametrize(
    ("main", "code", "status", "note"),
    [
        (check_needs, 0, "unsupported", "needs torchao (pip install torchao)"),
        (ValueError("shapes\ndiffer"), 1, "failed", "ValueError: shapes differ"),
    ],
)
def test_a_run_that_cannot_be_or_fails_leaves_a_row(
    main, code, status, note, settle, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "torchao", None)
    args = settle()
    args.needs = ("package torchao",)
    assert ended(args, main) == code
    assert (only_row(args)["status"], only_row(args)["note"]) == (status, note)
    said = capsys.readouterr().err
    assert ("Traceback" in said) == (status == "failed") and (code or said.count("\n") == 1)


def test_out_of_memory_is_one_line_with_advice_a_row_and_an_exit_code(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))

    path = tmp_path / "results.csv"
    flags = ["--batch-size", "4096", "--seq-len", "1024", "--results-file", str(path)]
    done = forked.python(BASELINE, *TINY, *flags, before=limit)
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "out of memory" in line]
    assert "try --batch-size 2048" in said and "Traceback" not in done.stderr
    (row,) = rows_file.text_rows(path)
    assert row["status"] == "out_of_memory" and "4096x1024" in row["note"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_the_file_as_it_was(how, tmp_path):
    path = tmp_path / "results.csv"
    rows_file.append(path, rows_of("no_optimization", [9, 9, 9]))
    before = path.read_bytes()
    main = forked.of_script(BASELINE, *TINY, "--steps=100000", f"--results-file={path}")
    reads, writes = os.pipe()
    with open(reads) as errors:
        with open(writes, "w") as file:
            process = forked.start(main, file, file)
        assert any("step 1/" in line for line in errors)
        os.kill(process.pid, how)
        said = errors.read()
    process.join()
    assert process.exitcode == (130 if how == signal.SIGINT else -how)
    assert path.read_bytes() == before and not records_in(tmp_path)
    assert "Traceback" not in said
    if how == signal.SIGINT:
        assert said.strip() == "no_optimization: interrupted; nothing was recorded"
