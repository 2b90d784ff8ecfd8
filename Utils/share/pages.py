"""The generated parts of README.md and docs/: from rows, docstrings, Makefile and figures.

A part of a page stands between two equal comments, <!-- NAME -->, of the names in PARTS.
"""

import re
from itertools import groupby

from Utils.analysis import ablation, selection, tables
from Utils.analysis.summary import summarize
from Utils.base import ladder, paths
from Utils.base.errors import UserError
from Utils.base.text import broken
from Utils.share import figures

RESULTS = {  # tables of docs/RESULTS.md, with the beginnings of their columns' titles
    "Speed": ("median", "p20", "tokens", "speedup", "over"),
    "Loss": ("loss", "parity"),
    "Quality and notes": ("status", "quality", "note"),
    "Peak memory by kind": (
        "weights",
        "gradients",
        "optimizer",
        "rest",
        "peak (",
        "reserved",
        "used",
    ),
    "Compilation": ("first step", "compiled", "breaks even"),
    "Distance from the limit": ("matmul", "TFLOP", "of the", "MFU", "modelled", "headroom"),
    "Cost of 10^9 tokens": ("hours", "mean power", "kWh", "J for"),
}
LEFT = {"technique", "status", "quality", "note", "parity", "compiled"}
EXAMPLE = "flash_attention"  # whose diff the README shows
DIFFERENT = ("faster", "slower")  # verdicts that are set in bold


def ladder_table(rows, records):
    """Return the README's table of the ladder: six columns and a caption."""
    lines = summarize(rows, records)
    return _six_columns(rows, lines[~lines.index.isin(ladder.beyond())])


def report_table(rows, records):
    """Return the same table of all techniques."""
    return _six_columns(rows, summarize(rows, records))


def _six_columns(rows, lines):
    """Return the six columns and the caption for the lines of a summary."""
    columns = {
        "technique": [broken(name) for name in lines.index],
        "median step (ms)": [
            tables.number(line.median_ms, ",.0f") or line.status.replace("_", " ")
            for _, line in lines.iterrows()
        ],
        "over parent": [_ratio(line, "parent_") for _, line in lines.iterrows()],
        "over baseline": [_ratio(line, "") for _, line in lines.iterrows()],
        "peak memory (MiB)": [tables.number(x, ",.0f") for x in lines.peak_memory_mib],
        "loss": [_loss(line) for _, line in lines.iterrows()],
    }
    caption = (
        f"{selection.describe(rows)}. Ratios are speedups with their 95% confidence interval over "
        "rounds, **bold** where it excludes 1. The loss is compared with the baseline's."
    )
    return f"{tables.markdown(columns)}\n\n{caption}"


def _ratio(line, prefix):
    """Return a speedup with its interval, in bold where the interval excludes 1."""
    text = tables.interval_text(line, prefix)
    if not prefix and line.name == ladder.BASELINE:
        return text.split(" ")[0]
    ratio, space, interval = text.partition(" ")
    bold = "**" if line.get(f"{prefix}verdict") in DIFFERENT else ""
    return f"{bold}{ratio}{bold}{space}{interval}"


def _loss(line):
    """Return the verdict on the loss, in the words of the other verdicts."""
    if line.loss_verdict == "diverged" or line.parity in ("model changed", "other batches"):
        return line.loss_verdict if line.loss_verdict == "diverged" else line.parity
    known = line.parity if line.parity == "exact" else line.loss_verdict
    known = "no detectable difference" if known == "indistinguishable" else known
    return known if isinstance(known, str) else ""


def results(rows, records):
    """Return all tables of docs/RESULTS.md, none wider than a page."""
    summary = summarize(rows, records)
    columns = {}
    for table in tables.columns(summary):
        columns |= table
    columns["technique"] = [broken(name) for name in summary.index]
    measured = summary.median_ms.notna().to_numpy()
    text = [selection.describe(rows) + ".", *tables.over_parents(summary)]
    for title, starts in RESULTS.items():
        kept = measured | (title == "Quality and notes")
        chosen = {
            name: [cell for cell, keep in zip(cells, kept, strict=True) if keep]
            for name, cells in columns.items()
            if name == "technique" or name.startswith(starts)
        }
        shown = {name: cells for name, cells in chosen.items() if any(cells)}
        if len(shown) > 1:
            text += [f"## {title}", tables.markdown(shown, LEFT)]
    return "\n\n".join(text)


def results_of_beyond(rows, records):
    """Return the tables of beyond/'s scripts, from the newest group of rows that has any.

    rows: all of the results file.
    """
    beyond = rows[rows.technique.isin(ladder.beyond())]
    if beyond.empty:
        return "Nothing has been measured yet: run `make beyond`."
    chosen, _ = selection.select(rows, newest_of=beyond)
    return results(chosen, records).replace("\n## ", "\n### ")


