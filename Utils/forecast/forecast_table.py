"""Forecasts of memory and time as tables and words."""

import math

from tabulate import tabulate

from Utils.base.units import GIB
from Utils.forecast import time_range

WORTH = 0.1  # of the peak: the least share of a kind that gets a line of advice
ADVICE = 5  # lines at most


def gib(size):
    return f"{size / GIB:.2f}"


def milliseconds(seconds):
    return f"{1e3 * seconds:,.1f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def github(rows):
    """Return dicts of text as a table. A cell that a row lacks stays empty."""
    return tabulate(rows, "keys", tablefmt="github", disable_numparse=True)


def memory_table(forecasts, peaks, budget):
    """Return StepForecasts as a table of memory, with the reasons of those that do not run below.

    peaks: measured ones in bytes, by technique. budget: usable bytes.
    """
    rows = []
    reasons = []
    for forecast in forecasts:
        memory = forecast.memory
        if forecast.reason:
            reasons.append(f"{forecast.label}: {forecast.reason}")
            continue
        dominant = max(memory.kinds, key=memory.kinds.get)
        row = {"technique": forecast.label}
        row |= {kind: gib(size) for kind, size in memory.kinds.items()}
        row |= {
            "peak": gib(memory.peak),
            "phase": memory.phase,
            "mostly": f"{dominant} {memory.kinds[dominant] / memory.peak:.0%}",
            "fits": "yes" if memory.peak <= budget else "no",
            "largest batch": memory.largest_batch,
            "next batch needs": gib(memory.next_bytes),
        }
        peak = peaks.get(forecast.technique, math.nan)
        if not math.isnan(peak):
            row |= {"measured": gib(peak), "error": f"{memory.peak / peak - 1:+.1%}"}
        rows.append(row)
    return "\n".join([*([github(rows)] if rows else []), *reasons])


def advice(forecasts, args, budget):
    """Return at most five lines on StepForecasts: the largest kinds of the first technique's peak,
    and the techniques that need less of each."""
    running = [forecast for forecast in forecasts if not forecast.reason]
    if not running:
        return []
    first = running[0]
    peak = first.memory.peak
    shape = f"{args.batch_size}x{args.seq_len}"
    if peak <= budget:
        fit = f"fits at {shape}: {gib(budget - peak)} GiB are left"
    else:
        fit = f"does not fit at {shape}: {gib(peak - budget)} GiB too much"
    lines = [f"{first.label} {fit}; its largest batch is {first.memory.largest_batch}"]
    for kind, size in sorted(first.memory.kinds.items(), key=lambda item: -item[1]):
        if size / peak < WORTH:
            continue
        line = f"{kind}: {size / peak:.0%} of that peak, {gib(size)} GiB"
        lower = [
            (forecast.memory.kinds[kind], forecast.label)
            for forecast in running[1:]
            if forecast.memory.peak < peak and forecast.memory.kinds[kind] < size
        ]
        least = sorted(lower, key=lambda pair: pair[0])[:3]
        if least:
            names = ", ".join(f"{label} ({gib(bytes_of_kind)})" for bytes_of_kind, label in least)
            lines.append(f"{line}; less with {names}")
        elif len(running) == 1:
            lines.append(f"{line}; T=everything shows techniques that need less")
    batches = {forecast.label: forecast.memory.largest_batch for forecast in running}
    most = max(batches, key=batches.get)
    if batches[most] > first.memory.largest_batch:
        lines.append(f"{most} takes the largest batch of these: {batches[most]}")
    return lines[:ADVICE]


def time_table(forecasts, measured, baseline, unit):
    """Return StepForecasts as a table of time.

    measured: MeasuredSteps by technique. baseline: what speedups are over. unit: of a batch.
    """
    running = [forecast for forecast in forecasts if forecast.time]
    first = next((forecast for forecast in running if forecast.technique == baseline), None)
    rows = []
    for forecast in running:
        time = forecast.time
        row = {"technique": forecast.label, **_time_cells(time)}
        if first is forecast:
            row |= {"speedup": "1", "its range": ""}
        elif first:
            speedup = time_range.speedup(first.time, time, time.factor)
            row["speedup"] = f"{speedup.value:.2f}"
            row["its range"] = f"{speedup.low:.2f} to {speedup.high:.2f}"
        row[f"{unit}/s"] = f"{forecast.tokens / time.seconds:,.0f}"
        row["their range"] = f"{forecast.tokens / time.high:,.0f} to "
        row["their range"] += f"{forecast.tokens / time.low:,.0f}"
        row |= {"kernels": time.kernels, "mostly": time.mostly}
        if forecast.technique in measured:
            seconds = measured[forecast.technique].step_ms / 1e3
            row["measured ms"] = milliseconds(seconds)
            row["error"] = f"{time.seconds / seconds - 1:+.0%}"
        rows.append(row)
    return github(rows)


def _time_cells(time):
    ends = f"{milliseconds(time.low)} to {milliseconds(time.high)}"
    return {"forecast ms": milliseconds(time.seconds), "range of 90%": ends}


def device_table(forecasts, tokens, prices):
    """Return one technique's StepForecasts as a table of devices, with the reasons of those that do
    not run it below. tokens: to train on, or None. prices: dollars an hour by device."""
    rows = []
    for forecast in forecasts:
        row = {"device": forecast.device, "runs": "no" if forecast.reason else "yes"}
        if not forecast.reason:
            row |= _time_cells(forecast.time)
            row["tokens/s"] = f"{forecast.tokens / forecast.time.seconds:,.0f}"
        if tokens and not forecast.reason:
            hours = forecast.hours(tokens)
            row |= {
                "hours": f"{hours[0]:,.1f}",
                "their range": f"{hours[1]:,.1f} to {hours[2]:,.1f}",
            }
            if prices:
                row |= _cost_cells(hours, prices.get(forecast.device))
        rows.append(row)
    reasons = [f"{forecast.device}: {forecast.reason}" for forecast in forecasts if forecast.reason]
    return "\n".join([github(rows), *([""] if reasons else []), *reasons])


def _cost_cells(hours, price):
    if price is None:
        return {"dollars": "no price", "range of dollars": ""}
    dollars, low, high = (f"{price * value:,.2f}" for value in hours)
    return {"dollars": dollars, "range of dollars": f"{low} to {high}"}
