"""A recipe as text: sentences and tables, lines for other training loops, a script."""

import hashlib
import re
import tomllib
from pathlib import Path

from Utils.analysis import text_tables
from Utils.analysis.recommendation import FASTEST, IN
from Utils.base import paths
from Utils.base.errors import UserError, naming
from Utils.base.text import number
from Utils.scripts import ladder

LINES = Path(__file__).with_name("lines.toml")
MARK = "Written by `make recipe`"
LIBRARIES = (  # title; the call whose arguments are set, their key in LINES; the key of other lines
    ("PyTorch", None, None, "pytorch"),
    ("Hugging Face Trainer", "TrainingArguments", "arguments", "hugging"),
    ("Lightning", "Trainer", "trainer", "lightning"),
)


def headline(recommendation):
    """Return the recipe for speed in a sentence; "" where nothing is faster than the baseline."""
    recipe = recommendation.fastest
    speedup = recipe.speedup if recipe else None
    if not speedup or speedup.value <= 1 or speedup.verdict == speedup.neither:
        return ""
    facts = [f"{recipe.name}, {speedup} over {recipe.line.base}", _mib(recipe)]
    verdict = recipe.line.loss_difference.verdict
    facts += [f"loss {verdict}"] if verdict else []
    return f"{FASTEST}: {', '.join(facts)}."


def text(recommendation, paths):
    """Return a Recommendation as a GitHub-markdown page, a string. paths: of the recipes' scripts,
    by title."""
    if not recommendation.recipes:
        return recommendation.says[0]
    caveats = [text_tables.fitted(f"- {sentence}", "  ") for sentence in recommendation.says]
    page = ["\n".join([text_tables.fitted(recommendation.described), *caveats])]
    for title, recipe in recommendation.recipes.items():
        facts = [text_tables.fitted(text) for text in sentences(recommendation, recipe)]
        page += [f"## {title}", "\n".join(facts)]
        page += [text_tables.shown(table, table) for table in tables(recipe).values()]
        if path := paths.get(title):
            page.append(f"As code, {path}:\n\n    PYTHONPATH=. python {path}")
        for purpose, lines in lines_of(recipe).items():
            lines = "\n".join(f"    {line}".rstrip() for line in lines)
            page.append(f"Lines for {purpose}:\n\n{lines}")
    return "\n\n".join(page)


def _mib(recipe):
    return f"{number(recipe.peak_mib, ',.0f') or 'unknown'} MiB"


def sentences(recommendation, recipe):
    """Return the facts of a recipe."""
    best = recommendation.best
    facts = [f"{recipe.name}: {_mib(recipe)} at the peak"]
    if recipe.techniques:
        facts.append(f"Against {recipe.line.base}: {str(recipe.speedup) or 'not known'}")
    if recipe.name != best.name:
        facts.append(
            f"Against the fastest, {best.name} with {best.speedup}: {recipe.to_best.with_verdict}"
        )
    if difference := recipe.line.loss_difference.with_verdict:
        facts.append(f"Loss minus the baseline's: {difference} ({recipe.line.parity})")
    if batch := number(recipe.line.own_batch, ".0f"):
        facts.append(
            f"It trains on {batch} sequences a step: fewer updates for as many tokens, "
            "which changes training"
        )
    return [f"{fact}." for fact in facts]


def tables(recipe):
    """Return the evidence, tables by title: columns of texts, by title too."""
    return {
        title: {title: list(texts), "evidence": list(texts.values())}
        for title, texts in recipe.evidence.items()
        if texts
    }


def lines_of(recipe):
    """Return the lines to copy, lists by what they are for: a user's own script, or each library.

    A technique missing in LINES is shown by its diff.
    """
    if not recipe.script:
        return {"your script": recipe.own_lines or ["none"]}
    switches = tomllib.loads(LINES.read_text())
    batch = number(recipe.line.own_batch, ".0f") or "..."
    by_library = {}
    for library, call, arguments, lines in LIBRARIES:
        entries = {name: switches.get(name, {}) for name in recipe.techniques}
        has = [name for name, entry in entries.items() if {arguments, lines} & entry.keys()]
        for name in has:
            for replaced in switches[name].get("replaces", ()):
                entries.pop(replaced, None)
        inside = [f"    {e[arguments]},  # {n}" for n, e in entries.items() if arguments in e]
        text = [f"{call}(", *inside, ")"] if inside else []
        for name, entry in entries.items():
            if lines in entry:
                text += [f"# {name}", *entry[lines].strip().splitlines()]
            elif library == "PyTorch":
                diff = ladder.diff(ladder.get(name), ladder.get(ladder.get(name).parent))
                text += [f"# {name}, which is", *(f"#   {line}" for line in diff[2:])]
            elif name not in has:
                text.append(f"# {name}: no switch; in the model's or the loop's own code")
        text = text or ["# nothing to change"]
        by_library[library] = [line.replace("{batch}", batch) for line in text]
    return by_library


def _digest(code):
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def script(recipe, described):
    """Return a Recipe as a script with the evidence in its docstring, a string."""
    code = recipe.script.code if recipe.script else ""
    doc = [
        f"{recipe.name}, made by merging the diffs of its techniques.",
        "",
        f"{MARK}, which overwrites it unless its code was changed ({_digest(code)}).",
        f"Measured: {str(recipe.speedup) or 'not known'}, against {recipe.line.base}",
        f"({described}).",
        "",
        *(f"- {name}: {reason}" for name, reason in recipe.evidence[IN].items()),
    ]
    return f'"""{chr(10).join(doc)}"""{code}'


def write(path, text):
    """Write a recipe's script. Raises UserError rather than overwrite another file, or a recipe
    that someone has changed."""
    with naming(path):
        if path.exists():
            doc, code = ladder.split(path.read_text(errors="replace"))
            written = re.search(rf"^{MARK}.*\((\w+)\)", doc, re.MULTILINE)
            if not written or written[1] != _digest(code):
                problem = "was changed by hand" if written else "exists and is no recipe"
                raise UserError(f"{path}: {problem}", "name another file with RECIPE=")
        if path.is_relative_to(paths.CACHE):  # elsewhere a missing folder is a typing error
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
