"""A recipe as a page in GitHub-markdown."""

import numpy as np

from Utils.analysis import recipe_code, tables
from Utils.analysis.recipe import NEAR
from Utils.base.ladder import BASELINE

TITLES = {
    "fastest": "The recipe: the fewest techniques that cannot be told from the fastest",
    "least_memory": f"Least memory within {1 - NEAR:.0%} of the best speed, likewise",
}


def text(found, paths):
    """What `recommend` found, as a page in GitHub-markdown: list, code, lines. A string.

    paths: {"fastest" or "least_memory": where its script was written}.
    """
    if not found["fastest"]:
        return found["says"][0]
    page = ["\n".join([found["described"], *(f"- {sentence}" for sentence in found["says"])])]
    for key, title in TITLES.items():
        if found[key]:
            page += [f"## {title}", *_section(found, found[key], paths.get(key))]
    return "\n\n".join(page)


def _section(found, entry, path):
    """The paragraphs on one recipe; a sentence where it is the other one."""
    best, memory = found["best"], f"{entry['peak_mib']:,.0f} MiB at the peak"
    if np.isnan(entry["peak_mib"]):
        memory = "peak memory not known"
    if entry is not found["fastest"] and entry["name"] == found["fastest"]["name"]:
        return [f"The same: {entry['name']}, {memory}."]
    kind = "forecast" if entry["forecast"] else "measured"
    facts = [f"{entry['name']}, {kind}: {memory}"]
    if entry["techniques"]:
        facts.append(f"Against {BASELINE}: {tables.ratio_text(entry['speedup']) or 'not known'}")
    if entry["name"] != best["name"]:
        facts.append(
            f"To the best measured, {best['name']} with {tables.ratio_text(best['speedup'])}: "
            f"{tables.ratio_text(entry['to_best'])}"
        )
    if entry["forecast"] and entry is found["fastest"]:
        facts.append(f"The shortest that was measured: {found['measured']['name']}")
    if entry["loss"]:
        facts.append(f"Loss less the baseline's: {entry['loss']} ({entry['parity']})")
    if entry["batch"]:
        facts.append(
            f"It trains on {entry['batch']} sequences a step: fewer updates from as many tokens "
            "are another training"
        )
    parts = ["\n".join(f"{fact}." for fact in facts)]
    if entry["evidence"]:
        parts.append(_table("what to switch on", "what it changed", entry["evidence"]))
    if entry["left_out"]:
        parts.append(_table("what to leave out", "why", entry["left_out"]))
    if path:
        parts.append(f"As code, {path}:\n\n    {recipe_code.run_line(path)}")
    for library, lines in recipe_code.lines_of(entry["techniques"], entry["batch"]).items():
        lines = "\n".join(f"    {line}".rstrip() for line in lines)
        parts.append(f"As lines for a loop of your own, {library}:\n\n{lines}")
    return parts


def _table(left, right, texts):
    columns = {left: [*texts], right: [*texts.values()]}
    return tables.markdown(columns, left=(left, right))
