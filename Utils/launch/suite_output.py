"""The table of a suite's outcome, and advice on its shape."""

from Utils.analysis import result_tables
from Utils.analysis.recommendation import recommend

MANY_TIMES = 10  # the steps of a round fit so often: a larger shape is proposed


def table(summary, all_columns=False):
    """Return the table that a suite ends with, between blank lines."""
    headline = recommend(summary).headline
    return f"\n{result_tables.table(summary, headline, all_columns=all_columns)}\n"


def advice_on_shape(rows, args, schedule):
    """Return a line that proposes a larger shape where a CPU has time for it, otherwise "".

    rows: of a suite whose Schedule is of these args.
    """
    is_auto = args.batch_size == "auto" and args.seq_len == "auto"
    # A GPU's allocator reserves memory; an Apple GPU has room for a larger shape.
    is_cpu = rows.reserved_memory_mib.isna().all() and rows.seq_len.max() < 256
    if not is_auto or not is_cpu or not schedule.rounds_ended:
        return ""

    last_round = rows[(rows["round"] == rows["round"].max()) & (rows.phase == "timed")]
    seconds = last_round.step_ms.sum() / 1e3
    has_all_steps = rows.step.max() + 1 >= args.steps
    if not has_all_steps or MANY_TIMES * seconds > 60 * schedule.minutes:
        return ""
    return "there is time for a shape closer to real training: BATCH_SIZE=4 SEQ_LEN=256"
