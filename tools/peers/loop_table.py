"""A table of loops: time, tokens and memory of a step, their ratios, and what differs."""

import pandas as pd

from tools.peers.loop_runs import FASTEST
from tools.peers.loops import LOOPS, OURS
from Utils.analysis import intervals, text_tables
from Utils.analysis.result_tables import bold, four_digits, remarks
from Utils.base.text import number
from Utils.results import selection

DIFFERS = OURS | {loop.name: loop.differs for loop in LOOPS}  # from fused_optimizer
CAPTION = (
    "tokens/s: those of a step over its time. Over fused_optimizer: its time a token / that of the "
    f"loop, in turns. {intervals.MEANING}; {intervals.BOLD}. Losses are of each loop's "
    "own batches and model. Waits and checks that a loop makes in each step are part of its time. "
    "Note: what differs from fused_optimizer."
)


def page_of(summary, in_file=False):
    """Return the table of a Summary, the fastest loop first, with remarks below.

    in_file: as Markdown.
    """
    scripts = sorted(summary.shown, key=lambda script: (not script.is_timed, script.step_ms))
    runs = summary.study.rows.groupby("technique").last()
    lines = []
    for script in scripts:
        run = runs.loc[script.name]
        tokens = run.batch_size * run.seq_len
        step_ms = script.step_ms * run.batch_size / run.requested_batch_size  # for its own batch
        line = {
            "script": script.name,
            "commit": run.commit,
            "tokens a step": f"{tokens:,}",
            "ms a step": four_digits(step_ms) or script.status,
            "tokens/s": number(tokens / step_ms * 1e3, ",.0f"),
            f"over {FASTEST}": bold(script.parent_speedup),
            "MiB": number(script.peak_memory_mib, ",.0f"),
            "loss": number(script.loss, ".2f"),
            "note": DIFFERS.get(script.name, ""),
        }
        lines.append(line)

    texts = {name: "; ".join(notes) for name, notes in remarks(summary).items()}
    parts = [
        summary.study.disturbance,
        pd.DataFrame(lines).to_dict("list"),
        selection.description(summary.study.rows),
        CAPTION,
        summary.study.left_out,
        "\n".join(f"- {name}: {text}" for name, text in texts.items() if text),
    ]
    return text_tables.page(parts, in_file)
