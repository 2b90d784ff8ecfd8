"""The page: what it shows is in the rows, it opens without an error, and nothing hostile runs."""

import itertools
import re

import pytest

from tests import browser
from tests.browser import charts, fits, plain, section, words
from tests.planted_page import TIMES, page_of, write_profile
from tests.rows import ladder_runs, rows_of, write_record
from Utils.analysis import comparison
from Utils.base.errors import UserError
from Utils.commands import report
from Utils.draw import report_page
from Utils.results import rows_file
from Utils.scripts import ladder

chromium = browser.chromium  # fixtures
opened = browser.opened
SCREENS = [*itertools.product((1280, 390), ("light", "dark"))]


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


# The page in a browser --------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_opens_without_an_error(html, opened, width, scheme):
    page = opened(html, width, scheme)
    assert fits(page) and page.locator("#techniques tbody tr").count() == len(TIMES) + 1
    page.wait_for_function("[...document.images].every(image => image.naturalWidth > 0)")
    images = page.evaluate("[...document.images].map(image => [image.width, image.alt])")
    assert len(images) == 6 and all("Test GPU" in alt for _, alt in images)
    assert all(width > 600 for width, _ in images)  # where a phone is narrower, it scrolls
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")
    page.emulate_media(media="print", color_scheme=scheme)
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    assert fits(page) and not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def cells(page):
    """The texts of the main table as they stand there: a list of rows."""
    rows = "[...document.querySelectorAll('#techniques tbody tr')]"
    return page.evaluate(f"{rows}.map(row => [...row.cells].map(cell => cell.innerText))")


def times(page):
    return [float(row[3].split()[0].replace(",", "")) for row in cells(page) if len(row) > 3]


def test_the_table_is_sorted_and_filtered_with_the_keyboard(html, opened):
    page = opened(html)
    written = cells(page)
    page.locator("#techniques thead button").nth(3).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.locator("#techniques th[aria-sort=ascending]").inner_text().startswith("step")
    ascending = times(page)
    assert ascending == sorted(ascending) and len({*ascending}) > 1
    page.keyboard.press("Enter")
    assert times(page) == ascending[::-1]
    page.keyboard.press("Enter")
    assert cells(page) == written
    page.get_by_label("Filter the techniques").fill("flash_att")
    shown = page.locator("#techniques tbody tr:visible").all_inner_texts()
    assert shown and all("flash_att" in text for text in shown) and len(shown) < len(written)
    assert page.locator(".filter output").inner_text() == f"{len(shown)} of {len(written)}"


def test_focus_goes_through_the_page_in_its_order_and_is_seen(html, opened):
    page = opened(html, width=390)
    places, tags = [], set()
    for _ in range(400):
        page.keyboard.press("Tab")
        tag, top, outline = page.evaluate(
            """(() => { const e = document.activeElement, s = getComputedStyle(e);
            const order = [...document.querySelectorAll('*')].indexOf(e);
            return [e.tagName, order, s.outlineStyle + s.outlineWidth]; })()"""
        )
        if tag == "BODY" or (places and top < places[-1]):
            break
        assert outline == "solid3px", tag
        places.append(top)
        tags.add(tag)
    assert {"A", "BUTTON", "INPUT", "SUMMARY", "DIV", "FIGURE"} <= tags


def test_a_link_into_a_closed_diff_opens_it_and_lines_are_coloured(html, opened):
    page = opened(html)
    page.locator("#techniques a", has_text="fused_optimizer").click()
    diff = page.locator("#diff-fused_optimizer .diff")
    diff.wait_for()  # to be visible: the browser tells of the new address when it gets to it
    added, removed = (diff.locator(kind).all_inner_texts() for kind in (".added", ".removed"))
    assert any("fused=True" in line for line in added) and len(removed) >= 1
    colours = [
        diff.locator(kind).first.evaluate("e => getComputedStyle(e).backgroundColor")
        for kind in (".added", ".removed", "span:not([class])")
    ]
    assert len(set(colours)) == 3


def test_without_scripts_all_of_it_is_there_and_nothing_is_dead(html, opened):
    page = opened(html, java_script_enabled=False)
    assert page.locator("#techniques tbody tr").count() == len(TIMES) + 1
    assert page.locator("button:visible, input:visible").count() == 0


# What is on it ----------------------------------------------------------------------------------


def test_every_section_is_there_and_what_is_missing_is_named_with_its_command(html, made):
    assert "Not on this page" not in html
    assert "no_optimization+" not in html[: html.index("</table>")]  # a variant
    text = plain(made(*ladder_runs()))
    for command in ("make ablate", "make ceilings all", "make profile T=all"):
        assert command in text, command
    assert "One round: no interval" in text and "4.00x faster" in text


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_headline_is_the_fastest_that_computes_the_same(rounds, made):
    text = plain(
        made(
            *ladder_runs(rounds),
            rows_of("fused_optimizer", [9] * 10, loss=float("nan")),
            rows_of("flash_attention", [8] * 10, loss=9.0),
            rows_of("larger_batch", [7] * 10, batch_size=2, requested_batch_size=1),
        )
    )
    assert "brainFloat16 takes" in text and "x faster brain" in text
    assert re.search(r"fused_optimizer 44\...x \(its loss: diverged\)", text)
    assert re.search(r"flash_attention 50\...x \(model changed\)", text)
    assert re.search(r"larger_batch 114\...x \(another batch size\)", text)
    assert ("The 95% interval over 3 rounds is 3.93-4.18" in text) == (rounds == 3)


