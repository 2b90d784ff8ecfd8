"""The page of a results file, and the page that compares two."""

from collections import Counter

from Utils.analysis import comparison, recommendation, result_tables
from Utils.analysis.summary import summarize
from Utils.base.text import short
from Utils.draw import (
    comparison_chart,
    heatmap_chart,
    memory_chart,
    page_environment,
    page_recipe,
    speedup_chart,
    step_times_chart,
)
from Utils.draw.page_template import picture, render, table
from Utils.results import records_file, rows_file, selection

MAIN = "Time, memory and loss of each technique"


def report(path, device_name="", price=None, base=None):
    """Return the page of a results file, a string of HTML. Raises UserError.

    device_name, base: as for selection.select. price: what an hour of the device costs.
    """
    all_rows = rows_file.read(path)
    rows, left_out = selection.select_ladder(all_rows, device_name, base)
    with_variants, _ = selection.select(all_rows, device_name, True, base, newest_of=rows)
    records = records_file.read(path, with_variants.run_id.unique())
    lines = summarize(rows, records)
    recommended = recommendation.recommend(with_variants, records)
    best, baseline = _recipe_lines(with_variants, records, recommended.fastest)
    tables = {MAIN: result_tables.texts_of(lines, result_tables.MAIN)}
    tables |= result_tables.more_tables(rows, lines, price)
    return render(
        "report.html",
        described=selection.describe(rows),
        device=rows.device.iloc[0],
        unit=lines.unit.iloc[0],
        best=best,
        baseline=baseline,
        says=recommended.says,
        recipes=page_recipe.recipes(recommended),
        charts=_charts(rows, lines),
        ablation=page_recipe.ablation(with_variants),
        tables={title: table(columns) for title, columns in tables.items()},
        profile=page_recipe.profile(path, rows),
        environment=page_environment.environment(rows, records),
        quality=page_environment.quality(rows, lines),
        commands=page_environment.commands(with_variants, records),
        diffs=page_environment.diffs(lines.index, records),
        left_out=left_out,
    )


def _recipe_lines(rows, records, recipe):
    """Return the lines of a recipe and of its base, of the clean rounds that both have; None and
    None without a recipe that is faster."""
    if recipe is None or not recipe.techniques:
        return None, None
    clean = rows[rows.grade == "clean"]
    rounds = [
        {*clean["round"][clean.technique == name]} for name in (recipe.name, recipe.line.base)
    ]
    lines = summarize(clean[clean["round"].isin(set.intersection(*rounds))], records)
    return lines.loc[recipe.name], lines.loc[recipe.line.base]


def _charts(rows, lines):
    """Return pictures by name; None of what was not measured."""
    charts = {"speedup": speedup_chart, "memory": memory_chart}
    charts |= {"step_times": step_times_chart, "heatmap": heatmap_chart}
    measured = [name for name in charts if name == "speedup" or lines.step_ms.notna().any()]
    drawn = {name: picture(charts[name].draw(rows, lines)) for name in measured}
    return dict.fromkeys(charts) | drawn


def comparison_page(a, b):
    """Return the page of two selections of results (see `comparison`), a string of HTML. Raises
    UserError."""
    a, b = comparison.sides(a, b)
    ratios = comparison.compare(a, b)
    return render(
        "compare.html",
        sides=[a, b],
        picture=picture(comparison_chart.draw(a, b)),
        verdicts=Counter(ratio.verdict for ratio in ratios if ratio),
        columns=table(comparison.columns(a, b, ratios)),
        differences=[short(line) for line in comparison.differences(a, b)],
    )
