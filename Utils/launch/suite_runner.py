"""Many scripts, many rounds, one process each.

Round r runs every technique with seed SEED + r, each in turns with its parent. A failed or
unsupported run does not stop the others. An interrupted suite, or one with more rounds, runs only
what is missing; a complete one, or one whose code has changed, restarts.
"""

import importlib.util
import math
import os
import platform
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from Utils.analysis.intervals import LOOK
from Utils.analysis.summary import Summary, summarize
from Utils.base import child, command_line, files, paths
from Utils.base.errors import UserError
from Utils.launch import turn_taking
from Utils.launch.schedule import Schedule
from Utils.results import rows_file, study
from Utils.scripts import variants
from Utils.scripts.ladder import PRECISIONS, Ladder, repository

# Folders of Utils that only read results. A change in any other folder restarts the suite.
READERS = {"analysis", "commands", "draw"}
SUITE = {"suite_id": str, "most_steps?": int, "last_round_s": float}  # a file of CACHE
FEWEST_ROUNDS = 4  # before narrow intervals can end a suite


class Outcome(NamedTuple):
    """Outcome of a suite.

    code: 0; 1 if a run failed or ran out of memory; 2 for impossible settings; INTERRUPTED.
    rows: those of its runs; None if it was stopped.
    path: the results file.
    """

    code: int
    rows: pd.DataFrame | None = None
    path: Path | None = None

    @property
    def summary(self) -> Summary:
        """The Summary that a command shows after it."""
        return summarize(study.of_suite(self.rows, self.path))


def techniques_named(words, ladder):
    """Return the Ladder of names and groups. Raises UserError, also for unknown parents.

    A group is one of `Ladder.group`, or `ablation`, which `make ablate` runs.
    """
    chosen = {}
    for word in words:
        if word == "ablation":
            group = variants.ablation(ladder.last_rung(), ladder)
        else:
            group = ladder.group(word) or [variants.find(word, ladder)]
        chosen |= {script.name: script for script in group}
    named = Ladder(chosen, ladder.base, left_out=ladder.parents())

    for name in chosen:
        named.lineage(name)
    return named


def ladder_of_device(args):
    """Return the Ladder of the repository for the device of args.

    Print if the device has no bfloat16.
    """
    precision = in_child("precision", args.device)
    if precision != "bfloat16":
        print(PRECISIONS[precision].message, flush=True)
    return repository(precision)


def in_child(name, *args):
    """Call a function of `suite_child` in a child process, and return its result.

    Importing torch takes a second, and a process that has used a GPU keeps some of its memory until
    it ends.
    """
    return child.in_child(_in_child, name, *args)


def _in_child(name, *args):
    from Utils.launch import suite_child  # noqa: PLC0415  (it imports torch)

    return getattr(suite_child, name)(*args)


def rows_of(suite_id, path):
    """Return the rows of a suite's runs, and the last row for each round and technique."""
    rows = pd.DataFrame(columns=rows_file.COLUMNS)
    run_ids = rows_file.run_ids(path, suite_id)
    if run_ids:
        rows = rows_file.read(path, with_pairs=True)
        rows = rows[rows.run_id.isin(run_ids)]
    return rows, rows.groupby(["round", "technique"]).tail(1)


def run(ladder, args, schedule=None, first_only=False):
    """Run the scripts of a ladder in rounds. Return an Outcome.

    args: settings of every script; timeout, the minutes until a run is killed.
    schedule: the Schedule of the command, also for several suites one after the other; by default
    one of its own.
    first_only: run one round alone.
    Raises UserError.
    """
    path = args.results_file
    has_no_pair = {script.parent for script in ladder}.isdisjoint(ladder.scripts)
    if args.precision and has_no_pair and not first_only:
        problem = "PRECISION needs a script whose parent runs too"
        raise UserError(problem, "name a parent too")

    schedule = schedule or Schedule(args, command_line.minutes(args))
    suite = _resume(ladder, args, schedule)
    is_first = schedule.suite is None
    schedule.begin(ladder, suite, first_only)
    progress = turn_taking.SuiteProgress(schedule)
    with progress:
        if suite.done and is_first:  # otherwise the command has made them itself
            ran = sum(map(len, suite.done.values()))
            all_runs = ran + schedule.runs_left()
            progress.say(f"resuming: {ran} of {all_runs} runs are already in {path}")

        for round_plan in schedule.rounds(progress.say):
            code = _run_round(round_plan, ladder, args, suite.suite_id, progress)
            if code:
                return Outcome(code)

    rows, newest = rows_of(suite.suite_id, path)
    has_failed = newest.status.isin(("failed", "out_of_memory")).any()
    return Outcome(int(has_failed), rows, path)


@contextmanager
def only_suite(path):
    """Return a context in which no other suite writes to a results file. Raises UserError."""
    rows_file.check(path)
    problem = f"{path}: another suite writes to it; wait until it ends or set RESULTS_FILE"
    # The kernel releases the lock of a killed suite.
    records = rows_file.records_path(path)
    with files.locked(records, problem):
        try:
            yield
        finally:
            if records.exists() and not records.stat().st_size:
                records.unlink()  # a refused suite leaves nothing


