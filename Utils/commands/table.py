"""Print the results: time, ratios, memory and loss of each script; ALL=1 prints all columns."""

from dataclasses import replace

from Utils.analysis import result_tables
from Utils.analysis.recommendation import recommend
from Utils.analysis.summary import summarize
from Utils.results import selection, study


def main(args):
    path = selection.results_file_to_show(args)
    stands_in = path != args.results_file
    args.results_file = path
    summary = summarize(replace(study.study_of_command(args), stands_in=stands_in))
    headline = recommend(summary).headline
    print(result_tables.table(summary, headline, args.price, args.all))
