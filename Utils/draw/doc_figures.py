"""Tables of figures that were not measured here: published ones and forecasts.

Each comes from a file in docs/, which a command writes.
"""

import re

import pandas as pd

from Utils.analysis import result_tables
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.text import broken, number

DOCS = paths.ROOT / "docs"
# Of docs/published.csv: beginning of the source, metric, batch size or any, what to say of it.
SHOWN = (
    ("build-nanogpt", "step time", None, "build-nanogpt", "rounded in the source"),
    ("rasbt/", "throughput", None, "LLMs-from-scratch", "head not tied"),
    ("gilesthomas.com", "throughput", None, "Giles Thomas", "not cumulative; AMP with batch 6"),
    ("abdo-ashraf/", "median step time", "256", "Optimizing-GPU-Utilization", "another model"),
)


def _markdown(rows, left):
    return result_tables.markdown(pd.DataFrame(rows).to_dict("list"), left)


def hours():
    """Return docs/hours.csv as a table with a caption."""
    every = pd.read_csv(DOCS / "hours.csv")
    rows = every[every.reason.isna()]
    price = rows.dollars_an_hour
    columns = {
        "device": rows.device,
        "tokens/s": _texts(rows.tokens_per_second, ",.0f"),
        "hours": _texts(rows.hours, ",.1f"),
        "range of 90%": _ranges(rows.low_hours, rows.high_hours, ",.1f"),
        "dollars": _texts(price * rows.hours, ",.0f"),
        "its range": _ranges(price * rows.low_hours, price * rows.high_hours, ",.0f"),
    }
    first = every.iloc[0]
    missing = [
        f"{row.device} ({row.reason})" for row in every.itertuples() if row.reason == row.reason
    ]
    caption = (
        f"**Forecast, not measured**: {first.model}, {first.batch_size}x{first.seq_len} tokens a "
        f"step, {broken(first.technique)}, {first.tokens / 1e9:g}B tokens, with ranges of 90%. "
        f"Dollars are hours times a price of [docs/prices.toml](prices.toml). Not listed: "
        f"{'; '.join(missing)}."
    )
    return f"{_markdown(columns, ['device'])}\n\n{caption}"


def published():
    """Return the table of what others have measured on GPUs."""
    rows = pd.read_csv(DOCS / "published.csv", dtype={"batch_size": str})
    lines = [_published(rows, *shown) for shown in SHOWN]
    return _markdown(lines, left=lines[0])


def _published(rows, source, metric, batch, name, remark):
    """Return one line of the table: the rows of one source, in its order."""
    rows = rows[rows.source.str.startswith(source) & (rows.metric == metric)]
    rows = rows[~rows.device.str.match(r"\d+x ")]  # of one device
    if batch is not None:
        rows = rows[rows.batch_size == batch]
    if rows.empty:
        raise UserError(f"docs/published.csv: no rows of {source} with {metric}")
    first = rows.iloc[0]
    ratios = rows.value / first.value if metric == "throughput" else first.value / rows.value
    measured = [f"{first.technique} {first.value:,g} {first.unit}"]
    measured += [f"{t} {x:.2f}x" for t, x in zip(rows.technique[1:], ratios[1:], strict=True)]
    device = re.sub(r" \(.*", "", first.device)
    shape = f"batch {first.batch_size} of {first.seq_len} tokens"
    return {
        "device and model": f"{device}: {first.model}, {shape}",
        "measured, then speedup over the first": re.sub(
            r"(?<=\w)[/_+](?=\w)", r"\g<0><wbr>", "; ".join(measured)
        ),
        "source": f"[{name}]({first.url.split(' ')[0]}); {remark}",
    }


def _texts(values, form):
    """Return numbers as texts, "" of an unknown one."""
    return [number(value, form) for value in values]


def _ranges(low, high, form):
    """Return ranges as texts, "" of an unknown one or of none."""
    return [
        f"{number(start, form)} to {number(end, form)}" if start < end else ""
        for start, end in zip(low, high, strict=True)
    ]
