"""A recipe as a page in GitHub-markdown."""

import numpy as np

from Utils.analysis import recipe_lines, result_tables
from Utils.analysis.recommendation import NEAR

TITLES = {
    "fastest": "Recipe: the fewest techniques statistically indistinguishable from the fastest",
    "least_memory": f"Least memory within {1 - NEAR:.0%} of the best speed",
}


def text(found, paths):
    """Return the dict of `recommend` as a GitHub-markdown page, a string.

    paths: {"fastest" or "least_memory": path of its script}.
    """
    if not found["fastest"]:
        return found["says"][0]
    page = ["\n".join([found["described"], *(f"- {sentence}" for sentence in found["says"])])]
    for key, title in TITLES.items():
        if found[key]:
            page += [f"## {title}", *_section(found, found[key], paths.get(key))]
    return "\n\n".join(page)


def _section(found, entry, path):
    """Return the paragraphs on one recipe; a sentence if both recipes are the same."""
    best, memory = found["best"], f"{entry['peak_mib']:,.0f} MiB at the peak"
    if np.isnan(entry["peak_mib"]):
        memory = "peak memory not known"
    if entry is not found["fastest"] and entry["name"] == found["fastest"]["name"]:
        return [f"The same: {entry['name']}, {memory}."]
    kind = "forecast" if entry["forecast"] else "measured"
    facts = [f"{entry['name']}, {kind}: {memory}"]
    if entry["techniques"]:
        facts.append(f"Against {entry['base']}: {entry['speedup'].with_verdict or 'not known'}")
    if entry["name"] != best["name"]:
        speedup = best["speedup"].with_verdict
        facts.append(
            f"Against the fastest, {best['name']} with {speedup}: {entry['to_best'].with_verdict}"
        )
    if entry["forecast"] and entry is found["fastest"]:
        facts.append(f"Shortest measured: {found['measured']['name']}")
    if entry["loss"]:
        facts.append(f"Loss minus the baseline's: {entry['loss']} ({entry['parity']})")
    if entry["batch"]:
        facts.append(
            f"It trains on {entry['batch']} sequences a step: fewer updates for as many tokens, "
            "which changes training"
        )
    parts = ["\n".join(f"{fact}." for fact in facts)]
    if entry["evidence"]:
        parts.append(_table("switch on", "measured effect", entry["evidence"]))
    if entry["left_out"]:
        parts.append(_table("leave out", "reason", entry["left_out"]))
    if path:
        parts.append(f"As code, {path}:\n\n    {recipe_lines.run_line(path)}")
    for library, lines in recipe_lines.lines_of(entry["techniques"], entry["batch"]).items():
        lines = "\n".join(f"    {line}".rstrip() for line in lines)
        parts.append(f"Lines for your own loop, {library}:\n\n{lines}")
    return parts


def _table(left, right, texts):
    columns = {left: [*texts], right: [*texts.values()]}
    return result_tables.markdown(columns, left=(left, right))
