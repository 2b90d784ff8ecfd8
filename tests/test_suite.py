"""Many scripts, one after the other: what runs, what goes on, what is left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest

from tests.helpers.rows import records_in
from tools.calibration.known import changed, copy_project
from Utils.base import paths
from Utils.commands import __main__ as commands
from Utils.launch import suite_runner as launched
from Utils.launch import turn_taking
from Utils.results import rows_file
from Utils.results.rows_file import HEADER
from Utils.scripts import ladder

FLAGS = ["MODEL=gpt2-tiny", "STEPS=3", "WARMUP=1", "DATASET=synthetic", "DEVICE=cpu"]
PARENT = "Parent: no_optimization"
STAND_IN = '''"""Trains nothing and needs no torch, but leaves what a script does.

Parent: none
"""

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from Utils.base import command_line
from Utils.results import rows_file
from Utils.scripts.identity import Identity, told_identity

args = command_line.Parser("stand-in", __doc__, *command_line.OF_A_RUN).parse_args()
row = dict.fromkeys(rows_file.COLUMNS, 1) | {
    "run_id": f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}",
    "base": "no_optimization",
    "unit": "tokens",
    "round": args.round,
    "technique": Path(sys.argv[0]).stem,
    "status": "ok",
    "grade": "clean",
    "note": "",
}
told = told_identity(row["technique"])  # by the suite that started it, if any
row |= vars(told or Identity("ladder"))
phases = ["warmup"] * args.warmup + ["timed"] * (args.steps - args.warmup)
rows = [row | {"step": step, "phase": phase} for step, phase in enumerate(phases)]
record = {"run_id": row["run_id"], "suite_id": os.environ["SUITE_ID"]}
record["settings"] = {"seed": args.seed}
print(f"  step 1/{args.steps}", file=sys.stderr, flush=True)
time.sleep(float(os.environ.get("STEPS_S", 0)))
rows_file.append(args.results_file, rows, record)
'''


@pytest.fixture
def project(tmp_path):
    """A copy of the project with two quick scripts, to break at will."""
    return copy_project(tmp_path, "no_optimization", "tensorFloat32")


@pytest.fixture
def quick(tmp_path):
    """The same with stand-ins: for what the suite does, whichever scripts it runs."""
    project = copy_project(tmp_path)
    (project / "no_optimization.py").write_text(STAND_IN)
    (project / "tensorFloat32.py").write_text(STAND_IN.replace("Parent: none", PARENT))
    return project


def start(project, command, **more):
    """A process in the project, in a session of its own. more: variables of its environment."""
    return subprocess.Popen(
        command,
        cwd=project,
        env={**os.environ, "CACHE_DIR": str(paths.CACHE), "CUDA_VISIBLE_DEVICES": "", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore Ctrl-C, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ended(process):
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def make(project, *words):
    return ended(start(project, ["make", f"PYTHON={sys.executable}", *FLAGS, *words]))


def suite_command(*words):
    return [sys.executable, "-m", "Utils.commands", "suite", *FLAGS, *words]


def run_suite(project, *words):
    """What `make all` runs, without what it draws and measures besides."""
    return ended(start(project, suite_command(*words)))


def idea(project, name, *changes, parent=PARENT):
    """A copy of the baseline under another name, with some text replaced."""
    (project / f"{name}.py").write_text(changed(*changes, parent=parent))


def test_an_idea_of_ones_own_is_measured_compared_and_drawn(project):
    sgd = "SGD(model.parameters(), lr=0.1)"
    idea(project, "my_idea", ("AdamW(model.parameters(), lr=4e-5)", sgd))
    assert make(project, "no_optimization").returncode == 0
    done = make(project, "my_idea", "plots", "table")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("| my_idea"))
    assert re.findall(r"\d\.\d\dx", row), row
    assert "my_idea" in (project / "plots" / "speedup.svg").read_text()
    shown = make(project, "diff", "T=my_idea").stdout
    assert "+    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)" in shown


@pytest.mark.slow
def test_all_goes_on_past_failures_and_says_so_in_the_end(project):
    begins = "def main(args):\n"
    (project / "tensorFloat32.py").unlink()
    idea(project, "broken", (begins, begins + '    raise ValueError("on purpose")\n'))
    idea(project, "cannot", ("Needs:  nothing", "Needs:  package no_such_package"))
    idea(project, "killed", (begins, "import os; os.kill(os.getpid(), 9)\n" + begins))
    idea(project, "mistyped", (begins, "with with\n" + begins))
    done = make(project, "all")
    assert done.returncode != 0
    first_table = done.stdout.partition(" tokens a step")[0]
    outcomes = dict(re.findall(r"^\| (\w+) +\| +([\w. ]*\w)", first_table, re.MULTILINE))
    assert re.fullmatch(r"[\d.]+ ms", outcomes.pop("no_optimization"))
    assert outcomes == {
        "script": "time a step",
        "broken": "failed",
        "cannot": "unsupported",
        "killed": "failed",
        "mistyped": "failed",
    }
    assert "ValueError: on purpose" in done.stdout and "needs no_such_package" in done.stdout
    assert "killed by SIGKILL" in done.stdout
    drawn = (project / "plots" / "speedup.svg").read_text()
    assert "needs no_such_package" in drawn and "killed by SIGKILL" in drawn


def test_make_j_runs_one_script_at_a_time(quick, monkeypatch):
    monkeypatch.setenv("SUITE_ID", "")
    monkeypatch.setenv("STEPS_S", "1")
    assert make(quick, "-j8", "baseline", "tf32").returncode == 0
    runs = rows_file.read(quick / "results.csv").groupby("technique", sort=False).run_id.first()
    assert list(runs.index) == ["no_optimization", "tensorFloat32"]
    first, second = (datetime.strptime(start, "%Y%m%dT%H%M%S.%fZ") for start in runs)
    assert (second - first).total_seconds() > 1


@pytest.mark.slow
def test_by_hand_and_by_make_do_the_same(project):
    assert make(project, "tf32", "BATCH_SIZE=2", "SEED=3").returncode == 0
    by_hand = "--model gpt2-tiny --steps 3 --warmup 1 --dataset synthetic --device cpu"
    flags = by_hand.split()
    command = [sys.executable, "tensorFloat32.py", *flags, "--batch-size", "2", "--seed", "3"]
    assert subprocess.run(command, cwd=project, capture_output=True).returncode == 0
    rows = rows_file.read(project / "results.csv")
    rows["note"] = rows.note.str.replace(r"(; )?waits for data \d+% of the time", "", regex=True)
    same = ["technique", "status", "step", "phase", "loss", "batch_size", "model", "commit", "note"]
    by_make, by_hand = (rows[rows.run_id == run_id][same] for run_id in rows.run_id.unique())
    assert by_make.reset_index(drop=True).equals(by_hand.reset_index(drop=True))


def test_ctrl_c_ends_the_suite_and_keeps_what_was_done(project):
    loop = "for idx, targets in"
    endless = 'open("trains", "w").close()\n        while True: pass'
    idea(project, "endless", (loop, f"{endless}\n        {loop}"))
    process = start(project, suite_command("no_optimization", "endless", "tensorFloat32"))
    while process.poll() is None and not (project / "trains").exists():
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in said
    assert said.splitlines()[-1] == "interrupted; run the same command to resume"
    assert not rows_file.text_rows(project / "results.csv")  # its partner had not ended either


def test_ctrl_c_while_a_script_imports_is_one_line(quick):
    waits = 'open("imports", "w").close()\n__import__("time").sleep(60)\nimport json'
    (quick / "no_optimization.py").write_text(STAND_IN.replace("import json", waits))
    process = start(quick, suite_command("no_optimization"))
    while process.poll() is None and not (quick / "imports").exists():
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.partition("starts\n")[2] == "interrupted; run the same command to resume\n"


def test_a_second_suite_on_the_same_file_says_so_and_a_killed_one_is_in_nobodys_way(quick):
    first = start(quick, suite_command(), STEPS_S="60")
    for line in first.stderr:
        if "starts" in line:
            break
    second = run_suite(quick)
    assert second.returncode == 2 and second.stderr.count("\n") == 1
    assert "results.csv: another suite writes to it; wait for its end" in second.stderr
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert run_suite(quick).returncode == 0


def test_reset_and_clean_keep_the_old_file_and_init_never_empties_one(project):
    assert make(project, "init_results").returncode == 0
    header = (project / "results.csv").read_bytes()
    assert header.decode() == HEADER + "\n"
    (project / "results.csv").write_text("damaged, but mine")
    done = make(project, "init_results")
    assert done.returncode != 0 and ":1: unknown header" in done.stderr
    for folder in (project / "plots", project / ".cache"):
        folder.mkdir()
        (folder / "speedup.png").write_text("")
    assert make(project, "clean", "reset").returncode == 0 and not (project / ".cache").exists()
    (kept,) = project.glob("results-*.csv")
    assert kept.read_text() == "damaged, but mine"
    assert (project / "results.csv").read_bytes() == header
    assert not list((project / "plots").iterdir())


def test_smoke_leaves_results_alone(quick):
    done = make(quick, "smoke")
    assert done.returncode == 0, done.stderr
    assert "| tensorFloat32" in done.stdout and not (quick / "results.csv").exists()


def test_gpu_check_without_a_gpu_is_one_line(project):
    done = make(project, "gpu-check")
    assert done.returncode != 0
    assert "gpu-check: torch sees no CUDA device here" in done.stderr
    assert "Traceback" not in done.stderr


def kept(project):
    """What the suite has left, in the terms that an uninterrupted one would leave."""
    rows = rows_file.read(project / "results.csv")
    return sorted(zip(rows["round"], rows.technique, rows.step, rows.status, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["suite", "child"])
def test_a_killed_suite_goes_on_where_it_was(victim, quick):
    command = suite_command("STEPS=40", "ROUNDS=2")
    process = start(quick, command, STEPS_S="0.5")
    for line in process.stderr:
        if line.startswith("[3/4]") or (victim == "suite" and "tensorFloat32 starts" in line):
            break
        if "no_optimization starts" in line and victim == "child":
            time.sleep(0.3)
            subprocess.run(["pkill", "-KILL", "-g", str(process.pid), "-f", "no_optimization.py"])
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = ended(start(quick, command))
    assert done.returncode == 0, done.stderr
    assert "resuming: 1 of 4 runs" in done.stderr or victim == "child"
    names = ("no_optimization", "tensorFloat32")
    whole = [(r, name, step, "ok") for r in (0, 1) for name in names for step in range(40)]
    # A run whose partner was lost is repeated with it.
    assert sorted({row for row in kept(quick) if row[3] == "ok"}) == whole


@pytest.mark.slow
def test_more_rounds_run_only_what_is_missing_and_a_complete_suite_starts_anew(quick):
    """And rounds are interleaved; every other one goes backwards."""
    assert run_suite(quick).returncode == 0
    before = (quick / "results.csv").read_text()
    done = run_suite(quick, "ROUNDS=3")
    assert "resuming: 2 of 6 runs" in done.stderr and "95% interval" in done.stdout
    assert (quick / "results.csv").read_text().startswith(before)
    runs = rows_file.read(quick / "results.csv").groupby("run_id")[["technique", "round"]].first()
    there, back = ["no_optimization", "tensorFloat32"], ["tensorFloat32", "no_optimization"]
    assert list(runs.technique) == there + back + there
    assert list(runs["round"]) == [0, 0, 1, 1, 2, 2] and len(kept(quick)) == 6 * 3
    assert "resuming" not in run_suite(quick, "ROUNDS=3").stderr
    assert len(kept(quick)) == 2 * 6 * 3


def test_a_changed_script_is_measured_anew_and_rounds_are_added_to_others(quick):
    done = run_suite(quick, "ROUND=3")
    assert done.returncode == 0, done.stderr
    runs = rows_file.read(quick / "results.csv").groupby("run_id").first()
    assert list(runs["round"]) == [3, 3]
    assert list(runs.technique) == ["tensorFloat32", "no_optimization"]  # an odd one, so backwards
    assert [record["settings"]["seed"] for record in records_in(quick)] == [3, 3]
    with (quick / "tensorFloat32.py").open("a") as file:
        file.write("# another idea\n")
    done = run_suite(quick, "ROUND=3", "ROUNDS=2")
    assert "resuming" not in done.stderr and "[3/4]" in done.stderr


def test_a_change_of_what_decides_a_steps_time_is_measured_anew(tmp_path, monkeypatch):
    project = copy_project(tmp_path)
    monkeypatch.setattr(paths, "ROOT", project)
    rooms = {folder.name for folder in (project / "Utils").iterdir() if folder.is_dir()}
    assert rooms > launched.READERS
    for room in sorted(rooms - {"__pycache__"}):
        before = launched.sources_of_runs()
        with (project / "Utils" / room / "__init__.py").open("a") as file:
            file.write("# changed\n")
        assert (launched.sources_of_runs() == before) == (room in launched.READERS)
    assert (project / "Utils" / "run.py").read_text() in before


def test_a_run_that_hangs_is_ended_and_recorded(tmp_path, monkeypatch, capsys):
    whole = turn_taking.run
    monkeypatch.setattr(turn_taking, "run", lambda *args: whole(*args[:3], 0.02, args[4]))
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    path = tmp_path / "results.csv"
    flags = ["--model", "gpt2-tiny", "--dataset", "synthetic", "--steps", "1000000"]
    assert commands.main("suite", "no_optimization", *flags, "--results-file", str(path)) == 1
    (row,) = rows_file.text_rows(path)
    assert row["status"] == "failed" and "time-out of 60 minutes" in row["note"]


def test_one_word_stands_for_the_ladder_or_what_is_beyond_it_or_everything():
    repository = ladder.repository()
    known = repository.scripts
    top = [technique for technique in known.values() if technique.at_top_level]
    assert list(launched.named(["ladder"], repository)) == top
    assert list(launched.named(["everything"], repository)) == [*known.values()]
    beyond = [technique.name for technique in launched.named(["beyond"], repository)]
    assert beyond == [name for name in known if name in beyond]  # each once, parents first
    parents = {known[name].parent for name in repository.beyond()}
    assert {*beyond} == repository.beyond() | parents | {"no_optimization"}
    names = [
        technique.name for technique in launched.named(["fused_optimizer", "beyond"], repository)
    ]
    assert names[:2] == ["fused_optimizer", "no_optimization"]
    assert len(names) == len({*names}) == len(beyond)


@pytest.mark.slow
def test_make_measures_prints_and_draws_what_is_beyond(quick):
    (quick / "beyond").mkdir()
    (quick / "beyond" / "__init__.py").touch()
    (quick / "beyond" / "my_idea.py").write_text(STAND_IN.replace("Parent: none", PARENT))
    done = make(quick, "beyond")
    assert done.returncode == 0, done.stderr
    names = ["no_optimization", "my_idea"]
    assert list(rows_file.read(quick / "results.csv").technique.unique()) == names
    assert "| my_idea" in done.stdout and "plots/speedup.png" in done.stdout
