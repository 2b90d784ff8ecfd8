"""The table of a suite's outcome, and advice on its shape."""

from Utils.analysis import result_tables
from Utils.analysis.recommendation import recommend

MANY_TIMES = 10  # all steps fit so often: a larger shape is proposed


def table(summary, all_columns=False):
    """Return the table that a suite ends with, between blank lines."""
    headline = recommend(summary).headline
    return f"\n{result_tables.table(summary, headline, all_columns=all_columns)}\n"


def advice_on_shape(outcome, args, plan):
    """Return a line that proposes a larger shape where a CPU has time for it, otherwise ""."""
    is_auto = args.batch_size == "auto" and args.seq_len == "auto"
    if outcome.rows is None or not is_auto or not plan.steps_fit(MANY_TIMES):
        return ""
    # A GPU's allocator reserves memory; an Apple GPU has room for a larger shape.
    is_cpu = outcome.rows.reserved_memory_mib.isna().all() and outcome.rows.seq_len.max() < 256
    if not is_cpu:
        return ""
    return "there is time for a shape closer to real training: BATCH_SIZE=4 SEQ_LEN=256"
