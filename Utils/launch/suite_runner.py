"""Many scripts, many rounds, one process each.

Round r runs every technique with seed SEED + r, each in turns with its parent. A failed or
unsupported run does not stop the others. An interrupted suite, or one with more rounds, runs only
what is missing; a complete one, or one whose code has changed, starts anew.
"""

import itertools
import math
import os
import platform
import sys
import time
from contextlib import contextmanager
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import pandas as pd

from Utils.analysis.intervals import numbers
from Utils.analysis.summary import summarize
from Utils.base import command_line, files, paths
from Utils.base.errors import UserError
from Utils.base.text import plural
from Utils.launch import lifetime, turn_taking
from Utils.launch.round_plan import RoundPlan
from Utils.results import rows_file, study
from Utils.scripts import variants
from Utils.scripts.ladder import PRECISIONS, Ladder, parent_hints, repository

# Rooms of Utils that read measurements. After a change of another room, runs are not resumed.
READERS = {"analysis", "commands", "draw"}
SUITE = {"suite_id": str, "most_steps": (int, None), "last_round_s": float}  # a file of CACHE
FEWEST_ROUNDS = 4  # before narrow intervals can end a suite
NARROW = 0.01  # half width of intervals that ends a suite by itself


class Outcome(NamedTuple):
    """Outcome of a suite.

    code: 0; 1 if a run failed or ran out of memory; 2 for impossible settings; INTERRUPTED.
    rows: those of its runs; None if it was stopped.
    """

    code: int
    rows: pd.DataFrame | None = None


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

    Print if the device has no bfloat16, and hints at parents of a user's ideas.
    """
    for hint in parent_hints():
        print("; ".join(hint), file=sys.stderr)
    precision = in_child("precision", args.device)
    if precision != "bfloat16":
        print(PRECISIONS[precision].message, flush=True)
    return repository(precision)


def in_child(name, *args):
    """Call a function of `suite_child` in a child process, and return its result.

    Importing torch takes a second, and a process that has used a GPU keeps some of its memory until
    it ends.
    """
    return lifetime.in_child(_in_child, name, *args)


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


def run(ladder, args, plan=None, resumes=True):
    """Run the scripts of a ladder in args.rounds rounds from args.round on. Return an Outcome.

    args: settings of every script; timeout, the minutes until a run is killed; precision, a share
        or None. With a precision, rounds are added until every interval over a parent is at most
        that wide to either side, or --timeout minutes have passed.
    plan: a TimePlan. With it, rounds are run while they fit into its time, or until every interval
        over a parent is narrow enough, and args.rounds does not matter. Then disturbed runs are
        repeated, while a round fits.
    resumes: False if the command itself has made the runs that are there.
    Raises UserError.
    """
    path = args.results_file
    if args.precision and {script.parent for script in ladder}.isdisjoint(ladder.scripts):
        problem = "precision is of intervals over a parent, and no script's parent runs with it"
        raise UserError(problem, "name a parent too")

    suite_id, done = _resume(args, ladder, plan)
    progress = turn_taking.SuiteProgress(plan)
    with progress.bar:
        for r, names in _rounds(ladder, args, suite_id, done, progress, resumes):
            code = _run_round(ladder, args, r, suite_id, names, progress)
            if code:
                return Outcome(code)

    rows, newest = rows_of(suite_id, path)
    has_failed = newest.status.isin(("failed", "out_of_memory")).any()
    return Outcome(int(has_failed), rows)


def _rounds(ladder, args, suite_id, done, progress, resumes):
    """Yield (round, names of the scripts to run in it), until no other round is asked for or fits.

    done: runs that are there, (round, name).
    """
    plan = progress.plan
    r = args.round
    last = r + args.rounds - 1
    if plan:
        plan.start(ladder)
        while runs_of(ladder, args, [r]) <= done:
            r += 1
        last = r

    if done and resumes:
        count = len(done | runs_of(ladder, args, range(r, last + 1)))
        path = args.results_file
        progress.say(f"resuming: {len(done)} of {count} runs are already in {path}")

    # No round begins that does not fit. How long one takes is unknown before the first.
    is_begun = any(number == r for number, _ in done)
    goes_on = not (plan and plan.last_round_s) or is_begun
    goes_on = goes_on or _fits_another(ladder, args, r - 1, suite_id, progress)
    while goes_on:
        progress.left = len(runs_of(ladder, args, range(r, max(r, last) + 1)) - done)
        yield r, {name for _, name in runs_of(ladder, args, [r]) - done}

        if plan:
            if not plan.paces:  # no script has reached its first step
                return
            plan.end_round()
            goes_on = _fits_another(ladder, args, r, suite_id, progress)
        else:
            goes_on = r < last or (args.precision and _go_on(args, suite_id, progress))
        r += 1

    # Disturbed runs are repeated while a round fits.
    if plan:
        disturbed = rows_of(suite_id, args.results_file)[1].query("grade == 'tainted'")
        for number, runs in disturbed.groupby("round"):
            if not plan.fits_another(1):
                break
            names = [*runs.technique]
            progress.left = len(names)
            progress.say(f"\nagain, as disturbed: {', '.join(names)} of round {number}")
            yield number, {*names}


def runs_of(ladder, args, rounds):
    """Return the runs of rounds, (round, name): emulated scripts run in the first round alone."""
    runs = itertools.product(rounds, ladder)
    return {(r, script.name) for r, script in runs if r == args.round or not script.is_emulated}


@contextmanager
def only_suite(path):
    """Return a context in which no other suite writes to a results file. Raises UserError."""
    rows_file.check(path)
    problem = f"{path}: another suite writes to it; wait for its end, or give another RESULTS_FILE"
    # The kernel releases the lock of a killed suite.
    records = rows_file.records_path(path)
    with files.locked(records, problem):
        try:
            yield
        finally:
            if records.exists() and not records.stat().st_size:
                records.unlink()  # a refused suite leaves nothing


def _run_round(ladder, args, r, suite_id, missing, progress):
    """Run the scripts of round r that are missing, a set of names.

    Return 0, 2 for impossible settings, or INTERRUPTED. A script and its parent take turns if
    memory allows.
    """
    path = args.results_file
    plan = progress.plan
    flags = command_line.round_flags(args, r)

    # Some scripts are refused without a run.
    order = [script for script in ladder if not script.refusal]
    refused = [
        (script, "unsupported", script.refusal)
        for script in ladder
        if script.refusal and script.name in missing
    ]
    if refused:
        in_child("record_ends", refused, flags, suite_id)
    to_pair = ladder.part({script.name for script in order if not script.is_emulated})
    if r % 2:
        order.reverse()
    order.sort(key=lambda script: not script.is_emulated)  # its time is known before the others'

    round_plan = RoundPlan(to_pair, order, missing)
    if plan:
        plan.runs_of_round = RoundPlan(to_pair, order, {*to_pair.scripts}).runs_left()
    while group := round_plan.next_group():
        if plan:
            plan.later_runs = round_plan.runs_left()[len(group[: turn_taking.MOST_PROCESSES]) :]
        size_before = rows_file.whole_size(path) if path.exists() else 0
        progress.next(r, "in turns" if len(group) > 1 else turn_taking.label(group[0]))
        codes, memory_is_full = turn_taking.run(group, flags, suite_id, args.timeout, progress)
        progress.bar.clear()  # for messages on stderr

        # Append the rows of runs that have ended without one.
        of_suite = rows_file.run_ids(path, suite_id)  # others may append to the file meanwhile
        rows = rows_file.read_as_texts(path, size_before)
        statuses = {row["technique"]: row["status"] for row in rows if row["run_id"] in of_suite}
        ends = [
            (ladder.scripts[name], "failed", turn_taking.why_ended(code, args.timeout))
            for name, code in codes.items()
            if name not in statuses and code not in turn_taking.FINAL_CODES
        ]
        if ends:
            in_child("record_ends", ends, flags, suite_id)

        if 2 in codes.values():
            return 2  # the script has printed the reason, which holds for all
        if turn_taking.INTERRUPTED in codes.values():
            progress.say("interrupted; run the same command to resume")
            return turn_taking.INTERRUPTED

        timed = {name for name, status in statuses.items() if status == "ok"}
        ended = round_plan.finish(codes.keys(), timed, memory_is_full)
        progress.ended += ended
        progress.left -= ended
    return 0


def _widest_interval(args, suite_id):
    """Return (half width of the widest interval over a parent as a share, text on it).

    (inf, "") before FEWEST_ROUNDS.
    """
    rows, _ = rows_of(suite_id, args.results_file)
    scripts = summarize(study.of_suite(rows, args.results_file)).figures
    scripts = scripts[scripts.index.isin(rows.technique)]
    ratios = numbers(scripts.parent_speedup)
    half_widths = (np.log(ratios.high / ratios.low) / 2).dropna()
    if scripts.rounds.max() < FEWEST_ROUNDS or half_widths.empty:
        return math.inf, ""
    widest = np.expm1(half_widths.max())
    return widest, f"the widest interval over a parent is +-{widest:.1%}, of {half_widths.idxmax()}"


def _go_on(args, suite_id, progress):
    """Return whether another round runs, and print the reason.

    It runs if an interval is wider than --precision, and --timeout minutes have not passed.
    """
    widest, text = _widest_interval(args, suite_id)
    if widest <= args.precision:
        progress.say(f"\n{text}: as narrow as PRECISION={args.precision:.1%} asks")
        return False

    if time.monotonic() - progress.started > 60 * args.timeout:
        progress.say(f"\nTIMEOUT={args.timeout} minutes have passed; {text or 'no interval yet'}")
        return False

    progress.say(f"\n{text or 'too few rounds for an interval'}: one round more")
    return True


def _fits_another(ladder, args, r, suite_id, progress):
    """Return whether another round fits into the time of a plan. Print the end of the last one."""
    plan = progress.plan
    number = r + 1 - args.round
    precision = args.precision or NARROW
    widest, text = _widest_interval(args, suite_id)
    is_enough = number % 2 == 0 and widest <= precision
    if not is_enough and plan.fits_another(number):
        return True
    if plan.most_rounds == 1:
        return False

    took = math.ceil((plan.clock() - plan.started) / 60)
    more = f"MINUTES={plan.minutes_for_another(number)} has"
    if is_enough:
        remark = f"{text}: narrow enough"
    elif number == 1:
        remark = f"{more} a second one, for intervals"
    elif not plan.rounds:
        remark = f"no other fits; {more} more"
    else:
        halves = f"MINUTES={4 * plan.minutes:g} about halves it"
        remark = f"{text or 'intervals are wide'}; {halves}"
    rounds = f"{plural(number, 'round')} of {plural(len(ladder), 'script')}"
    time_taken = f" in {took} min" if plan.rounds else ""
    progress.say(f"\n{rounds}{time_taken}; {remark}")
    return False


def _resume(args, ladder, plan):
    """Return a suite's id and its (round, technique) pairs that need not run again.

    The id is stored under a digest of what the runs of a suite have in common, with the length of
    its runs if a plan chose it. Without a plan a complete suite is not resumed.
    """
    conditions = [
        sys.executable,
        version("torch"),
        platform.node(),
        paths.git("rev-parse", "HEAD"),
        os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        os.environ.get("OMP_NUM_THREADS", ""),
        str(args.results_file.resolve()),
        "planned" if plan else "",
        *command_line.round_flags(args, 0),
        *sources_of_runs(),
        *dict.fromkeys(script.resume_key for script in ladder),
    ]
    digest = paths.digest("\0".join(conditions))
    note = paths.CACHE / "suites" / f"{digest}.json"

    stored = files.read_cache(note, SUITE)
    done = set()
    if stored:
        _, newest = rows_of(stored["suite_id"], args.results_file)
        ended = newest[newest.status.isin(("ok", "unsupported"))]
        done = {*zip(ended["round"], ended.technique, strict=True)}

    planned = runs_of(ladder, args, range(args.round, args.round + args.rounds))
    if not done or (not plan and planned <= done):
        stored = {"suite_id": f"{time.time_ns():x}", "most_steps": None, "last_round_s": 0.0}
        done = set()
        files.write_json(note, stored)

    if plan:
        plan.most_steps = plan.most_steps or stored["most_steps"]
        plan.last_round_s = plan.last_round_s or stored["last_round_s"]
        plan.save = lambda: files.write_json(
            note,
            stored | {"most_steps": plan.most_steps, "last_round_s": plan.last_round_s},
        )
    return stored["suite_id"], done if plan else done & planned


def sources_of_runs():
    """Return the sources of Utils that can change the time of a step, a list."""
    utils = paths.ROOT / "Utils"
    sources = filter(paths.is_script, sorted(utils.rglob("*.py")))
    return [file.read_text() for file in sources if file.relative_to(utils).parts[0] not in READERS]
