"""Draw the submissions in results/ and the local results side by side into plots/gallery."""

from Utils.analysis import comparison
from Utils.base.command_line import Parser
from Utils.draw import chart_style, ratio_charts


def main(argv=None):
    args = Parser("gallery", __doc__, "results_file", "plotsprefix").parse_args(argv)
    panels, left_out = comparison.device_panels(args.results_file)
    chart_style.save(ratio_charts.gallery(panels, left_out), f"{args.plotsprefix}gallery")
    for text in left_out:
        print(f"left out: {text}")
