"""A browser for tests of pages, and what a page shows."""

import base64
import os
import re
import shutil
from html import unescape

import pytest
from playwright.sync_api import sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium():
    """A running Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        # CI installs one; on a machine without, the other tests still prove something.
        assert not os.environ.get("CI"), "no chromium here, so no page is opened"
        pytest.skip("no chromium here: no page is opened in one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Opens an address, and fails where anything went wrong on its page."""
    contexts = []
    wrong = []

    def visit(address, within, width=1280, expect="$^", **more):
        size = {"width": width, "height": 800}
        context = chromium.new_context(viewport=size, **more)
        contexts.append(context)
        page = context.new_page()

        def on_request(request):
            if not request.url.startswith(("data:", within.as_uri())):
                wrong.append(f"asks for {request.url}")

        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda m: re.search(expect, m.text) or wrong.append(m.text))
        page.on("request", on_request)
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def opened(visit, tmp_path):
    """Opens a page's HTML, as `visit` does, which may ask for nothing else."""

    def opened(html, *look, **more):
        path = tmp_path / "report.html"
        path.write_text(html)
        return visit(path.as_uri(), path, *look, **more)

    return opened


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def plain(html):
    """What a reader sees, roughly: no style, no script, no tags."""
    text = re.sub(r"<(style|script)>.*?</\1>", " ", html.replace("<wbr>", ""), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def charts(html):
    """The charts on a page as the texts of their SVGs."""
    images = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)"', html)
    return [base64.b64decode(image).decode() for image in images]


def words(chart):
    return " ".join(unescape(word) for word in re.findall(r"<text[^>]*>([^<]*)</text>", chart))
