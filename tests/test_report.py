"""The page: what it shows is in the rows, it opens without an error, and nothing hostile runs."""

import itertools
import re

import pytest

from tests.helpers import browser
from tests.helpers.browser import charts, fits, fold, plain, section, words
from tests.helpers.planted_page import TIMES, page_of, write_profile
from tests.helpers.rows import ladder_runs, rows_of, write_record
from Utils.analysis import comparison
from Utils.base.errors import UserError
from Utils.commands import __main__ as commands
from Utils.draw import report_page
from Utils.results import rows_file, selection
from Utils.scripts import ladder

chromium = browser.chromium  # fixtures
visit = browser.visit
opened = browser.opened


@pytest.fixture
def made(tmp_path):
    """The page of runs that never happened, in tmp_path."""

    def made(*runs, **how):
        for run in runs:
            rows_file.append(tmp_path / "results.csv", run)
        return report_page.report(tmp_path / "results.csv", **how)

    return made


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """A page with every section."""
    return page_of(tmp_path_factory.mktemp("page"))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), itertools.product((1280, 390), ("light", "dark")))
def test_the_page_opens_without_an_error(html, opened, width, scheme):
    page = opened(html, width, scheme)
    assert fits(page) and page.locator("details[open]").count() == 0
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert fits(page) and page.locator("#techniques tbody tr").count() == len(TIMES) + 1
    page.wait_for_function("[...document.images].every(image => image.naturalWidth > 0)")
    images = page.evaluate("[...document.images].map(image => [image.width, image.alt])")
    assert len(images) == 6 and all("Test GPU" in alt for _, alt in images)
    assert all(width > 600 for width, _ in images)  # where a phone is narrower, it scrolls
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")
    page.emulate_media(media="print", color_scheme=scheme)
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    assert fits(page)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.slow
@pytest.mark.parametrize("path", selection.shared_files(), ids=lambda path: path.parts[-3])
def test_the_pages_of_shared_results_are_small(path, opened):
    html = report_page.report(path)
    page = opened(html)
    assert len(html) <= 300_000
    assert page.evaluate("document.documentElement.scrollHeight") <= 8 * 800


def test_the_table_is_sorted_and_filtered_with_the_keyboard(html, opened):
    page = opened(html)
    page.evaluate("document.querySelector('#techniques').closest('details').open = true")
    heading = page.locator("#techniques thead button", has_text="time a step")
    column = page.locator("#techniques thead button").all_inner_texts().index("time a step")

    def times():
        cells = page.locator(f"#techniques tbody tr > :nth-child({column + 1})").all_inner_texts()
        return [
            float(text.removesuffix(" ms").replace(",", ""))
            for text in cells
            if text.endswith("ms")
        ]

    written = times()
    heading.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert times() == sorted(written) != written
    page.keyboard.press("Enter")
    assert times() == sorted(written)[::-1]
    page.keyboard.press("Enter")
    assert times() == written
    page.get_by_label("Filter the techniques").fill("flash_att")
    shown = page.locator("#techniques tbody tr:visible").all_inner_texts()
    assert len(shown) == 1 and "flash_att" in shown[0]


def test_without_scripts_all_of_it_is_there_and_nothing_is_dead(html, opened):
    page = opened(html, java_script_enabled=False)
    for summary in page.locator("section > details > summary").all():
        summary.click()
    assert page.locator("#techniques tbody tr:visible").count() == len(TIMES) + 1
    assert page.locator("button:visible, input:visible").count() == 0


