"""A table of loops: time, tokens and memory of a step, their ratios, and what differs."""

from tools.peers.loop_runs import FASTEST
from tools.peers.loops import LOOPS, OURS
from Utils.analysis import intervals, text_tables
from Utils.analysis.result_tables import bold, four_digits, remarks
from Utils.base.text import number
from Utils.results import selection

DIFFERS = OURS | {loop.name: loop.differs for loop in LOOPS}  # from fused_optimizer
CAPTION = (
    "tokens/s: those of a step over its time. Over fused_optimizer: its time a token / that of the "
    f"loop, in turns. {intervals.MEANING}; bold: it does not contain 1. Losses are of each loop's "
    "own batches and model. Waits and checks that a loop makes in each step are part of its time. "
    "Note: what differs from fused_optimizer."
)


def page_of(summary, in_file=False):
    """Return the table of a Summary, the fastest loop first, with remarks on each below.

    in_file: as Markdown.
    """
    scripts = sorted(summary.shown, key=lambda script: (not script.is_timed, script.step_ms))
    names = [script.name for script in scripts]
    runs = summary.study.rows.groupby("technique").last().loc[names]
    tokens = runs.batch_size * runs.seq_len
    step_ms = [script.step_ms for script in scripts] * runs.batch_size  # of its own batch
    step_ms /= runs.requested_batch_size

    columns = {
        "script": names,
        "commit": [*runs.commit],
        "tokens a step": [number(count, ",.0f") for count in tokens],
        "ms a step": [four_digits(ms) or s.status for ms, s in zip(step_ms, scripts, strict=True)],
        "tokens/s": [number(rate, ",.0f") for rate in tokens / step_ms * 1e3],
        f"over {FASTEST}": [bold(script.parent_speedup) for script in scripts],
        "MiB": [number(script.peak_memory_mib, ",.0f") for script in scripts],
        "loss": [number(script.loss, ".2f") for script in scripts],
        "note": [DIFFERS.get(name, "") for name in names],
    }
    parts = [
        summary.study.disturbance,
        columns,
        selection.description(summary.study.rows),
        CAPTION,
        summary.study.left_out,
        "\n".join(lines(summary, runs.commit)),
    ]
    return text_tables.page(parts, in_file)


def lines(summary, commits):
    """Yield a line on each loop: origin, licence, commit that was tried, remarks."""
    loops = {loop.name: loop for loop in LOOPS}
    for name, notes in remarks(summary).items():
        texts = []
        if name in loops:
            loop = loops[name]
            texts = [loop.origin, loop.licence]
            if loop.commit and loop.commit != commits[name]:
                texts.append(f"tried at {loop.commit}")
        said = "; ".join(filter(None, [*texts, *notes]))
        if said:
            yield f"- {name}: {said}"
