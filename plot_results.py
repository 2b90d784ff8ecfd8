"""Draw results.csv as charts.

They show step times as lines and as a heatmap, speedups as points with intervals, memory as bars,
and the ablation, if its runs were made.

Each chart goes to plots/ as .png and .svg; those of your own script go to plots/NAME/. One chart
holds one device, one torch version, one model, one shape and one commit: those of the newest run,
or of the device that --device-name names. The scripts of beyond/ have charts of their own, with the
baseline and their parents.

Next: make report
"""

from Utils.analysis import attribution
from Utils.analysis.summary import summarize
from Utils.base import errors
from Utils.base.command_line import SELECTION, Parser
from Utils.draw import chart_style, ladder_charts, ratio_charts
from Utils.results import study


def main(*words):
    """Draw the charts of a results file into plots/ and print their paths."""
    args = Parser("plot_results.py", __doc__, *SELECTION, "plotsprefix").parse_args(words)
    chosen = study.study_of_command(args, stands_in=True)
    if chosen.stands_in:  # the device has a folder
        device = args.results_file.parent.parent.name
        args.plotsprefix = f"{device}/{args.plotsprefix}"
    summary = summarize(chosen)
    beyond = [script for script in summary.shown if script.name in chosen.beyond()]

    # The ladder, or the scripts of beyond/ if the group has no others.
    shown = [script for script in summary.shown if script not in beyond] or beyond
    charts = {name: draw(name, chosen.rows, shown) for name in ladder_charts.timed_charts(shown)}

    # The scripts of beyond/ with the baseline and their parents.
    if beyond:
        names = {chosen.base}
        for script in beyond:
            names |= {script.name, script.parent}
        shown = [script for script in summary.shown if script.name in names]
        for name in ("speedup", "memory"):
            charts[f"{name}_beyond"] = draw(name, chosen.rows, shown)

    whole = attribution.ablated_script(chosen)
    if whole:
        credits = attribution.credits_of(summary, whole)
        charts["ablation"] = ratio_charts.ablation(chosen.all_rows, credits, whole)

    # All are drawn before the first is saved.
    for name, figure in charts.items():
        chart_style.save(figure, chosen.chart(f"{args.plotsprefix}{name}"))
    if chosen.left_out:
        print(chosen.left_out)


def draw(chart, rows, scripts):
    """Return a chart of some scripts. rows: of these and more."""
    names = {script.name for script in scripts}
    return ladder_charts.CHARTS[chart](rows[rows.technique.isin(names)], scripts)


if __name__ == "__main__":
    errors.run_command("plot_results.py", main)
