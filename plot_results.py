"""Draw results.csv: step times as lines and as a heatmap, speedups as points with intervals, memory
as bars, and, where its runs were made, the ablation.

Each chart goes to plots/ as .png and .svg. One chart holds one device, one torch version, one
model, one shape and one commit: those of the newest run, or of the device that --device-name names.
The scripts of beyond/ have charts of their own, with the baseline and their parents; those are of
the newest run of such a script.
"""

from Utils.analysis import attribution
from Utils.analysis.summary import summarize
from Utils.base import errors
from Utils.base.command_line import SELECTION, Parser
from Utils.draw import chart_style, ladder_charts, ratio_charts
from Utils.results import rows_file, selection
from Utils.results.selection import reading
from Utils.scripts import ladder, own_names


def main(argv=None):
    """Draw the charts of a results file into plots/ and print their paths."""
    args = Parser("plot_results.py", __doc__, *SELECTION, "plotsprefix").parse_args(argv)
    path = reading(args.results_file)
    all_rows = rows_file.read(path)
    rows, left_out = selection.select_ladder(all_rows, args.device_name, args.base)
    lines = summarize(rows, rows_file.read_records(path, rows.run_id.unique()))
    with ladder.on_device(selection.has_bfloat16(rows)):
        outside = ladder.beyond()

    def is_beyond(names):
        """Tell of each script whether it, or what it adds to a base last, is of beyond/."""
        return names.map(own_names.last).isin(outside)

    if not is_beyond(lines.index).all():  # not a file of beyond/ alone
        lines = lines[~is_beyond(lines.index)]
    drawn = [(name, rows, lines) for name in ladder_charts.of_timed(lines)]
    own_rows = all_rows[all_rows.base == selection.baseline(rows)]
    beyond = own_rows[is_beyond(own_rows.technique)]
    if len(beyond):
        rows, _ = selection.select(own_rows, args.device_name, newest_of=beyond)
        lines = summarize(rows, rows_file.read_records(path, rows.run_id.unique()))
        shown = lines[is_beyond(lines.index)]
        lines = lines[lines.index.isin({lines.base.iloc[0], *shown.index, *shown.parent})]
        drawn += [(name, rows, lines) for name in ("speedup_beyond", "memory_beyond")]
    for name, shown, lines in drawn:
        draw = ladder_charts.CHARTS[name.removesuffix("_beyond")]
        figure = draw(shown[shown.technique.isin(lines.index)], lines)
        chart_style.save(figure, f"{args.plotsprefix}{name}")
    ablated = own_rows[own_rows.technique.isin(selection.variants_in(own_rows))]
    with_variants, _ = selection.select(own_rows, args.device_name, True, newest_of=ablated)
    if whole := attribution.whole_of(with_variants):
        credits = attribution.credits(with_variants, whole)
        figure = ratio_charts.ablation(with_variants, credits, whole)
        chart_style.save(figure, f"{args.plotsprefix}ablation")
    if left_out:
        print(left_out)


if __name__ == "__main__":
    with errors.one_line("plot_results.py"):
        main()