def _run_round(round_plan, ladder, args, suite_id, progress):
    """Run the scripts of a RoundPlan. Return 0, 2 for impossible settings, or INTERRUPTED.

    A script and its parent take turns if memory allows.
    """
    path = args.results_file
    r = round_plan.number
    flags = command_line.round_flags(args, r)

    # Some scripts are refused without a run.
    refused = [
        (script, "unsupported", script.refusal)
        for script in ladder
        if script.refusal and script.name in round_plan.missing
    ]
    _record_ends(refused, flags, suite_id)

    while group := round_plan.next_group():
        size_before = rows_file.whole_size(path)
        progress.next(r, "in turns" if len(group) > 1 else group[0].label)
        codes, memory_is_full = turn_taking.run(group, flags, suite_id, args.timeout, progress)
        progress.clear()  # for messages on stderr

        # Append the rows of runs that have ended without one.
        of_suite = rows_file.run_ids(path, suite_id)  # others may append to the file meanwhile
        rows = rows_file.read_as_texts(path, size_before)
        statuses = {row["technique"]: row["status"] for row in rows if row["run_id"] in of_suite}
        ends = [
            (ladder.scripts[name], "failed", child.why_ended(code, args.timeout))
            for name, code in codes.items()
            if name not in statuses and code not in turn_taking.FINAL_CODES
        ]
        _record_ends(ends, flags, suite_id)

        if 2 in codes.values():
            return 2  # the script has printed the reason, which holds for all
        if child.INTERRUPTED in codes.values():
            progress.say("interrupted; run the same command to resume")
            return child.INTERRUPTED

        timed = {name for name, status in statuses.items() if status == "ok"}
        progress.ended += round_plan.finish(codes.keys(), timed, memory_is_full)
    return 0


def _record_ends(ends, flags, suite_id):
    """Append the rows of runs that ended before they could do so, or did not start.

    ends: (script, status, reason) of each of them.
    """
    if ends and importlib.util.find_spec("torch"):
        in_child("record_ends", ends, flags, suite_id)
        return
    for script, *end in ends:  # only a user's script runs in another environment
        script.record_end(*end, flags, suite_id)


@dataclass(frozen=True)
class SuiteState:
    """A suite as it is stored when a command begins: in a file of CACHE, and as rows.

    suite_id: in the records of its runs.
    done: names of the scripts that need not run again, by round.
    most_steps, last_round_s: as in a Schedule, if one with a limit of time has set them.
    """

    suite_id: str
    done: dict[int, set[str]]
    most_steps: int | None
    last_round_s: float
    results_file: Path
    file: Path

    def save(self, schedule):
        """Store what a Schedule has measured."""
        measured = {"most_steps": schedule.most_steps, "last_round_s": schedule.last_round_s}
        files.write_json(self.file, measured | {"suite_id": self.suite_id})

    def widest_interval(self):
        """Return (half width of the widest interval over a parent as a share, text on it).

        (inf, "") before FEWEST_ROUNDS. 0 if a patch is decided: its interval excludes 1.
        """
        rows, _ = rows_of(self.suite_id, self.results_file)
        summary = Outcome(0, rows, self.results_file).summary
        names = {*rows.technique}
        scripts = [script for script in summary.shown if script.name in names]
        with_interval = [s for s in scripts if s.parent_speedup.half_width >= 0]
        most_rounds = max((script.rounds for script in scripts), default=0)
        if most_rounds < FEWEST_ROUNDS or not with_interval:
            return math.inf, ""
        widest = max(with_interval, key=lambda script: script.parent_speedup.half_width)
        speedup = widest.parent_speedup
        if summary.levels.look > LOOK and speedup.is_different:
            return 0.0, f"{widest.name} is decided, {speedup.text_with_verdict}"
        share = speedup.half_width
        return share, f"the widest interval over a parent is +-{share:.1%}, of {widest.name}"


def _resume(ladder, args, schedule):
    """Return the SuiteState of the suite that a command continues, or of a new one.

    It is stored under a digest of what the runs of a suite have in common. A complete suite is not
    resumed, except with a limit of time, with which rounds are added.
    """
    in_common = [
        *conditions(args),
        str(args.results_file.resolve()),
        str(bool(schedule.minutes)),
        *dict.fromkeys(script.resume_key for script in ladder),
    ]
    digest = paths.digest("\0".join(in_common))
    file = paths.CACHE / "suites" / f"{digest}.json"

    stored = files.read_cache(file, SUITE)
    done = {}
    if stored:
        _, newest = rows_of(stored["suite_id"], args.results_file)
        ended = newest[newest.status.isin(("ok", "unsupported"))]
        done = ended.groupby("round").technique.agg(set).to_dict()

    names = ladder.repeated().scripts.keys()
    rounds = range(args.round, args.round + args.rounds)
    is_complete = all(names <= done.get(number, set()) for number in rounds)
    if not done or (is_complete and not schedule.minutes):
        done = {}
        stored = {"suite_id": f"{time.time_ns():x}", "most_steps": None, "last_round_s": 0.0}
        files.write_json(file, stored)
    return SuiteState(**stored, done=done, results_file=args.results_file, file=file)


def conditions(args):
    """Return what all runs of a command have in common, a list of texts."""
    return [
        sys.executable,
        platform.node(),
        paths.git("rev-parse", "HEAD"),
        os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        os.environ.get("OMP_NUM_THREADS", ""),
        *command_line.round_flags(args, 0),
        *sources_of_runs(),
    ]


def sources_of_runs():
    """Return the sources of Utils that can change the time of a step, a list."""
    utils = paths.ROOT / "Utils"
    sources = filter(paths.is_script, sorted(utils.rglob("*.py")))
    return [file.read_text() for file in sources if file.relative_to(utils).parts[0] not in READERS]
