"""Many scripts, many rounds, one process each.

Round r runs every technique once with seed SEED + r. Every other round runs in reverse order, so
that a drift of the machine cancels out. A failed or unsupported run does not stop the others. An
interrupted suite, or one with more rounds, runs only what is missing; a complete one, or one whose
code has changed, starts anew.
"""

import hashlib
import json
import os
import platform
import signal
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version

from Utils.analysis import ablation, selection, tables
from Utils.base import command_line, git, ladder, paths, results, variants
from Utils.base.errors import UserError
from Utils.launch import process

# The layers that decide a step's time and loss, beside the script.
LAYERS = ("base", "corpus", "device", "harness")
INTERRUPTED = 130


@dataclass
class Outcome:
    """Outcome of a suite.

    code: 0; 1 where a run failed or ran out of memory; 2 for impossible settings; INTERRUPTED.
    run_ids: of its runs. silent: sentences on runs that left no row.
    """

    code: int
    run_ids: set = field(default_factory=set)
    silent: list = field(default_factory=list)


def named(words):
    """Return the techniques or variants of names and groups (see `ladder.group`).

    The group `ablation` is what `make ablate` runs. Raises UserError.
    """
    chosen = []
    for word in words:
        if word == "ablation":
            group = [variants.find(name) for name in ablation.plan(ablation.last_rung())]
        else:
            group = ladder.group(word) or [variants.find(word)]
        chosen += [technique for technique in group if technique not in chosen]
    return chosen


def run(techniques, args, say):
    """Run the techniques in args.rounds rounds from args.round on. Return an Outcome.

    args: settings of every script, and timeout, the minutes until a run is killed. say: function of
    a line of progress. Raises UserError.
    """
    path = args.results_file
    results.check(path)
    rounds = range(args.round, args.round + args.rounds)
    plan = [(r, t) for r in rounds for t in (techniques if r % 2 == 0 else techniques[::-1])]
    suite, done = _resume(args, techniques, plan)
    missing = [(r, technique) for r, technique in plan if (r, technique.name) not in done]
    if done:
        say(f"resuming: {len(done)} of {len(plan)} runs are already in {path}")

    silent, started = [], time.monotonic()
    for number, (r, technique) in enumerate(missing):
        left = ""
        if number:
            seconds = (time.monotonic() - started) / number * (len(missing) - number)
            left = f", about {seconds / 60:.0f} min left" if seconds > 90 else ""
        say(f"\n[{number + 1}/{len(missing)}] round {r}{left}")
        before = len(results.check(path))
        flags = command_line.round_flags(args, r)
        code = process.python([*technique.command, *flags], suite, args.timeout)
        if code == 2:
            return Outcome(2)  # the script printed the reason, which holds for all
        if code in (INTERRUPTED, -signal.SIGINT):
            say("interrupted; run the same command to resume")
            return Outcome(INTERRUPTED)
        if code != 0 and len(results.check(path)) == before:
            reason = process.why_ended(code, args.timeout)
            record = ["-m", "Utils.commands.record_killed", technique.name, reason, *flags]
            if process.python(record, suite):
                silent.append(f"{technique.name}: failed: {reason}")

    run_ids = runs_of(suite, path)
    latest = {
        (row["round"], row["technique"]): row["status"]
        for row in results.check(path)
        if row["run_id"] in run_ids
    }
    bad = silent or {"failed", "out_of_memory"} & {*latest.values()}
    return Outcome(1 if bad else 0, run_ids, silent)


def table(outcome, path):
    """Return the table of a suite's runs, and a line on each run without a row."""
    parts = outcome.silent
    rows = results.read(path) if outcome.run_ids else None
    if rows is not None and len(rows := rows[rows.run_id.isin(outcome.run_ids)]):
        rows, left_out = selection.select(rows, with_variants=True)
        records = results.records(path, rows.run_id.unique())
        parts = ["\n" + tables.table(rows, left_out, records), *parts]
    return "\n".join(parts)


def _resume(args, techniques, plan):
    """Return the suite's name, and its (round, technique) pairs that need not run again."""
    parts = [sys.executable, version("torch"), platform.node(), git.head()]
    parts += [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    parts += [str(args.results_file.resolve()), *command_line.round_flags(args, 0)]
    parts += paths.sources(*LAYERS)
    parts += [technique.name + technique.code for technique in techniques]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    note = paths.CACHE / "suites" / f"{key}.json"
    wanted = {(r, technique.name) for r, technique in plan}
    try:
        suite = json.loads(note.read_text())["suite"]
        run_ids = runs_of(suite, args.results_file)
        done = {
            (int(row["round"]), row["technique"])
            for row in results.check(args.results_file)
            if row["run_id"] in run_ids and row["status"] in ("ok", "unsupported")
        }
        if not done >= wanted:
            return suite, done & wanted
    except (OSError, ValueError, KeyError):
        pass  # no such suite was begun
    suite = f"{time.time_ns():x}"
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"suite": suite}))
    except OSError as error:
        raise UserError(f"{note}: {error.strerror}", "set CACHE_DIR to another folder") from None
    return suite, set()


def runs_of(suite, path):
    """Return the run_ids of a suite, from the records beside the results file."""
    run_ids = set()
    for record in (path.parent / "runs").glob("*.json"):
        try:
            if json.loads(record.read_text()).get("suite") == suite:
                run_ids.add(record.stem)
        except (OSError, ValueError):
            continue
    return run_ids
