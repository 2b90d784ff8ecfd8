"""Tables of figures that were not measured here: published ones, forecasts, counts.

Each comes from a file in docs/, which a command writes.
"""

import re

import pandas as pd

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
COMMON = ("model", "device", "technique", "shape")  # said once where a whole table has one
PEAKS = {"peak of torch's allocator (MiB)": "peak_mib", "forecast (MiB)": "forecast_mib"}
COUNTS = {
    "peak of torch's allocator (MiB)": "peak_mib",
    "reserved (MiB)": "reserved_mib",
    "forecast (MiB)": "forecast_mib",
    "launches": "launches",
    "synchronizations": "synchronizations",
    "pageable copies": "pageable_copies",
}
LEFT = {"technique", "model", "device", "mostly"}


def markdown(columns, left=LEFT):
    """Return a GitHub-markdown table of columns by title; those in `left` are aligned to the
    left."""
    frame = pd.DataFrame(columns)
    align = ["left" if title in left else "right" for title in frame]
    return frame.to_markdown(index=False, disable_numparse=True, colalign=align)


def virtual_gpu():
    """Return the table of what was counted on the virtual GPU at the model's full size, and one of
    peaks on smaller cards."""
    rows = pd.read_csv(DOCS / "virtual_gpu.csv")
    rows = rows[(rows.model != "gpt2-tiny") & rows.peak_mib.notna()]
    text = []
    for profile, group in rows.groupby("profile", sort=False):
        first = group.iloc[0]
        shape = f"{first.batch_size}x{first.seq_len} tokens"
        caption = f"One {profile.upper()}, {first.model}, {shape}"
        titles = PEAKS
        if profile == "h100":
            caption += (
                f", torch {first.torch}. Torch, its allocator, Inductor and Triton are real; no "
                "kernel computes, and no time is measured. Counts are of a timed step"
            )
            titles = COUNTS
        columns = {title: _texts(group[name], ",.0f") for title, name in titles.items()}
        table = markdown({"technique": group.technique.map(broken), **columns})
        text.append(f"{table}\n\n{caption}.")
    return "\n\n".join(text)


def forecast():
    """Return docs/forecast.csv as tables, one a device."""
    rows = pd.read_csv(DOCS / "forecast.csv")
    columns = {
        "device": rows.device,
        "technique": rows.technique.map(broken),
        "shape": _shapes(rows.batch_size, rows.seq_len),
        "forecast (ms)": _texts(rows.forecast_ms, ",.1f"),
        "range of 90% (ms)": _ranges(rows.low_ms, rows.high_ms, ",.1f"),
        "speedup": [f"{text}x" if text else "" for text in _texts(rows.speedup, ".2f")],
        "its range": _ranges(rows.speedup_low, rows.speedup_high, ".2f"),
        "tokens/s": _texts(rows.tokens_per_second, ",.0f"),
        "peak (GiB)": _texts(rows.peak_gib, ".2f"),
        "largest batch": _texts(rows.largest_batch, ".0f"),
        "mostly": rows.mostly.fillna(rows.reason),
    }
    return _tables(pd.DataFrame(columns), "device")


def forecast_check():
    """Return docs/forecast_check.csv as tables, one a source."""
    rows = pd.read_csv(DOCS / "forecast_check.csv")
    errors = _texts(rows.forecast_ms / rows.measured_ms - 1, "+.0%")
    inside = rows.measured_ms.between(rows.low_ms, rows.high_ms)
    columns = {
        "source": rows.source,
        "model": rows.model,
        "technique": rows.technique,
        "device": rows.key,
        "shape": _shapes(rows.batch, rows.tokens),
        "published (ms)": _texts(rows.measured_ms, ",.1f"),
        "forecast (ms)": _texts(rows.forecast_ms, ",.1f"),
        "range of 90% (ms)": _ranges(rows.low_ms, rows.high_ms, ",.1f"),
        "error": [
            error if is_inside else f"{error}, out of range"
            for error, is_inside in zip(errors, inside, strict=True)
        ],
        "plain roofline": _texts(rows.roofline_ms / rows.measured_ms - 1, "+.0%"),
    }
    return _tables(pd.DataFrame(columns), "source")


def _tables(table, key):
    """Return a table for each value of a column. What is the same in all lines stands above it."""
    text = []
    for title, group in table.groupby(key, sort=False):
        group = group.drop(columns=key)
        constant = [name for name in COMMON if name in group and group[name].nunique() == 1]
        caption = ", ".join(group[name].iloc[0] for name in constant)
        text += [f"### {title}", caption, markdown(group.drop(columns=constant))]
    return "\n\n".join(text)


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
    return f"{markdown(columns)}\n\n{caption}"


def published():
    """Return the table of what others have measured on GPUs."""
    rows = pd.read_csv(DOCS / "published.csv", dtype={"batch_size": str})
    table = pd.DataFrame([_published(rows, *shown) for shown in SHOWN])
    return markdown(table, left=table.columns)


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


def _shapes(batch, tokens):
    return [f"{b}x{t} tokens a step" for b, t in zip(batch, tokens, strict=True)]
