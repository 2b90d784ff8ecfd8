"""A browser for tests of pages."""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="module")
def chromium():
    """A running Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        # CI installs one; on a machine without, the other tests still prove something.
        assert not os.environ.get("CI"), "no chromium here, so no page is opened"
        pytest.skip("no chromium here: no page is opened in one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()
