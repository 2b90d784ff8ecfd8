"""A summary as tables: one of six columns, and on request further ones."""

import math
from collections.abc import Iterable
from operator import attrgetter

import pandas as pd

from Utils.analysis import intervals, text_tables
from Utils.analysis.figures import NOT_TOLD, ScriptFigures
from Utils.analysis.losses import loss_of_round
from Utils.analysis.recommendation import recommend
from Utils.analysis.summary import Summary
from Utils.base import paths
from Utils.base.text import number
from Utils.results import selection
from Utils.scripts.identity import PATCH

MOST_REMARKS = 8  # lines below a table without all columns


def four_digits(value: float) -> str:
    """Return a number with four significant digits, "2,986" or "13.14"; "" if unknown."""
    if not math.isfinite(value) or value <= 0:
        return number(value)
    exponent = int(f"{value:.3e}"[-3:])  # exponent of the rounded number
    return number(value, f",.{max(0, 3 - exponent)}f")


def remarks(summary: Summary) -> dict[str, list[str]]:
    """Return lists of texts by technique: why it has no timing, or notes of its own."""
    notes = {script.name: script.notes for script in summary.shown}
    texts = {}
    for script in summary.shown:
        if script.reason:
            texts[script.name] = [script.reason]
            continue

        # A note of an ancestor is not repeated.
        inherited = set()
        for ancestor in summary.study.lineage(script.name)[:-1]:
            inherited.update(notes.get(ancestor, ()))
        texts[script.name] = [note for note in script.notes if note not in inherited]
        if PATCH in script.techniques:
            texts[script.name] += patch_remarks(summary, script)
    return texts


def patch_remarks(summary: Summary, script: ScriptFigures) -> list[str]:
    """Return a text if a user's script with a patch is slower than with the same switches."""
    runs = [run for run in summary.study.records.values() if run.get("technique") == script.name]
    switched = runs[-1][PATCH]["switched"] if runs else ""
    ratio = summary.levels.ratio(switched, script.name)
    return [f"slower than {switched}: {ratio}"] if ratio.verdict == ratio.lower else []


def bold(ratio: intervals.Ratio, remark: str = "") -> str:
    """Return a Ratio with a remark as text, in bold if it is a difference."""
    text = f"{ratio}{remark}"
    return f"**{text}**" if ratio.is_different else text


def _over_parent(script):
    """Return the ratio to the parent, and the parent's name if it is not in the row above."""
    ratio = script.parent_speedup
    branches = script.branches_from and ratio
    return bold(ratio, f" over {script.branches_from}" if branches else "")


def _time(script):
    text = four_digits(script.step_ms)
    return f"{text} ms" if text else script.status.replace("_", " ")


def _percentiles(script):
    return f"{four_digits(script.p20_ms)}-{four_digits(script.p80_ms)}"


def _loss(script):
    """Return the loss, and in words what differs from the baseline's."""
    words = script.loss_difference.words
    if script.parity in ("model changed", "other batches", "other steps", "another optimizer"):
        words = script.parity
    if script.training:
        words = script.training["kind"]
        if words == NOT_TOLD:
            words = f"{script.loss_difference.verdict or intervals.INCONCLUSIVE} by its loss alone"
    return ", ".join(text for text in (number(script.loss, ".3f"), words) if text)


# Columns of the tables: title; attribute of ScriptFigures, or None for the object; its format, or a
# function that returns its text; optionally a unit that follows it.
NAME = ("script", "label", str)
MAIN = (
    NAME,
    ("time a step", None, _time),
    ("over the script before", None, _over_parent),
    ("over the baseline", "speedup", str),
    ("peak memory", "peak_memory_mib", ",.0f", " MiB"),
    ("loss", None, _loss),
)
MORE = {
    "Time and loss": (
        ("p20-p80 (ms)", None, _percentiles),
        ("{unit}/s", "tokens_per_second", four_digits),
        ("rounds", "rounds", "d"),
        ("verdict", "parent_speedup", lambda ratio: ratio.verdict),
        ("loss difference", "loss_difference", lambda loss: loss.text_with_verdict),
        ("parity", "parity", str),
        ("quality", "quality", str),
    ),
    "Peak memory by kind": (
        ("weights (MiB)", "recorded.weights_mib", ",.0f"),
        ("gradients (MiB)", "recorded.gradients_mib", ",.0f"),
        ("optimizer state (MiB)", "recorded.optimizer_state_mib", ",.0f"),
        ("rest (MiB)", "recorded.rest_mib", ",.0f"),
        ("peak (GiB)", "peak_memory_mib", lambda mib: f"{mib / 1024:.2f}"),
        ("reserved by torch (MiB)", "recorded.reserved_mib", ",.0f"),
    ),
    "Compilation": (
        ("first step (s)", "first_step_s", ".1f"),
        ("compiled", "compiled", str),
        ("breaks even after", "break_even_steps", ",.0f", " steps"),
    ),
    "Distance from the limit": (
        ("matmul precision", "limits.precision", str),
        ("TFLOP/s", "limits.tflops", ",.3g"),
        ("of the measured ceiling", "limits.ceiling_share", ".0%"),
        ("MFU (of the datasheet)", "limits.mfu", ".0%"),
        ("modelled floor (ms)", "limits.floor_ms", four_digits),
        ("headroom", "limits.floor_speedup", ".1f", "x"),
    ),
}
COST = (
    ("hours", "hours_per_billion", ",.1f"),
    ("mean power (W)", "recorded.mean_power_w", ",.0f"),
    ("kWh", "kwh_per_billion", ",.2f"),
)


