"""The page of a results file: a template with all that it needs."""

import base64
import hashlib
import re
import shlex
from pathlib import Path

import jinja2

from Utils.analysis import attribution, recipe_pages, recommendation, result_tables
from Utils.analysis.summary import summarize
from Utils.base import tool_packages
from Utils.base.text import HOMES, number, short
from Utils.draw import chart_style, ladder_charts, ratio_charts
from Utils.results import row_rules, selection
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


def report(chosen, path, price=None):
    """Return the page of a Study of a results file, a string of HTML.

    price: what an hour of the device costs.
    """
    summary = summarize(chosen)
    rows = chosen.rows
    scripts = summary.shown
    recommended = recommendation.recommend(summary)
    charts = {
        name: _picture(draw(rows, scripts))
        for name, draw in ladder_charts.timed_charts(scripts).items()
    }

    # Quality of the runs.
    runs = rows[rows.status == "ok"].drop_duplicates("run_id")
    grades = runs.grade.astype(str).map(row_rules.GRADES)
    quality = grades.value_counts().add_suffix(" runs").to_dict()
    quality |= {script.label: script.quality for script in scripts if script.is_disturbed}

    # Commands that repeat the measurement.
    commit = rows.commit.iloc[0].removesuffix("-dirty")
    commands = [f"git checkout {shlex.quote(commit)}"] if commit else []
    rounds = chosen.all_rows["round"].nunique()
    commands += [recommendation.make_command(chosen, rounds), "make report"]

    remarks = [
        chosen.disturbed,
        result_tables.few_rounds(summary),
        result_tables.conditions(summary),
    ]
    tables = {
        "Time, memory and loss of each technique": result_tables.main_table(summary),
        **result_tables.more_tables(summary, price),
    }

    ablation = {}
    whole = attribution.ablated_script(chosen)
    if whole:
        credits = attribution.speedups_by_switch(summary, whole)
        ablation["picture"] = _picture(ratio_charts.ablation(chosen.all_rows, credits, whole))
        ablation["remarks"] = credits.remark[credits.remark != ""].to_dict()

    recipe = recommended.fastest
    environment = {name: rows[name].unique() for name in ("device", "torch", "dataset")}
    for title, (part, key) in ENVIRONMENT.items():
        parts = [record.get(part) or {} for record in chosen.records.values()]
        environment[title] = dict.fromkeys(str(p[key]) for p in parts if p.get(key))
    environment = {title: " or ".join(texts) for title, texts in environment.items() if any(texts)}

    return _render(
        study=chosen,
        described=selection.description(rows),
        remarks=remarks,
        summary=summary,
        best=recipe.figures if recipe and recipe.techniques else None,
        recommended=recommended,
        recipe_pages=recipe_pages,
        charts=charts,
        ablation=ablation,
        tables={title: _table(columns) for title, columns in tables.items()},
        profile=_profile(path, chosen),
        environment=environment,
        quality=quality,
        commands=commands,
        diffs=_diffs(summary),
    )


def _profile(path, chosen):
    """Return the picture and the advice of profiles of the same device and shape; {} without."""
    profile = tool_packages.find("profile", "kind_chart")
    section = profile and profile.of_study(path, chosen)
    if not section:
        return {}
    figure, advice = section
    return {"picture": _picture(figure), "advice": advice}


def _diffs(summary):
    """Return the diff of each script against the script before it, as they ran if that is known."""
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
        shown.append({"name": script.name, "headline": script.headline, "lines": lines})
    return shown


def _picture(figure):
    """Return a chart for a page, and close it. A browser runs no script of an image."""
    words = figure.get_label().splitlines()
    svg = UNPRINTABLE.sub("?", HOMES.sub("~", chart_style.svg(figure)))
    encoded = base64.b64encode(svg.encode(errors="replace")).decode()
    return {"title": words[0], "alt": ". ".join(words), "svg": encoded}


def _table(columns):
    """Return the columns of a table with short texts, without empty columns."""
    return {title: list(map(short, texts)) for title, texts in columns.items() if any(texts)}


def _render(**parts):
    """Return the template filled in, with the hashes of its style and script in its policy."""
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

    hashes = {}
    for name in ("page.css", "page.js"):
        digest = hashlib.sha256(pages.get_template(name).render().encode()).digest()
        hashes[name.replace(".", "_")] = base64.b64encode(digest).decode()
    html = pages.get_template("report.html").render(hashes=hashes, **parts)

    # A note or a data set's path may name a home folder, which identifies a person. A file that was
    # not text may leave half a surrogate pair, which UTF-8 cannot encode.
    return HOMES.sub("~", html).encode(errors="replace").decode()
