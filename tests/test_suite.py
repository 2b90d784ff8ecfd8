"""Many scripts, one after the other: what runs, what continues, what is left."""

import os
import signal
import subprocess
import sys

import pytest

from tests.helpers import checkouts
from tests.helpers.rows import records_in
from Utils.base import child, paths
from Utils.launch import suite_runner
from Utils.results import rows_file

FLAGS = ["MODEL=gpt2-tiny", "STEPS=3", "WARMUP=1", "DATASET=synthetic", "DEVICE=cpu"]
SUITE = [sys.executable, "-m", "Utils.commands", "suite", *FLAGS]
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
from Utils.scripts.identity import Identity, identity_from_environment

args = command_line.Parser("stand-in", __doc__, *command_line.RUN_SETTINGS).parse_args()
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
told = identity_from_environment(row["technique"])  # by the suite that started it, if any
row |= (told or Identity("ladder")).place
phases = ["warmup"] * args.warmup + ["timed"] * (args.steps - args.warmup)
rows = [row | {"step": step, "phase": phase} for step, phase in enumerate(phases)]
record = {"run_id": row["run_id"], "suite_id": os.environ["SUITE_ID"]}
record["settings"] = {"seed": args.seed}
print(f"  step 1/{args.steps}", file=sys.stderr, flush=True)
if row["parent"]:
    time.sleep(float(os.environ["STEPS_S"]))
rows_file.append(args.results_file, rows, record)
'''


CHILD = STAND_IN.replace("Parent: none", "Parent: no_optimization")


@pytest.fixture
def project(tmp_path):
    """A copy of the project with two stand-ins for scripts."""
    checkouts.copy(tmp_path, "Makefile", "plot_results.py", "Utils", "tools")
    (tmp_path / "no_optimization.py").write_text(STAND_IN)
    (tmp_path / "tensorFloat32.py").write_text(CHILD)
    return tmp_path


def start(project, *command, steps_s=0):
    """Start a process in the project. It gets Ctrl-C, unlike background jobs of a shell."""
    variables = {"CACHE_DIR": str(paths.CACHE), "STEPS_S": str(steps_s), "SUITE_ID": ""}
    return child.start(
        command,
        cwd=project,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(project, *command, **options):
    """Return the exit code of a process, and what it printed."""
    process = start(project, *command, **options)
    output, errors = process.communicate()
    return process.returncode, output, errors


def runs_of(project):
    """Return (technique, round) of each run of the results file."""
    runs = rows_file.read(project / "results.csv").groupby("run_id").first()
    return list(zip(runs.technique, runs["round"], strict=True))


def test_suite_survives_a_killed_script_and_restarts_after_an_edit(project):
    """DESIGN: "What cannot run says why, and stops nothing else".

    A row of its name that another suite appends meanwhile is not taken for its own.
    """
    dies = CHILD.replace("args =", 'os.environ["SUITE_ID"] = "another"\nargs =', 1)
    (project / "killed.py").write_text(dies + "os.kill(os.getpid(), 9)\n")
    words = ["no_optimization", "killed", "tensorFloat32"]
    code, output, _ = run(project, *SUITE, *words)
    assert code == 1
    runs = rows_file.read(project / "results.csv").groupby("run_id").first()
    statuses = runs.groupby("technique").status.agg(list)
    assert [*statuses] == [["ok", "failed"], ["ok"], ["ok"]]
    assert "- killed: failed: killed by SIGKILL (out of memory?)\n" in output
    assert output.endswith("\n2 of 3 run\n")

    with (project / "tensorFloat32.py").open("a") as file:
        file.write("# another idea\n")
    assert "resuming" not in run(project, *SUITE, *words)[2]


def test_suite_that_was_stopped_resumes_and_a_complete_one_starts_anew(project):
    """METHOD: "Every second turn and round the order is reversed"; "with seed SEED + r in round
    r". Meanwhile no second suite writes to the file.
    """
    command = [*SUITE, "ROUNDS=2", "SEED=5"]
    process = start(project, *SUITE, "SEED=5", steps_s=60)
    for line in process.stderr:
        if "tensorFloat32 starts" in line:
            break
    code, _, errors = run(project, *command)
    assert code == 2 and errors.count("\n") == 1
    assert "results.csv: another suite writes to it; wait until it ends" in errors
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert runs_of(project) == [("no_optimization", 0)]
    assert process.returncode == 130 and "Traceback" not in errors
    assert errors.splitlines()[-1] == "interrupted; run the same command to resume"

    code, output, errors = run(project, *command)
    assert code == 0 and "resuming: 1 of 4 runs" in errors and ", 2 rounds," in output
    first, second = "no_optimization", "tensorFloat32"
    # A run whose partner was lost is repeated with it.
    planned = [(first, 0), (second, 0), (second, 1), (first, 1)]
    assert runs_of(project) == [(first, 0), *planned]
    assert [record["settings"]["seed"] for record in records_in(project)] == [5, 5, 5, 6, 6]

    assert "resuming" not in run(project, *command)[2]
    assert runs_of(project)[5:] == planned


def test_suite_restarts_after_a_change_of_timed_code():
    utils = paths.ROOT / "Utils"
    sources = suite_runner.sources_of_runs()
    unread = [file for file in utils.rglob("*.py") if file.read_text() not in sources]
    rooms = {file.relative_to(utils).parts[0] for file in unread}
    assert rooms == {"analysis", "commands", "draw"}
