"""The sections of a page on profiles, ablation and recipe."""

import json
import math
from contextlib import suppress
from pathlib import Path

from Utils.analysis import attribution, recipe_lines, recipe_page, recommendation
from Utils.base.errors import UserError
from Utils.base.text import brief, short
from Utils.device.kernel_kinds import KINDS
from Utils.draw import ablation_chart, page_template, profile_chart
from Utils.scripts import ladder


def profile(path, rows):
    """Return the profiles of the same device and shape: {"picture", "advice"}; {} without one."""
    summaries = []
    advice = {}
    for name in ladder.techniques():
        summary = _read_profile(Path(path).parent / "profiles" / f"{name}.json", rows.iloc[0])
        if not summary:
            continue
        summaries.append(summary)
        if summary["status"] == "ok":
            summaries += profile_chart.forecast_of(summary)
            advice[name] = [short(line) for line in summary["advice"]]
    if not advice:
        return {}
    return {
        "picture": page_template.picture(profile_chart.draw(summaries, KINDS)),
        "advice": advice,
    }


def _read_profile(path, row):
    """Return a profile if it is of the device and shape of a row; None if not, or if damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        summary = json.loads(path.read_text())
        same = ["device", "torch"]
        brief(summary["note"])  # this and `described` raise where something is missing
        if summary["status"] == "ok":
            same += ["model", "seq_len"]
            profile_chart.described(summary)
            ms = profile_chart.kind_ms(summary)
            if not ms.keys() <= KINDS.keys() or not 0 <= sum(ms.values()) < math.inf:
                return None
        if all(summary[name] == row[name] for name in same):
            return summary
    return None


def ablation(rows):
    """Return the ablation of selected rows, variants included: {"picture", "table", "remarks"}; {}
    without variants."""
    whole = attribution.whole_of(rows)
    if whole is None:
        return {}
    credits = attribution.credits(rows, whole)
    ratios = {title: list(credits[way]) for way, title in attribution.WAYS.items()}
    return {
        "picture": page_template.picture(ablation_chart.draw(rows, credits, whole)),
        "table": {"technique": list(credits.index)} | ratios,
        "remarks": {name: says for name, says in credits.says.items() if says},
    }


def recipes(rows, records):
    """Return the recipes for speed and for memory of selected rows, variants included: {"says",
    "entries"}; {} where the rows support none. See `recommendation.recommend`."""
    timed = rows.status == "ok"
    sound = rows[~timed | (rows.step_ms.gt(0) & rows.batch_size.gt(0))]  # what has a logarithm
    if sound.empty:
        return {}
    try:
        recommended = recommendation.recommend(sound, records)
    except UserError:  # of rows whose scripts are gone
        return {}
    if not recommended.recipes:
        return {}
    entries = []
    for key, recipe in recommended.recipes.items():
        entry = {
            "title": recipe_page.TITLES[key],
            "sentences": recipe_page.sentences(recommended, recipe),
            "lines": recipe_lines.lines_of(recipe.techniques, recipe.batch),
            "script": recipe_lines.script(recipe, recommended.described),
        }
        for titles, reasons in (
            (recipe_page.SWITCH_ON, recipe.evidence),
            (recipe_page.LEAVE_OUT, recipe.left_out),
        ):
            columns = (list(reasons), list(reasons.values()))
            entry[titles[0].replace(" ", "_")] = dict(zip(titles, columns, strict=True))
        entries.append(entry)
    return {"says": recommended.says, "entries": entries}
