"""A recipe in words, and as a page in GitHub-markdown."""

import numpy as np

from Utils.analysis import recipe_lines, result_tables
from Utils.analysis.recommendation import NEAR

TITLES = {
    "fastest": "Recipe: the fewest techniques statistically indistinguishable from the fastest",
    "least_memory": f"Least memory within {1 - NEAR:.0%} of the best speed",
}
SWITCH_ON = ("switch on", "measured effect")  # titles of the table of evidence
LEAVE_OUT = ("leave out", "reason")


def text(recommendation, paths):
    """Return a Recommendation as a GitHub-markdown page, a string.

    paths: {"fastest" or "least_memory": path of its script}.
    """
    if not recommendation.fastest:
        return recommendation.says[0]
    caveats = [f"- {sentence}" for sentence in recommendation.says]
    page = ["\n".join([recommendation.described, *caveats])]
    for key, recipe in recommendation.recipes.items():
        page += [f"## {TITLES[key]}", "\n".join(sentences(recommendation, recipe))]
        if recipe is recommendation.fastest or recipe.name != recommendation.fastest.name:
            page += _details(recipe, paths.get(key))
    return "\n\n".join(page)


def sentences(recommendation, recipe):
    """Return what is known of a recipe, one sentence if both recipes are the same."""
    memory = "peak memory not known"
    if not np.isnan(recipe.peak_mib):
        memory = f"{recipe.peak_mib:,.0f} MiB at the peak"
    fastest, best = recommendation.fastest, recommendation.best
    if recipe is not fastest and recipe.name == fastest.name:
        return [f"The same: {recipe.name}, {memory}."]
    facts = [f"{recipe.name}: {memory}"]
    if recipe.techniques:
        facts.append(f"Against {recipe.base}: {recipe.speedup.with_verdict or 'not known'}")
    if recipe.name != best.name:
        facts.append(
            f"Against the fastest, {best.name} with {best.speedup.with_verdict}: "
            f"{recipe.to_best.with_verdict}"
        )
    if recipe.loss:
        facts.append(f"Loss minus the baseline's: {recipe.loss} ({recipe.parity})")
    if recipe.batch:
        facts.append(
            f"It trains on {recipe.batch} sequences a step: fewer updates for as many tokens, "
            "which changes training"
        )
    return [f"{fact}." for fact in facts]


def _details(recipe, path):
    """Return evidence, script and lines of a recipe, a list of paragraphs."""
    parts = []
    for titles, reasons in ((SWITCH_ON, recipe.evidence), (LEAVE_OUT, recipe.left_out)):
        if reasons:
            columns = dict(zip(titles, (list(reasons), list(reasons.values())), strict=True))
            parts.append(result_tables.markdown(columns, left=titles))
    if not recipe.code:
        lines = [
            f"    {place or 'the loop'}: {code}  # {technique}"
            for technique, lines in recipe.own_lines.items()
            for code, place in lines
        ]
        return [*parts, "\n".join(["Lines to add:\n", *(lines or ["    none"])])]
    if path:
        parts.append(f"As code, {path}:\n\n    {recipe_lines.run_line(path)}")
    for library, lines in recipe_lines.lines_of(recipe.techniques, recipe.batch).items():
        lines = "\n".join(f"    {line}".rstrip() for line in lines)
        parts.append(f"Lines for your own loop, {library}:\n\n{lines}")
    return parts
