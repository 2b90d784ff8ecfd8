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
from argparse import Namespace
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

import numpy as np

from Utils.analysis import attribution, result_tables
from Utils.analysis.intervals import numbers
from Utils.analysis.summary import summarize
from Utils.base import command_line, files, git, paths
from Utils.base.errors import UserError
from Utils.launch import child_process, turn_taking
from Utils.launch.turn_taking import INTERRUPTED
from Utils.results import rows_file, selection
from Utils.scripts import bases, ladder, variants
from Utils.scripts.ladder import BASELINE

# The layers that decide a step's time and loss, beside the script.
LAYERS = ("base", "scripts", "corpus", "device", "results", "harness")
FEWEST_ROUNDS = 4  # before --precision can end a suite


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
    chosen = {}
    for word in words:
        names = attribution.plan(attribution.last_rung()) if word == "ablation" else [word]
        group = ladder.group(word) or [variants.find(name) for name in names]
        chosen |= {technique.name: technique for technique in group}
    return [*chosen.values()]


def add_arguments(parser):
    """Add the flags of a suite and its names, which `asked` reads."""
    command_line.add_settings(parser)
    command_line.add_extra(parser, "timeout", "precision", "base")
    parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="else the ladder")
    help = "techniques that the ladder of a base goes without, separated by blanks"
    parser.add_argument("--without", default="", help=help)


def asked(args):
    """Return what a command's arguments ask for: (base, techniques, without).

    base: of `bases.find`, or None for ours. techniques: of the names. without: the set of those
    that the ladder of the base goes without. Raises UserError.
    """
    techniques, base = named(args.names or ["ladder"]), bases.asked(args.base)
    without = {ladder.get(name).name for name in args.without.split()}
    if without and not base:
        remedy = f"cp {BASELINE}.py examples/my_base.py, then add BASE=my_base"
        raise UserError("WITHOUT leaves techniques out of the ladder of a base", remedy)
    return base, [t for t in techniques if t.name not in without], without


def run_base(base, chosen, args, say, without=()):
    """Run a base and its ladder. Return an Outcome.

    base: of `bases.find`. chosen: techniques of the ladder. without: names of those to leave out. A
    technique that fails in the first round on this base is left out of those that follow; its own
    row stays. Other arguments as for `run`.
    """
    first, lost, identity = Namespace(**vars(args)), {*without}, base.name + base.source
    first.rounds, first.precision = 1, None
    scripts = bases.ladder_of(base, chosen, lost)
    while True:
        outcome = run(scripts, first, say, identity)
        status = status_of(outcome, args.results_file)
        lost |= {
            bases.last(script.name)
            for script in scripts[1:]
            if not bases.refusal(script)
            and status.get(script.name) != "ok"
            and status.get(script.parent) == "ok"
        }
        names, scripts = [s.name for s in scripts], bases.ladder_of(base, chosen, lost)
        if outcome.code > 1 or names == [script.name for script in scripts]:
            break
    if outcome.code > 1 or (args.rounds == 1 and not args.precision):
        return outcome
    return run(scripts, args, say, identity)


def status_of(outcome, path):
    """Return the status of each script's newest run in a suite, by name."""
    rows = rows_file.check(path)
    return {row["technique"]: row["status"] for row in rows if row["run_id"] in outcome.run_ids}


def newest_rows(run_ids, path):
    """Return the last row of the newest run of each round and technique, by both."""
    rows = (row for row in rows_file.check(path) if row["run_id"] in run_ids)
    return {(int(row["round"]), row["technique"]): row for row in rows}