def test_tables_charts_and_recipe_show_what_was_planted(html):
    table = fold(html, "table-1")
    for words_of_a_row in (
        "no_optimization 419.5 ms 1.00x 900 MiB 5.000",
        "tensorFloat32 209.8 ms 2.00x (2.00-2.00) 2.00x (2.00-2.00) 900 MiB",
        "brainFloat16 262.2 ms 0.80x (0.80-0.80) 1.60x (1.60-1.60) 900 MiB 4.900, model changed",
    ):
        assert words_of_a_row in table
    assert "no_optimization 400.0-440.0 610.2" in fold(html, "table-2")
    assert "model changed tainted in 1 of 2 rounds: slowed by 8%" in fold(html, "table-2")
    assert "tensorFloat32 475 475 949 0.88" in fold(html, "table-3")  # the peak in GiB
    # 10^9 FLOP a token at 610.2 tokens/s are 4% of 16 TFLOP/s; 419.5 / 50
    assert re.search(r"no_optimization .* tf32 0.61 4% 50.00 8.4x", plain(html))
    assert "4x64 tokens a step, stdlib, 2 rounds, commit abc1234" in plain(html)
    assert "Against no_optimization: 2.50x" in plain(section(html, "recipe"))
    assert "Lines for PyTorch" in section(html, "recipe")
    assert "1.25x" in words(charts(section(html, "ablation"))[0])  # 400 / 320, alone
    assert words(charts(section(html, "memory"))[0]).count("900") == 5
    assert "Python 3.12.1 cuDNN 91002" in fold(html, "environment")
    quality = fold(html, "quality")
    assert quality.endswith("brainFloat16 tainted in 1 of 2 rounds: slowed by 8%")


def test_what_is_missing_is_named_with_its_command(html, made):
    assert "Not on this page" not in html
    text = plain(made(rows_of("brainFloat16", [9] * 3, torch="2", grade="tainted"), *ladder_runs()))
    assert "clean runs 3" in text and "tainted runs" not in text
    assert "make ablate" in text and "make profile T=all" in text
    assert "One round: no interval" in text and "4.00x faster" in text


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_headline_is_the_recipe_of_the_rounds_that_it_shares_with_its_base(rounds, made):
    alone = [rows_of("no_optimization", [900] * 10, loss=6.0, round=7)] if rounds > 1 else []
    html = made(
        *ladder_runs(rounds),
        *alone,
        rows_of("fused_optimizer", [9] * 10, loss=float("nan")),
        rows_of("flash_attention", [8] * 10, loss=9.0),
    )
    text = plain(html[html.index("<header") : html.index("</header")])
    assert "brainFloat16 takes" in text and "x faster brain" in text
    assert "5.000 → 5.000" in text and "900.0" not in text
    assert ("The 95% interval over 3 rounds is 3.93-4.18" in text) == (rounds == 3)


def test_nothing_faster_and_no_timing_are_said(made):
    failed = rows_of("flash_attention", [], status="failed", note="ValueError: on purpose")
    html = made(failed)
    assert "No technique is significantly faster" in html
    assert "ValueError: on purpose" in words(charts(html)[0])
    slow = [
        rows_of(n, [999] * 9, round=r)
        for n in ("no_optimization", "fused_optimizer")
        for r in (0, 1)
    ]
    assert "No technique is significantly faster" in plain(made(*slow))


def test_a_profile_is_drawn_by_kind_for_the_same_device_only(made, tmp_path):
    write_profile(tmp_path, "no_optimization")
    write_profile(tmp_path, "tensorFloat32", device="Other GPU")
    (tmp_path / "profiles" / "brainFloat16.json").write_text('{"status": [')
    html = made(*ladder_runs())
    assert "Half of it waits." in fold(html, "profile")
    chart = words(charts(html[html.index('id="profile"') :])[0])
    assert "no_optimization (batch 2)" in chart and "no_optimization, forecast" in chart
    assert {"15", "25", "40", "11"} <= {*chart.split()}  # ms of the batch that was asked for
    assert "tensorFloat32" not in chart


def test_a_script_that_has_changed_since_is_shown_as_it_ran(made, tmp_path):
    runs = list(ladder_runs())
    source = ladder.get("tensorFloat32").path.read_text() + "# an idea\n"
    write_record(tmp_path / "results.csv", runs[1], technique="tensorFloat32", source=source)
    write_record(
        tmp_path / "results.csv", runs[-1], command=["brainFloat16", "--steps=10", "--warmup=2"]
    )
    html = made(*runs)
    assert html.count('<span class="added">+# an idea') == 1
    assert html.count('<span class="removed">-# an idea') == 1  # of the script after it
    assert "git checkout abc1234 make all STEPS=10 WARMUP=2" in fold(html, "repeat")


