"""Compare two sides as a pair: commits, versions of a package, environments, or changes.

Both sides take turns, script by script, so that the machine's drift is in both. With BASE they run
a script of your own. A change is a patch of one script, or another script beside yours.

Exit codes: 0 if nothing is slower than SLOWER, 4 if something is, by the nearer end of its
interval; 5, before 4, if B trains something else, or worse; 1 if a run of a side failed; 2 for
errors; 3 if there is no interval, as after one round. With several changes 0 if each was judged.
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
    with (
        suite_runner.only_suite(args.results_file),
        redirect_stdout(sys.stderr) if args.json else nullcontext(),
    ):
        report = Report(args, stdout)
        if changes:
            return _judge_changes(args, changes, report)
        return _judge_sides(args, report)


class Report:
    """What a command says of its judgements: answers for programs, or a table and a chart."""

    def __init__(self, args, stdout):
        self.args = args
        self.stdout = stdout
        self.judgements = []

    def add(self, judgement, **more):
        """Take a Judgement, and print its answers for programs. more: values of all."""
        self.judgements.append(judgement)
        if self.args.json:
            for answer in verdict.answers(judgement, self.args.slower, **more):
                say(json.dumps(answer), self.stdout)

    def end(self, tried=0):
        """Print the table, and draw the chart. tried: number of changes that were measured."""
        args = self.args
        shutil.rmtree(side_runs.KERNELS, ignore_errors=True)  # the next pair begins without
        if args.json:
            return
        print(verdict.page(self.judgements, args.slower, bool(args.markdown), tried))
        measured = [judgement for judgement in self.judgements if judgement.study]
        if measured and not args.markdown:
            both = two_sides.joined([judgement.sides for judgement in measured])
            chart = ratio_charts.two_sides(both, verdict.columns(measured))
            chart_style.save(chart, measured[0].study.chart(f"{args.plotsprefix}pair"))


def _judge_sides(args, report):
    """Compare two commits, requirements or environments. Return the exit code."""
    schedule = Schedule(args, command_line.minutes(args))
    ladder_of = side_runs.of_own if args.base else side_runs.of_ours
    with ladder_of(args, schedule) as ladder:
        outcome = suite_runner.run(ladder, args, schedule)
    if outcome.code > 1 or outcome.rows.empty:
        return outcome.code

    summary = outcome.summary
    both = verdict.sides_of_ladder(summary, ladder)
    outside = outside_steps.growths(summary, both)
    report.add(Judgement(both, summary.study, outcome.code, outside))
    report.end()
    return _code(report)


def _judge_changes(args, changes, report):
    """Compare a script with changes of it, one after the other. Return the exit code."""
    changes_of = tried_changes.of_own if args.base else tried_changes.of_ours
    with changes_of(args) as tried:
        if args.again:
            return _measure_again(args, changes, report, tried)
        for change in changes:
            report.add(tried.judge(change), tried=tried.tried)
        report.end(tried.tried)
    if len(changes) == 1:
        return _code(report)
    return int(any(judgement.code for judgement in report.judgements))


def _measure_again(args, changes, report, tried):
    """Measure the fastest change that is worth keeping once more. Return the exit code."""
    ratios = {}
    for change in changes:
        judgement = tried.judge(change)
        (answer,) = verdict.answers(judgement, args.slower)
        if answer["keep"]:
            ratios[change] = judgement.sides.ratios[change].value
    if not ratios:
        print("no change is worth keeping")
        return 0

    report.add(tried.again(max(ratios, key=ratios.get)), tried=tried.tried)
    report.end()
    return _code(report)


def _code(report):
    """Return the exit code of a command with one Judgement, and print what it means."""
    (judgement,) = report.judgements
    code = judgement.code
    if not code and any(judgement.sides.ratios.values()):
        code = verdict.exit_code(judgement.sides, report.args.slower)
    if code:
        print(f"exit code {code}: {verdict.MEANINGS[code]}")
    return code


if __name__ == "__main__":
    run_command("pair", main)
