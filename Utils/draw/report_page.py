"""The page of a results file. Its figures come from `summary`, `ablation` and `recipe`."""

import numpy as np

from Utils.analysis import result_tables
from Utils.analysis.intervals import numbers
from Utils.analysis.summary import summarize
from Utils.base.text import LONGEST
from Utils.draw import page_environment, page_headline, page_recipe, page_template, svg
from Utils.results import rows_file, selection
from Utils.scripts import ladder

MOST_TECHNIQUES = 100  # on one page


def report(path, device_name="", price=None, base=None):
    """Return the page of a results file, a string of HTML. Raises UserError.

    device_name, base: as for selection.select. price: what an hour of the device costs.
    """
    everything = _shortened(rows_file.read(path))
    with_variants, _ = selection.select(everything, device_name, True, base)
    rows, left_out = selection.select(everything, device_name, base=base)
    rows, too_many = _at_most(rows)
    all_records = rows_file.records(path, with_variants.run_id.unique())
    records = {
        run_id: all_records[run_id] for run_id in rows.run_id.unique() if run_id in all_records
    }
    with np.errstate(all="ignore"):  # times of 0 and the like are shown as they are
        lines = summarize(rows, records)
    _, memory, limits, cost = result_tables.columns(lines[lines.median_ms.notna()], price)
    facts, reports = page_environment.environment(path, records)
    shown = page_environment.diffs(lines, records)
    parts = {
        "steps": (svg.step_times(rows, lines), "make baseline"),
        "memory": (page_headline.memory_bars(lines), "make all"),
        "profile": (page_recipe.profile(path, rows), "make profile T=all"),
        "ablation": (page_recipe.worth(with_variants), "make ablate"),
        "recipe": (page_recipe.recipes(with_variants, all_records), "make recipe"),
        "limits": (page_template.table(limits, "matmul precision"), "make ceilings all"),
        "environment": (facts, "make all"),
    }
    return page_template.render(
        "report.html",
        described=selection.describe(rows),
        device=rows.device.iloc[0],
        unit=lines.unit.iloc[0],
        headline=page_headline.headline(lines),
        intervals=numbers(lines.speedup).low.notna().any(),
        bars_drawn=page_headline.speed_bars(lines),
        ladder=page_headline.ladder_table(lines),
        memory_table=page_template.table(memory, "weights (MiB)"),
        cost=page_template.table(cost, "technique"),
        quality=page_template.table(page_environment.quality(rows, lines, records), "technique"),
        reports=reports,
        repeat=page_environment.repeat(rows, records),
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
