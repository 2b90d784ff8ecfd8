"""The generated parts of README.md and docs/, and their picture.

A part is between two comments <!-- NAME -->; PARTS has their names by page. A figure in a sentence
follows a comment with its source, a text for str.format: <!-- {virtual_gpu.launches[cuda_graphs]}
-->7<!-- -->. Sources are rows, docstrings, the Makefile and published figures.
"""

import itertools
import re

from tools.docs import doc_figures, pictures
from tools.forecast import forecast_errors
from tools.own_script import recipe_patch
from tools.share import submission
from Utils.analysis import intervals, recommendation, result_tables, text_tables
from Utils.base import command_line, files, paths
from Utils.results import selection
from Utils.scripts import diffs, ladder


def broken(name):
    """Return a name that a narrow column may break after an underscore."""
    return name.replace("_", "_<wbr>")


def picture():
    """Return the README's first picture as Markdown: the chart of the newest shared rows."""
    path = selection.newest_shared().with_name("speedup.png").relative_to(selection.SHARED.parent)
    device = path.parts[1].replace("_", " ")
    return f"![{device}: speedups over the script before, memory and loss]({path.as_posix()})"


def ladder_table():
    """Return the README's table of the ladder, of the newest shared rows, with a caption."""
    path = selection.newest_shared()
    summary = doc_figures.ladder_of(path)
    beyond = summary.study.beyond()
    shown = [script for script in summary.shown if script.name not in beyond]
    table = result_tables.texts_of(shown, result_tables.MAIN)
    table["script"] = [broken(name) for name in table["script"]]

    folder = path.parent.relative_to(selection.SHARED.parent).as_posix()
    caption = f"{selection.description(summary.study.rows)}. {intervals.MEANING}."
    link = f"[Clocks, energy and all other figures]({folder}/README.md)."
    return f"{text_tables.markdown(table)}\n\n{caption} {link}"


def rungs():
    """Return the list of the ladder's scripts, and how many more there are."""
    scripts = ladder.tracked().values()
    seven = [script for script in scripts if script.at_top_level]
    items = []
    for before, script in itertools.pairwise(seven):
        branch = f", over {script.parent}" if script.parent != before.name else ""
        items.append(f"- {_link(script, '')}{branch}: {script.headline.removesuffix('.')}")
    more = len(scripts) - len(seven)
    items += ["", f"beyond/ has [{more} more](docs/TECHNIQUES.md): CUDA graphs, float8, DDP, ..."]
    return "\n".join(items)


def one_diff():
    """Return the changed lines of a script as a block of Markdown."""
    technique = ladder.get(doc_figures.LAST)
    _, _, *lines = diffs.diff(technique, ladder.get(technique.parent), context=0)
    changed = [line for line in lines if line[0] in "+-"]
    return "\n".join(["```diff", *changed, "```"])


def techniques():
    """Return the table of docs/TECHNIQUES.md: a row for each tracked script."""
    summary = doc_figures.ladder_of(selection.newest_shared())
    measured = {script.name: f"{script.parent_speedup}" for script in summary.shown}
    published = doc_figures.published_changes().groupby("script").text.agg(", ".join)

    scripts = sorted(ladder.tracked().values(), key=lambda script: not script.at_top_level)
    columns = {
        "script": [_link(script, "../") for script in scripts],
        "extends": [script.parent or "" for script in scripts],
        "mechanism": [script.headline for script in scripts],
        "gains": [script.facts["Gains"].partition(":")[0] for script in scripts],
        f"on {summary.study.rows.device.iloc[0]}": [measured.get(s.name, "") for s in scripts],
        "published": [published.get(script.name, "") for script in scripts],
    }
    return text_tables.markdown(columns, columns)


def own_script():
    """Return the table of a user's script, and the patch of its recipe as a block of Markdown."""
    path = doc_figures.DOCS / "language_model.csv"
    summary = doc_figures.ladder_of(path)
    table = text_tables.markdown(result_tables.texts_of(summary.shown, result_tables.MAIN))
    recipe = recommendation.recommend(summary).fastest
    patch = recipe_patch.patch_of(recipe, summary.study, path)
    below = f"{selection.description(summary.study.rows)}. {intervals.MEANING}."
    return f"{table}\n\n{below}\n\n```diff\n{patch.diff}```"


def errors():
    """Return a table of the errors of forecasts."""
    return text_tables.markdown(forecast_errors.by_kind(), ["figures"])


def _link(technique, up):
    """Return a Markdown link to a script. up: the way from the page to the repository's root."""
    path = technique.path.relative_to(paths.ROOT).as_posix()
    return f"[{technique.name}]({up}{path})"


def _help_tables(sections, title, format_name):
    """Return a table for each section of the Makefile, with its names and their help."""
    parts = []
    for section, helps in sections.items():
        columns = {title: map(format_name, helps), "meaning": helps.values()}
        parts += [f"### {section}", text_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


FIGURE = re.compile(r"(<!-- ([^<>]*{[^<>]*) -->).*?(?=<!-- -->)", re.DOTALL)
PARTS = {  # functions, or tables in docs/, by the name of a part, by page
    "README.md": {
        "picture": picture,
        "expected": doc_figures.expected,
        "diff": one_diff,
        "rungs": rungs,
        "ladder": ladder_table,
    },
    "docs/TECHNIQUES.md": {
        "traps": "linear_cross_entropy.csv",
        "techniques": techniques,
    },
    "docs/FORECAST.md": {
        "errors": errors,
        "others": doc_figures.measured_by_others,
        "ours": doc_figures.ours_before,
        "kinds": "profile_h200.csv",
    },
    "docs/YOUR_SCRIPT.md": {"patch": own_script},
    "docs/METHOD.md": {"coverage": "coverage.csv"},
    "docs/SAME_TRAINING.md": {},
    "docs/FINDINGS.md": {"losses": "first_losses.csv", "parting": "parting_losses.csv"},
    "docs/COMMANDS.md": {
        "targets": lambda: _help_tables(command_line.targets(), "command", "`make {}`".format),
        "variables": lambda: _help_tables(command_line.variables(), "variable", broken),
    },
}


def pages():
    """Return the text of each page of PARTS, by path, with its new parts and figures."""
    sources = doc_figures.sources()
    texts = {}
    for page, parts in PARTS.items():
        path = paths.ROOT / page
        text = path.read_text()
        for name, make in parts.items():
            mark = f"<!-- {name} -->"
            before, _, after = text.split(mark)
            part = make() if callable(make) else doc_figures.table_of(make)
            text = f"{before}{mark}\n{part}\n{mark}{after}"
        texts[path] = FIGURE.sub(lambda figure: figure[1] + figure[2].format(**sources), text)
    return texts


def write():
    """Write the pages and the picture. Return the paths of the pages.

    All are made before the first is written.
    """
    figure = pictures.gpus()
    texts = submission.pages() | pages()

    for path, text in texts.items():
        files.write(path, text)
    with files.atomic_write(paths.ROOT / "docs/gpus.png") as file:
        figure.savefig(file, dpi=110, bbox_inches="tight", metadata={"Software": None})
    return [path.relative_to(paths.ROOT) for path in texts]
