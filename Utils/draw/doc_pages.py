"""The generated parts of README.md and docs/: from rows, docstrings, Makefile and figures.

A part of a page stands between two equal comments, <!-- NAME -->, of the names in PARTS.
"""

import pandas as pd

from Utils.analysis import result_tables
from Utils.analysis.summary import summarize
from Utils.base import makefile, paths
from Utils.base.errors import UserError
from Utils.base.text import broken, number
from Utils.draw import doc_figures
from Utils.results import selection
from Utils.scripts import ladder

EXAMPLE = "flash_attention"  # whose diff the README shows
DIFFERENT = ("faster", "slower")  # verdicts that are set in bold


def ladder_table(rows, records):
    """Return the README's table of the ladder: six columns and a caption."""
    return report_table(rows, records, ladder.beyond())


def report_table(rows, records, omitted=()):
    """Return the same table of all techniques but those omitted."""
    lines = summarize(rows, records)
    lines = lines[~lines.index.isin(omitted)]
    table = [
        {
            "technique": broken(name),
            "step (ms)": number(line.step_ms, ",.0f") or line.status.replace("_", " "),
            "over parent": _ratio(line.parent_speedup),
            "over baseline": _ratio(line.speedup),
            "peak memory (MiB)": number(line.peak_memory_mib, ",.0f"),
            "loss": _loss(line),
        }
        for name, line in lines.iterrows()
    ]
    caption = (
        f"{selection.describe(rows)}. Ratios are speedups with their 95% confidence interval over "
        "rounds, **bold** where it excludes 1. The loss is compared with the baseline's."
    )
    return f"{result_tables.markdown(pd.DataFrame(table).to_dict('list'))}\n\n{caption}"


def _ratio(ratio):
    """Return a speedup with its interval, in bold where the interval excludes 1."""
    bold = "**" if ratio.verdict in DIFFERENT else ""
    interval = f" ({ratio.interval})" if ratio.interval else ""
    return f"{bold}{ratio.text}{bold}{interval}"


def _loss(line):
    """Return the verdict on the loss, in the words of the other verdicts."""
    verdict = line.loss_difference.verdict
    if verdict != "diverged" and line.parity in ("model changed", "other batches", "exact"):
        return line.parity
    return "no detectable difference" if verdict == "indistinguishable" else verdict


def rungs():
    """Return the ladder as a list, a line a rung."""
    scripts = ladder.group("ladder")
    return "\n".join(f"- {_link(t, '')}: {t.headline.removesuffix('.')}" for t in scripts)


def one_diff():
    """Return the diff of EXAMPLE against its parent."""
    technique = ladder.get(EXAMPLE)
    lines = ladder.diff(technique, ladder.get(technique.parent), context=1)
    return "\n".join(["```diff", *lines, "```"])


def techniques():
    """Return docs/TECHNIQUES.md: a table with a row a script, and a section for each."""
    text = []
    for title, at_top_level in (("The ladder", True), ("Beyond the ladder", False)):
        scripts = [t for t in ladder.techniques().values() if t.at_top_level is at_top_level]
        columns = {
            "technique": [f"[{broken(t.name)}](#{t.name.lower()})" for t in scripts],
            "mechanism, and what it gains": [
                f"{result_tables.cell(t.headline)} *{', '.join(t.facts.gains)}*" for t in scripts
            ],
        }
        text += [f"## {title}", result_tables.markdown(columns, columns), *map(_section, scripts)]
    return "\n\n".join(text)


def _section(technique):
    """Return the facts of a script under a heading of its name."""
    facts = technique.facts.texts
    parent = facts["Parent"]
    parent = "none" if parent == "none" else f"[{parent}](#{parent.lower()})"
    lines = [f"- {name}: {facts[name]}" for name in ladder.FACTS[1:] if name in facts]
    link = f"{_link(technique, '../', 'Script')}; parent: {parent}."
    return "\n".join([f"### {technique.name}", "", link, "", *lines])


def _link(technique, up, text=None):
    path = technique.path.relative_to(paths.ROOT).as_posix()
    return f"[{text or technique.name}]({up}{path})"


def targets():
    """Return the Makefile's targets as tables, one a section of its help."""
    parts = []
    for title, helps in makefile.targets().items():
        commands = [f"`make {target}`" for target in helps]
        columns = {"command": commands, "meaning": [*helps.values()]}
        parts += [f"### {title}", result_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


def variables():
    """Return the Makefile's variables as tables: settings of every run, of commands, of train."""
    parts = []
    for title, helps in makefile.variables().items():
        columns = {
            "variable": [broken(name) for name in helps],
            "meaning": [result_tables.cell(help) for help in helps.values()],
        }
        parts += [f"### {title}", result_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


PARTS = {  # page, its generated parts by name; those of rows take rows and records
    "README.md": {
        "ladder": ladder_table,
        "published": doc_figures.published,
        "diff": one_diff,
        "rungs": rungs,
    },
    "docs/PRETRAINING.md": {"hours": doc_figures.hours},
    "docs/TECHNIQUES.md": {"techniques": techniques},
    "docs/COMMANDS.md": {"targets": targets, "variables": variables},
}
OF_ROWS = (ladder_table,)  # take the selected rows and their records


def part(text, name):
    """Return what stands between the marks of a part, or None without two marks."""
    parts = text.split(f"<!-- {name} -->")
    return parts[1].strip() if len(parts) == 3 else None


def write(rows, records):
    """Write every generated part into its page. Return the pages."""
    for page, parts in PARTS.items():
        path = paths.ROOT / page
        text = path.read_text()
        for name, make in parts.items():
            pieces = text.split(mark := f"<!-- {name} -->")
            if len(pieces) != 3:
                raise UserError(f"{page}: needs the mark {mark} twice")
            made = make(rows, records) if make in OF_ROWS else make()
            pieces[1] = f"\n{made}\n"
            text = mark.join(pieces)
        path.write_text(text)
    return list(PARTS)
