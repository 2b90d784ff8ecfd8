"""Many scripts, many rounds, one process each.

Round r runs every technique with seed SEED + r, each in turns with its parent. A failed or
unsupported run does not stop the others. An interrupted suite, or one with more rounds, runs only
what is missing; a complete one, or one whose code has changed, starts anew.
"""

import hashlib
import json
import os
import platform
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import pandas as pd

from Utils.analysis import result_tables
from Utils.analysis.intervals import numbers
from Utils.analysis.recommendation import recommend
from Utils.analysis.summary import summarize
from Utils.base import command_line, files, paths
from Utils.base.errors import UserError
from Utils.launch import turn_taking
from Utils.results import rows_file, study
from Utils.scripts import variants
from Utils.scripts.ladder import IN_FLOAT16, Ladder, repository

# Rooms of Utils that read what was measured. After a change of any other, runs are not resumed.
READERS = {"analysis", "commands", "draw"}
ENDS_WITHOUT_ROW = (0, 2, turn_taking.INTERRUPTED, -signal.SIGINT)
FEWEST_ROUNDS = 4  # before --precision can end a suite


class Outcome(NamedTuple):
    """Outcome of a suite.

    code: 0; 1 where a run failed or ran out of memory; 2 for impossible settings; INTERRUPTED.
    rows: of its runs, a DataFrame; None where it was stopped.
    """

    code: int
    rows: object = None


class ScriptRecorder:
    """Rows of scripts that append their own: a killed one alone needs a row from outside.

    Another ladder's recorder has the same methods.
    """

    def identity(self, ladder):
        """Return a text that what is to be resumed has in common."""
        return "\0".join(script.name + script.code for script in ladder)

    def collect(self, suite_id):
        """Append rows that ended runs have left for the launcher: none."""

    def record_end(self, script, status, reason, flags, suite_id):
        """Append the row of a run without timing, which has ended without one."""
        in_child("record_end", script, status, reason, flags, suite_id)


def named(words, ladder):
    """Return the Ladder of names and groups: of `Ladder.group`, and `ablation`, which is what
    `make ablate` runs. Raises UserError.
    """
    chosen = {}
    for word in words:
        if word == "ablation":
            group = variants.ablation(ladder.last_rung(), ladder)
        else:
            group = ladder.group(word) or [variants.find(word, ladder)]
        chosen |= {script.name: script for script in group}
    return Ladder(chosen, ladder.base, left_out=ladder.parents())


def ladder_of_device(args):
    """Return the Ladder of the repository as the device of args runs it; say if in float16."""
    on_cpu = args.device == "cpu" or version("torch").endswith("+cpu")
    bfloat16 = on_cpu or in_child("has_bfloat16", args.device)
    if not bfloat16:
        print(IN_FLOAT16, flush=True)
    return repository(bfloat16)


def in_child(name, *args):
    """Return what a function of `suite_child` returns in a child process: torch takes a second, and
    a process that has used a GPU keeps some of its memory until it ends.
    """
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(_in_child, name, *args).result()


def _in_child(name, *args):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
    from Utils.launch import suite_child  # here, as it imports torch

    return getattr(suite_child, name)(*args)


def rows_of(suite_id, path):
    """Return the rows of a suite's runs, and the last row of the newest run of each round and
    technique.
    """
    rows = pd.DataFrame(columns=rows_file.COLUMNS)
    run_ids = rows_file.run_ids_of(suite_id, path)
    if run_ids:
        rows = rows_file.read(path)
        rows = rows[rows.run_id.isin(run_ids)]
    return rows, rows.groupby(["round", "technique"]).tail(1)


def run(ladder, args, recorder=None):
    """Run the scripts of a ladder in args.rounds rounds from args.round on. Return an Outcome.

    args: settings of every script; timeout, the minutes until a run is killed; precision, a share
    or None. With a precision, rounds are added until every interval over a parent is at most so
    wide to either side, or --timeout minutes have passed. recorder: of the ladder's rows, by
    default a ScriptRecorder. Raises UserError.
    """
    recorder = recorder or ScriptRecorder()
    path = args.results_file
    rows_file.check(path)
    rows_file.convert(path)  # before its size is taken
    names = list(ladder.scripts)
    if args.precision and not any(script.parent in names for script in ladder):
        problem = "precision is of intervals over a parent, and no script's parent runs with it"
        raise UserError(problem, "name a parent too")

    rounds = list(range(args.round, args.round + args.rounds))
    suite_id, done = _resume(args, ladder, rounds, recorder)
    total = len(rounds) * len(ladder)
    progress = turn_taking.SuiteProgress(total - len(done))
    if done:
        progress.say(f"resuming: {len(done)} of {total} runs are already in {path}")
    with progress.bar:
        while rounds:
            r = rounds.pop(0)
            missing = {name for name in names if (r, name) not in done}
            code = _run_round(ladder, args, r, suite_id, missing, progress, recorder)
            if code:
                return Outcome(code)
            if not rounds and args.precision and _go_on(args, suite_id, progress):
                rounds.append(r + 1)

    rows, newest = rows_of(suite_id, path)
    planned = {(number, name) for number in range(args.round, r + 1) for name in names}
    is_complete = planned <= {*zip(newest["round"], newest.technique, strict=True)}
    has_failed = newest.status.isin(("failed", "out_of_memory")).any()
    return Outcome(int(has_failed or not is_complete), rows)


def only_suite(path):
    """Return a context in which no other suite writes to a results file. Raises UserError."""
    rows_file.check(path)
    held = f"{path}: another suite writes to it; wait for its end, or give another RESULTS_FILE"
    # The kernel's lock: a killed suite holds it no longer.
    return rows_file.locked(rows_file.records_path(path), held)


