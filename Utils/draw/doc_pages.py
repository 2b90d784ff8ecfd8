"""The generated parts of README.md and docs/: from rows, docstrings, Makefile and figures.

A part of a page stands between two equal comments, <!-- NAME -->, of the names in PARTS.
"""

from Utils.analysis import result_tables, text_tables
from Utils.analysis.summary import summarize
from Utils.base import makefile, paths
from Utils.base.text import broken
from Utils.draw import doc_figures
from Utils.results import selection, shared_folders
from Utils.scripts import ladder


def ladder_table(rows, records):
    """Return the README's table of the ladder, under a line that sums it up."""
    lines = summarize(rows, records)
    table = result_tables.texts_of(lines[~lines.index.isin(ladder.beyond())], result_tables.MAIN)
    table["script"] = [broken(name) for name in table["script"]]
    summary = f"<summary>The table: {lines.speedup[doc_figures.LAST].text} in all</summary>"
    return f"{summary}\n\n{text_tables.markdown(table)}\n\n{selection.describe(rows)}."


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


def rungs():
    scripts = [t for t in ladder.group("ladder") if t.parent]
    return "\n".join(f"- {_link(t, '')}: {t.headline.removesuffix('.')}" for t in scripts)


def one_diff():
    technique = ladder.get(doc_figures.LAST)
    _, _, *lines = ladder.diff(technique, ladder.get(technique.parent), context=0)
    return "\n".join(["```diff", *(line for line in lines if line[0] in "+-"), "```"])


def techniques():
    """Return docs/TECHNIQUES.md: a list of all scripts, and a section for each."""
    published, forecast = doc_figures.published_changes(), doc_figures.forecast_changes()
    text = []
    for title, at_top_level in (("The seven scripts", True), ("Beyond the seven", False)):
        scripts = [t for t in ladder.techniques().values() if t.at_top_level is at_top_level]
        listed = [f"- [{t.name}](#{t.name.lower()}): {t.headline}" for t in scripts]
        text += [f"## {title}", "\n".join(listed)]
        text += [_section(t, {"Published": published, "Forecast": forecast}) for t in scripts]
    return "\n\n".join(text)


def _section(technique, elsewhere):
    """Return a script's section. elsewhere: tables of figures not measured here, by kind."""
    facts = technique.facts.texts
    lines = [f"### {technique.name}", "", _link(technique, "../", "Script")]
    if technique.parent:
        lines[-1] += f", over [{technique.parent}](#{technique.parent.lower()})"
    mechanism = " ".join(technique.doc.split("\n\n")[1].split())
    lines += ["", mechanism, "", *_needs(technique)]
    lines += [f"- {name}: {facts[name]}" for name in ("Gains", "Costs")]
    for kind, changes in elsewhere.items():
        if texts := [*changes.text[changes.script == technique.name]]:
            lines.append(f"- {kind}: {', '.join(texts)}")
    return "\n".join([*lines, f"- See: {facts['See']}"])


def _needs(technique):
    """Return what a script needs, apart from what it needs because its parent does."""
    inherited = ladder.get(technique.parent).needs if technique.parent else ()
    inherited = [need for need in technique.needs if need in inherited]
    _, semicolon, remark = technique.facts.texts["Needs"].partition(";")
    own = [need for need in technique.needs if need not in inherited] or ["nothing of its own"]
    yield f"- Needs: {', '.join(own)}{semicolon}{remark}"
    if inherited:
        yield f"- Inherited needs: {', '.join(inherited)}"


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
        meanings = helps.values()
        columns = {title: [*map(written, helps)], "meaning": [*meanings]}
        parts += [f"### {section}", text_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


PARTS = {  # page, its generated parts by name; those of rows take rows and records
    "README.md": {
        "status": status,
        "expected": doc_figures.expected,
        "diff": one_diff,
        "rungs": rungs,
        "ladder": ladder_table,
    },
    "docs/TECHNIQUES.md": {"techniques": techniques},
    "docs/COMMANDS.md": {"targets": targets, "variables": variables},
}
OF_ROWS = (ladder_table,)  # take the selected rows and their records


def write(rows, records):
    """Write every generated part into its page, between its two marks. Return the pages."""
    for page, parts in PARTS.items():
        path = paths.ROOT / page
        text = path.read_text()
        for name, make in parts.items():
            mark = f"<!-- {name} -->"
            before, _, after = text.split(mark)
            made = make(rows, records) if make in OF_ROWS else make()
            text = f"{before}{mark}\n{made}\n{mark}{after}"
        path.write_text(text)
    return list(PARTS)
