"""The page: what it shows is in the rows, it opens without an error, and nothing hostile runs."""

import io
import itertools
import json
import re
import subprocess
import tarfile
from html import unescape

import pandas as pd
import pytest

from tests.browser import chromium  # noqa: F401  (a fixture)
from tests.rows import ladder_runs, rows_of, write_record
from Utils.analysis import comparison, recommendation
from Utils.analysis.intervals import Ratio, numbers, verdicts
from Utils.analysis.summary import MEMORY_KINDS, summarize
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.commands import report
from Utils.draw import compare_page, report_page, svg
from Utils.draw.page_template import PAGES
from Utils.draw.svg import LEVELS
from Utils.results import rows_file, selection
from Utils.results.rows_file import COLUMNS
from Utils.scripts import ladder

SCREENS = [*itertools.product((1280, 390), ("light", "dark"))]
STYLE = (PAGES / "page.css").read_text()


# The page in a browser --------------------------------------------------------------------------


@pytest.fixture
def opened(chromium, tmp_path):  # noqa: F811
    """Opens a page's HTML, or a file, and fails where anything went wrong in it."""
    contexts, wrong = [], []

    def opened(html, width=1280, scheme="light", expect="$^", **more):
        path = tmp_path / "report.html"
        path.write_text(html)
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **more
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on(
            "console", lambda message: re.search(expect, message.text) or wrong.append(message.text)
        )
        page.on("dialog", lambda dialog: (wrong.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        asked = []
        page.goto(path.as_uri())
        outside = [url for url in asked if not url.startswith(("data:", path.as_uri()))]
        wrong.extend(f"asks for {url}" for url in outside)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The folder of the committed results with their records."""
    folder = tmp_path_factory.mktemp("reference")
    archive = ["git", "-C", str(paths.ROOT), "archive", "HEAD", "results.csv", "runs"]
    packed = subprocess.run(archive, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def html(reference):
    return report_page.report(reference / "results.csv")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_reference_page_opens_without_an_error(html, opened, width, scheme):
    page = opened(html, width, scheme)
    assert len(html.encode()) < 3e6
    assert page.locator("#techniques tbody tr").count() >= 7
    across = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert across[0] <= across[1]
    squeezed = """[...document.querySelectorAll("svg:not(svg svg)")].filter(svg => {
        const box = svg.getBoundingClientRect(); return !(box.width > 10 && box.height > 5); })"""
    assert page.evaluate(f"{squeezed}.length") == 0
    middles = """["#ladder .one", "#ladder .axis text:nth-of-type(%d)"].map(one => {
        const box = document.querySelector(one).getBoundingClientRect();
        return (box.left + box.right) / 2; })"""
    ticks = page.locator("#ladder .axis text").all_text_contents()
    line, tick = page.evaluate(middles % (1 + ticks.index("1x")))
    assert line == pytest.approx(tick, abs=2)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")


def test_texts_can_be_read_in_light_and_dark(html, opened):
    """The contrast of every text against what is behind it, as the browser computes both."""
    for scheme in ("light", "dark"):
        page = opened(html, scheme=scheme)
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        pairs = page.evaluate(
            """() => {
            const pairs = {}, texts = NodeFilter.SHOW_TEXT;
            const walker = document.createTreeWalker(document.body, texts);
            while (walker.nextNode()) {
                const element = walker.currentNode.parentElement;
                if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
                if (element.closest("script, svg, #live")) continue;
                let behind = element;
                while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)")
                    behind = behind.parentElement;
                const key = [element, behind].map((e, i) =>
                    getComputedStyle(e)[i ? "backgroundColor" : "color"]).join(" on ");
                pairs[key] = element.tagName + "." + element.className;
            }
            return pairs;
        }"""
        )
        assert len(pairs) > 6
        for pair, where in pairs.items():
            text, behind = (map(int, re.findall(r"\d+", one)[:3]) for one in pair.split(" on "))
            assert contrast(tuple(text), tuple(behind)) >= 4.5, f"{scheme}, {where}: {pair}"


def test_colours_of_drawings_can_be_told_from_the_page():
    """WCAG AA: 4.5 for the letters on the kinds of memory, 3 for what is drawn."""
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in palettes())
    assert {"page", "bar", "bar-bad", "bar-plain"} <= set(light) and set(light) == set(dark)
    kinds = re.findall(r"\.k\d \{ fill: (#\w{6})", STYLE)
    assert len(kinds) == len(set(kinds)) == 10
    for palette in (light, dark):
        for name in ("bar", "bar-bad", "bar-plain", "accent"):
            assert contrast(rgb(palette[name]), rgb(palette["page"])) >= 3, name
        for kind in kinds:
            assert contrast(rgb(kind), rgb(palette["page"])) >= 2.9, kind
        for text in ("ink", "soft", "accent", "good", "bad", "warn"):
            for behind in ("page", "panel"):
                assert contrast(rgb(palette[text]), rgb(palette[behind])) >= 4.5, (text, behind)
    letters = re.search(r"\.letter \{ fill: (#\w{6})", STYLE)[1]
    assert all(contrast(rgb(letters), rgb(kind)) >= 4.5 for kind in kinds)


def palettes():
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    return light, dark


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def contrast(a, b):
    """Of two (r, g, b), as WCAG 2 defines it."""

    def luminance(colour):
        parts = [c / 255 for c in colour]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_wcag_does():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((118, 118, 118), (255, 255, 255)) == pytest.approx(4.54, abs=0.005)


def cells(page):
    """The texts of the main table as they stand there: a list of rows."""
    rows = "[...document.querySelectorAll('#techniques tbody tr')]"
    return page.evaluate(f"{rows}.map(row => [...row.cells].map(cell => cell.innerText))")


def test_the_headline_is_the_fastest_with_a_verdict_and_says_what_it_costs(html, opened, reference):
    rows, _ = selection.select(rows_file.read(reference / "results.csv"))
    lines = summarize(rows)
    as_good = verdicts(lines.loss_difference) != "worse"
    same = lines.parity.isin(["exact", "numerics changed"]) & as_good
    fair = lines[same & (verdicts(lines.speedup) == "faster")]
    best = lines.loc[numbers(fair.speedup).value.idxmax()]
    header = opened(html).locator("header").inner_text()
    assert f"{best.speedup.text} faster" in header and best.name in header
    baseline = lines.loc["no_optimization"]
    for line, (key, form) in itertools.product(
        (baseline, best), {"median_ms": ",.1f", "peak_memory_mib": ",.0f", "loss": ".3f"}.items()
    ):
        assert format(line[key], form) in header, key
    assert best.speedup.interval in header
    assert rows.device.iloc[0] in header and rows.torch.iloc[0] in header
    assert not re.search(r"\.[A-Z]", header)  # sentences stay apart


# Two frames: with the first the browser tells of scrolling and of the mouse.
SHOWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_steps_that_are_hovered_over_say_their_time(html, opened, reference):
    rows, _ = selection.select(rows_file.read(reference / "results.csv"))
    median = rows[rows.technique == "no_optimization"].groupby("step").step_ms.median()
    page = opened(html)

    def tip(locator, part):
        locator.scroll_into_view_if_needed()
        page.evaluate(SHOWN)  # scrolling hides the tip
        box = locator.bounding_box()
        page.mouse.move(box["x"] + part * box["width"], box["y"] + 9)
        page.evaluate(SHOWN)
        return page.locator("#tip").inner_text()

    strip, frame = page.locator("#heatmap .plot").first, page.locator("#steps .frame svg").first
    assert tip(strip, 0.01) == f"step 0: {median[0]:,.1f} ms"
    last = median.index.max()
    assert tip(frame, 0.99) == f"step {last:.0f}: {median[last]:,.1f} ms"
    segment = page.locator("#memory .segment").first
    assert tip(segment, 0.5).startswith("no_optimization, weights: ")


def test_the_table_is_sorted_and_filtered_with_the_keyboard(html, opened):
    page = opened(html)
    written = cells(page)
    heading = page.locator("#techniques thead button").nth(3)
    heading.focus()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("Enter")
    assert page.evaluate(outline) == "solid"
    assert page.locator("#techniques th[aria-sort=ascending]").inner_text().startswith("median")
    times = [float(row[3].split()[0].replace(",", "")) for row in cells(page) if len(row) > 3]
    assert times == sorted(times) and len(set(times)) > 1
    page.keyboard.press("Enter")
    times_down = [float(row[3].split()[0].replace(",", "")) for row in cells(page) if len(row) > 3]
    assert times_down == times[::-1]
    page.keyboard.press("Enter")
    assert cells(page) == written
    page.get_by_label("Filter the techniques").fill("flash_att")
    shown = page.locator("#techniques tbody tr:visible").all_inner_texts()
    assert shown and all("flash_att" in text for text in shown) and len(shown) < len(written)
    assert page.locator(".filter output").inner_text() == f"{len(shown)} of {len(written)}"


def test_focus_goes_through_the_page_in_its_order_and_is_seen(html, opened):
    page = opened(html, width=390)
    places, seen = [], set()
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
        seen.add(tag)
    assert {"A", "BUTTON", "INPUT", "SUMMARY", "DIV"} <= seen


def test_a_figure_is_copied_as_an_image(html, opened):
    page = opened(html, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#ladder .copy").click()
    page.locator("#ladder .copy", has_text="Copied").wait_for()
    colours = page.evaluate(
        """async () => {
        const [item] = await navigator.clipboard.read();
        const image = await createImageBitmap(await item.getType("image/png"));
        const canvas = new OffscreenCanvas(image.width, image.height);
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        const data = context.getImageData(0, 0, image.width, image.height).data;
        const pixels = new Uint32Array(data.buffer);
        const counts = new Map();
        for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
        return [...counts].filter(([_, n]) => n > 500).map(([p]) =>
            [p & 255, (p >> 8) & 255, (p >> 16) & 255]);
    }"""
    )
    bar = re.search(r"--bar: (#\w{6})", palettes()[0])[1]
    assert list(rgb(bar)) in colours and [255, 255, 255] in colours


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
    assert page.locator("#techniques tbody tr").count() >= 7
    assert page.locator("button:visible, input:visible").count() == 0
    assert page.locator("#heatmap title").count() > 80


# What is on it ----------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    """The page of runs that never happened, in tmp_path."""

    def made(*runs, **how):
        for run in runs:
            rows_file.append(tmp_path / "results.csv", run)
        return report_page.report(tmp_path / "results.csv", **how)

    return made


def plain(html):
    """What a reader sees, roughly: no style, no script, no tags."""
    text = re.sub(r"<(style|script)>.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def section(html, name):
    start = html.index(f'<section id="{name}">')
    return html[start : html.index("</section>", start)]


def test_what_is_missing_is_named_with_the_command_that_makes_it(made):
    text = plain(made(*ladder_runs()))
    for command in ("make ablate", "make ceilings all", "make profile T=all"):
        assert command in text, command
    assert "One round: no interval" in text and "4.00x faster" in text


def test_one_round_never_beats_a_verdict(made):
    lucky = rows_of("fused_optimizer", [9, 9, *[9] * 8])
    text = plain(made(*ladder_runs(rounds=3), lucky))
    assert "brainFloat16 takes" in text
    assert "Faster, but not equivalent: fused_optimizer 44.44x (one round: no interval)" in text


def test_what_computes_something_else_is_no_headline(made):
    text = plain(
        made(
            *ladder_runs(),
            rows_of("fused_optimizer", [9] * 10, loss=float("nan")),
            rows_of("flash_attention", [8] * 10, loss=9.0),
            rows_of("larger_batch", [7] * 10, batch_size=2, requested_batch_size=1),
        )
    )
    assert "brainFloat16 takes" in text and "4.00x faster" in text
    assert "fused_optimizer 44.44x (its loss: diverged)" in text
    assert "flash_attention 50.00x (model changed)" in text
    assert "larger_batch 114.29x (another batch size)" in text


def test_nothing_faster_is_said_as_well(made):
    runs = [rows_of(n, [9] * 9) for n in ("no_optimization", "tensorFloat32")]
    assert "No technique is significantly faster" in plain(made(*runs))


def test_without_a_baseline_or_any_timing_there_is_a_page(made):
    failed = rows_of("tensorFloat32", [], status="failed", note="ValueError: on purpose")
    text = plain(made(failed))
    assert "No baseline to compare with" in text and "failed: ValueError: on purpose" in text


def test_variants_are_shown_as_an_ablation_and_nowhere_else(made):
    runs = [
        rows_of(name, [9, 9, *[ms + r] * 8], round=r)
        for r in range(3)
        for name, ms in {
            "no_optimization": 400,
            "brainFloat16": 200,
            "flash_attention": 190,
            "fused_optimizer": 100,
            "no_optimization+fused_optimizer": 300,
            "fused_optimizer-fused_optimizer": 190,
        }.items()
    ]
    html = made(*runs)
    assert "make ablate" not in section(html, "missing")
    table = html[html.index('id="techniques"') : html.index("</table>")]
    assert "no_optimization+" not in table
    part = plain(section(html, "ablation"))
    rows = selection.select(rows_file.read(made.__closure__[0].cell_contents / "results.csv"))[0]
    alone = summarize(rows).parent_speedup["fused_optimizer"]
    assert "1.33x" in part and alone.text in part


def test_a_profile_is_drawn_by_kind_for_the_same_device_only(made, tmp_path):
    (tmp_path / "profiles").mkdir()
    facts = {"status": "ok", "note": "", "device": "Test GPU", "torch": "2.13.0", "model": "gpt2"}
    facts |= {"seq_len": 64, "batch_size": 2, "asked_batch_size": 1, "commit": "abc1234"}
    kinds = {"matmul": {"ms": 30.0, "forecast_ms": 11.0}, "attention": {"ms": 50.0}}
    facts |= {"profile": {"kinds": kinds}, "advice": ["Half of it waits."]}
    for name, device in (("no_optimization", "Test GPU"), ("tensorFloat32", "Other GPU")):
        text = json.dumps(facts | {"technique": name, "device": device})
        (tmp_path / "profiles" / f"{name}.json").write_text(text)
    (tmp_path / "profiles" / "brainFloat16.json").write_text('{"status": [')
    html = made(*ladder_runs())
    part = section(html, "profile")
    assert "no_optimization, matmul: 15 ms a step" in part and "attention: 25 ms a step" in part
    assert "no_optimization, forecast, matmul: 11 ms a step" in part
    assert "Half of it waits." in part and "tensorFloat32" not in part


def test_the_recipe_is_shown_or_its_command(made, tmp_path):
    html = made(*ladder_runs(rounds=3))
    rows, _ = selection.select(rows_file.read(tmp_path / "results.csv"), with_variants=True)
    found = recommendation.recommend(rows)["fastest"]
    part = plain(section(html, "recipe"))
    assert f"{found['name']} (measured): {found['speedup'].with_verdict}" in part
    assert all(f"{name} {why}" in part for name, why in found["evidence"].items())
    assert "Lines for PyTorch" in part and "make recipe" not in plain(html[-3000:])


def test_environment_memory_limits_and_quality_come_from_the_records(made, tmp_path):
    runs = list(ladder_runs(rounds=2))
    for row in runs[1]:
        row["grade"] = "tainted"
    memory = dict(zip(MEMORY_KINDS, (475.0, 475.0, 949.0, 200.0), strict=True))
    limits = {"flops_per_token": 1, "precision": "tf32", "datasheet_tflops": None, "floor_ms": 50}
    for i, run in enumerate(runs):
        record = {
            "versions": {"cudnn": 91002, "python": "3.12.1"},
            "dataset_facts": {"tokens": 15316420, "shuffled": True},
            "memory": memory,
            "limits": limits | {"ceilings": None},
            "collect_env": "GCC version: 12",
            "quality": {"drift": 0.01 * i, "other_cpu_share": None},
        }
        if i == 1:
            record["quality"]["reasons"] = ["slowed by 8% during the run"]
        write_record(tmp_path / "results.csv", run, **record)
    text = plain(made(*runs))
    for words in ("cudnn 91002", "python 3.12.1", "dataset's tokens 15,316,420", "GCC version: 12"):
        assert words in text, words
    assert "shuffled" not in text and "make ceilings" not in text
    assert "Modelled floor of a step: 8.0x" in text
    # runs, clean, tainted, why, drift
    assert "tensorFloat32 2 1 1 slowed by 8% during the run +4%" in text
    assert "brainFloat16 2 2 0 +5%" in text
    # by kind, the peak in MiB and in GiB
    assert "brainFloat16 475 475 949 200 900 0.88" in text


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
    assert (
        "git checkout abc1234 python -m Utils.commands.suite no_optimization tensorFloat32" in text
    )
    assert "--rounds=3 --steps=10 --warmup=2 --batch-size=1 --seq-len=64" in text
    runs = [rows_of(t.name, [9] * 9, commit="def5678") for t in ladder.group("ladder")]
    assert "make all STEPS=9 WARMUP=2 BATCH_SIZE=1 SEQ_LEN=64" in plain(made(*runs))


def test_it_does_not_say_who_or_where_someone_is(made, tmp_path):
    note = "reads /home/ada/data/x.txt, /Users/bob, /root/.cache/y and C:\\Users\\Eve\\z"
    html = made(rows_of("no_optimization", [9] * 5, note=note, dataset="/home/ada/data"))
    for word in ("ada", "bob", "Eve", "/root"):
        assert not re.search(rf"\b{word}\b", html), word
    assert "~/data/x.txt" in html


def test_two_results_are_compared(tmp_path, opened):
    for run in (*ladder_runs(rounds=3), *ladder_runs(rounds=3, torch="2.12.0")):
        rows_file.append(tmp_path / "results.csv", run)
    faster = [{**row, "step_ms": row["step_ms"] / 2} for row in results_of("brainFloat16")]
    rows_file.append(tmp_path / "results.csv", faster)
    path = tmp_path / "results.csv"
    html = compare_page.page(f"{path}:2.13.0", f"{path}:2.12.0")
    page = opened(html, width=390)
    assert "torch: 2.13.0 | 2.12.0" in page.inner_text("#differences")
    a, b = comparison.sides(f"{path}:2.13.0", f"{path}:2.12.0")
    found = comparison.compare(a, b)
    assert page.locator("#ratios .value b").all_inner_texts() == [ratio.text for ratio in found]
    assert found["brainFloat16"].value > 1.5
    with pytest.raises(UserError, match="same runs"):
        compare_page.page(f"{path}:2.13.0", f"{path}:2.13.0")


def results_of(name):
    """Three rounds of one technique, later than any other."""
    for r in range(3):
        yield from rows_of(name, [9000, 101, *[100 - r] * 8], round=r, torch="2.12.0")


def test_what_is_drawn_is_in_proportion(tmp_path):
    assert [svg.percent(x, 4) for x in (-1, 0, 1, 4, 5, float("nan"))] == [0, 0, 25, 100, 100, 0]
    row = {"name": "", "mark": 1.0, "verdict": "faster", "tainted": False, "reason": ""}
    ratios = Ratio(2.0, 1.5, 2.5), Ratio(0.5, 1.5, 2.5)
    bars = svg.bars([row | {"ratio": ratio} for ratio in ratios])
    first, second = (one["at"] for one in bars["rows"])
    assert first["value"] == pytest.approx(2 * bars["one"], abs=0.02)
    assert second["value"] == pytest.approx(bars["one"] / 2, abs=0.02)
    assert first["high"] - first["low"] == pytest.approx(bars["one"], abs=0.02)
    stack = svg.stacks({"a": {"x": 1, "y": 3}, "b": "not run"}, "MiB", {"a": 5})["rows"]
    x, y = stack[0]["segments"]
    assert (x["x"], y["x"], y["width"]) == (0, x["width"], pytest.approx(3 * x["width"], abs=0.02))
    assert stack[0]["total"]["at"] == pytest.approx(5 * x["width"], abs=0.05)
    for run in ladder_runs():
        rows_file.append(tmp_path / "results.csv", run)
    rows = rows_file.read(tmp_path / "results.csv")
    strips = svg.step_times(rows, summarize(rows))["strips"]
    slow, _, fast = ([cell["level"] for cell in strip["cells"]] for strip in strips)
    assert set(slow[2:]) == {LEVELS - 1} and set(fast[2:]) == {0}
    assert [cell["x"] for cell in strips[0]["cells"]] == [10 * step for step in range(10)]


# What is meant to break it ----------------------------------------------------------------------

SCRIPT = "<script>window.ran = 1</script>"
ATTACKS = {
    "note": f'{SCRIPT}"><img src=x onerror="window.ran = 2">',
    "device": f"</title></style>{SCRIPT}",
    "dataset": "{{ 7 * 191 }}{% raw %}",
    "model": "'\" onmouseover='window.ran = 3' x=\"",
    "torch": "<!--",
    "commit": "$(touch ran)`touch ran`; touch ran",
}


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
    for row, (peak, step) in zip(runs[:4], wrong, strict=True):
        for one in row:
            one |= {"peak_memory_mib": peak, "step": one["step"] * step - 5}
    html = made(*runs)
    page = opened(html)
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 1 and page.locator("img").count() == 0
    assert page.locator("#techniques tbody tr").count() == 5
    assert hostile in page.locator("#techniques").inner_text()
    assert "1337" not in html and "nan" not in plain(html).split()
    assert page.locator("#diffs").is_visible()
    across = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert across[0] <= across[1]


def test_the_policy_of_the_page_lets_no_other_script_run(html, opened):
    """Even if a text could get out of its place, which the test above says it cannot."""
    broken = html.replace("</main>", "<script>window.ran = 1</script></main>")
    broken = broken.replace("<main ", "<main onclick='window.ran = 2' ")
    assert broken.count("window.ran") == 2
    page = opened(broken, expect=r"violates the following Content Security Policy")
    page.locator("h1").click()
    assert page.evaluate("window.ran") is None


def test_many_rows_make_a_small_page(tmp_path, monkeypatch):
    rows = pd.DataFrame(itertools.chain.from_iterable(ladder_runs()), columns=COLUMNS)
    many = pd.concat([rows] * 2000, ignore_index=True)  # 60,000
    many["step"] = many.groupby("technique").cumcount().astype(float)
    for name in ("step_ms", "data_ms", "loss", "first_step_s", "peak_memory_mib"):
        many[name] = many[name].astype(float)
    monkeypatch.setattr(rows_file, "read", lambda path: many.fillna({"note": ""}))
    html = report_page.report(tmp_path / "results.csv")
    assert len(html) < 1e6 and "167 consecutive steps" in html


def test_many_techniques_make_a_small_page(made):
    runs = [row for i in range(105) for row in rows_of(f"idea_{i}", [9, 9, 8])]
    html = made([*rows_of("no_optimization", [9, 9, 9]), *runs])
    assert len(html) < 3e6 and "left out: 6 techniques more" in html
    assert "no_optimization" in html


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