def run(techniques, args, say, identity=None):
    """Run the techniques in args.rounds rounds from args.round on. Return an Outcome.

    args: settings of every script; timeout, the minutes until a run is killed; precision, a share
    or None; clean, true to repeat tainted runs of an earlier start. With a precision, rounds are
    added until every interval over a parent is at most so wide to either side, or --timeout minutes
    have passed. say: function of a line of progress. identity: what a suite to be resumed has in
    common with this one; by default its techniques. Raises UserError.
    """
    path, names = args.results_file, {technique.name for technique in techniques}
    rows_file.check(path)
    if args.precision and not any(technique.parent in names for technique in techniques):
        what = "precision is of intervals over a parent, and no script's parent runs with it"
        raise UserError(what, "name a parent too")
    rounds = [*range(args.round, args.round + args.rounds)]
    suite, done = _resume(args, techniques, rounds, identity)
    if done:
        total = len(rounds) * len(techniques)
        say(f"resuming: {len(done)} of {total} runs are already in {path}")
    progress = Progress(say, len(rounds) * len(techniques) - len(done))
    outcome = Outcome(0)
    while rounds:
        r = rounds.pop(0)
        finished = {name for round_, name in done if round_ == r}
        outcome.code = run_round(techniques, args, r, suite, finished, progress, outcome.silent)
        if outcome.code:
            return outcome
        if not rounds and args.precision and _go_on(args, suite, progress):
            rounds.append(r + 1)

    outcome.run_ids = runs_of(suite, path)
    statuses = {row["status"] for row in newest_rows(outcome.run_ids, path).values()}
    outcome.code = int(bool(outcome.silent or {"failed", "out_of_memory"} & statuses))
    return outcome


@dataclass
class Progress:
    """Lines on what runs and how long it still takes. say: function of a line. left: runs."""

    say: object
    left: int
    number: int = 0
    started: float = field(default_factory=time.monotonic)

    def next(self, r, names):
        seconds = (time.monotonic() - self.started) / max(1, self.number) * self.left
        text = f", about {seconds / 60:.0f} min left" if self.number and seconds > 90 else ""
        self.say(f"\n[{self.number + 1}/{self.number + self.left}] round {r}{text}: {names}")

    def did(self, count):
        self.number, self.left = self.number + count, max(0, self.left - count)


def run_round(techniques, args, r, suite, done, progress, silent):
    """Run what is missing of round r: every technique once, next to its parent.

    A technique and its parent take turns as two live processes where memory allows, so each pair is
    measured within seconds; a parent of many runs several times. Where there is no room, scripts
    run one after the other, every other round in reverse order.

    done: names of the techniques that are there. silent: list, for sentences on runs without a row.
    Return 0, 2 for impossible settings, or INTERRUPTED.
    """
    flags, say, path = command_line.round_flags(args, r), progress.say, args.results_file
    order = techniques if r % 2 == 0 else techniques[::-1]
    missing = {t.name for t in order} - done
    pairs = {pair for pair in pairs_of(order) if pair & missing}
    while todo := missing | {name for pair in pairs for name in pair}:
        first = next(t for t in order if t.name in todo)
        before = {row["run_id"] for row in rows_file.check(path)}
        if any(first.name in pair for pair in pairs):
            progress.next(r, "in turns")
            joins = partial(_joining, order, pairs)
            codes, full = turn_taking.run(first, joins, flags, suite, args.timeout, say)
        else:
            progress.next(r, first.name)
            code = child_process.python([*first.command, *flags], suite, args.timeout)
            codes, full = {first.name: code}, False
        new = [row for row in rows_file.check(path) if row["run_id"] not in before]
        with_row = {row["technique"] for row in new}
        for name in [name for name in codes if name not in with_row]:
            silent += _explained(name, codes[name], flags, suite, args.timeout)
        if 2 in codes.values():
            return 2  # the script printed the reason, which holds for all
        if {INTERRUPTED, -signal.SIGINT} & {*codes.values()}:
            say("interrupted; run the same command to resume")
            return INTERRUPTED
        progress.did(len(missing & codes.keys()))
        missing -= codes.keys()
        lost = codes.keys() - {row["technique"] for row in new if row["status"] == "ok"}
        if full and len(codes) == 1:
            lost |= codes.keys()
        pairs = {pair for pair in pairs if not pair <= codes.keys() and not pair & lost}
    return 0


