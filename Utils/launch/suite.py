"""Many scripts, many rounds, one process each.

    python -m Utils.commands.suite [TECHNIQUE ...] [flags of the scripts]

Without names it runs the ladder; `beyond` stands for all of beyond/ with the baseline and their
parents, `everything` for all there is, `ablation` for what `make ablate` runs.
Round r runs every technique once with seed SEED + r, and every other round goes backwards, so
that a machine that warms up or slows down does so for and against each. What cannot run here, or
fails, stops nothing else. A suite that was interrupted, or is asked for with more rounds, runs
only what is missing; one that is complete, or whose code has changed, starts anew. With --round
it begins at that round, so that it adds rounds to others instead of repeating them.
Ends with one table.
"""

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import takewhile

from Utils.analysis import ablation, selection, tables
from Utils.base import command_line, ladder, paths, results, variants
from Utils.base.command_line import Parser
from Utils.base.errors import UserError

# The layers that decide a step's time and loss, beside the script.
LAYERS = ("base", "corpus", "device", "harness")


def main(argv):
    """Runs techniques (default: the ladder). Returns the exit code: 0, or 1 where a run
    failed or did not fit into memory, or 2 where the settings are not possible."""
    names = list(takewhile(lambda word: not word.startswith("-"), argv))
    parser = Parser("suite", __doc__)
    command_line.add_settings(parser)
    help = "minutes after which a run is ended"
    parser.add_argument("--timeout", type=command_line.at_least(1), default=60, help=help)
    args = parser.parse_args(argv[len(names) :])
    path = args.results_file
    results.check(path)

    chosen = []
    for name in names or ["ladder"]:
        chosen += [technique for technique in _named(name) if technique not in chosen]
    rounds = range(args.round, args.round + args.rounds)
    # Every other round backwards.
    plan = [(r, t) for r in rounds for t in (chosen if r % 2 == 0 else chosen[::-1])]
    suite, done = _resume(args, chosen, plan)
    missing = [(r, technique) for r, technique in plan if (r, technique.name) not in done]
    if done:
        print(f"going on: {len(done)} of {len(plan)} runs are in {path} already", file=sys.stderr)

    silent, started = [], time.monotonic()  # silent: ended badly and could leave no row
    for number, (r, technique) in enumerate(missing):
        left = ""
        if number:
            seconds = (time.monotonic() - started) / number * (len(missing) - number)
            left = f", about {seconds / 60:.0f} min left" if seconds > 90 else ""
        print(f"\n[{number + 1}/{len(missing)}] round {r}{left}", file=sys.stderr, flush=True)
        before = len(results.check(path))
        flags = _flags(args, r)
        code = _python([*technique.command, *flags], suite, args.timeout)
        if code == 2:
            return 2  # it said why, and the others would say the same
        if code in (130, -signal.SIGINT):
            print("interrupted; the same command goes on from here", file=sys.stderr)
            return 130
        if code != 0 and len(results.check(path)) == before:
            reason = why_ended(code, args.timeout)
            if _python(
                ["-m", "Utils.commands.record_killed", technique.name, reason, *flags], suite
            ):
                silent.append(f"{technique.name}: failed: {reason}")

    ours = _runs_of(suite, path)
    latest = {
        (row["round"], row["technique"]): row["status"]
        for row in results.check(path)
        if row["run_id"] in ours
    }
    if latest:
        rows = results.read(path)
        rows, left_out = selection.select(rows[rows.run_id.isin(ours)], with_variants=True)
        print("\n" + tables.table(rows, left_out, results.records(path, rows.run_id.unique())))
    print(*silent, sep="\n", end="\n" if silent else "")
    return 1 if silent or {"failed", "out_of_memory"} & {*latest.values()} else 0


def _named(name):
    """The techniques or variants that one word stands for."""
    if name == "ablation":
        return [variants.find(one) for one in ablation.plan(ablation.last_rung())]
    return ladder.group(name) or [variants.find(name)]


def _resume(args, chosen, plan):
    """(name of the suite, its (round, technique) pairs that need not run again)."""
    parts = [sys.executable, version("torch"), platform.node(), _head()]
    parts += [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    parts += [str(args.results_file.resolve()), *_flags(args, 0)]
    parts += paths.sources(*LAYERS)
    parts += [t.name + t.code for t in chosen]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    note = paths.CACHE / "suites" / f"{key}.json"
    try:
        suite = json.loads(note.read_text())["suite"]
        rows = results.check(args.results_file)
        ours = _runs_of(suite, args.results_file)
        good = [
            row for row in rows if row["run_id"] in ours and row["status"] in ("ok", "unsupported")
        ]
        done = {(int(row["round"]), row["technique"]) for row in good}
        if not done >= {(r, technique.name) for r, technique in plan}:
            return suite, done & {(r, technique.name) for r, technique in plan}
    except (OSError, ValueError, KeyError):
        pass  # none was begun
    suite = f"{time.time_ns():x}"
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"suite": suite}))
    except OSError as error:
        raise UserError(f"{note}: {error.strerror}; CACHE_DIR names another place") from None
    return suite, set()


def _head():
    """The project's commit, or "" without git. Runs of another one are not compared with these."""
    command = ["git", "-C", str(paths.ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""


def _runs_of(suite, path):
    """run_ids of a suite, from the records beside the results file."""
    found = set()
    for record in (path.parent / "runs").glob("*.json"):
        try:
            if json.loads(record.read_text()).get("suite") == suite:
                found.add(record.stem)
        except (OSError, ValueError):
            continue
    return found


def _flags(args, r):
    """The command line of round r's runs."""
    values = vars(args) | {"rounds": 1, "round": r, "seed": args.seed + r}
    del values["timeout"]
    return command_line.as_flags(values)


def _python(command, suite, minutes=None):
    """Runs Python with the project on its path, its output going where ours goes. Exit code, or
    None where it was ended after so many minutes."""
    environment = paths.environment(SUITE=suite)
    process = subprocess.Popen([sys.executable, *command], env=environment)
    end = time.monotonic() + 60 * minutes if minutes else None
    while True:
        try:
            return process.wait(end and max(0, end - time.monotonic()))
        except KeyboardInterrupt:
            pass  # the terminal has told the child as well: let it end first
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None


def why_ended(code, minutes):
    """Why a process that left no row has ended. code: None after so many minutes."""
    if code is None:
        return f"ended after the time-out of {minutes} minutes"
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code} before it could say why"
