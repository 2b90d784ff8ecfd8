"""A table of loops: time, tokens and memory of a step, their ratios, and what differs."""

from tools.peers.loop_runs import FASTEST
from tools.peers.loops import LOOPS, OURS
from Utils.analysis import intervals, text_tables
from Utils.analysis.result_tables import MAIN, bold, four_digits, remarks, texts_of
from Utils.results import selection

DIFFERS = OURS | {loop.name: loop.differs for loop in LOOPS}  # from fused_optimizer
COLUMNS = (  # as `result_tables.MAIN`
    *MAIN[:2],
    ("tokens/s", "tokens_per_second", four_digits),
    (f"over {FASTEST}", "parent_speedup", bold),
    ("peak memory", "peak_memory_mib", ",.0f", " MiB"),
    ("loss", "loss", ".2f"),
    ("note", "name", lambda name: DIFFERS.get(name, "")),
)
CAPTION = (
    "Times are of the requested batch, medians; tokens/s by the mean step. Over fused_optimizer: "
    f"its time a token / that of the loop, in turns. {intervals.MEANING}; {intervals.BOLD}. Losses "
    "are of each loop's own batches and model. Waits and checks that a loop makes in each step are "
    "part of its time. Note: what differs from fused_optimizer."
)


def page_of(summary, in_file=False):
    """Return the table of a Summary, the fastest loop first, with remarks below.

    in_file: as Markdown.
    """
    scripts = sorted(summary.shown, key=lambda script: (not script.is_timed, script.step_ms))
    texts = {name: "; ".join(notes) for name, notes in remarks(summary).items()}
    parts = [
        summary.study.disturbance,
        texts_of(scripts, COLUMNS),
        selection.description(summary.study.rows),
        CAPTION,
        summary.study.left_out,
        "\n".join(f"- {name}: {text}" for name, text in texts.items() if text),
    ]

    return text_tables.page(parts, in_file)