def _run_round(ladder, args, r, suite_id, missing, progress, recorder):
    """Run what is missing of round r: names of scripts.

    Return 0, 2 for impossible settings, or INTERRUPTED. A script and its parent take turns if
    memory allows; a parent of many runs several times.
    """
    path = args.results_file
    flags = command_line.round_flags(args, r)
    for script in ladder:
        if script.refusal and script.name in missing:
            recorder.record_end(script, "unsupported", script.refusal, flags, suite_id)
            missing.remove(script.name)
    order = [script for script in ladder if not script.refusal]
    to_pair = ladder.part({script.name for script in order})
    if r % 2:
        order.reverse()

    pairs = {pair for pair in to_pair.pairs() if pair & missing}
    while to_run := missing.union(*pairs):
        first = next(script for script in order if script.name in to_run)
        before = path.stat().st_size if path.exists() else 0
        group = _group(first, order, pairs)
        progress.next(r, "in turns" if len(group) > 1 else first.name)
        codes, memory_is_full = turn_taking.run(group, flags, suite_id, args.timeout, progress)
        progress.bar.clear()  # for what is printed to stderr below

        # A run that ended without a row gets one here.
        recorder.collect(suite_id)
        rows = rows_file.text_rows(path, before)
        with_row = {row["technique"] for row in rows}
        for name, code in codes.items():
            if name not in with_row and code not in ENDS_WITHOUT_ROW:
                reason = turn_taking.why_ended(code, args.timeout)
                recorder.record_end(ladder.scripts[name], "failed", reason, flags, suite_id)

        if 2 in codes.values():
            return 2  # the script printed the reason, which holds for all
        if turn_taking.INTERRUPTED in codes.values() or -signal.SIGINT in codes.values():
            progress.say("interrupted; run the same command to resume")
            return turn_taking.INTERRUPTED

        # What is left: pairs that have not run together, unless one of them cannot.
        ended = missing & codes.keys()
        progress.ended += len(ended)
        progress.left = max(0, progress.left - len(ended))
        missing = missing - ended
        without_partner = codes.keys() - {row["technique"] for row in rows if row["status"] == "ok"}
        if memory_is_full and len(codes) == 1:
            without_partner |= codes.keys()
        pairs = {pair for pair in pairs if not pair <= codes.keys() and not pair & without_partner}
    return 0


def _group(first, order, pairs):
    """Return techniques to take turns: the first, then each that makes a pair with one before."""
    group = [first]
    joins = True
    while joins:
        names = {technique.name for technique in group}
        partners = set().union(*(pair for pair in pairs if pair & names)) - names
        joins = [technique for technique in order if technique.name in partners][:1]
        group += joins
    return group


def _go_on(args, suite_id, progress):
    """Return whether the intervals are still wider than --precision, and say why not."""
    rows, _ = rows_of(suite_id, args.results_file)
    lines = summarize(study.newest(rows, with_ablation=True)).lines
    text = ""
    ratios = numbers(lines.parent_speedup)
    half = (np.log(ratios.high / ratios.low) / 2).dropna()
    if lines.rounds.max() >= FEWEST_ROUNDS and not half.empty:
        widest = np.expm1(half.max())
        text = f"the widest interval over a parent is +-{widest:.1%}, of {half.idxmax()}"
        if widest <= args.precision:
            progress.say(f"\n{text}: as narrow as PRECISION={args.precision:.1%} asks")
            return False
    if time.monotonic() - progress.started > 60 * args.timeout:
        progress.say(f"\nTIMEOUT={args.timeout} minutes have passed; {text or 'no interval yet'}")
        return False
    progress.left += len(lines)
    progress.say(f"\n{text or 'too few rounds for an interval'}: one round more")
    return True


def table(outcome, path, all_columns=False):
    """Return the table of a suite's runs, an ablation's too, between blank lines.

    "" if the suite was stopped.
    """
    if outcome.rows is None or outcome.rows.empty:
        return ""
    summary = summarize(study.newest(outcome.rows, path, with_ablation=True))
    headline = recommend(summary).headline
    return f"\n{result_tables.table(summary, headline, all_columns=all_columns)}\n"


def _resume(args, ladder, rounds, recorder):
    """Return the suite's id, which is noted by a digest of all that its runs have in common, and
    its (round, technique) pairs that need not run again.
    """
    parts = [sys.executable, version("torch"), platform.node(), paths.git("rev-parse", "HEAD")]
    parts += [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    parts += [str(args.results_file.resolve()), *command_line.round_flags(args, 0)]
    parts += [*sources_of_runs(), recorder.identity(ladder)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    note = paths.CACHE / "suites" / f"{digest}.json"

    planned = {(r, name) for r in rounds for name in ladder.scripts}
    if note.exists():
        suite_id = json.loads(note.read_text())["suite_id"]
        _, newest = rows_of(suite_id, args.results_file)
        newest = newest[newest.status.isin(("ok", "unsupported"))]
        done = {*zip(newest["round"], newest.technique, strict=True)}
        if not planned <= done:
            return suite_id, done & planned
    suite_id = f"{time.time_ns():x}"
    files.write_json(note, {"suite_id": suite_id})
    return suite_id, set()


def sources_of_runs():
    """Return the sources of Utils that decide the time of a step, a list."""
    utils = paths.ROOT / "Utils"
    sources = sorted(utils.rglob("*.py"))
    return [file.read_text() for file in sources if file.relative_to(utils).parts[0] not in READERS]
