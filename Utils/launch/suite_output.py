"""The table of a suite's outcome."""

from Utils.analysis import result_tables


def table(summary, all_columns=False):
    """Return the table that a suite ends with, between blank lines."""
    return f"\n{result_tables.table(summary, all_columns=all_columns)}\n"