def _explained(name, code, flags, suite, minutes):
    """Write the row of a process that ended without one. Return a sentence where that fails."""
    if code in (0, 2, INTERRUPTED, -signal.SIGINT):
        return []
    reason = child_process.why_ended(code, minutes)
    record = ["-m", "Utils.launch.record_killed", name, reason, *flags]
    return [f"{name}: failed: {reason}"] if child_process.python(record, suite) else []


def _joining(order, pairs, inside):
    """Return the first technique that makes a pair with one of those inside, or None."""
    names = {name for pair in pairs if pair & {*inside} for name in pair - {*inside}}
    return next((t for t in order if t.name in names), None)


def pairs_of(techniques):
    """Return the pairs to be measured side by side: each technique and its nearest ancestor among
    them, sets of two names."""
    known, names, pairs = ladder.techniques(), {t.name for t in techniques}, set()
    for technique in techniques:
        parent = technique.parent
        while parent in known and parent not in names:
            parent = known[parent].parent
        if parent in names:
            pairs.add(frozenset((technique.name, parent)))
    return pairs


def _go_on(args, suite, progress):
    """Return whether the intervals are still wider than --precision, and say why not."""
    minutes = (time.monotonic() - progress.started) / 60
    rows, run_ids = rows_file.read(args.results_file), runs_of(suite, args.results_file)
    rows, _ = selection.select(rows[rows.run_id.isin(run_ids)], with_variants=True)
    lines, text = summarize(rows), ""
    ratios = numbers(lines.parent_speedup)
    half = (np.log(ratios.high / ratios.low) / 2).dropna()
    if lines.rounds.max() >= FEWEST_ROUNDS and not half.empty:
        widest = np.expm1(half.max())
        text = f"the widest interval over a parent is +-{widest:.1%}, of {half.idxmax()}"
        if widest <= args.precision:
            progress.say(f"\n{text}: as narrow as PRECISION={args.precision:.1%} asks")
            return False
    if minutes > args.timeout:
        progress.say(f"\nTIMEOUT={args.timeout} minutes have passed; {text or 'no interval yet'}")
        return False
    progress.left += len(lines)
    progress.say(f"\n{text or 'too few rounds for an interval'}: one round more")
    return True


def table(outcome, path, with_variants=True):
    """Return the table of a suite's runs, and a line on each run without a row.

    with_variants: as for `selection.select`.
    """
    parts = outcome.silent
    rows = rows_file.read(path) if outcome.run_ids else None
    if rows is not None and len(rows := rows[rows.run_id.isin(outcome.run_ids)]):
        rows, left_out = selection.select(rows, with_variants=with_variants)
        records = rows_file.records(path, rows.run_id.unique())
        parts = ["\n" + result_tables.table(rows, left_out, records), *parts]
    return "\n".join(parts)


def _resume(args, techniques, rounds, identity):
    """Return the suite's name, and its (round, technique) pairs that need not run again."""
    parts = [sys.executable, version("torch"), platform.node(), git.head()]
    parts += [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")]
    parts += [str(args.results_file.resolve()), *command_line.round_flags(args, 0)]
    parts += paths.sources(*LAYERS)
    parts += [identity] if identity else [t.name + t.code for t in techniques]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    note = paths.CACHE / "suites" / f"{key}.json"
    wanted = {(r, technique.name) for r in rounds for technique in techniques}
    try:
        suite = json.loads(note.read_text())["suite"]
        newest = newest_rows(runs_of(suite, args.results_file), args.results_file)
        grades = ("clean", "") if vars(args).get("clean") else ("clean", "", "tainted")
        ended = {run for run, row in newest.items() if row["status"] in ("ok", "unsupported")}
        done = {run for run in ended if newest[run]["grade"] in grades}
        if not done >= wanted:
            return suite, done & wanted
    except (OSError, ValueError, KeyError):
        pass  # no such suite was begun
    suite = f"{time.time_ns():x}"
    files.write_json(note, {"suite": suite})
    return suite, set()


def runs_of(suite, path):
    """Return the run_ids of a suite, from the records beside the results file."""
    records = rows_file.records(path, (file.stem for file in (path.parent / "runs").glob("*.json")))
    return {run_id for run_id, record in records.items() if record.get("suite") == suite}
