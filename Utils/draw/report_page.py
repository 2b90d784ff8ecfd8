"""The page of a results file, which a template shows."""

import base64
import hashlib
import re
import shlex
from pathlib import Path

import jinja2

from Utils.analysis import attribution, recipe_pages, recommendation, result_tables
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.text import HOMES, number, short
from Utils.draw import chart_style, ladder_charts, ratio_charts
from Utils.results import selection
from Utils.scripts import diffs
from Utils.scripts.ladder import Technique, docstring_facts, split

ENVIRONMENT = {  # title: path of the value in a record
    "device memory (MiB)": ("device", "memory_mib"),
    "driver": ("device", "driver"),
    "Python": ("versions", "python"),
    "CUDA or ROCm": ("device", "toolkit"),
    "cuDNN": ("versions", "cudnn"),
}
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # characters that XML forbids


def html(study, price=None):
    """Return the page of a Study: the template with its parts, and hashes of style and script.

    price: what an hour of the device costs.
    """
    summary = summarize(study)
    scripts = summary.shown
    recommended = recommendation.recommend(summary)
    recipe = recommended.fastest

    drawn = ladder_charts.timed_charts(scripts)
    charts = {name: draw(study.rows, scripts) for name, draw in drawn.items()}
    whole = attribution.ablated_script(study)
    if whole:
        credits = attribution.credits_of(summary, whole)
        charts["ablation"] = ratio_charts.ablation(study.all_rows, credits, whole)

    # Columns of texts by title, short, without empty columns.
    tables = {
        "Time, memory and loss of each technique": result_tables.texts_of(
            scripts, result_tables.MAIN
        ),
        **result_tables.more_tables(summary, price),
    }
    for title, columns in tables.items():
        tables[title] = {
            name: list(map(short, texts)) for name, texts in columns.items() if any(texts)
        }

    # Commands that repeat the measurement.
    commit = study.rows.commit.iloc[0].removesuffix("-dirty")
    rounds = f"ROUNDS={study.all_rows['round'].nunique()}"
    checkout = []
    if commit and not paths.VERSION:
        checkout.append(f"git checkout {shlex.quote(commit)}")
    repeat = recommendation.make_command(study, rounds)

    report = {
        "described": selection.description(study.rows),
        "recommended": recommended,
        "script": recipe_pages.script(recipe, recommended.described) if recipe else "",
        "remarks": [study.disturbance, result_tables.conditions(summary)],
        "charts": {name: _picture(figure) for name, figure in charts.items()},
        "tables": tables,
        "environment": _environment(study),
        "commands": [*checkout, repeat, f"{paths.COMMAND} report"],
        "diffs": _diffs(summary),
    }
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("pages")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "number": number,
        "digits": result_tables.four_digits,
        "rows": lambda table: zip(*table.values(), strict=True),
    }

    # The policy of the page allows what has these hashes.
    hashes = {}
    for name in ("page.css", "page.js"):
        digest = hashlib.sha256(pages.get_template(name).render().encode()).digest()
        hashes[name.replace(".", "_")] = base64.b64encode(digest).decode()
    html = pages.get_template("report.html").render(
        report=report,
        study=study,
        summary=summary,
        hashes=hashes,
        command=paths.COMMAND,
    )

    # A note or a data set's path may name a home folder, which identifies a person. A file that was
    # not text may leave half a surrogate pair, which UTF-8 cannot encode.
    return HOMES.sub("~", html).encode(errors="replace").decode()


def _environment(study):
    """Return texts by title, as rows and records know them."""
    values = {name: study.rows[name].unique() for name in ("device", "torch", "dataset")}
    for title, (part, key) in ENVIRONMENT.items():
        parts = [record.get(part) or {} for record in study.records.values()]
        values[title] = dict.fromkeys(str(p[key]) for p in parts if p.get(key))
    return {title: " or ".join(texts) for title, texts in values.items() if any(texts)}


def _diffs(summary):
    """Return each script with its diff against the script before it, as they ran if known."""
    ran = dict(summary.study.ladder.scripts)
    for record in summary.study.records.values():
        name = record.get("technique")
        source = record.get("source")
        if source:
            doc, code = split(source) if source.startswith('"""') else ("", source)
            ran[name] = Technique(name, Path(f"{name}.py"), doc, code, **docstring_facts(doc))

    shown = []
    for script in filter(None, [ran.get(script.name) for script in summary.shown]):
        if script.parent in ran:
            lines = diffs.diff(script, ran[script.parent], context=1)[2:]
        else:
            lines = [f" {line}" for line in script.code.strip("\n").splitlines()]
        shown.append((script, lines))
    return shown


def _picture(figure):
    """Return a chart for a page, and close it. A browser runs no script of an image."""
    words = figure.get_label().splitlines()
    svg = UNPRINTABLE.sub("?", HOMES.sub("~", chart_style.svg(figure)))
    encoded = base64.b64encode(svg.encode(errors="replace")).decode()
    return {"title": words[0], "alt": ". ".join(words), "svg": encoded}
