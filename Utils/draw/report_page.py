"""The page of a results file, and the page that compares two. Their figures and charts are those of
`summary`, `ablation`, `recipe` and `compare`."""

from collections import Counter

import numpy as np

from Utils.analysis import comparison, result_tables
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.base.text import LONGEST, short
from Utils.draw import (
    comparison_chart,
    heatmap_chart,
    memory_chart,
    page_environment,
    page_headline,
    page_recipe,
    page_template,
    speedup_chart,
    step_times_chart,
)
from Utils.draw.page_template import picture
from Utils.results import records_file, rows_file, selection
from Utils.scripts import ladder

MOST_TECHNIQUES = 60  # on one page


def report(path, device_name="", price=None, base=None):
    """Return the page of a results file, a string of HTML. Raises UserError.

    device_name, base: as for selection.select. price: what an hour of the device costs.
    """
    all_rows = _shortened(rows_file.read(path))
    with_variants, _ = selection.select(all_rows, device_name, True, base)
    rows, left_out = selection.select(all_rows, device_name, base=base)
    rows, too_many = _at_most(rows)
    records = records_file.read(path, with_variants.run_id.unique())
    with np.errstate(all="ignore"):  # times of 0 and the like are shown as they are
        lines = summarize(rows, records)
        charts = _charts(rows, lines)
    _, memory, limits, cost = result_tables.columns(lines[lines.step_ms.notna()], price)
    environment, reports = page_environment.environment(records)
    sections = {  # with the command that adds one
        "steps": (charts["steps"], "make baseline"),
        "memory": (charts["memory"], "make all"),
        "profile": (page_recipe.profile(path, rows), "make profile T=all"),
        "ablation": (page_recipe.ablation(with_variants), "make ablate"),
        "recipe": (page_recipe.recipes(with_variants, records), "make recipe"),
        "limits": (page_template.table(limits, "matmul precision"), "make ceilings all"),
        "environment": (environment, "make all"),
    }
    diffs = page_environment.diffs(lines, records)
    return page_template.render(
        "report.html",
        described=selection.describe(rows),
        device=rows.device.iloc[0],
        unit=lines.unit.iloc[0],
        headline=page_headline.headline(lines),
        speedup=charts["speedup"],
        ladder=page_headline.ladder_table(lines),
        memory_table=page_template.table(memory, "weights (MiB)"),
        cost=page_template.table(cost, "technique"),
        quality=page_template.table(page_environment.quality(rows, lines, records), "technique"),
        reports=reports,
        repeat=page_environment.repeat(rows, records),
        diffs=diffs,
        with_diff={diff["name"] for diff in diffs},
        runs=rows.run_id.nunique(),
        rows=len(rows),
        left_out=[text for text in (left_out, too_many) if text],
        missing={name: command for name, (section, command) in sections.items() if not section},
        **{name: section for name, (section, _) in sections.items()},
    )


def _charts(rows, lines):
    """Return the Pictures of a page's first sections; None of what was not measured."""
    charts = {"speedup": picture(speedup_chart.draw(rows, lines)), "steps": [], "memory": None}
    if lines.step_ms.notna().any():
        drawings = step_times_chart.draw(rows, lines), heatmap_chart.draw(rows, lines)
        charts["steps"] = [picture(figure) for figure in drawings]
    if lines.peak_memory_mib.notna().any():
        charts["memory"] = picture(memory_chart.draw(rows, lines))
    return charts


def _shortened(rows):
    """Return the rows with names and versions of at most LONGEST letters: the page repeats them."""
    names = ["technique", "device", "torch", "model", "dataset", "commit"]
    long = [name for name in names if rows[name].str.len().max() > LONGEST]
    return rows.assign(**{name: rows[name].str.slice(0, LONGEST) for name in long})


def _at_most(rows):
    """Return the rows of MOST_TECHNIQUES techniques, those with scripts first, and a sentence on
    what was left out, or ""."""
    names = list(rows.technique.unique())
    if len(names) <= MOST_TECHNIQUES:
        return rows, ""
    scripts = ladder.techniques()
    kept = sorted(names, key=lambda name: name not in scripts)[:MOST_TECHNIQUES]
    return rows[rows.technique.isin(kept)], f"left out: {len(names) - len(kept)} techniques more"


def comparison_page(a, b):
    """Return the page of two selections of results (see `comparison`), a string of HTML. Raises
    UserError."""
    a, b = comparison.sides(a, b)
    ratios = comparison.compare(a, b)
    columns = page_template.table(comparison.columns(a, b, ratios), "technique")
    columns["B over A"] = list(ratios)  # with their verdicts
    del columns["verdict on B"]
    for side in (a, b):
        speedups = side.lines.speedup.reindex(ratios.index, fill_value=Ratio())
        columns[f"{side.name}: over baseline"] = list(speedups)
    return page_template.render(
        "compare.html",
        sides=[a, b],
        picture=picture(comparison_chart.draw(a, b)),
        verdicts=Counter(ratio.verdict for ratio in ratios if ratio),
        columns=columns,
        differences=[short(line) for line in comparison.differences(a, b)],
    )
