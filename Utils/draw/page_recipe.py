"""The parts of a page on recipe, ablation and profiles."""

import json
from contextlib import suppress
from pathlib import Path

from Utils.analysis import attribution, recipe_page
from Utils.device.kernel_kinds import KINDS
from Utils.draw import ablation_chart, profile_chart
from Utils.draw.page_template import picture
from Utils.scripts import ladder


def recipes(recommended):
    """Return the recipes of a Recommendation for the page: sentences, tables, lines of code."""
    return [
        {
            "title": title,
            "sentences": recipe_page.sentences(recommended, recipe),
            "tables": recipe_page.tables(recipe),
            "lines": recipe_page.lines_of(recipe),
            "script": recipe_page.script(recipe, recommended.described),
        }
        for title, recipe in recommended.recipes.items()
    ]


def ablation(rows):
    """Return the ablation of selected rows, variants included, its picture and remarks; {} without
    variants."""
    whole = attribution.whole_of(rows)
    if whole is None:
        return {}
    credits = attribution.credits(rows, whole)
    remarks = credits.says[credits.says != ""].to_dict()
    return {"picture": picture(ablation_chart.draw(rows, credits, whole)), "remarks": remarks}


def profile(path, rows):
    """Return the profiles of the same device and shape, their picture and advice; {} without."""
    summaries = []
    advice = {}
    for name in ladder.techniques():
        with suppress(OSError, ValueError):  # not there, or damaged
            summary = json.loads((Path(path).parent / "profiles" / f"{name}.json").read_text())
            same = [key for key in ("device", "torch", "model", "seq_len") if key in summary]
            if any(summary[key] != rows.iloc[0][key] for key in same):
                continue
            summaries.append(summary)
            if summary["status"] == "ok":
                summaries += profile_chart.forecast_of(summary)
                advice[name] = summary["advice"]
    if not advice:
        return {}
    return {"picture": picture(profile_chart.draw(summaries, KINDS)), "advice": advice}
