"""Draw results.csv as charts.

They show step times as lines and as a heatmap, speedups as points with intervals, memory as bars,
and the ablation, if its runs were made.

Each chart goes to plots/ as .png and .svg. One chart holds one device, one torch version, one
model, one shape and one commit: those of the newest run, or of the device that --device-name names.
The scripts of beyond/ have charts of their own, with the baseline and their parents; those are of
the newest run of such a script.

Next: make report
"""

from Utils.analysis import attribution
from Utils.analysis.summary import summarize
from Utils.base import errors
from Utils.base.command_line import SELECTION, Parser
from Utils.draw import chart_style, ladder_charts, ratio_charts
from Utils.results import rows_file, selection, study


def main(argv=None):
    """Draw the charts of a results file into plots/ and print their paths."""
    args = Parser("plot_results.py", __doc__, *SELECTION, "plotsprefix").parse_args(argv)
    stands_in = selection.stand_in(args)
    path = args.results_file
    if stands_in:  # the device has a folder
        device = path.parent.parent.name
        (chart_style.FOLDER / device).mkdir(parents=True, exist_ok=True)
        args.plotsprefix = f"{device}/{args.plotsprefix}"
    all_rows = rows_file.read(path)
    chosen = study.newest_ladder(all_rows, path, args.device_name, args.base)
    rows_of_base = all_rows[all_rows.base == chosen.base]

    # The ladder, or the scripts of beyond/ if the file has no others.
    figures = summarize(chosen).figures
    in_ladder = figures[~figures.index.isin(chosen.beyond())]
    shown = in_ladder if len(in_ladder) else figures
    charts = {name: draw(name, chosen.rows, shown) for name in ladder_charts.timed_charts(shown)}

    # The scripts of beyond/ with the baseline and their parents.
    everything = study.Study(rows_of_base, rows_of_base)
    beyond = rows_of_base[rows_of_base.technique.isin(everything.beyond())]
    if len(beyond):
        newest = study.newest(rows_of_base, path, args.device_name, newest_of=beyond)
        figures = summarize(newest).figures
        added = figures[figures.index.isin(newest.beyond())]
        shown = figures[figures.index.isin({newest.base, *added.index, *added.parent})]
        for name in ("speedup", "memory"):
            charts[f"{name}_beyond"] = draw(name, newest.rows, shown)

    ablated = rows_of_base[rows_of_base.suite == "ablation"]
    if len(ablated):
        newest = study.newest(
            rows_of_base, with_ablation=True, device_name=args.device_name, newest_of=ablated
        )
        whole = attribution.ablated_script(newest)
        if whole:
            credits = attribution.speedups_by_switch(summarize(newest), whole)
            charts["ablation"] = ratio_charts.ablation(newest.rows, credits, whole)

    # All are drawn before the first is saved.
    for name, figure in charts.items():
        chart_style.save(figure, f"{args.plotsprefix}{name}")
    if chosen.left_out:
        print(chosen.left_out)


def draw(chart, rows, figures):
    """Return a chart of the scripts of some figures."""
    return ladder_charts.CHARTS[chart](rows[rows.technique.isin(figures.index)], figures)


if __name__ == "__main__":
    errors.run_command("plot_results.py", lambda *words: main(words))
