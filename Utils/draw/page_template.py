"""A page: its templates filled in, with its charts, its style and its script inside."""

import base64
import hashlib
import re
from pathlib import Path

import jinja2

from Utils.analysis import result_tables
from Utils.base.text import HOMES, number, short
from Utils.draw import chart_style

PAGES = Path(__file__).with_name("pages")
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # what no XML may hold


def picture(figure):
    """Return a chart for a page, and close it: its title, a text in its place, and its SVG as the
    address of an image, in which a browser runs no script and loads nothing."""
    words = figure.get_label().splitlines()
    svg = UNPRINTABLE.sub("?", HOMES.sub("~", chart_style.svg(figure)))
    encoded = base64.b64encode(svg.encode(errors="replace")).decode()
    url = f"data:image/svg+xml;base64,{encoded}"
    return {"title": words[0], "alt": ". ".join(words), "url": url}


def table(columns):
    """Return columns of Markdown for a table of HTML, without those that are empty."""
    return {
        title: [short(text.replace("\\|", "|")) for text in texts]
        for title, texts in columns.items()
        if any(texts)
    }


def render(template, **parts):
    """Return a template filled in, with the hashes of its style and script in its policy."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"number": number, "digits": result_tables.four_digits}
    pages.filters |= {"rows": lambda table: zip(*table.values(), strict=True)}
    hashes = {}
    for name in ("page.css", "page.js"):
        digest = hashlib.sha256(pages.get_template(name).render().encode()).digest()
        hashes[name.replace(".", "_")] = base64.b64encode(digest).decode()
    html = pages.get_template(template).render(hashes=hashes, **parts)
    # Homes say who someone is. Records hold none; a note or a data set's path may. And a page can
    # hold what UTF-8 cannot: half a pair, from a file that was not text.
    return HOMES.sub("~", html).encode(errors="replace").decode()