def results_of_ablation(rows, records):
    """Return the table of the newest ablation. rows: all of the results file."""
    variants = rows[rows.technique.isin(selection.variants_in(rows))]
    if variants.empty:
        return "Nothing has been measured yet: run `make ablate`."
    chosen, _ = selection.select(rows, with_variants=True, newest_of=variants)
    credits = ablation.credits(chosen, ablation.whole_of(chosen))
    return f"{selection.describe(chosen)}.\n\n{ablation.table(credits)}"


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
    known = ladder.techniques()
    text = []
    for title, where in (("The ladder", True), ("Beyond the ladder", False)):
        chosen = [t for t in known.values() if t.at_top_level is where]
        columns = {
            "technique": [f"[{broken(t.name)}](#{t.name.lower()})" for t in chosen],
            "mechanism, and what it gains": [
                f"{tables.cell(t.headline)} *{', '.join(t.facts.gains)}*" for t in chosen
            ],
        }
        text += [f"## {title}", tables.markdown(columns, columns)]
        text += [_section(t) for t in chosen]
    return "\n\n".join(text)


def _section(technique):
    """Return the facts of a script under a heading of its name."""
    facts = technique.facts.texts
    parent = facts["Parent"]
    parent = "none" if parent == "none" else f"[{parent}](#{parent.lower()})"
    lines = [f"### {technique.name}", "", f"{_link(technique, '../', 'Script')}; parent: {parent}."]
    lines.append("")
    lines += [f"- {name}: {facts[name]}" for name in ladder.FACTS[1:] if name in facts]
    return "\n".join(lines)


def _link(technique, up, text=None):
    path = technique.path.relative_to(paths.ROOT).as_posix()
    return f"[{text or technique.name}]({up}{path})"


def targets():
    """Return the Makefile's targets as tables, one a section of its help."""
    text = []
    for line in (paths.ROOT / "Makefile").read_text().splitlines():
        if section := re.match(r"##@ (.*)", line):
            text.append((section[1], "", ""))
        elif target := re.match(r"([\w-]+):[^=]*## (.*)", line):
            text.append((text[-1][0], f"`make {target[1]}`", target[2]))
    parts = []
    for section, lines in groupby(text, key=lambda line: line[0]):
        lines = [line for line in lines if line[1]]
        columns = {"command": [line[1] for line in lines], "meaning": [line[2] for line in lines]}
        parts += [f"### {section}", tables.markdown(columns, columns)]
    return "\n\n".join(parts)


def variables():
    """Return the Makefile's variables as tables: settings of every run, of commands, of train."""
    titles = {
        "# Settings": "Settings of a run",
        "# Not settings": "Variables of single commands",
        "# For train": "Variables of `make train`",
    }
    text, lines = [], []
    for line in (paths.ROOT / "Makefile").read_text().splitlines():
        for start, title in titles.items():
            if line.startswith(start):
                lines = []
                text.append((title, lines))
        if variable := re.match(r"([A-Z_]+) *\?= *(.*?) *## (.*)", line):
            lines.append(variable.groups())
    parts = []
    for title, lines in text:
        names, defaults, meanings = zip(*lines, strict=True)
        columns = {
            "variable": [
                f"{broken(name)}={default}" for name, default in zip(names, defaults, strict=True)
            ],
            "meaning": [tables.cell(meaning) for meaning in meanings],
        }
        parts += [f"### {title}", tables.markdown(columns, columns)]
    return "\n\n".join(parts)


PARTS = {  # page, its generated parts by name; those of rows take rows and records
    "README.md": {
        "ladder": ladder_table,
        "published": figures.published,
        "diff": one_diff,
        "rungs": rungs,
    },
    "docs/RESULTS.md": {
        "results": results,
        "beyond": results_of_beyond,
        "ablation": results_of_ablation,
        "virtual gpu": figures.virtual_gpu,
        "forecast": figures.forecast,
        "check": figures.forecast_check,
    },
    "docs/PRETRAINING.md": {"hours": figures.hours},
    "docs/TECHNIQUES.md": {"techniques": techniques},
    "docs/COMMANDS.md": {"targets": targets, "variables": variables},
}
OF_ROWS = (ladder_table, results)  # take the selected rows and their records
OF_ALL_ROWS = (results_of_beyond, results_of_ablation)  # take all rows of the file, and the records


def part(text, name):
    """Return what stands between the marks of a part, or None without two marks."""
    parts = text.split(f"<!-- {name} -->")
    return parts[1].strip() if len(parts) == 3 else None


def make_part(make, rows, all_rows, records):
    """Return a generated part. make: of PARTS."""
    if make in OF_ROWS:
        return make(rows, records)
    return make(all_rows, records) if make in OF_ALL_ROWS else make()


def write(rows, all_rows, records):
    """Write every generated part into its page. Return the pages.

    rows: selected from all_rows. records: of all runs.
    """
    for page, parts in PARTS.items():
        path = paths.ROOT / page
        text = path.read_text()
        for name, make in parts.items():
            made = make_part(make, rows, all_rows, records)
            pieces = text.split(mark := f"<!-- {name} -->")
            if len(pieces) != 3:
                raise UserError(f"{page}: needs the mark {mark} twice")
            text = f"{pieces[0]}{mark}\n{made}\n{mark}{pieces[2]}"
        path.write_text(text)
    return list(PARTS)