def table(
    summary: Summary,
    price: float | None = None,
    all_columns: bool = False,
    in_file: bool = False,
) -> str:
    """Return a Summary as tables with captions, and below them the headline of its recipe.

    price: what an hour of this device costs, in any currency.
    in_file: as Markdown.
    """
    rows = summary.study.rows
    caption = f"{selection.description(rows)}. Times are medians, rates and costs by the mean step."
    if any(script.speedup.interval for script in summary.shown):
        losses = loss_of_round(selection.timed(rows[rows.technique == rows.base]))
        caption += f" {intervals.MEANING}; {intervals.BOLD}."
        spread = f"{losses.std():.3f} (standard deviation) over seeds"
        caption += f" The baseline's loss varies by {spread}."

    steps = max(script.training.get("steps", 0) for script in summary.shown)
    if steps:
        caption += f" Training is compared over {steps} steps (METHOD.md)."

    # Techniques with the same remark share a line.
    labels = {}
    for name, texts in remarks(summary).items():
        for text in texts:
            labels.setdefault(text, []).append(summary.scripts[name].label)
    lines = [f"- {', '.join(names)}: {text}" for text, names in labels.items()]
    if not all_columns and len(lines) > MOST_REMARKS:
        left = len(lines) - MOST_REMARKS + 1
        lines = [*lines[:-left], f"- {left} more with ALL=1"]

    owner = summary.study.owner
    remedy = f"run {paths.COMMAND} all to measure this one"
    parts = [
        owner and f"{owner}measured on another machine; {remedy}",
        summary.study.disturbance,
        texts_of(summary.shown, MAIN),
        conditions(summary),
        caption,
        summary.study.left_out,
        "\n".join(lines),
    ]
    for title, columns in more_tables(summary, price).items():
        if all_columns or (price is not None and title.startswith("Cost")):
            parts += [f"{owner}{title}:", columns]
    headline = recommend(summary).headline
    parts.append(headline and f"{owner}{headline}")
    return text_tables.page(parts, in_file)


def conditions(summary: Summary) -> str:
    """Return clocks, energy and durations found in the records as lines; "" for a CPU."""
    rows = summary.study.rows
    steps = selection.timed(rows)
    if steps.reserved_memory_mib.isna().all():
        return ""

    # The power limit, and clocks at the end of runs.
    text = ""
    recorded = pd.DataFrame(vars(script.recorded) for script in summary.shown)
    if recorded.power_limit_w.any():
        capped = [s.label for s in summary.shown if s.recorded.is_power_capped > 0.5]
        text += (
            f"At the power limit of {recorded.power_limit_w.max():.0f} W: "
            f"{', '.join(capped) or 'no script'}. Clocks at the end of runs: "
            f"{_span(recorded.sm_clock_mhz, ',.0f')} MHz (medians of scripts).\n"
        )

    # Energy of the first script, and of the fastest.
    with_energy = [script for script in summary.shown if script.kwh_per_billion >= 0]
    if with_energy:
        first = with_energy[0]
        fastest = max(with_energy, key=lambda script: script.tokens_per_second)
        text += (
            f"10^9 {first.unit} take {first.kwh_per_billion:.2f} kWh with {first.name}, "
            f"{fastest.kwh_per_billion:.2f} kWh with {fastest.name}.\n"
        )

    runs = steps.run_id.unique()
    lacking = [run for run in runs if not summary.study.records.get(run, {}).get("quality")]
    if text and lacking:
        text += f"Clocks and energy: {len(lacking)} of {len(runs)} runs have no record of them.\n"

    run_s = steps.groupby("run_id").step_ms.sum() / 1e3
    turns = (rows.phase == "warmup").groupby(rows.run_id).cumsum()[steps.index]
    turn_s = run_s / turns.groupby(steps.run_id).nunique()
    return f"{text}Runs were timed for {_span(run_s)} s, in turns of {_span(turn_s)} s."


def _span(values, form=".1f"):
    """Return the least and the largest of values as text, "1,875 to 1,980"."""
    ends = [format(values.min(), form), format(values.max(), form)]
    return " to ".join(dict.fromkeys(ends))


def more_tables(summary: Summary, price: float | None = None) -> dict[str, dict[str, list[str]]]:
    """Return the tables beside that of MAIN, dicts of texts by column, by title.

    Empty columns are left out. Without a price, so is the cost of a CPU or of a tiny model.
    """
    rows = summary.study.rows
    timed = [script for script in summary.shown if script.is_timed]
    unit = summary.shown[0].unit

    tables = dict(MORE)
    if price is not None:
        title = f"cost at {price:,.2f} an hour"
        cost = (title, "hours_per_billion", lambda hours: number(price * hours, ",.2f"))
        tables[f"Cost of 10^9 {unit}"] = (*COST, cost)
    elif rows.reserved_memory_mib.notna().any() and rows.model.iloc[0] != "gpt2-tiny":
        tables[f"Cost of 10^9 {unit}"] = COST

    filled = {}
    for title, columns in tables.items():
        texts = texts_of(timed, (NAME, *columns), unit)
        texts = {column: cells for column, cells in texts.items() if any(cells)}
        if len(texts) > 1:
            filled[title] = texts
    return filled


def texts_of(lines: Iterable, columns: tuple, unit: str = "tokens") -> dict[str, list[str]]:
    """Return a table of ScriptFigures, lists of texts by title. columns: as MAIN."""
    return {
        title.format(unit=unit): [_text(line, *column) for line in lines]
        for title, *column in columns
    }


def _text(line, attribute, form, unit=""):
    """Return the text of a line in a column, "" if unknown."""
    value = attrgetter(attribute)(line) if attribute else line
    if isinstance(value, float) and not math.isfinite(value):
        return "never" if value == math.inf else ""  # a script may never break even
    text = format(value, form) if isinstance(form, str) else form(value)
    return text + unit
