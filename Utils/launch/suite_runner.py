"""Many scripts, many rounds, one process each.

Round r runs every technique with seed SEED + r, each in turns with its parent. A failed or
unsupported run does not stop the others. An interrupted suite, or one with more rounds, runs only
what is missing; a complete one, or one whose code has changed, starts anew."""

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import pandas as pd

from Utils.analysis import attribution, result_tables
from Utils.analysis.intervals import numbers
from Utils.analysis.summary import summarize
from Utils.base import command_line, files, paths
from Utils.base.errors import UserError
from Utils.launch import turn_taking
from Utils.results import rows_file, selection
from Utils.scripts import ladder, own_names, variants

# Rooms of Utils that read what was measured. After a change of any other, runs are not resumed.
READERS = {"analysis", "commands", "draw"}
ENDS_WITHOUT_ROW = (0, 2, turn_taking.INTERRUPTED, -signal.SIGINT)
FEWEST_ROUNDS = 4  # before --precision can end a suite


class Outcome(NamedTuple):
    """Outcome of a suite.
    code: 0; 1 where a run failed or ran out of memory; 2 for impossible settings; INTERRUPTED.
    rows: of its runs, a DataFrame; None where it was stopped."""

    code: int
    rows: object = None


def named(words):
    """Return the techniques or variants of names and groups: of `ladder.group`, and `ablation`,
    which is what `make ablate` runs. Raises UserError."""
    chosen = {}
    for word in words:
        names = attribution.plan(attribution.last_rung()) if word == "ablation" else [word]
        for technique in ladder.group(word) or map(variants.find, names):
            chosen[technique.name] = technique
    return list(chosen.values())


def on_device(args):
    """Return `ladder.on_device` of the device of args; say where it has no bfloat16."""
    on_cpu = args.device == "cpu" or version("torch").endswith("+cpu")
    bfloat16 = on_cpu or in_child("has_bfloat16", args.device)
    if not bfloat16:
        print(ladder.IN_FLOAT16, flush=True)
    return ladder.on_device(bfloat16)


