"""The page of a results file. Its figures come from `summary`, `ablation` and `recipe`."""

import numpy as np

from Utils.analysis import selection, tables
from Utils.analysis.summary import summarize
from Utils.base import ladder, results
from Utils.base.text import LONGEST
from Utils.draw import page, page_diagnosis, page_runs, page_speed, svg

MOST_TECHNIQUES = 100  # on one page


def report(path, device_name="", price=None, base=None):
    """Return the page of a results file, a string of HTML. Raises UserError.

    device_name, base: as for selection.select. price: what an hour of the device costs.
    """
    everything = _shortened(results.read(path))
    with_variants, _ = selection.select(everything, device_name, True, base)
    rows, left_out = selection.select(everything, device_name, base=base)
    rows, too_many = _at_most(rows)
    all_records = results.records(path, with_variants.run_id.unique())
    records = {
        run_id: all_records[run_id] for run_id in rows.run_id.unique() if run_id in all_records
    }
    with np.errstate(all="ignore"):  # times of 0 and the like are shown as they are
        lines = summarize(rows, records)
    _, memory, limits, cost = tables.columns(lines[lines.median_ms.notna()], price)
    facts, reports = page_runs.environment(path, records)
    shown = page_runs.diffs(lines, records)
    parts = {
        "steps": (svg.step_times(rows, lines), "make baseline"),
        "memory": (page_speed.memory_bars(lines), "make all"),
        "profile": (page_diagnosis.profile(path, rows), "make profile T=all"),
        "ablation": (page_diagnosis.worth(with_variants), "make ablate"),
        "recipe": (page_diagnosis.recipes(with_variants, all_records), "make recipe"),
        "limits": (page.table(limits, "matmul precision"), "make ceilings all"),
        "environment": (facts, "make all"),
    }
    return page.render(
        "report.html",
        described=selection.describe(rows),
        device=rows.device.iloc[0],
        unit=lines.unit.iloc[0],
        headline=page_speed.headline(lines),
        intervals=lines.speedup_low.notna().any(),
        bars_drawn=page_speed.speed_bars(lines),
        ladder=page_speed.ladder_table(lines),
        memory_table=page.table(memory, "weights (MiB)"),
        cost=page.table(cost, "technique"),
        quality=page.table(page_runs.quality(rows, lines, records), "technique"),
        reports=reports,
        repeat=page_runs.repeat(rows, records),
        diffs=shown,
        with_diff={one["name"] for one in shown},
        runs=rows.run_id.nunique(),
        rows=len(rows),
        left_out=[text for text in (left_out, too_many) if text],
        missing=[(name, command) for name, (part, command) in parts.items() if not part],
        **{name: part for name, (part, _) in parts.items()},
    )


def _shortened(rows):
    """Return the rows with names and versions of at most LONGEST letters: the page repeats them."""
    names = ["technique", "device", "torch", "model", "dataset", "commit"]
    long = [name for name in names if rows[name].str.len().max() > LONGEST]
    return rows.assign(**{name: rows[name].str.slice(0, LONGEST) for name in long})


def _at_most(rows):
    """Return the rows of MOST_TECHNIQUES techniques, those with scripts first, and a sentence on
    what was left out, or ""."""
    names, known = list(rows.technique.unique()), ladder.techniques()
    if len(names) <= MOST_TECHNIQUES:
        return rows, ""
    kept = sorted(names, key=lambda name: name not in known)[:MOST_TECHNIQUES]
    return rows[rows.technique.isin(kept)], f"left out: {len(names) - len(kept)} techniques more"