def test_one_round_never_beats_a_verdict_and_nothing_faster_is_said(made):
    slow = [rows_of(n, [999] * 9) for n in ("no_optimization", "tensorFloat32")]
    assert "No technique is significantly faster" in plain(made(*slow))
    lucky = rows_of("fused_optimizer", [9, 9, *[9] * 8])
    text = plain(made(*ladder_runs(rounds=3), lucky))
    assert "brainFloat16 takes" in text
    assert re.search(r"fused_optimizer 44\...x \(one round: no interval\)", text)


def test_without_a_baseline_or_any_timing_there_is_a_page(made):
    failed = rows_of("tensorFloat32", [], status="failed", note="ValueError: on purpose")
    html = made(failed)
    assert "No baseline to compare with" in html and "ValueError: on purpose" in plain(html)
    assert "ValueError: on purpose" in words(charts(html)[0])


def test_a_profile_is_drawn_by_kind_for_the_same_device_only(made, tmp_path):
    write_profile(tmp_path, "no_optimization")
    write_profile(tmp_path, "tensorFloat32", device="Other GPU")
    (tmp_path / "profiles" / "brainFloat16.json").write_text('{"status": [')
    part = section(made(*ladder_runs()), "profile")
    assert "Half of it waits." in part
    chart = words(charts(part)[0])
    assert "no_optimization (batch 2)" in chart and "no_optimization, forecast" in chart
    assert {"15", "25", "40", "11"} <= {*chart.split()}  # ms of the batch that was asked for
    assert "tensorFloat32" not in chart


def test_a_script_that_has_changed_since_is_shown_as_it_ran(made, tmp_path):
    runs = list(ladder_runs(commit="abc1234-dirty"))
    source = ladder.get("tensorFloat32").path.read_text() + "# an idea\n"
    record = {"technique": "tensorFloat32", "source": source}
    write_record(tmp_path / "results.csv", runs[1], **record)
    html = made(*runs)
    part = html[html.index('id="diff-tensorFloat32"') : html.index('id="diff-brainFloat16"')]
    assert "The script has changed since" in part and "+# an idea" in part
    assert html.count("The script has changed since") == 1
    assert "used uncommitted changes" in html


def test_the_commands_repeat_the_runs(made):
    text = plain(made(*ladder_runs(rounds=3)))
    command = "python -m Utils.commands suite no_optimization tensorFloat32"
    assert f"git checkout abc1234 {command}" in text
    assert "--rounds=3 --steps=10 --warmup=2 --batch-size=1 --seq-len=64" in text
    runs = [rows_of(t.name, [9] * 9, commit="def5678") for t in ladder.group("ladder")]
    assert "make all STEPS=9 WARMUP=2 BATCH_SIZE=1 SEQ_LEN=64" in plain(made(*runs))


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
    for r in range(3):
        run = rows_of("brainFloat16", [9000, 50, *[50 - r] * 8], round=r, torch="2.12.0")
        rows_file.append(path, run)
    a, b = f"{path}:2.13.0", f"{path}:2.12.0"
    html = report_page.comparison_page(a, b)
    page = opened(html, width=390)
    assert "torch: 2.13.0 | 2.12.0" in page.inner_text("#differences") and fits(page)
    ratios = comparison.compare(*comparison.sides(a, b))
    assert ratios["brainFloat16"].value > 1.5
    for name, ratio in ratios.items():
        assert ratio.text in words(charts(html)[0])
        assert f"{name} {ratio.text} {ratio.interval}".strip() in plain(section(html, "table"))
    with pytest.raises(UserError, match="same runs"):
        report_page.comparison_page(a, a)


# What is meant to break it ----------------------------------------------------------------------

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
    own_batch = ATTACKS | {"batch_size": 0, "requested_batch_size": 1}
    runs = [
        rows_of("no_optimization", [9, 9, 8, 8], loss=float("nan"), **ATTACKS),
        rows_of(hostile, [9, 9, 0, 0], loss=float("inf"), round=-3, **ATTACKS),
        rows_of("tensorFloat32", [9, 9, 1e300, 1e-300], **own_batch),
        rows_of("brainFloat16", [9, 9, 1e-9], **ATTACKS),
        rows_of("torch_compile", [], status="failed", **ATTACKS),
    ]
    wrong = ((float("nan"), 1), (float("inf"), 1), (-5, 10**15), (0, 0))  # peaks and steps
    for rows, (peak, step) in zip(runs[:4], wrong, strict=True):
        for row in rows:
            row |= {"peak_memory_mib": peak, "step": row["step"] * step - 5}
    html = made(*runs)
    page = opened(html)
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 1 and page.locator("img[onerror]").count() == 0
    page.wait_for_function("[...document.images].every(image => image.naturalWidth > 0)")
    assert not any("<script" in chart for chart in charts(html))
    assert page.locator("#techniques tbody tr").count() == 5
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


def test_many_rows_and_many_techniques_make_a_small_page(made):
    runs = [rows_of(f"idea_{i}", [9, 9, 8]) for i in range(65)]
    html = made(rows_of("no_optimization", [9] * 20_000), *runs)
    assert len(html) < 2e6 and "left out: 6 techniques more" in html and "no_optimization" in html


# The command ------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_names_it(tmp_path, capsys):
    for run in ladder_runs():
        rows_file.append(tmp_path / "results.csv", run)
    flags = ["--results-file", str(tmp_path / "results.csv"), "--report"]
    report.main([*flags, str(tmp_path / "page.html")])
    assert capsys.readouterr().out == f"{tmp_path}/page.html\n"
    first = (tmp_path / "page.html").read_text()
    assert first.startswith("<!doctype html>")
    report.main([*flags, str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").read_text() == first
    with pytest.raises(UserError, match="No such file"):
        report.main([*flags, str(tmp_path / "nowhere" / "page.html")])
