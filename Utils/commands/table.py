"""Print the results: time, ratios, memory and loss of each script; ALL=1 prints all columns."""

from Utils.analysis import result_tables
from Utils.analysis.summary import summarize
from Utils.base.command_line import SELECTION, Parser
from Utils.results import study


def main(*words):
    args = Parser("table", __doc__, *SELECTION, "price", "all").parse_args(words)
    summary = summarize(study.study_of_command(args, stands_in=True))
    print(result_tables.table(summary, args.price, args.all))
