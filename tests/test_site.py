"""The page to choose a GPU on: every figure is in its row, and it opens everywhere."""

import csv
import re
import shutil
import sys

import pytest

from tests.helpers import browser
from tests.helpers.browser import fits
from tests.helpers.rows import rows_of, write_record
from tools.site import site_page
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.results import rows_file, selection
from Utils.scripts import ladder

chromium = browser.chromium  # fixtures
visit = browser.visit
FORECASTS = list(csv.DictReader((paths.ROOT / "docs" / "forecast.csv").read_text().splitlines()))
DEVICES = ("t4", "rtx3050", "rtx4090", "a100", "mi300x")
pytest.importorskip("vl_convert")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the page, with a device more, of which nothing else knows."""
    tmp_path = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        shared = tmp_path / "results"
        shutil.copytree(selection.SHARED, shared)
        path = shared / "New_GPU" / "2026-01-02" / "results.csv"
        path.parent.mkdir(parents=True)
        names = ("no_optimization", "tensorFloat32", "brainFloat16")
        for r in range(3):
            for n, name in enumerate(names):
                ms = [(400 + r) / 2**n] * 9
                more = {"device": "New <script>alert(1)</script> GPU", "reserved_memory_mib": 950}
                rows = rows_of(name, ms, round=r, batch_size=16, **more)
                rows_file.append(path, rows)
                write_record(path, rows)
        patch.setattr(selection, "SHARED", shared)
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


def number(text):
    return float(re.sub(r"[^\d.]", "", text))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_every_figure_is_in_its_row(device, opened):
    page = opened(f"#{device},gpt2,4x1024")
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    rows = [r for r in FORECASTS if r["device"] == device and r["batch_size"] == "4"]
    rows = {r["technique"]: r for r in rows if r["model"] == "gpt2"}
    shown = page.locator("#scripts tbody tr").all()
    assert len(shown) == len(rows)
    for line in shown:
        name, batch, tokens, before, speedup, memory = line.locator("th, td").all_inner_texts()
        row = rows[name]
        parent = rows.get(ladder.get(name).parent)
        assert int(batch) == 4 and number(tokens.split()[0]) == float(row["tokens_per_second"])
        assert number(memory.split()[0]) == pytest.approx(float(row["peak_gib"]), rel=6e-3)
        for place, ratio in enumerate(re.findall(r"[\d.]+(?=x)", speedup)):
            column = ("speedup", "speedup_low", "speedup_high")[place]
            assert float(ratio) == pytest.approx(float(row[column]), abs=0.0051)
        if parent:
            expected = float(parent["forecast_ms"]) / float(row["forecast_ms"])
            assert number(before.split("x")[0]) == pytest.approx(expected, abs=0.0051)
        href = line.locator("a").first.get_attribute("href")
        assert FORECASTS[int(re.search(r"line (\d+)", line.inner_html())[1]) - 2] == row and href
    pick = page.locator("tr.pick th").inner_text()
    cards = page.locator("#cards dd").all_inner_texts()
    rate = float(rows[pick]["tokens_per_second"])
    hours = 1e10 / rate / 3600
    assert f"{rate:,.0f}" in cards[0]
    assert number(re.search(r"([\d.,]+) hours", cards[2])[1]) == pytest.approx(hours, rel=6e-3)
    page.locator("#price").fill("2")
    page.keyboard.press("Tab")
    dollars = number(page.locator("#cards dd").nth(3).inner_text().split("→")[1].split("○")[0])
    assert dollars == pytest.approx(2 * hours, rel=6e-3)
    fastest = max(float(row["tokens_per_second"]) for row in rows.values())
    assert rate >= 0.969 * fastest


@pytest.mark.slow
def test_a_choice_by_keyboard_is_an_address_and_back_undoes_it(opened):
    page = opened()
    assert page.locator("h1").inner_text() and "A100" in page.locator("#summary").inner_text()
    page.locator("#device").focus()
    page.keyboard.type("L40S")
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash.startsWith('#l40s,gpt2,')")
    assert "L40S" in page.locator("#summary").inner_text()
    page.locator("#shape").select_option("largest")
    assert page.evaluate("location.hash") == "#l40s,gpt2,largest"
    page.get_by_text("Lightning", exact=True).click()
    assert "# in configure_optimizers" in page.locator("#code").inner_text()
    page.go_back()
    page.wait_for_function("!location.hash.endsWith('largest')")
    assert "16\u00a0x\u00a01024" in page.locator("#summary").inner_text()
    for damaged in ("#%E0%A4%A", "#nothing,of,this", "#__proto__,constructor"):
        assert "A100" in opened(damaged).locator("#summary").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (390, "light")])
def test_the_page_fits_is_accessible_and_prints(width, scheme, opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened("#h100,gpt2,16x1024", width, scheme)
    assert fits(page)
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert fits(page)
    assert axe.run(page, options={"preload": False}).response["violations"] == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")
    assert page.locator("#memory svg").count() == 1
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    assert fits(page) and page.locator("#copy:visible").count() == 0


@pytest.mark.slow
def test_a_new_folder_is_on_the_page_and_its_name_is_only_text(opened):
    page = opened("#new_gpu,gpt2,16x64")
    summary = page.locator("#summary").inner_text()
    assert summary.startswith("Measured: brainFloat16 on New <script>alert(1)</script> GPU")
    assert page.locator("h1").inner_text().startswith("4.00x")
    assert page.locator("#scripts tbody tr").count() == 3


def test_the_page_is_small_and_holds_its_tables(site):
    assert sum(path.stat().st_size for path in site.rglob("*")) <= 1_500_000
    listed = set(re.findall(r"\| ([\w.]+\.csv[.gz]*) \|", (site / "data/README.md").read_text()))
    assert listed == {path.name for path in (site / "data").glob("*.csv*")}


def test_without_the_library_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UserError, match="vl-convert-python"):
        site_page.write(tmp_path)
