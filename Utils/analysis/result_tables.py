"""A summary as tables: one of six columns, and on request the rest."""

import math

import pandas as pd

from Utils.analysis import intervals, text_tables
from Utils.base.text import number
from Utils.results import selection


def four_digits(value):
    """Return a number with four significant digits, "2,986" or "13.14"; "" if unknown."""
    if not math.isfinite(value) or value <= 0:
        return number(value)
    return number(value, f",.{max(0, 3 - math.floor(math.log10(value)))}f")


def remarks(summary):
    """Return lists of texts by technique: why it has no timing, else taint and notes of its own."""
    lines = summary.lines
    texts = {}
    for name, line in lines.iterrows():
        if line.reason:
            texts[name] = [line.reason]
            continue
        ancestors = summary.study.line(name)[:-1]
        shared = {note for each in ancestors for note in lines.notes.get(each, [])}
        texts[name] = [note for note in line.notes if note not in shared]
        if line.grade == "tainted":
            texts[name].append(line.quality)
    return texts


def bold(ratio):
    """Return a Ratio as text, in bold where its verdict is a difference."""
    return f"**{ratio}**" if ratio.verdict in (ratio.above, ratio.below) else str(ratio)


def _time(line):
    text = four_digits(line.step_ms)
    return f"{text} ms" if text else line.status.replace("_", " ")


def _loss(line):
    """Return the loss, and its verdict where it is not the baseline's."""
    verdict = line.loss_difference.verdict
    if line.parity in ("model changed", "other batches", "another optimizer"):
        verdict = line.parity
    text = number(line.loss, ".3f")
    remarkable = verdict not in ("", intervals.INCONCLUSIVE, line.loss_difference.neither)
    return f"{text}, {verdict}".removeprefix(", ") if remarkable else text


# Columns of the tables: title; column of the summary, or None for the whole line; its format, or a
# function that returns its text; a unit behind it.
NAME = ("script", "label", str)
MAIN = (
    NAME,
    ("time a step", None, _time),
    ("over the script before", "parent_speedup", bold),
    ("over the baseline", "speedup", str),
    ("peak memory", "peak_memory_mib", ",.0f", " MiB"),
    ("loss", None, _loss),
)
MORE = {
    "Time and loss": (
        ("p20-p80 (ms)", None, lambda line: "-".join(map(four_digits, line[["p20_ms", "p80_ms"]]))),
        ("{unit}/s", "tokens_per_second", four_digits),
        ("verdict", "parent_speedup", lambda ratio: ratio.verdict),
        ("loss difference", "loss_difference", lambda loss: loss.with_verdict),
        ("parity", "parity", str),
        ("quality", "quality", str),
    ),
    "Peak memory by kind": (
        ("weights (MiB)", "weights_mib", ",.0f"),
        ("gradients (MiB)", "gradients_mib", ",.0f"),
        ("optimizer state (MiB)", "optimizer_state_mib", ",.0f"),
        ("rest (MiB)", "rest_mib", ",.0f"),
        ("peak (GiB)", "peak_memory_mib", lambda mib: f"{mib / 1024:.2f}"),
        ("reserved by torch (MiB)", "reserved_mib", ",.0f"),
    ),
    "Compilation": (
        ("first step (s)", "first_step_s", ".1f"),
        ("compiled", "compiled", str),
        ("breaks even after", "break_even_steps", ",.0f", " steps"),
    ),
    "Distance from the limit": (
        ("matmul precision", "precision", str),
        ("TFLOP/s", "tflops", ",.3g"),
        ("of the measured ceiling", "ceiling_share", ".0%"),
        ("MFU (of the datasheet)", "mfu", ".0%"),
        ("modelled floor (ms)", "floor_ms", four_digits),
        ("headroom", "floor_speedup", ".1f", "x"),
    ),
}
COST = (
    ("hours", "hours_per_billion", ",.1f"),
    ("mean power (W)", "mean_power_w", ",.0f"),
    ("kWh", "kwh_per_billion", ",.2f"),
)


def table(summary, headline="", price=None, all_columns=False, in_file=False):
    """Return a Summary as tables with captions, a string.

    headline: a sentence below them, of a Recommendation. price: of an hour of this device, in any
    currency. in_file: as Markdown.
    """
    rows = summary.study.rows
    lines = summary.lines
    has_intervals = intervals.numbers(lines.speedup).low.notna().any()
    caption = selection.describe(rows) + "."
    if has_intervals:
        seeds = rows[rows.technique == rows.base].groupby("round").loss.apply(intervals.final_loss)
        caption += (
            f" In brackets the 95% interval over rounds; {intervals.CORRECTED}. The baseline's "
            f"loss varies by {seeds.std():.3f} from seed to seed (standard deviation)."
        )
    parts = [texts_of(lines, MAIN), caption, summary.study.left_out]
    said = pd.Series(remarks(summary), dtype=object).explode().dropna()
    labels = lines.label[said.index].groupby(said, sort=False)
    parts.append("\n".join(f"- {', '.join(names)}: {text}" for text, names in labels))
    for title, columns in more_tables(summary, price).items():
        if all_columns or (price is not None and title.startswith("Cost")):
            parts += [f"{title}:", columns]
    parts.append(headline)
    if not has_intervals:
        parts.append(f"{intervals.NO_INTERVAL.capitalize()}. ROUNDS=4 gives intervals.")
    return text_tables.page(parts, in_file)


def more_tables(summary, price=None):
    """Return the tables beside the one of MAIN, dicts of texts by column, by title, without columns
    that are empty, and without the cost of a CPU or of a tiny model if no price is given.
    """
    rows = summary.study.rows
    timed = summary.lines[summary.lines.step_ms.notna()]
    unit = next(iter(summary.lines.unit), "")
    tables = dict(MORE)
    if price is not None:
        title = f"cost at {price:,.2f} an hour"
        of_price = (title, "hours_per_billion", lambda hours: number(price * hours, ",.2f"))
        tables[f"Cost of 10^9 {unit}"] = (*COST, of_price)
    elif rows.reserved_memory_mib.notna().any() and rows.model.iloc[0] != "gpt2-tiny":
        tables[f"Cost of 10^9 {unit}"] = COST
    filled = {}
    for table, columns in tables.items():
        texts = texts_of(timed, (NAME, *columns), unit)
        texts = {title: cells for title, cells in texts.items() if any(cells)}
        if len(texts) > 1:
            filled[table] = texts
    return filled


def texts_of(lines, columns, unit="tokens"):
    """Return a table of a DataFrame, lists of texts by title. columns: as MAIN."""
    return {
        title.format(unit=unit): [_text(line, *column) for _, line in lines.iterrows()]
        for title, *column in columns
    }


def _text(line, column, form, unit=""):
    value = line if column is None else line[column]
    if isinstance(value, float) and not math.isfinite(value):
        return "never" if value == math.inf else ""  # of steps until a script breaks even
    return (format(value, form) if isinstance(form, str) else form(value)) + unit
