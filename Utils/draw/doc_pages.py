"""The generated parts of README.md and docs/: from rows, docstrings, Makefile and figures.

A part of a page stands between two equal comments, <!-- NAME -->, of the names in PARTS.
"""

from Utils.analysis import result_tables
from Utils.analysis.summary import summarize
from Utils.base import makefile, paths
from Utils.base.errors import UserError
from Utils.base.text import broken, number
from Utils.draw import doc_figures
from Utils.results import selection, shared_folders
from Utils.scripts import ladder

EXAMPLE = "fused_optimizer"  # whose diff the README shows


def ladder_table(rows, records):
    """Return the README's table of the ladder, under a line that sums it up."""
    last = summarize(rows, records).speedup[doc_figures.LAST]
    title = f"<summary>{last.text} in all on {rows.device.iloc[0]}</summary>"
    return f"{title}\n\n{report_table(rows, records, ladder.beyond())}"


def report_table(rows, records, omitted=()):
    """Return the same table of all techniques but those omitted."""
    lines = summarize(rows, records)
    table = result_tables.texts_of(lines[~lines.index.isin(omitted)], COLUMNS)
    caption = (
        f"{selection.describe(rows)}. In brackets 95% intervals; **bold**: 1 is outside. Loss: on "
        "held-out text, beside the baseline's."
    )
    return f"{result_tables.markdown(table)}\n\n{caption}"


def _time(line):
    return number(line.step_ms, ",.0f") or line.status.replace("_", " ")


def _ratio(ratio):
    bold = "**" if ratio.verdict in (ratio.above, ratio.below) else ""
    interval = f" ({ratio.interval})" if ratio.interval else ""
    return f"{bold}{ratio.text}{bold}{interval}"


def _loss(line):
    """Return the verdict on the loss, in the words of the other verdicts."""
    verdict = line.loss_difference.verdict
    if verdict != "diverged" and line.parity in ("model changed", "other batches", "exact"):
        return line.parity
    return "no detectable difference" if verdict == "indistinguishable" else verdict


def status():
    """Return what has been measured on GPUs, of the folders of results/."""
    gpus = [path.parent for path in shared_folders.files() if shared_folders.is_of_gpu(path)]
    links = [f"[{gpu.parent.name}]({gpu.relative_to(paths.ROOT)}/README.md)" for gpu in gpus]
    measured = (
        "**We have measured no GPU yet**, only CPUs ([below](#measured-so-far)). Yours can be the "
        "first: [two commands](#share-your-result)."
    )
    if links:
        measured = f"**We have measured** {', '.join(links)}."
    return (
        "> **Status.** Filled marks: published by others, with other code and batches ([every row]"
        f"(docs/published.csv)). Hollow marks: our forecasts. {measured}"
    )


COLUMNS = (  # of the table of the ladder, as in result_tables
    ("technique", "label", broken),
    ("step (ms)", None, _time),
    ("over the script before", "parent_speedup", _ratio),
    ("over the baseline", "speedup", lambda ratio: ratio.text),
    ("peak memory (MiB)", "peak_memory_mib", ",.0f"),
    ("loss", None, _loss),
)


def rungs():
    scripts = [t for t in ladder.group("ladder") if t.parent]
    return "\n".join(f"- {_link(t, '')}: {t.headline.removesuffix('.')}" for t in scripts)


def one_diff():
    technique = ladder.get(EXAMPLE)
    _, _, *lines = ladder.diff(technique, ladder.get(technique.parent), context=0)
    return "\n".join(["```diff", *(line for line in lines if line[0] in "+-"), "```"])


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
    parent = f"[{technique.parent}](#{technique.parent.lower()})" if technique.parent else "none"
    lines = [f"- {name}: {facts[name]}" for name in ladder.FACTS[1:] if name in facts]
    link = f"{_link(technique, '../', 'Script')}; parent: {parent}."
    return "\n".join([f"### {technique.name}", "", link, "", *lines])


def _link(technique, up, text=None):
    path = technique.path.relative_to(paths.ROOT).as_posix()
    return f"[{text or technique.name}]({up}{path})"


def targets():
    return _explained(makefile.targets(), "command", "`make {}`".format)


def variables():
    return _explained(makefile.variables(), "variable", broken)


def _explained(sections, title, written):
    """Return a table a section of the Makefile's names and their help; written: how a name is."""
    parts = []
    for section, helps in sections.items():
        meanings = map(result_tables.cell, helps.values())
        columns = {title: [*map(written, helps)], "meaning": [*meanings]}
        parts += [f"### {section}", result_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


PARTS = {  # page, its generated parts by name; those of rows take rows and records
    "README.md": {
        "status": status,
        "expected": doc_figures.expected,
        "diff": one_diff,
        "rungs": rungs,
        "ladder": ladder_table,
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
            text = mark.join([pieces[0], f"\n{made}\n", pieces[2]])
        path.write_text(text)
    return list(PARTS)
