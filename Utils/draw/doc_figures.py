"""Tables of figures that were not measured here: published ones, forecasts, counts.

Each comes from a file in docs/, which a command writes.
"""

import csv
import re
from itertools import groupby

from Utils.analysis import result_tables
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.text import broken

PUBLISHED = paths.ROOT / "docs" / "published.csv"
VIRTUAL_GPU = paths.ROOT / "docs" / "virtual_gpu.csv"
FORECAST = paths.ROOT / "docs" / "forecast.csv"
CHECK = paths.ROOT / "docs" / "forecast_check.csv"
HOURS = paths.ROOT / "docs" / "hours.csv"
# Of docs/published.csv: beginning of the source, metric, batch size or any, what to say of it.
SHOWN = (
    ("build-nanogpt", "step time", None, "build-nanogpt", "rounded in the source"),
    ("rasbt/", "throughput", None, "LLMs-from-scratch", "head not tied"),
    ("gilesthomas.com", "throughput", None, "Giles Thomas", "not cumulative; AMP with batch 6"),
    ("abdo-ashraf/", "median step time", "256", "Optimizing-GPU-Utilization", "another model"),
)
COMMON = ("model", "device", "technique", "shape")  # said once where a whole table has one
LEFT = {"technique", "model", "device", "mostly"}


def virtual_gpu():
    """Return the table of what was counted on the virtual GPU at the model's full size, and one of
    peaks on smaller cards."""
    of_card = {}
    for row in _rows(VIRTUAL_GPU):
        if row["model"] != "gpt2-tiny" and row["peak_mib"]:
            of_card.setdefault(row["profile"], []).append(row)
    rows = of_card.pop("h100")
    peaks = {"peak of torch's allocator (MiB)": "peak_mib", "forecast (MiB)": "forecast_mib"}
    titles = {
        "peak of torch's allocator (MiB)": "peak_mib",
        "reserved (MiB)": "reserved_mib",
        "forecast (MiB)": "forecast_mib",
        "launches": "launches",
        "synchronizations": "synchronizations",
        "pageable copies": "pageable_copies",
    }
    caption = (
        f"{_card(rows[0])}, torch {rows[0]['torch']}. Torch, its allocator, Inductor and Triton "
        "are real; no kernel computes, and no time is measured. Counts are of a timed step."
    )
    smaller = [f"{_numbers(rows, peaks)}\n\n{_card(rows[0])}." for rows in of_card.values()]
    return "\n\n".join([_numbers(rows, titles), caption, *smaller])


def _numbers(rows, titles):
    """Return a table with a line per technique. titles: of its columns, with names of `rows`."""
    columns = {"technique": [broken(row["technique"]) for row in rows]}
    for title, name in titles.items():
        columns[title] = [f"{float(row[name]):,.0f}" if row[name] else "" for row in rows]
    return result_tables.markdown(columns)


def _card(row):
    card, model = row["profile"].upper(), row["model"]
    return f"One {card}, {model}, {row['batch_size']}x{row['seq_len']} tokens"


def _rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def forecast():
    """Return docs/forecast.csv as tables, one a device."""
    return _tables(_rows(FORECAST), "device", _forecast)


def forecast_check():
    """Return docs/forecast_check.csv as tables, one a source."""
    return _tables(_rows(CHECK), "source", _checked)


def hours():
    """Return docs/hours.csv as a table with a caption."""
    rows = _rows(HOURS)
    lines = [_hours(row) for row in rows if not row["reason"]]
    columns = {name: [line[name] for line in lines] for name in lines[0]}
    first, no = rows[0], [f"{row['device']} ({row['reason']})" for row in rows if row["reason"]]
    caption = (
        f"**Forecast, not measured**: {first['model']}, {_shape(first, 'batch_size', 'seq_len')}, "
        f"{broken(first['technique'])}, {float(first['tokens']) / 1e9:g}B tokens, with ranges of "
        f"90%. Dollars are hours times a price of [docs/prices.toml](prices.toml). Not listed: "
        f"{'; '.join(no)}."
    )
    return f"{result_tables.markdown(columns, LEFT)}\n\n{caption}"


