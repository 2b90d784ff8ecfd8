"""Clocks, energy and lengths of runs on a GPU, in words beside a table."""

from Utils.analysis.summary import Summary
from Utils.results import selection


def conditions(summary: Summary) -> str:
    """Return lines on clocks, energy and lengths of runs, as far as records know; "" for a CPU."""
    rows = summary.study.rows
    steps = selection.timed(rows)
    if steps.reserved_memory_mib.isna().all():
        return ""

    # The power limit, and clocks at the end of runs.
    figures = summary.figures
    text = ""
    if figures.power_limit_w.any():
        scripts = ", ".join(figures.label[figures.is_power_capped > 0.5]) or "no script"
        clocks = _span(figures.sm_clock_mhz, ",.0f")
        limit = figures.power_limit_w.max()
        text += f"At its power limit of {limit:.0f} W in {scripts}; clocks of {clocks} MHz.\n"

    # Energy of the first script, and of the fastest.
    kwh = figures.kwh_per_billion.dropna()
    if len(kwh):
        names = kwh.index[0], figures.tokens_per_second[kwh.index].astype(float).idxmax()
        first, last = kwh[[*names]]
        text += (
            f"Energy of 10^9 {figures.unit.iloc[0]}: {first:.2f} kWh ({3.6 * first:.1f} mJ each) "
            f"in {names[0]}, {last:.2f} ({3.6 * last:.1f}) in {names[1]}.\n"
        )

    # What may differ from docs/METHOD.md.
    run_s = steps.groupby("run_id").step_ms.sum() / 1e3
    turns = (rows.phase == "warmup").groupby(rows.run_id).cumsum()[steps.index]
    turn_s = run_s / turns.groupby(steps.run_id).nunique()
    lengths = f"{_span(run_s)} s a run, in turns of {_span(turn_s)} s, {rows['round'].nunique()}"
    return f"{text}Timed: {lengths} rounds (METHOD.md: 10 s, rounds in pairs)."


def _span(values, form=".1f"):
    """Return the least and the largest of values as text, "1,875 to 1,980"."""
    ends = [format(values.min(), form), format(values.max(), form)]
    return " to ".join(dict.fromkeys(ends))
