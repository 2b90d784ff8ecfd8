"""Compare two sides as a pair: commits, versions of a package, environments, or changes.

Both sides take turns, script by script, so that the machine's drift is in both. With BASE they run
a script of your own. A change is a patch of one script, or another script beside yours.

Exit codes: 0 if nothing is slower by more than SLOWER, 4 if something is, by the nearer end of its
interval; 5, instead of 4, if B trains something else, or its loss is worse; 1 if a run of a side
failed; 2 for errors; 3 if there is no interval, as after one round. With several changes 0 if each
was judged.
"""

import json
import shutil
import sys
from contextlib import nullcontext, redirect_stdout

from tools.pair import outside_steps, side_runs, sides, tried_changes, verdict
from tools.pair.verdict import Judgement
from Utils.analysis import two_sides
from Utils.base import command_line
from Utils.base.command_line import RUN_SETTINGS, USER_SCRIPT_SETTINGS, Parser
from Utils.base.errors import UserError, run_command, say
from Utils.draw import chart_style, ratio_charts
from Utils.launch import suite_runner
from Utils.launch.schedule import Schedule

SETTINGS = (
    *RUN_SETTINGS,
    *USER_SCRIPT_SETTINGS,
    "timeout",
    "precision",
    "plotsprefix",
    "t",
    "a",
    "b",
    "slower",
    "markdown",
    "json",
    "again",
    "index_url",
)


def main(*words):
    args = Parser("pair", __doc__, *SETTINGS).parse_args(words)
    command_line.check(args)
    changes = sides.changes_of(args)
    if args.again and not changes:
        raise UserError("AGAIN measures a change once more", "name it, as in B=idea.patch")

    stdout = sys.stdout
    judgements = []
    with (
        suite_runner.only_suite(args.results_file),
        redirect_stdout(sys.stderr) if args.json else nullcontext(),
    ):
        for judgement in _of_changes(args, changes) if changes else _of_sides(args):
            judgements.append(judgement)
            if args.json:
                for answer in verdict.answers(judgement, args.slower):
                    say(json.dumps(answer), stdout)
        shutil.rmtree(side_runs.KERNELS, ignore_errors=True)  # the next pair begins without
        return _report(args, judgements)


def _of_sides(args):
    """Yield the Judgement on two commits, requirements or environments."""
    schedule = Schedule(args, command_line.minutes(args))
    ladder_of = side_runs.of_own if args.base else side_runs.of_ours
    with ladder_of(args, schedule) as ladder:
        outcome = suite_runner.run(ladder, args, schedule)
    if outcome.code > 1 or outcome.rows.empty:
        sys.exit(outcome.code)

    summary = outcome.summary
    both = verdict.sides_of_ladder(summary, ladder)
    outside = outside_steps.growths(summary, both)
    yield Judgement(both, summary.study, outcome.code, outside)


def _of_changes(args, changes):
    """Yield the Judgement on each change of a script, with AGAIN on the fastest one to keep."""
    changes_of = tried_changes.of_own if args.base else tried_changes.of_ours
    with changes_of(args) as tried:
        if not args.again:
            yield from map(tried.judge, changes)
            return

        speedups = {}
        for judgement in map(tried.judge, changes):
            (answer,) = verdict.answers(judgement, args.slower)
            if answer["keep"]:
                speedups[answer["change"]] = answer["time"]["a_over_b"]
        if not speedups:
            print("no change is worth keeping")
            sys.exit()
        yield tried.again(max(speedups, key=speedups.get))


def _report(args, judgements):
    """Print a table, and draw a chart. Return the exit code."""
    in_file = bool(args.markdown)
    if not args.json:
        print(verdict.page(judgements, args.slower, in_file))
    measured = [judgement for judgement in judgements if judgement.study]
    if measured and not args.json and not in_file:
        both = two_sides.joined([judgement.sides for judgement in measured])
        chart = ratio_charts.two_sides(both, verdict.columns(measured))
        chart_style.save(chart, measured[0].study.chart(f"{args.plotsprefix}pair"))

    codes = [judgement.code for judgement in judgements]
    code = max(codes)
    if len(codes) == 1 and measured:
        code = code or verdict.exit_code(judgements[0].sides, args.slower)
    if code:
        print(f"exit code {code}: {verdict.MEANINGS[code]}")
    return code


if __name__ == "__main__":
    run_command("pair", main)
