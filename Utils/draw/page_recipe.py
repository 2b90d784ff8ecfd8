"""The sections of a page on profiles, ablation and recipe."""

import json
from contextlib import suppress
from pathlib import Path

from Utils.analysis import attribution, recipe_lines, recommendation
from Utils.base.errors import UserError
from Utils.base.text import number, short
from Utils.device.kernel_kinds import KINDS
from Utils.draw import ablation_chart, page_template, profile_chart
from Utils.scripts import ladder

RECIPES = {
    "fastest": "Fewest techniques statistically indistinguishable from the fastest",
    "least_memory": "Least memory near the best speed",
}


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
        if summary["status"] == "ok":
            same += ["model", "seq_len"]
            profile_chart.described(summary)  # these raise where something is missing
            sum(profile_chart.kind_ms(summary).values())
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
    "entries", "best"}; {} where the rows support none. See `recommendation.recommend`."""
    timed = rows.status == "ok"
    sound = rows[~timed | (rows.step_ms.gt(0) & rows.batch_size.gt(0))]  # what has a logarithm
    if sound.empty:
        return {}
    try:
        recommended = recommendation.recommend(sound, records)
    except UserError:  # of rows whose scripts are gone
        return {}
    entries = [
        _recipe(recommended[key], title, recommended["described"])
        for key, title in RECIPES.items()
        if recommended[key]
    ]
    if not entries:
        return {}
    return {
        "says": recommended["says"],
        "entries": entries,
        "best": recommended["best"]["name"],
    }


def _recipe(entry, title, described):
    return entry | {
        "title": title,
        "kind": "a forecast, not measured" if entry["forecast"] else "measured",
        "memory": number(entry["peak_mib"], ",.0f"),
        "loss": "; ".join(filter(None, [entry["loss"], entry["parity"]])),
        "lines": recipe_lines.lines_of(entry["techniques"], entry["batch"]),
        "script": recipe_lines.script(entry, described),
    }
