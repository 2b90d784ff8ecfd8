"""A summary as GitHub-markdown tables."""

import numpy as np
import pandas as pd
from tabulate import tabulate

from Utils.analysis import intervals
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.base.text import number, plural
from Utils.results import selection


def markdown(columns, left=("technique",)):
    """Return a GitHub-markdown table of columns, lists of texts by title. Those in `left` are
    aligned to the left."""
    align = ["left" if title in left else "right" for title in columns]
    return tabulate(columns, "keys", "pipe", disable_numparse=True, colalign=align)


def cell(text):
    """Return a text for a cell of a table, with bars escaped."""
    return "" if pd.isna(text) else text.replace("|", "\\|")


def own_notes(summary):
    """Return the notes without those that a technique with timings shares with its parent."""
    texts = []
    for line in summary.itertuples():
        shared = summary.notes.get(line.parent, []) if line.status == "ok" else []
        texts.append(cell("; ".join(note for note in line.notes if note not in shared)))
    return texts


def reason(line):
    """Return why a technique has no timing."""
    return ": ".join([line.status.replace("_", " "), *line.notes])


def grade_text(line):
    """Return "clean", "tainted in 1 of 4 rounds: slowed by 8%", or "" without a timing."""
    if line.grade != "tainted":
        return text_of(line.grade)
    text = f"tainted in {line.tainted_rounds:.0f} of {line.rounds:.0f} rounds"
    return text + (f": {line.reason}" if line.reason else "")


def break_even_text(steps):
    """Return the steps after which compiling breaks even; "" if unknown."""
    if pd.isna(steps):
        return ""
    return "never" if np.isinf(steps) else f"{steps:,.0f} steps"


def compiled_text(line):
    """Return "1 graph, cold cache; 2 recompiled" for a technique that compiles, else ""."""
    if pd.isna(line.graphs):
        return ""
    text = plural(round(line.graphs), "graph")
    text += f", {line.compile_cache} cache" if line.compile_cache else ""
    return text + (f"; {line.recompilations:.0f} recompiled" if line.recompilations else "")


def text_of(value):
    return "" if pd.isna(value) else value


def _spread(line):
    low, high = number(line.p20_ms), number(line.p80_ms)
    return f"{low}-{high}" if low else ""


def _with_verdict(estimate):
    return estimate.with_verdict


# Columns of the tables: title; column of the summary, or None for the whole line; its format, or a
# function that returns its text.
NAME = ("technique", "label", str)
SPEED = (
    NAME,
    ("status", "status", lambda status: status.replace("_", " ")),
    ("step (ms)", "step_ms", ",.1f"),
    ("p20-p80 (ms)", None, _spread),
    ("{unit}/s", "tokens_per_second", ",.0f"),
    ("speedup over parent", "parent_speedup", _with_verdict),
    ("over baseline", "speedup", _with_verdict),
    ("peak memory (MiB)", "peak_memory_mib", ",.0f"),
    ("loss", "loss", ".3f"),
    ("loss difference", "loss_difference", _with_verdict),
    ("parity", "parity", text_of),
    ("quality", None, grade_text),
)
MEMORY = (
    NAME,
    ("weights (MiB)", "weights_mib", ",.0f"),
    ("gradients (MiB)", "gradients_mib", ",.0f"),
    ("optimizer state (MiB)", "optimizer_state_mib", ",.0f"),
    ("rest (MiB)", "rest_mib", ",.0f"),
    ("peak (MiB)", "peak_memory_mib", ",.0f"),
    ("peak (GiB)", "peak_memory_mib", lambda mib: number(mib / 1024, ".2f")),
    ("reserved by torch (MiB)", "reserved_mib", ",.0f"),
    ("used on the device (MiB)", "device_mib", ",.0f"),
)
LIMITS = (
    NAME,
    ("first step (s)", "first_step_s", ".1f"),
    ("compiled", None, compiled_text),
    ("breaks even after", "break_even_steps", break_even_text),
    ("matmul precision", "precision", text_of),
    ("TFLOP/s", "tflops", ",.3g"),
    ("of the measured ceiling", "ceiling_share", ".0%"),
    ("MFU (of the datasheet)", "mfu", ".0%"),
    ("modelled floor (ms)", "floor_ms", ",.1f"),
    ("headroom", "floor_speedup", lambda ratio: number(ratio, ".1f") and f"{ratio:.1f}x"),
)
COST = (
    NAME,
    ("hours for 10^9 {unit}", "hours_per_billion", ",.1f"),
    ("mean power (W)", "mean_power_w", ",.0f"),
    ("kWh for 10^9 {unit}", "kwh_per_billion", ",.2f"),
    ("J for 10^6 {unit}", "joules_per_million", ",.0f"),
)
WORDS = ("technique", "status", "note", "parity", "quality", "compiled")  # columns of words


