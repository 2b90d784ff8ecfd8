"""Run every script and variant of an ablation, print its table and draw plots/ablation."""

from contextlib import ExitStack

from Utils.analysis import attribution
from Utils.base import tool_packages
from Utils.base.errors import UserError
from Utils.draw import chart_style, ratio_charts
from Utils.launch import suite_runner
from Utils.results import rows_file, selection
from Utils.scripts import ladder


def main(args):
    """Return the exit code of `suite_runner.Outcome`."""
    path = args.results_file
    with suite_runner.only_suite(path), ExitStack() as block:
        runs = base = None
        if args.base:
            own_runs = tool_packages.load("own_script", "own_runs", f"BASE={args.base}")
            runs = block.enter_context(own_runs.looked_at(args))
            base = runs.base.name
            script, scripts = runs.ablation()
        else:
            block.enter_context(suite_runner.on_device(args))
            script = args.t or attribution.last_rung()
            if ladder.get(script).parent is None:
                raise UserError(f"{script} has no technique that could be left out", "name another")
            scripts = suite_runner.named(attribution.plan(script))
            suite_runner.in_child("announce", scripts, args)
        outcome = suite_runner.run(scripts, args, runs)
        if outcome.code > 1:
            return outcome.code
        print(suite_runner.table(outcome, path, all_columns=args.all))
        rows, left_out = selection.select(rows_file.read(path), with_variants=True, base=base)
        lines = attribution.credits(rows, script)
        print(attribution.table(lines))
        chart_style.save(ratio_charts.ablation(rows, lines, script), f"{args.plotsprefix}ablation")
        if left_out:
            print(left_out)
    return outcome.code
