"""A Recommendation as a page, and a Recipe as a script."""

import shlex
from pathlib import Path

from Utils.analysis import recipe_evidence, text_tables
from Utils.analysis.recommendation import Recipe, Recommendation
from Utils.base import paths


def page(recommendation: Recommendation, path: Path) -> str:
    """Return a Recommendation as GitHub-markdown. path: that of the recipe's script."""
    recipe = recommendation.fastest
    if not recipe:
        return "\n".join(recommendation.caveats)

    caveats = [f"- {sentence}" for sentence in recommendation.caveats]
    parts = ["\n".join([recommendation.described, *caveats])]
    parts += [f"## {recommendation.title}", "\n".join(recipe.sentences)]
    for kind, texts in recipe.evidence.items():
        if texts:
            parts.append({kind: list(texts), "evidence": list(texts.values())})
    if recipe.script:
        command = f"PYTHONPATH={shlex.quote(str(paths.ROOT))} {paths.PYTHON} {path}"
        parts.append(f"As code, {path}:\n\n    {command}")

    for purpose, lines in recommendation.lines.items():
        code = "\n".join(f"    {line}".rstrip() for line in lines)
        parts.append(f"Lines for {purpose}:\n\n{code}")
    return text_tables.page(parts)


def script(recipe: Recipe, described: str) -> str:
    """Return a Recipe as a script with the evidence in its docstring.

    described: what the measured rows have in common, in one line.
    """
    code = recipe.script.code if recipe.script else ""
    doc = f"""{recipe.name}, made by merging the diffs of its techniques.

{mark(code)}
Measured: {str(recipe.speedup) or "not known"}, against {recipe.figures.base}
({described}).
"""
    for name, reason in recipe.evidence[recipe_evidence.IN].items():
        doc += f"\n- {name}: {reason}"
    return f'"""{doc}"""{code}'


def mark(code: str) -> str:
    """Return the line of a recipe's docstring that shows whether its code was changed by hand."""
    digest = paths.digest(code)
    command = f"{paths.COMMAND} recipe"
    return f"Written by `{command}`, which overwrites it unless its code was changed ({digest})."
