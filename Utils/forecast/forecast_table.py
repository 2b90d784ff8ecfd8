"""A forecast in words and a table."""

from tabulate import tabulate

from Utils.base.units import GIB

WORTH = 0.1  # of the peak: the least share of a kind that gets a line of advice
ADVICE = 5  # lines at most


def gib(size):
    return f"{size / GIB:.2f}"


def table(forecasts, peaks, budget):
    """Return Forecasts as a table. peaks: of `measured`. budget: usable bytes."""
    kinds = next((list(forecast.kinds) for forecast in forecasts if forecast.kinds), [])
    lines = []
    for forecast in forecasts:
        if forecast.reason:
            continue
        line = [forecast.technique, *map(gib, forecast.kinds.values()), gib(forecast.peak)]
        dominant = max(forecast.kinds, key=forecast.kinds.get)
        line += [forecast.phase, f"{dominant} {forecast.kinds[dominant] / forecast.peak:.0%}"]
        fits = "yes" if forecast.peak <= budget else "no"
        line += [fits, forecast.largest_batch, gib(forecast.next_bytes)]
        peak = peaks.get(forecast.technique, float("nan"))
        if peak == peak:
            line += [gib(peak), f"{forecast.peak / peak - 1:+.1%}"]
        lines.append(line)
    headers = ["technique", *kinds, "peak", "phase", "mostly"]
    headers += ["fits", "largest batch", "next batch needs", "measured", "error"]
    text = [tabulate(lines, headers, tablefmt="github", disable_numparse=True)] if lines else []
    text += [f"{one.technique}: {one.reason}" for one in forecasts if one.reason]
    return "\n".join(text)


def advice(forecasts, args, budget):
    """Return at most five lines from the figures of the table: the largest kinds of the first
    technique's peak, and the techniques that need less of each."""
    known = [forecast for forecast in forecasts if not forecast.reason]
    if not known:
        return []
    first, rest = known[0], known[1:]
    shape = f"{args.batch_size}x{args.seq_len}"
    if first.peak <= budget:
        fit = f"fits at {shape}: {gib(budget - first.peak)} GiB are left"
    else:
        fit = f"does not fit at {shape}: {gib(first.peak - budget)} GiB too much"
    lines = [f"{first.technique} {fit}; its largest batch is {first.largest_batch}"]
    for kind in sorted(first.kinds, key=first.kinds.get, reverse=True):
        size = first.kinds[kind]
        if size / first.peak < WORTH:
            continue
        line = f"{kind}: {size / first.peak:.0%} of that peak, {gib(size)} GiB"
        lower = [f for f in rest if f.peak < first.peak and f.kinds[kind] < size]
        if lower:
            least = sorted(lower, key=lambda forecast: forecast.kinds[kind])[:3]
            names = (f"{forecast.technique} ({gib(forecast.kinds[kind])})" for forecast in least)
            lines.append(f"{line}; less with {', '.join(names)}")
        elif not rest:
            lines.append(f"{line}; T=everything shows techniques that need less")
    batches = {forecast.technique: forecast.largest_batch for forecast in known}
    most = max(batches, key=batches.get)
    if batches[most] > batches[first.technique]:
        lines.append(f"{most} takes the largest batch of these: {batches[most]}")
    return lines[:ADVICE]