def in_child(name, *args):
    """Return what a function of `suite_child` returns in a child process: torch takes a second, and
    a process that has used a GPU keeps some of its memory until it ends."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(_in_child, name, *args).result()


def _in_child(name, *args):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
    from Utils.launch import suite_child  # here, as it imports torch

    return getattr(suite_child, name)(*args)


def in_subprocess(command, suite):
    """Run Python with the project on its path. Return the exit code."""
    process = subprocess.Popen([sys.executable, *command], env=paths.environment(SUITE=suite))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass  # the terminal interrupts the child as well: let it end first


def run_base(runs, wanted, args, without=()):
    """Run an own script with switches, of which those that fail in the first round are left out of
    the scripts that follow. Return an Outcome.
    runs: OwnRuns that have looked at it. wanted: names of techniques. without: those to leave out.
    """
    first_round = Namespace(**vars(args) | {"rounds": 1, "precision": None})
    left_out = set(without)
    while True:
        scripts = runs.ladder(wanted, left_out, without)
        outcome = run(scripts, first_round, runs)
        if outcome.code > 1:
            return outcome
        status = dict(zip(outcome.rows.technique, outcome.rows.status, strict=True))
        failed = [script for script in scripts if status.get(script.name) != "ok"]
        if scripts[0] in failed:
            return outcome
        new = {own_names.last(script.name) for script in failed if not script.refusal} - left_out
        if not new:
            break
        left_out |= new
    if args.rounds == 1 and not args.precision:
        return outcome
    return run(scripts, args, runs)


def rows_of(suite, path):
    """Return the rows of a suite's runs, and the last row of the newest run of each round and
    technique."""
    rows = pd.DataFrame(columns=rows_file.COLUMNS)
    if run_ids := rows_file.run_ids_of(suite, path):
        rows = rows_file.read(path)
        rows = rows[rows.run_id.isin(run_ids)]
    return rows, rows.groupby(["round", "technique"]).tail(1)


def run(techniques, args, own_runs=None):
    """Run the techniques in args.rounds rounds from args.round on. Return an Outcome.

    args: settings of every script; timeout, the minutes until a run is killed; precision, a share
    or None. With a precision, rounds are added until every interval over a parent is at most so
    wide to either side, or --timeout minutes have passed. own_runs: OwnRuns of the techniques, None
    for ours. Raises UserError."""
    path = args.results_file
    rows_file.check(path)
    names = [technique.name for technique in techniques]
    if args.precision and not any(technique.parent in names for technique in techniques):
        problem = "precision is of intervals over a parent, and no script's parent runs with it"
        raise UserError(problem, "name a parent too")
    rounds = list(range(args.round, args.round + args.rounds))
    suite, done = _resume(args, techniques, rounds, own_runs)
    total = len(rounds) * len(techniques)
    progress = turn_taking.SuiteProgress(total - len(done))
    if done:
        progress.say(f"resuming: {len(done)} of {total} runs are already in {path}")
    with progress.bar:
        while rounds:
            r = rounds.pop(0)
            missing = {name for name in names if (r, name) not in done}
            if code := _run_round(techniques, args, r, suite, missing, progress, own_runs):
                return Outcome(code)
            if not rounds and args.precision and _go_on(args, suite, progress):
                rounds.append(r + 1)
    rows, newest = rows_of(suite, path)
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


def _run_round(techniques, args, r, suite, missing, progress, own_runs):
    """Run what is missing of round r: names of techniques. Return 0, 2 for impossible settings, or
    INTERRUPTED.
    A technique and its parent take turns where memory allows; a parent of many runs several times.
    """
    flags = command_line.round_flags(args, r)
    for technique in techniques:
        if technique.refusal and technique.name in missing:
            own_runs.write_end(suite, technique.name, "unsupported", technique.refusal, r)
            missing.remove(technique.name)
    order = techniques if r % 2 == 0 else techniques[::-1]
    order = [technique for technique in order if not technique.refusal]
    pairs = {pair for pair in pairs_of(order) if pair & missing}
    while to_run := missing.union(*pairs):
        first = next(technique for technique in order if technique.name in to_run)
        path = args.results_file
        before = path.stat().st_size if path.exists() else 0
        group = _group(first, order, pairs)
        progress.next(r, "in turns" if len(group) > 1 else first.name)
        codes, memory_is_full = turn_taking.run(group, flags, suite, args.timeout, progress)
        progress.bar.clear()  # for what is printed to stderr below
        if own_runs:
            own_runs.collect(suite)
        rows = rows_file.text_rows(path, before)
        with_row = {row["technique"] for row in rows}
        for name, code in codes.items():
            if name not in with_row and code not in ENDS_WITHOUT_ROW:
                reason = turn_taking.why_ended(code, args.timeout)
                if own_runs:
                    own_runs.write_end(suite, name, "failed", reason, r)
                else:
                    in_child("record_killed", name, reason, flags, suite)
        if 2 in codes.values():
            return 2  # the script printed the reason, which holds for all
        if turn_taking.INTERRUPTED in codes.values() or -signal.SIGINT in codes.values():
            progress.say("interrupted; run the same command to resume")
            return turn_taking.INTERRUPTED
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


def pairs_of(techniques):
    """Return each technique with its nearest ancestor among the techniques: sets of two names."""
    in_ladder = ladder.techniques()
    names = {technique.name for technique in techniques}
    pairs = set()
    for technique in techniques:
        parent = technique.parent
        while parent in in_ladder and parent not in names:
            parent = in_ladder[parent].parent
        if parent in names:
            pairs.add(frozenset((technique.name, parent)))
    return pairs


def _go_on(args, suite, progress):
    """Return whether the intervals are still wider than --precision, and say why not."""
    rows, _ = selection.select(rows_of(suite, args.results_file)[0], with_variants=True)
    lines = summarize(rows)
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


def table(outcome, path, with_variants=True, all_columns=False):
    """Return the table of a suite's runs between blank lines, "" where it was stopped. Options are
    those of `selection.select` and `result_tables.table`."""
    if outcome.rows is None or outcome.rows.empty:
        return ""
    rows, left_out = selection.select(outcome.rows, with_variants=with_variants)
    records = rows_file.read_records(path, rows.run_id.unique())
    return f"\n{result_tables.table(rows, left_out, records, all_columns=all_columns)}\n"


def _resume(args, techniques, rounds, own_runs):
    """Return the suite's name, which is noted by a digest of all that its runs have in common, and
    its (round, technique) pairs that need not run again."""
    parts = [sys.executable, version("torch"), platform.node(), paths.git("rev-parse", "HEAD")]
    parts += [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    parts += [str(args.results_file.resolve()), *command_line.round_flags(args, 0)]
    parts += sources_of_runs()
    parts += [own_runs.identity()] if own_runs else [t.name + t.code for t in techniques]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    note = paths.CACHE / "suites" / f"{digest}.json"
    planned = {(r, technique.name) for r in rounds for technique in techniques}
    if note.exists():
        suite = json.loads(note.read_text())["suite"]
        _, newest = rows_of(suite, args.results_file)
        newest = newest[newest.status.isin(("ok", "unsupported"))]
        done = {*zip(newest["round"], newest.technique, strict=True)}
        if not planned <= done:
            return suite, done & planned
    suite = f"{time.time_ns():x}"
    files.write_json(note, {"suite": suite})
    return suite, set()


def sources_of_runs():
    """Return the sources of Utils that decide the time of a step, a list."""
    utils = paths.ROOT / "Utils"
    sources = sorted(utils.rglob("*.py"))
    return [file.read_text() for file in sources if file.relative_to(utils).parts[0] not in READERS]
