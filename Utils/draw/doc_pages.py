"""The generated parts of README.md and docs/: from rows, docstrings, Makefile and figures.

A part of a page stands between two equal comments, <!-- NAME -->, of the names in PARTS.
"""

import re

import pandas as pd

from Utils.analysis import attribution, result_tables
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.text import broken
from Utils.draw import doc_figures
from Utils.results import selection
from Utils.scripts import ladder

RESULTS = {  # tables of docs/RESULTS.md, with the beginnings of their columns' titles
    "Speed": ("median", "p20", "tokens", "speedup", "over"),
    "Loss": ("loss", "parity"),
    "Quality and notes": ("status", "quality", "note"),
    "Peak memory by kind": ("weights", "grad", "optimizer", "rest", "peak (", "reserved", "used"),
    "Compilation": ("first step", "compiled", "breaks even"),
    "Distance from the limit": ("matmul", "TFLOP", "of the", "MFU", "modelled", "headroom"),
    "Cost of 10^9 tokens": ("hours", "mean power", "kWh", "J for"),
}
LEFT = {"technique", "status", "quality", "note", "parity", "compiled"}
EXAMPLE = "flash_attention"  # whose diff the README shows
DIFFERENT = ("faster", "slower")  # verdicts that are set in bold


def ladder_table(rows, records):
    """Return the README's table of the ladder: six columns and a caption."""
    return report_table(rows, records, ladder.beyond())


def report_table(rows, records, omitted=()):
    """Return the same table of all techniques but those omitted."""
    lines = summarize(rows, records)
    lines = lines[~lines.index.isin(omitted)]
    each = [line for _, line in lines.iterrows()]
    columns = {
        "technique": [broken(name) for name in lines.index],
        "median step (ms)": [
            result_tables.number(line.median_ms, ",.0f") or line.status.replace("_", " ")
            for line in each
        ],
        "over parent": [_ratio(line.parent_speedup) for line in each],
        "over baseline": [_ratio(line.speedup) for line in each],
        "peak memory (MiB)": [result_tables.number(line.peak_memory_mib, ",.0f") for line in each],
        "loss": [_loss(line) for line in each],
    }
    caption = (
        f"{selection.describe(rows)}. Ratios are speedups with their 95% confidence interval over "
        "rounds, **bold** where it excludes 1. The loss is compared with the baseline's."
    )
    return f"{result_tables.markdown(columns)}\n\n{caption}"


def _ratio(ratio):
    """Return a speedup with its interval, in bold where the interval excludes 1."""
    bold = "**" if ratio.verdict in DIFFERENT else ""
    interval = f" ({ratio.interval})" if ratio.interval else ""
    return f"{bold}{ratio.text}{bold}{interval}"


def _loss(line):
    """Return the verdict on the loss, in the words of the other verdicts."""
    verdict, parity = line.loss_difference.verdict, line.parity
    if verdict != "diverged" and parity in ("model changed", "other batches", "exact"):
        return parity
    return "no detectable difference" if verdict == "indistinguishable" else verdict


def results(rows, records):
    """Return all tables of docs/RESULTS.md, none wider than a page."""
    summary = summarize(rows, records)
    texts = [column for table in result_tables.columns(summary) for column in table.items()]
    columns = pd.DataFrame(dict(texts)).assign(technique=[*map(broken, summary.index)])
    text = [selection.describe(rows) + ".", *result_tables.over_parents(summary)]
    for title, starts in RESULTS.items():
        chosen = columns.loc[:, columns.columns.str.startswith(("technique", *starts))]
        if title != "Quality and notes":
            chosen = chosen[summary.median_ms.notna().to_numpy()]
        shown = {name: [*cells] for name, cells in chosen.items() if any(cells)}
        if len(shown) > 1:
            text += [f"## {title}", result_tables.markdown(shown, LEFT)]
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
    credits = attribution.credits(chosen, attribution.whole_of(chosen))
    return f"{selection.describe(chosen)}.\n\n{attribution.table(credits)}"


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
                f"{result_tables.cell(t.headline)} *{', '.join(t.facts.gains)}*" for t in chosen
            ],
        }
        text += [f"## {title}", result_tables.markdown(columns, columns)]
        text += [_section(t) for t in chosen]
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
    parts, makefile = [], (paths.ROOT / "Makefile").read_text()
    for section in re.split(r"^##@ ", makefile, flags=re.MULTILINE)[1:]:
        lines = re.findall(r"^([\w-]+):[^=\n]*## (.*)", section, re.MULTILINE)
        columns = {
            "command": [f"`make {target}`" for target, _ in lines],
            "meaning": [meaning for _, meaning in lines],
        }
        parts += [f"### {section.splitlines()[0]}", result_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


def variables():
    """Return the Makefile's variables as tables: settings of every run, of commands, of train."""
    titles = {
        "# Settings": "Settings of a run",
        "# Not settings": "Variables of single commands",
        "# For train": "Variables of `make train`",
    }
    parts, makefile = [], (paths.ROOT / "Makefile").read_text()
    pieces = re.split(rf"^({'|'.join(titles)})", makefile, flags=re.MULTILINE)[1:]
    for start, piece in zip(pieces[::2], pieces[1::2], strict=True):
        lines = re.findall(r"^([A-Z_]+) *\?= *(.*?) *## (.*)", piece, re.MULTILINE)
        columns = {
            "variable": [f"{broken(name)}={default}" for name, default, _ in lines],
            "meaning": [result_tables.cell(meaning) for _, _, meaning in lines],
        }
        parts += [f"### {titles[start]}", result_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


PARTS = {  # page, its generated parts by name; those of rows take rows and records
    "README.md": {
        "ladder": ladder_table,
        "published": doc_figures.published,
        "diff": one_diff,
        "rungs": rungs,
    },
    "docs/RESULTS.md": {
        "results": results,
        "beyond": results_of_beyond,
        "ablation": results_of_ablation,
        "virtual gpu": doc_figures.virtual_gpu,
        "forecast": doc_figures.forecast,
        "check": doc_figures.forecast_check,
    },
    "docs/PRETRAINING.md": {"hours": doc_figures.hours},
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
            pieces = text.split(mark := f"<!-- {name} -->")
            if len(pieces) != 3:
                raise UserError(f"{page}: needs the mark {mark} twice")
            pieces[1] = f"\n{make_part(make, rows, all_rows, records)}\n"
            text = mark.join(pieces)
        path.write_text(text)
    return list(PARTS)
