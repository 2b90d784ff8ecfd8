"""Draw the submissions in results/ and the local results side by side into plots/gallery."""

from Utils.analysis import device_panels
from Utils.base import command_line, errors
from Utils.draw import chart_style, gallery_chart


def main(argv=None):
    parser = command_line.Parser("gallery", __doc__)
    command_line.add_results_file(parser)
    parser.add_argument("--plotsprefix", default="", help="prefix of the chart's file name")
    args = parser.parse_args(argv)
    panels, left_out = device_panels.collect(args.results_file)
    chart_style.save(gallery_chart.draw(panels, left_out), f"{args.plotsprefix}gallery")
    for text in left_out:
        print(f"left out: {text}")


if __name__ == "__main__":
    with errors.one_line("gallery"):
        main()
