"""Forecasts of memory and time as tables, words and the rows of two files in docs/."""

import math

from tabulate import tabulate

from Utils.base.units import GIB, MIB
from Utils.forecast import forecast_plan, step_time

WORTH = 0.1  # of the peak: the least share of a kind that gets a line of advice
SHOWN = ["key", "model", "technique", "batch", "tokens", "measured_ms", "forecast_ms", "error"]
EXPECTED = (  # of docs/forecast.csv
    "ladder", "all_together", "small_card", "gradient_checkpointing", "selective_checkpointing",
    "bfloat16_moments", "paged_optimizer", "optimizer_in_backward", "gradient_accumulation",
)  # fmt: skip
BATCHES = 1, 4, 16, 64
TOKENS = 1e10  # to pretrain on
BRIEF = {"matrix products": "products", "memory traffic": "memory", "waiting for the host": "host"}


def gib(size):
    return f"{size / GIB:.2f}"


def table(rows):
    """Return dicts of text as a table. A cell that a row lacks stays empty."""
    return tabulate(rows, "keys", tablefmt="simple", disable_numparse=True)


def with_range(values, form):
    value, low, high = (format(x, form) for x in values)
    return f"{value} ({low}-{high})"


def milliseconds(time):
    form = ",.1f" if time.seconds < 1 else ",.0f"
    return with_range([1e3 * seconds for seconds in time.ends], form)


def technique_table(forecasts, baseline):
    """Return StepForecasts as a table of memory and time, with the reasons of those that do not
    run below. fits: the largest batch. baseline: what speedups are over; None where each step has
    a batch of its own."""
    timed = {forecast.technique: forecast.time for forecast in forecasts if forecast.time}
    rows = []
    for forecast in forecasts:
        if forecast.reason:
            continue
        row = {"technique": forecast.technique, "peak GiB": gib(forecast.memory.peak)}
        if baseline is None:
            row["B"] = forecast.memory.batch
        row["fits"] = forecast.memory.largest_batch
        if timed and not forecast.time:
            row["ms a step"] = forecast_plan.NOT_FORECAST
        if time := forecast.time:
            row["ms a step"] = milliseconds(time)
            if forecast.technique == baseline:
                row["speedup"] = "1"
            elif baseline in timed:
                row["speedup"] = str(step_time.speedup(timed[baseline], time, time.factor))
            row["tokens/s"] = f"{forecast.tokens / time.seconds:,.0f}"
            part, _, share = time.mostly.rpartition(" ")
            row["mostly"] = f"{BRIEF.get(part, part)} {share}"
        rows.append(row)
    reasons = [f"{each.technique}: {each.reason}" for each in forecasts if each.reason]
    return "\n".join([*([table(rows)] if rows else []), *reasons])


def fastest_line(forecasts, seq_len, budget):
    """Return a line on the StepForecast with the most tokens a second, each at its own batch."""
    timed = [forecast for forecast in forecasts if forecast.time]
    best = max(timed, key=lambda forecast: forecast.tokens / forecast.time.seconds)
    time = best.time
    rates = (best.tokens / seconds for seconds in (time.seconds, time.high, time.low))
    shape = f"{best.technique} at {best.memory.batch}x{seq_len}"
    return f"most tokens/s in {gib(budget)} GiB: {shape}, {with_range(rates, ',.0f')} tokens/s"


def measured_lines(forecasts, measured, with_memory):
    """Return a line on each measured technique (of `measured_steps`) and the forecast's errors.
    with_memory: whether a run's peak is of tensors alone."""
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
            figures.append(f"{gib(peak)} GiB (forecast {forecast.memory.peak / peak - 1:+.1%})")
        if figures:
            lines.append(f"{forecast.technique}: measured {', '.join(figures)}")
    return lines


def advice(forecasts, seq_len, budget):
    """Return lines on StepForecasts: the largest kinds of the first technique's peak,
    and the techniques that need less of each."""
    running = [forecast for forecast in forecasts if not forecast.reason]
    if not running:
        return []
    first = running[0].memory
    shape = f"{first.batch}x{seq_len}"
    room = gib(abs(budget - first.peak))
    fit = f"fits at {shape}: {room} GiB are left"
    if first.peak > budget:
        fit = f"does not fit at {shape}: {room} GiB too much"
    more = f"the next needs {gib(first.next_bytes)} GiB"
    lines = [f"{running[0].technique} {fit}; its largest batch is {first.largest_batch}, {more}"]
    smaller = [forecast for forecast in running if forecast.memory.peak < first.peak]
    for kind, size in sorted(first.kinds.items(), key=lambda item: -item[1]):
        if size / first.peak < WORTH:
            continue
        line = f"{kind}: {size / first.peak:.0%} of its peak in the {first.phase}, {gib(size)} GiB"
        sizes = {forecast.technique: forecast.memory.kinds[kind] for forecast in smaller}
        lower = sorted((name for name in sizes if sizes[name] < size), key=sizes.get)
        names = [f"{name} ({gib(sizes[name])})" for name in lower[:3]]
        if names:
            lines.append(f"{line}; less with {', '.join(names)}")
        elif len(running) == 1:
            lines.append(f"{line}; T=everything shows techniques that need less")
    return lines


