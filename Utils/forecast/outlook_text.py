"""A forecast of time in words and tables."""

from tabulate import tabulate

from Utils.forecast import time_range
from Utils.forecast.forecast_table import gib

BASELINE = "no_optimization"


def milliseconds(seconds):
    return f"{1e3 * seconds:,.1f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _table(lines, headers):
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def table(found, memory, measured, tokens, baseline=BASELINE, unit="tokens"):
    """Return Outlooks as a table. memory: Forecasts by technique. measured: seconds of a step by
    technique. tokens: of a step. baseline: name of what speedups are over. unit: of the tokens."""
    baseline = next((one for one in found if one.technique == baseline), None)
    lines = []
    for one in found:
        fast, slow = tokens / one.high, tokens / one.low
        need = memory[one.technique]
        line = [one.technique, milliseconds(one.seconds)]
        line.append(f"{milliseconds(one.low)} to {milliseconds(one.high)}")
        if baseline:
            ratio, low, high = time_range.speedup(baseline, one, one.factor)
            own = one is baseline
            line += ["1" if own else f"{ratio:.2f}", "" if own else f"{low:.2f} to {high:.2f}"]
        line += [f"{tokens / one.seconds:,.0f}", f"{fast:,.0f} to {slow:,.0f}"]
        line += [gib(need.peak), need.largest_batch, one.kernels, one.bound]
        if seconds := measured.get(one.technique):
            line += [milliseconds(seconds), f"{one.seconds / seconds - 1:+.0%}"]
        lines.append(line)
    headers = ["technique", "forecast ms", "range of 90%"]
    headers += ["speedup", "its range"] if baseline else []
    headers += [f"{unit}/s", "range", "GiB", "largest batch", "kernels", "mostly"]
    headers += ["measured ms", "error"] if measured else []
    return _table(lines, headers)


def devices(lines, priced):
    """Return a table of devices, with the reasons of those that do not run below it.

    lines: of each device (key, reason or "", Outlook, tokens a step, hours with the ends of their
    range or None, dollars an hour or None).
    """
    rows, reasons = [], []
    for key, reason, one, tokens, hours, price in lines:
        if reason:
            rows.append([key, "no"])
            reasons.append(f"{key}: {reason}")
            continue
        row = [key, "yes", milliseconds(one.seconds)]
        row += [f"{milliseconds(one.low)} to {milliseconds(one.high)}"]
        row += [f"{tokens / one.seconds:,.0f}"]
        if hours:
            row += [f"{hours[0]:,.1f}", f"{hours[1]:,.1f} to {hours[2]:,.1f}"]
        if hours and priced:
            cost = [f"{hour * price:,.2f}" for hour in hours] if price is not None else None
            row += [cost[0], f"{cost[1]} to {cost[2]}"] if cost else ["no price", ""]
        rows.append(row)
    headers = ["device", "runs", "forecast ms", "range of 90%", "tokens/s", "hours", "range"]
    table = _table(rows, headers + (["dollars", "range"] if priced else []))
    return "\n".join([table, *(["", *reasons] if reasons else [])])
