"""A summary as GitHub-markdown tables."""

import numpy as np
import pandas as pd
from tabulate import tabulate

from Utils.analysis import intervals
from Utils.analysis.summary import MEMORY_KINDS, summarize
from Utils.base.text import number
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
        return "" if pd.isna(line.grade) else line.grade
    text = f"tainted in {line.tainted_rounds:.0f} of {line.rounds:.0f} rounds"
    return text + (f": {line.reason}" if line.reason else "")


def break_even_text(line):
    """Return the steps after which compiling breaks even; "" if unknown."""
    if pd.isna(line.break_even_steps):
        return ""
    return "never" if np.isinf(line.break_even_steps) else f"{line.break_even_steps:,.0f} steps"


def table(rows, left_out="", records=None, price=None):
    """Return the selected rows as GitHub-markdown tables with captions: speed and loss; memory;
    distance from the limit; cost of 10^9 tokens. A string.

    records: as for `summarize`. price: of an hour of this device, in any currency.
    """
    summary = summarize(rows, records)
    unit = summary.unit.iloc[0]
    _, memory, limits, cost = columns(summary[summary.step_ms.notna()], price)
    sections = [
        _shown(columns(summary)[0]),
        _caption(rows, summary),
        *over_parents(summary),
        *([left_out] if left_out else []),
        *_section("Peak memory by kind", memory, "weights (MiB)"),
        *_section("Distance from the limit", limits, "matmul precision"),
        *_section(f"Cost of 10^9 {unit}", cost),
    ]
    return "\n\n".join(sections)


def columns(summary, price=None):
    """Return the four tables of a summary: speed and loss; memory; distance from the limit; cost
    of 10^9 tokens. Each a dict of texts by title, one text a technique; price as for `table`."""
    lines = [line for _, line in summary.iterrows()]
    unit = next(iter(summary.unit), "")

    def column(name, form, scale=1):
        return [number(value * scale, form) for value in summary[name]]

    spread = zip(column("p20_ms", ",.1f"), column("p80_ms", ",.1f"), strict=True)
    speed = {
        "technique": list(summary.label),
        "status": [status.replace("_", " ") for status in summary.status],
        "step (ms)": column("step_ms", ",.1f"),
        "p20-p80 (ms)": [f"{low}-{high}" if low else "" for low, high in spread],
        f"{unit}/s": column("tokens_per_second", ",.0f"),
        "speedup over parent": [ratio.with_verdict for ratio in summary.parent_speedup],
        "over baseline": [ratio.with_verdict for ratio in summary.speedup],
        "peak memory (MiB)": column("peak_memory_mib", ",.0f"),
        "loss": column("loss", ".3f"),
        "loss difference": [loss.with_verdict for loss in summary.loss_difference],
        "parity": [cell(parity) for parity in summary.parity],
        "quality": [cell(grade_text(line)) for line in lines],
        "note": own_notes(summary),
    }
    memory = {
        "technique": list(summary.label),
        **{
            f"{kind.removesuffix('_mib').replace('_', ' ')} (MiB)": column(kind, ",.0f")
            for kind in MEMORY_KINDS
        },
        "peak (MiB)": column("peak_memory_mib", ",.0f"),
        "peak (GiB)": column("peak_memory_mib", ".2f", 1 / 1024),
        "reserved by torch (MiB)": column("reserved_mib", ",.0f"),
        "used on the device (MiB)": column("device_mib", ",.0f"),
    }
    limits = {
        "technique": list(summary.label),
        "first step (s)": column("first_step_s", ".1f"),
        "compiled": [_compiled(line) for line in lines],
        "breaks even after": [break_even_text(line) for line in lines],
        "matmul precision": [cell(precision) for precision in summary.precision],
        "TFLOP/s": column("tflops", ",.3g"),
        "of the measured ceiling": column("ceiling_share", ".0%"),
        "MFU (of the datasheet)": column("mfu", ".0%"),
        "modelled floor (ms)": column("floor_ms", ",.1f"),
        "headroom": [f"{x}x" if x else "" for x in column("floor_speedup", ".1f")],
    }
    cost = {
        "technique": list(summary.label),
        f"hours for 10^9 {unit}": column("hours_per_billion", ",.1f"),
        "mean power (W)": column("mean_power_w", ",.0f"),
        f"kWh for 10^9 {unit}": column("kwh_per_billion", ",.2f"),
        f"J for 10^6 {unit}": column("joules_per_million", ",.0f"),
    }
    if price is not None:
        title = f"cost of 10^9 {unit} at {price:,.2f} an hour"
        cost[title] = column("hours_per_billion", ",.2f", price)
    return speed, memory, limits, cost


def _section(title, columns, needed="technique"):
    """Return title and table; nothing where the column `needed` has no text."""
    return [f"{title}:", _shown(columns)] if any(columns[needed]) else []


def _shown(columns):
    """Return columns of texts as a table, without empty columns, notes aside."""
    words = ("technique", "status", "note", "parity", "quality", "compiled")
    known = {name: texts for name, texts in columns.items() if any(texts) or name == "note"}
    return markdown(known, words)


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
    lists = []
    for verdict in ("faster", "slower", "no detectable difference"):
        ratios = intervals.numbers(summary.parent_speedup).value
        ratios = ratios[intervals.verdicts(summary.parent_speedup) == verdict]
        names = summary.label[ratios.index]
        texts = list(names)
        if verdict != "no detectable difference":
            ratios = ratios.sort_values(ascending=verdict == "slower")
            texts = [f"{names[name]} {ratio:.2f}x" for name, ratio in ratios.items()]
        if texts:
            lists.append(f"{verdict}: {', '.join(texts)}")
    return [f"Against their parents: {'; '.join(lists)}."] if lists else []


def _compiled(line):
    """Return "1 graph, cold cache; 2 recompiled" for a technique that compiles, else ""."""
    if pd.isna(line.graphs):
        return ""
    text = f"{line.graphs:.0f} graph{'s' * (line.graphs != 1)}"
    text += f", {line.compile_cache} cache" if line.compile_cache else ""
    return text + (f"; {line.recompilations:.0f} recompiled" if line.recompilations else "")
