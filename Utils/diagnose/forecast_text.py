"""A forecast in words and a table."""

from tabulate import tabulate

from Utils.base.units import GIB

WORTH = 0.1  # of the peak: a kind that is less is not worth a line of advice
ADVICE = 5  # lines at most


def gib(size):
    return f"{size / GIB:.2f}"


def table(found, peaks, budget):
    """found: Forecasts. peaks: measured ones, of `measured`. budget: usable bytes."""
    kinds = next((list(one.kinds) for one in found if one.kinds), [])
    lines = []
    for one in found:
        if one.reason:
            continue
        line = [one.technique, *(gib(size) for size in one.kinds.values()), gib(one.peak)]
        dominant = max(one.kinds, key=one.kinds.get)
        line += [one.phase, f"{dominant} {one.kinds[dominant] / one.peak:.0%}"]
        line += ["yes" if one.peak <= budget else "no"]
        line += [one.largest_batch, gib(one.next_bytes)]
        peak = peaks.get(one.technique, float("nan"))
        if peak == peak:
            line += [gib(peak), f"{one.peak / peak - 1:+.1%}"]
        lines.append(line)
    headers = ["technique", *kinds, "peak", "falls in the", "mostly"]
    headers += ["fits", "largest batch", "the next needs", "measured", "error"]
    text = [tabulate(lines, headers, tablefmt="github", disable_numparse=True)] if lines else []
    text += [f"{one.technique}: {one.reason}" for one in found if one.reason]
    return "\n".join(text)


def advice(found, args, budget):
    """At most five lines, of figures of the table: what holds the first technique back, and which
    of the others takes less of it."""
    known = [one for one in found if not one.reason]
    if not known:
        return []
    own, others = known[0], known[1:]
    shape = f"{args.batch_size}x{args.seq_len}"
    if own.peak <= budget:
        lines = [f"{own.technique} fits at {shape}: {gib(budget - own.peak)} GiB are left"]
    else:
        lines = [f"{own.technique} does not fit at {shape}: {gib(own.peak - budget)} GiB too much"]
    lines[0] += f"; its largest batch is {own.largest_batch}"
    for kind in sorted(own.kinds, key=own.kinds.get, reverse=True):
        share = own.kinds[kind] / own.peak
        if share < WORTH:
            continue
        line = f"{kind}: {share:.0%} of that peak, {gib(own.kinds[kind])} GiB"
        lower = [one for one in others if one.peak < own.peak and one.kinds[kind] < own.kinds[kind]]
        if lower:
            least = sorted(lower, key=lambda one: one.kinds[kind])[:3]
            with_less = (f"{one.technique} ({gib(one.kinds[kind])})" for one in least)
            lines.append(f"{line}; less with {', '.join(with_less)}")
        elif not others:
            lines.append(f"{line}; T=all and T=everything show which technique takes less")
    batches = {one.technique: one.largest_batch for one in known}
    most = max(batches, key=batches.get)
    if batches[most] > batches[own.technique]:
        lines.append(f"{most} takes the largest batch of these: {batches[most]}")
    return lines[:ADVICE]