def test_it_does_not_say_who_or_where_someone_is(made):
    note = "reads /home/ada/data/x.txt, /Users/bob, /root/.cache/y and C:\\Users\\Eve\\z"
    failed = rows_of("tensorFloat32", [], status="failed", note=note, dataset="/home/ada/data")
    html = made(rows_of("no_optimization", [9] * 5, note=note, dataset="/home/ada/data"), failed)
    for text in (html, *charts(html)):
        for word in ("ada", "bob", "Eve", "/root"):
            assert not re.search(rf"\b{word}\b", text), word
    assert "~/data/x.txt" in html and "~/data" in words(charts(html)[0])


def test_two_results_are_compared(tmp_path, opened):
    path = tmp_path / "results.csv"
    for run in (*ladder_runs(rounds=3), *ladder_runs(rounds=3, torch="2.12.0")):
        rows_file.append(path, run)
    html = report_page.comparison_page(f"{path}:2.13.0", f"{path}:2.12.0")
    page = opened(html, width=390)
    assert "torch: 2.13.0 | 2.12.0" in page.inner_text("#differences") and fits(page)
    sides = comparison.sides(f"{path}:2.13.0", f"{path}:2.12.0")
    for name, ratio in comparison.compare(*sides).items():
        assert ratio.text in words(charts(html)[0])
        assert f"{name} {ratio}" in plain(section(html, "table"))


SCRIPT = "<script>window.ran = 1</script>"
ATTACKS = {
    "note": f'{SCRIPT}"><img src=x onerror="window.ran = 2">\x01 $\\frac{{$ costs $5',
    "device": f"</title></style>{SCRIPT}",
    "dataset": "{{ 7 * 191 }}{% raw %}",
    "model": "'\" onmouseover='window.ran = 3' x=\"",
    "torch": "<!--",
    "commit": "$(touch ran)`touch ran`; touch ran$",
}


@pytest.mark.filterwarnings("ignore:Glyph 1 ")
def test_nothing_hostile_runs_or_breaks_the_page(made, opened):
    hostile = f"{SCRIPT}<svg onload=window.ran=4>"
    html = made(
        rows_of("no_optimization", [9, 9, 8, 8], loss=float("nan"), **ATTACKS),
        rows_of(hostile, [9, 9, 8, 8], loss=float("inf"), round=-3, **ATTACKS),
        rows_of("brainFloat16", [9, 9, 1e-9], **ATTACKS),
        rows_of("torch_compile", [], status="failed", **ATTACKS),
    )
    page = opened(html)
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 1 and page.locator("img[onerror]").count() == 0
    assert not any("<script" in chart for chart in charts(html))
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    page.wait_for_function("[...document.images].every(image => image.naturalWidth > 0)")
    assert hostile in page.locator("#techniques").inner_text()
    assert "1337" not in html and "nan" not in plain(html).split()
    assert page.locator("#diffs").is_visible() and fits(page)


def test_the_policy_of_the_page_lets_no_other_script_run(html, opened):
    """Even if a text could get out of its place, which the test above says it cannot."""
    broken = html.replace("</main>", "<script>window.ran = 1</script></main>")
    broken = broken.replace("<main ", "<main onclick='window.ran = 2' ")
    assert broken.count("window.ran") == 2
    page = opened(broken, expect=r"violates the following Content Security Policy")
    page.locator("h1").click()
    assert page.evaluate("window.ran") is None


def test_the_command_writes_the_page_and_names_it(tmp_path, capsys):
    for run in ladder_runs():
        rows_file.append(tmp_path / "results.csv", run)
    flags = ["--results-file", str(tmp_path / "results.csv"), "--report"]
    for _ in range(2):
        commands.main("report", *flags, str(tmp_path / "page.html"))
    assert capsys.readouterr().out == f"{tmp_path}/page.html\n" * 2
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UserError, match="No such file"):
        commands.main("report", *flags, str(tmp_path / "nowhere" / "page.html"))