def _hours(row):
    """Return a row of docs/hours.csv as the cells of its table, by title."""
    hours, low, high = (float(row[name]) for name in ("hours", "low_hours", "high_hours"))
    cells = {"device": row["device"], "tokens/s": f"{int(row['tokens_per_second']):,}"}
    cells |= {"hours": f"{hours:,.1f}", "range of 90%": f"{low:,.1f} to {high:,.1f}"}
    if not row["dollars_an_hour"]:
        return cells | {"dollars": "", "its range": ""}
    dollars, low, high = (x * float(row["dollars_an_hour"]) for x in (hours, low, high))
    return cells | {"dollars": f"{dollars:,.0f}", "its range": f"{low:,.0f} to {high:,.0f}"}


def _tables(rows, key, line):
    """Return a table for each value of a column. What is the same in all lines stands above it."""
    text = []
    for title, group in groupby(rows, key=lambda row: row[key]):
        lines = [line(row) for row in group]
        columns = {name: [one.get(name, "") for one in lines] for one in lines for name in one}
        same = [name for name in COMMON if name in columns and len({*columns[name]}) == 1]
        above = ", ".join(columns.pop(name)[0] for name in same)
        text += [f"### {title}", above, result_tables.markdown(columns, LEFT)]
    return "\n\n".join(text)


def _forecast(row):
    """Return a row of docs/forecast.csv as the cells of its table, by title."""
    cells = {"technique": broken(row["technique"]), "shape": _shape(row, "batch_size", "seq_len")}
    if row["reason"]:
        return cells | {"mostly": row["reason"]}
    ms, low, high = (float(row[f"{name}_ms"]) for name in ("forecast", "low", "high"))
    cells |= {"forecast (ms)": f"{ms:,.1f}", "range of 90% (ms)": f"{low:,.1f} to {high:,.1f}"}
    low, high = float(row["speedup_low"]), float(row["speedup_high"])
    cells["speedup"] = f"{float(row['speedup']):.2f}x"
    cells["its range"] = f"{low:.2f} to {high:.2f}" if low < high else ""
    cells |= {"tokens/s": f"{int(row['tokens_per_second']):,}", "peak (GiB)": row["peak_gib"]}
    return cells | {"largest batch": row["largest_batch"], "mostly": row["mostly"]}


def _shape(row, batch, tokens):
    return f"{row[batch]}x{row[tokens]} tokens a step"


def _checked(row):
    """Return a row of docs/forecast_check.csv as the cells of its table, by title."""
    names = ("measured", "forecast", "low", "high", "roofline")
    measured, ms, low, high, roofline = (float(row[f"{name}_ms"]) for name in names)
    return {
        "model": row["model"],
        "technique": row["technique"],
        "device": row["key"],
        "shape": _shape(row, "batch", "tokens"),
        "published (ms)": f"{measured:,.1f}",
        "forecast (ms)": f"{ms:,.1f}",
        "range of 90% (ms)": f"{low:,.1f} to {high:,.1f}",
        "error": f"{ms / measured - 1:+.0%}"
        + ("" if low <= measured <= high else ", out of range"),
        "plain roofline": f"{roofline / measured - 1:+.0%}",
    }


def published():
    """Return the table of what others have measured on GPUs."""
    rows = _rows(PUBLISHED)
    lines = [_published(rows, *shown) for shown in SHOWN]
    titles = ("device and model", "measured, then speedup over the first", "source")
    columns = dict(zip(titles, zip(*lines, strict=True), strict=True))
    return result_tables.markdown(columns, titles)


def _published(rows, source, metric, batch, name, remark):
    """Return one line of the table: the rows of one source, in its order."""
    rows = [row for row in rows if row["source"].startswith(source) and row["metric"] == metric]
    rows = [row for row in rows if batch in (None, row["batch_size"])]
    rows = [row for row in rows if not re.match(r"\d+x ", row["device"])]
    if not rows:
        raise UserError(f"docs/published.csv: no rows of {source} with {metric}")
    first, start = rows[0], float(rows[0]["value"])
    said = [f"{first['technique']} {start:,g} {first['unit']}"]
    for row in rows[1:]:
        value = float(row["value"])
        ratio = value / start if metric == "throughput" else start / value
        said.append(f"{row['technique']} {ratio:.2f}x")
    device = re.sub(r" \(.*", "", first["device"])
    shape = f"batch {first['batch_size']} of {first['seq_len']} tokens"
    link = f"[{name}]({first['url'].split(' ')[0]}); {remark}"
    text = re.sub(r"(?<=\w)[/_+](?=\w)", r"\g<0><wbr>", "; ".join(said))
    return f"{device}: {first['model']}, {shape}", text, link