def table(rows, left_out="", records=None, price=None):
    """Return the selected rows as GitHub-markdown tables with captions: speed and loss; memory;
    distance from the limit; cost of 10^9 tokens. A string.

    records: as for `summarize`. price: of an hour of this device, in any currency.
    """
    summary = summarize(rows, records)
    speed = columns(summary)[0]
    _, memory, limits, cost = columns(summary[summary.step_ms.notna()], price)
    sections = [_shown(speed), _caption(rows, summary), *over_parents(summary)]
    if left_out:
        sections.append(left_out)
    for title, texts, needed in (
        ("Peak memory by kind", memory, "weights (MiB)"),
        ("Distance from the limit", limits, "matmul precision"),
        (f"Cost of 10^9 {summary.unit.iloc[0]}", cost, "technique"),
    ):
        if any(texts[needed]):
            sections += [f"{title}:", _shown(texts)]
    return "\n\n".join(sections)


def columns(summary, price=None):
    """Return the four tables of a summary: speed and loss; memory; distance from the limit; cost
    of 10^9 tokens. Each a dict of texts by title, one text a technique; price as for `table`."""
    unit = next(iter(summary.unit), "")
    tables = [texts_of(summary, table, unit) for table in (SPEED, MEMORY, LIMITS, COST)]
    speed, _, _, cost = tables
    speed["note"] = own_notes(summary)
    if price is not None:
        title = f"cost of 10^9 {unit} at {price:,.2f} an hour"
        cost[title] = [number(price * hours, ",.2f") for hours in summary.hours_per_billion]
    return tables


def texts_of(lines, table, unit="tokens"):
    """Return a table of a DataFrame, a dict of lists of texts by title. table: as SPEED."""
    return {
        title.format(unit=unit): [_text(line, column, form) for _, line in lines.iterrows()]
        for title, column, form in table
    }


def _text(line, column, form):
    value = line if column is None else line[column]
    return number(value, form) if isinstance(form, str) else cell(form(value))


def _shown(columns):
    """Return columns of texts as a table, without empty columns, notes aside."""
    filled = {title: texts for title, texts in columns.items() if any(texts) or title == "note"}
    return markdown(filled, WORDS)


def _caption(rows, summary):
    """Return the common facts of the rows, and the meaning of the intervals."""
    if intervals.numbers(summary.speedup).low.isna().all():
        return f"{selection.describe(rows)}; {intervals.NO_INTERVAL}."
    seeds = rows[rows.technique == rows.base].groupby("round").loss.apply(intervals.final_loss)
    return (
        f"{selection.describe(rows)}; in brackets the 95% interval over rounds. The baseline's "
        f"loss varies by {seeds.std():.3f} from seed to seed (standard deviation); the paired "
        "difference excludes that."
    )


def over_parents(summary):
    """Return [sentence] with the techniques by verdict over the parent; [] without verdicts."""
    verdicts = intervals.verdicts(summary.parent_speedup)
    parts = []
    for verdict in (Ratio.above, Ratio.below, Ratio.neither):
        lines = summary[verdicts == verdict]
        texts = list(lines.label)
        if verdict != Ratio.neither:
            ratios = intervals.numbers(lines.parent_speedup).value
            ratios = ratios.sort_values(ascending=verdict == Ratio.below)
            texts = [f"{lines.label[name]} {ratio:.2f}x" for name, ratio in ratios.items()]
        if texts:
            parts.append(f"{verdict}: {', '.join(texts)}")
    return [f"Against their parents: {'; '.join(parts)}."] if parts else []
