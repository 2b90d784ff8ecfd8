"""The table of a suite's outcome."""

from Utils.analysis import result_tables
from Utils.analysis.recommendation import recommend


def table(summary, all_columns=False):
    """Return the table that a suite ends with, between blank lines."""
    headline = recommend(summary).headline
    return f"\n{result_tables.table(summary, headline, all_columns=all_columns)}\n"
