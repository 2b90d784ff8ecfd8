"""Tables and sentences of forecasts of memory and time."""

import math

from tabulate import tabulate

from tools.forecast import step_time
from Utils.analysis.summary import summarize
from Utils.base.units import GIB, MIB
from Utils.results import rows_file, study

BRIEF = {"matrix products": "products", "memory traffic": "memory", "waiting for the host": "host"}


def gib(size):
    return f"{size / GIB:.2f}"


def technique_table(forecasts, baseline):
    """Return StepForecasts as a table of memory and time, and reasons for missing ones below it.

    baseline: the technique that speedups are over.
    """
    timed = {forecast.technique: forecast.time for forecast in forecasts if forecast.time}
    rows = []
    for forecast in forecasts:
        if forecast.reason:
            continue

        row = {
            "technique": forecast.technique,
            "peak GiB": gib(forecast.peak),
            "largest\nbatch": forecast.largest_batch,
        }
        time = forecast.time
        if time:
            form = ",.1f" if time.seconds < 1 else ",.0f"
            value, low, high = (format(1e3 * seconds, form) for seconds in time.ends)
            row["ms a step"] = f"{value} ({low}-{high})"
            if forecast.technique == baseline:
                row["speedup"] = "1"
            elif baseline in timed:
                row["speedup"] = str(step_time.speedup(timed[baseline], time, time.factor))
            row["tokens/s"] = f"{forecast.tokens / time.seconds:,.0f}"
            part, share = time.largest_part
            row["mostly"] = f"{BRIEF.get(part, part)} {share}"
        elif timed:
            row["ms a step"] = "not forecast"  # a kernel has no rule
        rows.append(row)

    lines = [f"{step.technique}: {step.reason}" for step in forecasts if step.reason]
    if rows:
        lines.insert(0, tabulate(rows, "keys", tablefmt="simple", disable_numparse=True))
    return "\n".join(lines)


def measured_steps(args):
    """Return the ScriptFigures of the timings that a run with these settings would repeat.

    That is on the same device, with the same base, model and shape, and the newest code.

    args: Settings.
    """
    if not rows_file.has_rows(args.results_file):
        return {}

    rows = rows_file.read(args.results_file)
    shape = rows[["device", "base", "model", "seq_len", "requested_batch_size"]]
    requested = [args.hardware.name, args.base, args.model, args.seq_len, args.batch_size]
    rows = rows[(shape == requested).all(axis=1)]
    if rows.empty:
        return {}
    return summarize(study.choose(rows)).scripts


def measured_lines(forecasts, args, with_memory):
    """Return a line on each measured technique, with the forecast's errors.

    args: Settings. with_memory: a run's peak is of tensors alone, so it can be compared.
    """
    measured = measured_steps(args)
    lines = []
    for forecast in forecasts:
        step = measured.get(forecast.technique)
        if step is None or forecast.reason:
            continue

        figures = []
        if forecast.time:
            error = 1e3 * forecast.time.seconds / step.step_ms - 1
            figures.append(f"{step.step_ms:,.1f} ms (forecast {error:+.0%})")
        if with_memory and not math.isnan(step.peak_memory_mib):
            peak = step.peak_memory_mib * MIB
            figures.append(f"{gib(peak)} GiB (forecast {forecast.peak / peak - 1:+.1%})")

        if figures:
            lines.append(f"{forecast.technique}: measured {', '.join(figures)}")
    return lines
