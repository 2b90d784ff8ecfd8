"""The page of a results file, which a template shows."""

import base64
import hashlib
import re
import shlex
from functools import cached_property
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


class Report:
    """What the page of a results file shows. Its template asks for each part.

    study: its rows.
    price: what an hour of the device costs.
    """

    def __init__(self, study, price=None):
        self.study = study
        self.price = price
        self.described = selection.description(study.rows)
        self.summary = summarize(study)
        self.recommended = recommendation.recommend(self.summary)

    @property
    def best(self):
        """Figures of the recipe for speed; None if nothing is faster than the baseline."""
        recipe = self.recommended.fastest
        return recipe.figures if recipe else None

    @property
    def remarks(self):
        return [
            self.study.disturbance,
            result_tables.conditions(self.summary),
        ]

    @cached_property
    def charts(self):
        """Pictures by name."""
        scripts = self.summary.shown
        charts = ladder_charts.timed_charts(scripts)
        return {name: _picture(draw(self.study.rows, scripts)) for name, draw in charts.items()}

    def script(self, recipe):
        return recipe_pages.script(recipe, self.recommended.described)

    @cached_property
    def ablation(self):
        """The picture of an ablation; None without."""
        whole = attribution.ablated_script(self.study)
        if not whole:
            return None
        credits = attribution.credits_of(self.summary, whole)
        return _picture(ratio_charts.ablation(self.study.all_rows, credits, whole))

    @property
    def tables(self):
        """Columns of texts by title, short, without empty columns."""
        tables = {
            "Time, memory and loss of each technique": result_tables.texts_of(
                self.summary.shown, result_tables.MAIN
            ),
            **result_tables.more_tables(self.summary, self.price),
        }
        for title, columns in tables.items():
            filled = {name: texts for name, texts in columns.items() if any(texts)}
            tables[title] = {name: list(map(short, texts)) for name, texts in filled.items()}
        return tables

    @property
    def environment(self):
        """Texts by title, as rows and records know them."""
        rows = self.study.rows
        values = {name: rows[name].unique() for name in ("device", "torch", "dataset")}
        for title, (part, key) in ENVIRONMENT.items():
            parts = [record.get(part) or {} for record in self.study.records.values()]
            values[title] = dict.fromkeys(str(p[key]) for p in parts if p.get(key))
        return {title: " or ".join(texts) for title, texts in values.items() if any(texts)}

    @property
    def commands(self):
        """Commands that repeat the measurement."""
        commit = self.study.rows.commit.iloc[0].removesuffix("-dirty")
        rounds = f"ROUNDS={self.study.all_rows['round'].nunique()}"
        commands = [recommendation.make_command(self.study, rounds), f"{paths.COMMAND} report"]
        if commit and not paths.VERSION:
            commands.insert(0, f"git checkout {shlex.quote(commit)}")
        return commands

    @property
    def diffs(self):
        """The diff of each script against the script before it, as they ran if that is known."""
        ran = dict(self.study.ladder.scripts)
        for record in self.study.records.values():
            name = record.get("technique")
            source = record.get("source")
            if source:
                doc, code = split(source) if source.startswith('"""') else ("", source)
                ran[name] = Technique(name, Path(f"{name}.py"), doc, code, **docstring_facts(doc))

        shown = []
        for script in filter(None, [ran.get(script.name) for script in self.summary.shown]):
            if script.parent in ran:
                lines = diffs.diff(script, ran[script.parent], context=1)[2:]
            else:
                lines = [f" {line}" for line in script.code.strip("\n").splitlines()]
            shown.append({"name": script.name, "headline": script.headline, "lines": lines})
        return shown

    def html(self):
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
        html = pages.get_template("report.html").render(
            report=self,
            study=self.study,
            summary=self.summary,
            hashes=hashes,
            command=paths.COMMAND,
        )

        # A note or a data set's path may name a home folder, which identifies a person. A file
        # that was not text may leave half a surrogate pair, which UTF-8 cannot encode.
        return HOMES.sub("~", html).encode(errors="replace").decode()


def _picture(figure):
    """Return a chart for a page, and close it. A browser runs no script of an image."""
    words = figure.get_label().splitlines()
    svg = UNPRINTABLE.sub("?", HOMES.sub("~", chart_style.svg(figure)))
    encoded = base64.b64encode(svg.encode(errors="replace")).decode()
    return {"title": words[0], "alt": ". ".join(words), "svg": encoded}
