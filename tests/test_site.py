"""The page to choose a GPU on: every figure is in its row, and it opens everywhere."""

import base64
import gzip
import json
from functools import cache

import pytest

from tests.helpers import browser, processes
from tests.helpers.rows import append_run
from tools.site import site_page
from Utils.base.text import plain
from Utils.scripts import ladder

chromium = browser.chromium  # fixtures
visit = browser.visit
GPU = {"device": "New <script>alert(1)</script> GPU", "batch_size": 16}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the page, with measurements of one device, of which nothing else knows."""
    tmp_path = tmp_path_factory.mktemp("site")
    path = tmp_path / "results" / "New_GPU" / "2026-01-02" / "results.csv"
    path.parent.mkdir(parents=True)

    for n, name in enumerate(("no_optimization", "tensorFloat32", "brainFloat16")):
        for r in range(4):
            steps = [ms / 2**n for ms in (256, 256, 180, 200, 256, 256, 320, 324)]
            memory = {"peak_memory_mib": 1024, "reserved_memory_mib": 950}
            append_run(path, name, steps, round=r, **GPU | memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("Utils.results.selection.SHARED", tmp_path / "results")
        # They are read often.
        patch.setattr("Utils.scripts.ladder.techniques", cache(ladder.techniques))
        site_page.write(tmp_path / "site")
    return tmp_path / "site"


MEASURED = """\
["no_optimization", 4000, 3200, 5120, 1, 1, 1, 1, null, null, null, "5.000"]
["tensorFloat32", 8000, 6400, 10240, 1, 2, 2, 2, 2, 2, 2, "5.000"]
["brainFloat16", 16000, 12800, 20480, 1, 4, 4, 4, 2, 2, 2, "5.000"]"""


def test_site_has_the_figures_of_rows(site):
    """RESULTS: "It shows the rows in results/"."""
    packed = (site / "figures.js").read_text().split('"')[1]
    figures = json.loads(gzip.decompress(base64.b64decode(packed)))
    measured = figures["answers"]["new_gpu"]["gpt2"]["16x64"]
    assert "\n".join(map(json.dumps, measured["rows"])) == MEASURED
    assert measured["pick"] == "brainFloat16" and len(measured["pair"]) == 2
    (device,) = figures["devices"]  # no other has an answer
    assert (device["key"], device["name"]) == ("new_gpu", plain(GPU["device"]))


def test_site_imports_no_torch():
    processes.command("-c", "import sys, tools.site.__main__; assert 'torch' not in sys.modules")


SHOWN = """\
4.00x faster ✕
measured, results/New_GPU/2026-01-02
Measured: brainFloat16 on New &#60;script>alert(1)&#60;/script> GPU, GPT-2, 124M, 16 x 64 \
tokens a step.
Tokens a second
4,000 →
16,000 ✕
measured, results/New_GPU/2026-01-02
12,800 to 20,480
Peak memory
1 →
1 GiB ✕
measured, results/New_GPU/2026-01-02
10 billion tokens
694 →
174 hours ✕
measured, results/New_GPU/2026-01-02
136 to 217
10 billion tokens
$1,390 →
$347 ✕
measured, results/New_GPU/2026-01-02
$271 to $434
script tokens/s over the script before over the baseline peak GiB loss
no_optimization 4,000 ✕
measured, results/New_GPU/2026-01-02
1.00x 1 ✕
measured, results/New_GPU/2026-01-02
5.000
tensorFloat32 8,000 ✕
measured, results/New_GPU/2026-01-02
2.00x 2.00x 1 ✕
measured, results/New_GPU/2026-01-02
5.000
brainFloat16 16,000 ✕
measured, results/New_GPU/2026-01-02
2.00x 4.00x 1 ✕
measured, results/New_GPU/2026-01-02
5.000
"""


@pytest.mark.slow
def test_site_shows_figures_hours_and_dollars(visit, site):
    """10^10 tokens at 16,000 a second are 174 hours, at 2 dollars 347; a name is only text."""
    address = f"{(site / 'index.html').as_uri()}#new_gpu,gpt2,16x64"
    page = visit(address, site, offline=True)
    page.wait_for_selector("#ratios svg")
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    page.locator("#price").fill("2")
    page.keyboard.press("Tab")
    texts = [page.locator(part).inner_text() for part in ("h1", "#summary", "#cards", "#scripts")]
    shown = "\n".join(" ".join(line.split()) for line in "\n".join(texts).splitlines()) + "\n"
    assert shown == SHOWN
