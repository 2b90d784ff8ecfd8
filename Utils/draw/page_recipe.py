"""The sections of a page on profiles, ablation and recipe."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np

from Utils.analysis import attribution, recipe_lines, recommendation
from Utils.base.errors import UserError
from Utils.base.text import number, short
from Utils.draw import svg
from Utils.results import selection
from Utils.scripts import ladder

RECIPES = {
    "fastest": "Fewest techniques statistically indistinguishable from the fastest",
    "least_memory": "Least memory near the best speed",
}


def profile(path, rows):
    """Return the profiles of the same device and shape: `svg.stacks` of milliseconds a step, of as
    many tokens, by kind of work, with {"advice"}; {} without a profile."""
    first, values, advice, commits = rows.iloc[0], {}, [], {}
    for name in ladder.techniques():
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found = json.loads((Path(path).parent / "profiles" / f"{name}.json").read_text())
            if found["device"] != first.device or found["torch"] != first.torch:
                continue
            if found["status"] != "ok":
                values[name] = short(f"{found['status'].replace('_', ' ')}: {found['note']}")
                continue
            if (found["model"], found["seq_len"]) != (first.model, first.seq_len):
                continue
            kinds = found["profile"]["kinds"]
            scale = found["asked_batch_size"] / found["batch_size"]
            times = {kind: scale * one["ms"] for kind, one in kinds.items()}
            values[name] = {kind: ms for kind, ms in times.items() if np.isfinite(ms) and ms >= 0}
            if expected := {k: v["forecast_ms"] for k, v in kinds.items() if "forecast_ms" in v}:
                values[f"{name}, forecast"] = expected
            advice.append((name, [short(line) for line in found["advice"]]))
            commits[found["commit"] or "unknown"] = None
    described = f"{first.device}, torch {first.torch}, {first.model}, profiled at commit "
    drawn = svg.stacks(values, "ms a step")
    return drawn and drawn | {"advice": advice, "described": described + ", ".join(commits)}


def worth(rows):
    """Return the ablation of selected rows, variants included, as `svg.dots` with {"whole"} and
    {"described"}; {} without variants."""
    whole = attribution.whole_of(rows)
    if whole is None:
        return {}
    drawn = svg.dots(attribution.credits(rows, whole), attribution.WAYS)
    return drawn | {"whole": whole, "described": selection.describe(rows)}


def recipes(rows, records):
    """Return the recipes for speed and for memory of selected rows, variants included: {"said",
    "entries", "best"}; [] where the rows support none. See `recipe.recommend`."""
    timed = rows.status == "ok"
    sound = rows[~timed | (rows.step_ms.gt(0) & rows.batch_size.gt(0))]  # what has a logarithm
    found = {"fastest": None}
    if len(sound):
        with suppress(UserError):  # of rows whose scripts are gone
            found = recommendation.recommend(sound, records)
    entries = [
        entry
        | {
            "title": title,
            "kind": "a forecast, not measured" if entry["forecast"] else "measured",
            "speedup": entry["speedup"].with_verdict,
            "to_best": entry["to_best"].with_verdict,
            "memory": number(entry["peak_mib"], ",.0f"),
            "loss": "; ".join(filter(None, [entry["loss"], entry["parity"]])),
            "lines": recipe_lines.lines_of(entry["techniques"], entry["batch"]),
            "script": recipe_lines.script(entry, found["described"]),
        }
        for key, title in RECIPES.items()
        if (entry := found.get(key))
    ]
    return entries and {"said": found["says"], "entries": entries, "best": found["best"]["name"]}