def device_table(forecasts, tokens, prices):
    """Return one technique's StepForecasts as a table of devices, with the reasons of those that do
    not run it below. tokens: to train on, or None. prices: dollars an hour by device."""
    rows = []
    for forecast in forecasts:
        row = {"device": forecast.device, "runs": "no" if forecast.reason else "yes"}
        if forecast.time:
            row["ms a step (range of 90%)"] = milliseconds(forecast.time)
            row["tokens/s"] = f"{forecast.tokens / forecast.time.seconds:,.0f}"
        if tokens and forecast.time:
            hours = forecast.hours(tokens)
            row["hours"] = with_range(hours, ",.1f")
            price = prices.get(forecast.device)
            if price is not None:
                row["dollars"] = with_range([price * value for value in hours], ",.2f")
            elif prices:
                row["dollars"] = "no price"
        rows.append(row)
    reasons = [f"{each.device}: {each.reason}" for each in forecasts if each.reason]
    return "\n".join([table(rows), *([""] if reasons else []), *reasons])


def check_report():
    """Return the check against published figures as a table, and its summary by source."""
    table = step_time.check_rows()
    lines = table[SHOWN].assign(error=table.error.map("{:+.0%}".format))
    parts = {"all": table, "GPT-2 124M": table[table.model.str.startswith("GPT-2")]}
    parts |= dict(list(table.groupby("source", sort=False)))
    text = [lines.to_markdown(index=False, floatfmt=",.1f"), ""]
    for name, part in parts.items():
        error = part.error.abs()
        roofline = part.roofline_error.abs()
        text.append(
            f"{name}: {len(part)} figures, median error {error.median():.1%} (plain roofline "
            f"{roofline.median():.1%}), 90% within {error.quantile(0.9):.1%} "
            f"({roofline.quantile(0.9):.1%}); {part.in_range.mean():.0%} of them in their range"
        )
    return "\n".join(text)


def expected_rows(model):
    """Yield the rows of docs/forecast.csv of a model, dicts by column: each technique on each
    device of the table at each of BATCHES that fits, or one row with the reason for none."""
    values = {"model": model, "dataset": "synthetic", "batch_size": "auto", "seq_len": 1024}
    for args, steps in forecast_plan.on_every_device(EXPECTED, values, BATCHES):
        baselines = {step.memory.batch: step.time for step in steps[0] if not step.reason}
        for forecasts in steps:
            fitting = [forecast for forecast in forecasts if forecast.time]
            for forecast in fitting or forecasts[:1]:
                row = {"device": forecast.device, "model": model, "technique": forecast.technique}
                yield row | expected_row(forecast, args.seq_len, baselines)


def expected_row(forecast, seq_len, baselines):
    """Return the figures of a StepForecast. baselines: StepTimes by batch, of what fits."""
    time = forecast.time
    if not time:
        return {"reason": forecast.reason or forecast_plan.NOT_FORECAST}
    memory = forecast.memory
    row = {"batch_size": memory.batch, "seq_len": seq_len}
    for name, seconds in zip(("forecast_ms", "low_ms", "high_ms"), time.ends, strict=True):
        row[name] = f"{1e3 * seconds:.4g}"
    if baseline := baselines.get(memory.batch):
        ratio = step_time.speedup(baseline, time, 0 if time is baseline else time.factor)
        row["speedup"] = f"{ratio.value:.4g}"
        row["speedup_low"] = f"{ratio.low:.4g}"
        row["speedup_high"] = f"{ratio.high:.4g}"
    return row | {
        "tokens_per_second": f"{float(f'{forecast.tokens / time.seconds:.4g}'):.0f}",
        "peak_gib": f"{memory.peak / GIB:.4g}",
        "largest_batch": memory.largest_batch,
        "mostly": time.mostly,
    }


def pretraining_hours(prices_file):
    """Yield the rows of a pretraining on every device, dicts by column."""
    prices = forecast_plan.prices(prices_file)
    values = {"model": "gpt2", "dataset": "synthetic", "batch_size": "auto", "seq_len": "auto"}
    for args, [[forecast]] in forecast_plan.on_every_device(["all_together"], values):
        row = {"device": forecast.device, "technique": forecast.technique, "model": args.model}
        row |= {"batch_size": args.batch_size, "seq_len": args.seq_len, "tokens": TOKENS}
        row |= dict.fromkeys(["tokens_per_second", "hours", "low_hours", "high_hours"])
        if forecast.time:
            row["tokens_per_second"] = f"{forecast.tokens / forecast.time.seconds:.0f}"
            hours, low, high = (f"{value:.2f}" for value in forecast.hours(TOKENS))
            row |= {"hours": hours, "low_hours": low, "high_hours": high}
        row |= {"dollars_an_hour": prices.get(forecast.device), "reason": forecast.reason}
        yield row
