"""A recipe in words: its sentences and tables, and a page in GitHub-markdown."""

import numpy as np

from Utils.analysis import recipe_lines, text_tables
from Utils.analysis.recommendation import NEAR

TITLES = {
    "fastest": "Recipe: the fewest techniques statistically indistinguishable from the fastest",
    "least_memory": f"Least memory within {1 - NEAR:.0%} of the best speed",
}


def title(recommendation, key):
    """Return the title of a recipe. Without an ablation, fewer techniques were not tried."""
    if key == "fastest" and not recommendation.ablated:
        return "Recipe, without an ablation (fewer techniques may do as well)"
    return TITLES[key]


def headline(recommendation):
    """Return the recipe for speed in a sentence; "" where nothing is faster than the baseline."""
    recipe = recommendation.fastest
    is_faster = recipe is not None and recipe.speedup.value > 1
    if not is_faster or recipe.speedup.verdict == recipe.speedup.neither:
        return ""
    facts = [f"{recipe.name}, {recipe.speedup} over {recipe.base}"]
    if not np.isnan(recipe.measured.peak_mib):
        facts.append(f"{recipe.measured.peak_mib:,.0f} MiB")
    verdict = recipe.measured.line.loss_difference.verdict
    facts += [f"loss {verdict}"] if verdict else []
    return f"{title(recommendation, 'fastest')}: {', '.join(facts)}."


def text(recommendation, paths):
    """Return a Recommendation as a GitHub-markdown page, a string.

    paths: {"fastest" or "least_memory": path of its script}.
    """
    if not recommendation.fastest:
        return recommendation.says[0]
    caveats = [text_tables.fitted(f"- {sentence}", "  ") for sentence in recommendation.says]
    page = ["\n".join([text_tables.fitted(recommendation.described), *caveats])]
    for key, recipe in recommendation.recipes.items():
        facts = [text_tables.fitted(text) for text in sentences(recommendation, recipe)]
        page += [f"## {title(recommendation, key)}", "\n".join(facts)]
        if recipe is not recommendation.fastest and recipe.name == recommendation.fastest.name:
            continue
        page += [text_tables.shown(table, table) for table in tables(recipe).values()]
        if not recipe.script:
            lines = [
                f"    {place or 'the loop'}: {code}  # {technique}"
                for technique, lines in recipe.own_lines.items()
                for code, place in lines
            ]
            page.append("\n".join(["Lines to add:\n", *(lines or ["    none"])]))
            continue
        if path := paths.get(key):
            page.append(f"As code, {path}:\n\n    {recipe_lines.run_line(path)}")
        for library, lines in recipe_lines.lines_of(recipe.techniques, recipe.batch).items():
            lines = "\n".join(f"    {line}".rstrip() for line in lines)
            page.append(f"Lines for your own loop, {library}:\n\n{lines}")
    return "\n\n".join(page)


def sentences(recommendation, recipe):
    """Return what is known of a recipe, one sentence if both recipes are the same."""
    memory = "peak memory not known"
    if not np.isnan(recipe.measured.peak_mib):
        memory = f"{recipe.measured.peak_mib:,.0f} MiB at the peak"
    fastest, best = recommendation.fastest, recommendation.best
    if recipe is not fastest and recipe.name == fastest.name:
        return [f"The same: {recipe.name}, {memory}."]
    facts = [f"{recipe.name}: {memory}"]
    if recipe.techniques:
        facts.append(f"Against {recipe.base}: {str(recipe.speedup) or 'not known'}")
    if recipe.name != best.name:
        facts.append(
            f"Against the fastest, {best.name} with {best.speedup}: {recipe.to_best.with_verdict}"
        )
    line = recipe.measured.line
    if difference := line.loss_difference.with_verdict:
        facts.append(f"Loss minus the baseline's: {difference} ({line.parity})")
    if recipe.batch:
        facts.append(
            f"It trains on {recipe.batch} sequences a step: fewer updates for as many tokens, "
            "which changes training"
        )
    return [f"{fact}." for fact in facts]


def tables(recipe):
    """Return the evidence, tables by title: columns of texts, by title too."""
    evidence = {
        ("switch on", "measured effect"): recipe.switch_on,
        ("no detectable difference", "measured effect"): recipe.no_difference,
        ("leave out", "reason"): recipe.leave_out,
    }
    return {
        first: {first: list(texts), second: list(texts.values())}
        for (first, second), texts in evidence.items()
        if texts
    }
