"""The page to choose a GPU on: every figure is in its row, and it opens everywhere."""

import base64
import csv
import gzip
import json
import re
import sys

import pytest

from tests.helpers import browser
from tests.helpers.browser import fits
from tests.helpers.rows import rows_of
from tools.site import site_page
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.results import rows_file, selection
from Utils.scripts import ladder

chromium = browser.chromium  # fixtures
visit = browser.visit
FORECASTS = list(csv.DictReader((paths.ROOT / "docs" / "forecast.csv").read_text().splitlines()))
OPEN = "document.querySelectorAll('details').forEach(fold => fold.open = true)"
GPU = {"device": "New <script>alert(1)</script> GPU", "batch_size": 16}
pytest.importorskip("vl_convert")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the page, with measurements of one device, of which nothing else knows."""
    tmp_path = tmp_path_factory.mktemp("site")
    path = tmp_path / "results" / "New_GPU" / "2026-01-02" / "results.csv"
    path.parent.mkdir(parents=True)
    for n, name in enumerate(("no_optimization", "tensorFloat32", "brainFloat16")):
        for r in range(2):
            steps = [ms * 4**r / 2**n for ms in (128, 128, 100, 128, 200)]
            memory = {"peak_memory_mib": 1024, "reserved_memory_mib": 950}
            rows_file.append(path, rows_of(name, steps, round=r, **GPU | memory))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "SHARED", tmp_path / "results")
        site_page.write(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def opened(visit, site):
    """Opens the page at a choice, without a network."""

    def opened(choice="", *look, **more):
        address = f"{(site / 'index.html').as_uri()}{choice}"
        page = visit(address, site, *look, offline=True, **more)
        page.wait_for_selector("#ratios svg")
        return page

    return opened


MEASURED = """\
["no_optimization", 16, 4000, 2000, 8000, 1, 1, 1, 1, null, null, null, 0, "5.000"]
["tensorFloat32", 16, 8000, 4000, 16000, 1, 2, 2, 2, 2, 2, 2, 0, "5.000"]
["brainFloat16", 16, 16000, 8000, 32000, 1, 4, 4, 4, 2, 2, 2, 0, "5.000"]"""


def test_site_has_the_figures_of_rows_and_forecasts(site):
    """README: "`make site`: a page to choose one". It is small and holds its tables."""
    packed = (site / "figures.js").read_text().split('"')[1]
    figures = json.loads(gzip.decompress(base64.b64decode(packed)))
    measured = figures["answers"]["new_gpu"]["gpt2"]["16x64"]
    assert "\n".join(map(json.dumps, measured["rows"])) == MEASURED
    assert measured["pick"] == "brainFloat16" and len(measured["pair"]) == 2
    assert measured["folder"] == "results/New_GPU/2026-01-02"
    device = {"key": "new_gpu", "name": GPU["device"], "group": "Other GPUs, measured"}
    assert device in figures["devices"]

    answers = figures["answers"]["a100"]["gpt2"]
    before, (name, *numbers, loss) = answers["16x1024"]["rows"][:2]
    assert (name, loss) == ("tensorFloat32", "")
    row = FORECASTS[numbers[-1] - 2]  # the line of the file is shown
    assert (row["device"], row["model"], row["technique"]) == ("a100", "gpt2", name)
    columns = ["batch_size", "tokens_per_second", "peak_gib"]
    columns += ["speedup", "speedup_low", "speedup_high"]
    shown = [*numbers[:2], *numbers[4:8]]
    assert shown == pytest.approx([float(row[column]) for column in columns], rel=1e-5)
    ends = [16 * 1024e3 / float(row[column]) for column in ("high_ms", "low_ms")]
    ends.append(numbers[1] / before[2])
    assert [*numbers[2:4], numbers[8]] == pytest.approx(ends, rel=1e-3)

    # The shortest line of scripts that is nearly as fast as the fastest.
    tokens = {name: rate for name, _, rate, *_ in answers["16x1024"]["rows"]}
    near = [name for name, rate in tokens.items() if rate >= 0.97 * max(tokens.values())]
    pick = answers["16x1024"]["pick"]
    assert pick in near and len(ladder.lineage(pick)) == min(
        len(ladder.lineage(name)) for name in near
    )
    largest = answers["largest"]["rows"][1]
    assert largest[1] == float(row["largest_batch"]) and largest[7:9] == [None, None]
    assert figures["copies"]["brainFloat16"]["techniques"] == ["tensorFloat32", "brainFloat16"]
    assert sum(path.stat().st_size for path in site.rglob("*")) <= 1_500_000
    listed = set(re.findall(r"\| ([\w.]+\.csv[.gz]*) \|", (site / "data/README.md").read_text()))
    assert listed == {path.name for path in (site / "data").glob("*.csv*")}


def test_site_without_the_library_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UserError, match="vl-convert-python"):
        site_page.write(tmp_path)


SHOWN = """\
4.00x faster ✕
measured, results/New_GPU/2026-01-02
Measured: brainFloat16 on New <script>alert(1)</script> GPU, GPT-2, 124M, 16 x 64 tokens a step.
Tokens a second
4,000 →
16,000 ✕
measured, results/New_GPU/2026-01-02
8,000 to 32,000
Peak memory
1 →
1 GiB ✕
measured, results/New_GPU/2026-01-02
10 billion tokens
694 →
174 hours ✕
measured, results/New_GPU/2026-01-02
86.8 to 347
10 billion tokens
$1,390 →
$347 ✕
measured, results/New_GPU/2026-01-02
$174 to $694
script batch tokens/s over the script before over the baseline peak GiB loss
no_optimization 16 4,000 ✕
measured, results/New_GPU/2026-01-02
1.00x 1 ✕
measured, results/New_GPU/2026-01-02
5.000
tensorFloat32 16 8,000 ✕
measured, results/New_GPU/2026-01-02
2.00x 2.00x 1 ✕
measured, results/New_GPU/2026-01-02
5.000
brainFloat16 16 16,000 ✕
measured, results/New_GPU/2026-01-02
2.00x 4.00x 1 ✕
measured, results/New_GPU/2026-01-02
5.000
"""


@pytest.mark.slow
def test_site_shows_figures_hours_and_dollars(opened):
    """10^10 tokens at 16,000 a second are 174 hours, at 2 dollars 347; a name is only text."""
    page = opened("#new_gpu,gpt2,16x64")
    page.evaluate(OPEN)
    page.locator("#price").fill("2")
    page.keyboard.press("Tab")
    texts = [page.locator(part).inner_text() for part in ("h1", "#summary", "#cards", "#scripts")]
    shown = "\n".join(" ".join(line.split()) for line in "\n".join(texts).splitlines()) + "\n"
    assert shown == SHOWN


@pytest.mark.slow
def test_site_choice_by_keyboard_is_an_address_and_back_undoes_it(opened):
    page = opened()
    summary = page.locator("#summary")
    assert "A100" in summary.inner_text()
    page.locator("#device").focus()
    page.keyboard.type("L40S")
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash.startsWith('#l40s,gpt2,')")
    page.locator("#shape").select_option("largest")
    assert page.evaluate("location.hash") == "#l40s,gpt2,largest"
    page.get_by_text("Lightning", exact=True).click()
    assert "# in configure_optimizers" in page.locator("#code").inner_text()
    page.go_back()
    page.wait_for_function("!location.hash.endsWith('largest')")
    assert "on L40S" in summary.inner_text() and "16\u00a0x\u00a01024" in summary.inner_text()
    assert "A100" in opened("#__proto__,constructor").locator("#summary").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_site_fits_is_accessible_and_prints(width, scheme, opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened("#h100,gpt2,16x1024", width, scheme)
    assert fits(page)
    page.evaluate(OPEN)
    assert fits(page)
    assert axe.run(page, options={"preload": False}).response["violations"] == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    assert fits(page) and page.locator("#copy:visible").count() == 0
