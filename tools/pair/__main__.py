"""Compare two sides as a pair: commits, versions of a package, environments, or a patch.

Both sides take turns, script by script, so that the machine's drift is in both. With BASE they run
a script of your own.

Exit codes: 0 if nothing is slower than SLOWER, 4 if something is, by the nearer end of its
interval; 5, before 4, if B trains something else, or worse; 1 if a run of a side failed; 2 for
errors; 3 if there is no interval, as after one round.
"""

import shutil

from tools.pair import side_runs, verdict
from Utils.base import command_line
from Utils.base.command_line import RUN_SETTINGS, USER_SCRIPT_SETTINGS, Parser
from Utils.base.errors import run_command
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
    "index_url",
)


def main(*words):
    args = Parser("pair", __doc__, *SETTINGS).parse_args(words)
    command_line.check(args)
    schedule = Schedule(args, command_line.minutes(args))
    ladder_of = side_runs.of_own if args.base else side_runs.of_ours
    with suite_runner.only_suite(args.results_file), ladder_of(args, schedule) as ladder:
        outcome = suite_runner.run(ladder, args, schedule)
    if outcome.code > 1 or outcome.rows.empty:
        return outcome.code
    shutil.rmtree(side_runs.KERNELS, ignore_errors=True)  # the next pair begins without

    summary = outcome.summary
    sides = verdict.sides_of_ladder(summary, ladder)
    print(verdict.page(sides, summary.study, args.slower, bool(args.markdown)))
    if not args.markdown:
        chart = ratio_charts.two_sides(sides, verdict.columns(sides, summary.study))
        chart_style.save(chart, summary.study.chart(f"{args.plotsprefix}pair"))

    code = outcome.code or verdict.exit_code(sides, args.slower)
    if code:
        print(f"exit code {code}: {verdict.MEANINGS[code]}")
    return code


if __name__ == "__main__":
    run_command("pair", main)
