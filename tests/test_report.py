"""The page: what it shows is in the rows, it opens without an error, and nothing hostile runs."""

import itertools
import re
import textwrap

import pytest

from tests.helpers import browser
from tests.helpers.browser import charts, fits, plain, words
from tests.helpers.rows import append_run, ladder_runs, rows_of
from Utils.base import text
from Utils.draw import report_page
from Utils.results import rows_file, study
from Utils.scripts import ladder

chromium = browser.chromium  # fixtures
visit = browser.visit
opened = browser.opened
OPEN = "document.querySelectorAll('details').forEach(fold => fold.open = true)"
GPU = {"device": "Test GPU", "batch_size": 4, "dataset": "/home/ada/data"}
NOTE = "reads /Users/bob, /root/.cache/y and C:\\Users\\Eve\\z"
TIMES = {
    "no_optimization": 400,
    "tensorFloat32": 200,
    "brainFloat16": 250,
    "flash_attention": 240,
    "no_optimization+fused_optimizer": 320,
    "fused_optimizer": 160,
}
RECORD = {
    "memory": {"weights_mib": 475.0, "gradients_mib": 475.0, "optimizer_state_mib": 949.0},
    "limits": {
        "flops_per_token": 10**9,
        "precision": "tf32",
        "datasheet_tflops": 16,
        "floor_ms": 50.0,
        "ceilings": None,
    },
    "versions": {"cudnn": 91002, "python": "3.12.1"},
    "command": ["fused_optimizer", "--steps=10", "--warmup=2"],
}


def page_of(path):
    """Return the page of a results file."""
    return report_page.html(study.choose(rows_file.read(path), path))


@pytest.fixture
def made(tmp_path):
    """Returns the page of runs that never happened."""

    def made(*runs):
        for run in runs:
            rows_file.append(tmp_path / "results.csv", run)
        return page_of(tmp_path / "results.csv")

    return made


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """A page with every section, of four rounds of TIMES, every other slower by a tenth."""
    path = tmp_path_factory.mktemp("page") / "results.csv"
    idea = ladder.get("tensorFloat32").path.read_text() + "# an idea\n"

    for r, (name, ms) in itertools.product(range(4), TIMES.items()):
        is_disturbed = (name, r) == ("brainFloat16", 1)
        columns = {"grade": "tainted" if is_disturbed else "clean", "round": r, "note": NOTE}
        loss = 4.9 if name == "brainFloat16" else 5.0
        run = rows_of(name, [3 * ms, *[ms * (1 + 0.1 * (r % 2))] * 4], loss=loss, **columns, **GPU)
        quality = {"mean_power_w": 100.0, "reasons": ["slowed by 8%"] * is_disturbed}
        source = idea if name == "tensorFloat32" else ""
        record = RECORD | {"technique": name, "source": source, "quality": quality}
        rows_file.append(path, run, record)
    append_run(path, "float8_linear", [], status="unsupported", note=NOTE, **GPU)
    return page_of(path)


WORDS = """\
2.00x faster on Test GPU To the results Training speedups by optimization 2.00x faster
tensorFloat32 takes 209.8 ms a step where no_optimization takes 419.5 ms, on Test GPU. The 95%
interval over 4 rounds is 2.00-2.00. Speed 609.5 → 1,219 tokens/s Peak memory 900 → 900 MiB Loss
5.000 → 5.000 nats Disturbed: 1 of 24 runs; the intervals include it. Test GPU, torch 2.13.0, gpt2,
4x64 tokens a step, ~/data, 4 rounds, commit abc1234. Speedups Recipe faster, but with
brainFloat16, slower by itself: fused_optimizer, 2.50x (2.50-2.50); make ablate T=fused_optimizer
STEPS=10 WARMUP=2 ROUNDS=4 measures it without Recipe: the measured set with the largest certain
speedup tensorFloat32: 900 MiB at the peak. Against no_optimization: 2.00x (2.00-2.00). Loss minus
the baseline's: 0 (exact). Memory Ablation More Time, memory and loss of each technique Times are
medians, rates by the mean step. In brackets 95% intervals, which hold for all ratios of the table
together; bold: the interval excludes 1. Filter the techniques script time a step over the script
before over the baseline peak memory loss no_optimization 419.5 ms 1.00x 900 MiB 5.000
tensorFloat32 209.8 ms 2.00x (2.00-2.00) 2.00x (2.00-2.00) 900 MiB 5.000 brainFloat16 262.2 ms
0.80x (0.80-0.80) 1.60x (1.60-1.60) 900 MiB 4.900, model changed flash_attention 251.7 ms 1.67x
(1.67-1.67) 900 MiB 5.000 fused_optimizer 167.8 ms 1.50x (1.50-1.50) 2.50x (2.50-2.50) 900 MiB
5.000 float8_linear unsupported Time and loss script p20-p80 (ms) tokens/s rounds verdict loss
difference parity quality no_optimization 419.5-419.5 609.5 4 undisturbed tensorFloat32 209.8-209.8
1,219 4 faster 0 exact undisturbed brainFloat16 262.2-262.2 975.2 4 slower -0.1000 (-0.1000 to
-0.1000), better model changed disturbed in 1 of 4 rounds: slowed by 8% flash_attention 251.7-251.7
1,016 4 0 exact undisturbed fused_optimizer 167.8-167.8 1,524 4 faster 0 exact undisturbed Peak
memory by kind script weights (MiB) gradients (MiB) optimizer state (MiB) peak (GiB)
no_optimization 475 475 949 0.88 tensorFloat32 475 475 949 0.88 brainFloat16 475 475 949 0.88
flash_attention 475 475 949 0.88 fused_optimizer 475 475 949 0.88 Compilation script first step (s)
no_optimization 1.2 tensorFloat32 0.6 brainFloat16 0.8 flash_attention 0.7 fused_optimizer 0.5
Distance from the limit script matmul precision TFLOP/s MFU (of the datasheet) modelled floor (ms)
headroom no_optimization tf32 0.61 4% 50.00 8.4x tensorFloat32 tf32 1.22 8% 50.00 4.2x brainFloat16
tf32 0.975 6% 50.00 5.2x flash_attention tf32 1.02 6% 50.00 5.0x fused_optimizer tf32 1.52 10%
50.00 3.4x Step times Step times as a heatmap Environment device Test GPU torch 2.13.0 dataset
~/data Python 3.12.1 cuDNN 91002 Commands that repeat these runs git checkout abc1234 make ablate
STEPS=10 WARMUP=2 ROUNDS=4 make report
"""


def test_report_page_shows_what_was_planted(html):
    """DESIGN: "A speedup never appears without its memory and its loss", "table, recipe, report,
    page and chart of the same file never disagree"; and it does not say who someone is.
    """
    recipe, memory, diffs = map(
        html.index, ("Techniques: switch on", '<section id="memory">', '<details id="diffs">')
    )
    text = textwrap.fill(plain(html[:recipe] + html[memory:diffs]), 99)
    assert f"{text}\n" == WORDS

    pictures = charts(html)
    speedup, memory, ablation, *_ = map(words, pictures)
    assert "2.50x" in speedup and memory.count("900") == 6 and "1.25x" in ablation  # 400 / 320
    for text in (html, *pictures):
        assert not re.search(r"\b(ada|bob|Eve)\b|/root", text)

    # Diffs are of the scripts as they ran: tensorFloat32 had an idea, brainFloat16 lacks it.
    added, removed = ('<span class="added">+# an idea', '<span class="removed">-# an idea')
    assert html.count(added) == html.count(removed) == 1
    assert html.index(added) < html.index(removed)
    assert "Lines for PyTorch" in html and "Not on this page" not in html


@pytest.mark.parametrize(
    "rounds, sentence",
    [
        (1, "One round: no interval yet"),
        (3, "The 95% interval over 3 rounds is 3.73-4.40."),
    ],
)
def test_report_page_headline_is_the_recipe(rounds, sentence, made):
    """README: "all results on one HTML page". What is missing is named with its command."""
    html = made(
        *ladder_runs(rounds),
        rows_of("fused_optimizer", [9] * 10, loss=float("nan")),
        rows_of("flash_attention", [8] * 10, loss=9.0),
    )
    text = plain(html)
    assert sentence in text and ("5.000 → 5.000 nats" in text) == (rounds > 1)
    assert "Not on this page Ablation: make ablate" in text


def test_report_page_without_anything_faster_says_so(made):
    html = made(rows_of("flash_attention", [], status="failed", note="ValueError: on purpose"))
    assert "Nothing was timed" in html
    assert "ValueError: on purpose" in words(charts(html)[0])


def test_report_page_is_sorted_and_filtered_with_the_keyboard(html, opened):
    """Without scripts, all of it is there and nothing is dead."""
    page = opened(html, 390)
    assert fits(page) and page.locator("details[open]").count() == 0
    page.evaluate(OPEN)
    names = page.locator("#techniques tbody tr > :first-child")
    page.locator("#techniques thead button", has_text="time a step").focus()
    for expected in (
        "fused_optimizer tensorFloat32 flash_attention brainFloat16 no_optimization float8_linear",
        "no_optimization brainFloat16 flash_attention tensorFloat32 fused_optimizer float8_linear",
        "no_optimization tensorFloat32 brainFloat16 flash_attention fused_optimizer float8_linear",
    ):
        page.keyboard.press("Enter")
        assert names.all_inner_texts() == expected.split()
    page.get_by_label("Filter the techniques").fill("flash_att")
    assert page.locator("#techniques tbody tr:visible th").all_inner_texts() == ["flash_attention"]
    assert page.locator(".filter output").inner_text() == "1 of 6"

    page = opened(html, java_script_enabled=False)
    for summary in page.locator("section > details > summary").all():
        summary.click()
    assert "float8_linear" in page.inner_text("#techniques")
    assert page.locator("button:visible, input:visible").count() == 0


SCRIPT = "<script>window.ran = 1</script>"
ATTACKS = {
    "note": f'{SCRIPT}"><img src=x onerror="window.ran = 2"> $\\frac{{$ costs $5',
    "device": f"</title></style>{SCRIPT}",
    "dataset": "{{ 7 * 191 }}{% raw %}",
    "model": "'\" onmouseover='window.ran = 3' x=\"",
    "torch": "<!--",
}


@pytest.mark.filterwarnings("ignore:Glyph 1 ")
def test_report_page_runs_nothing_hostile(made, opened):
    """And if a text could get out of its place, the page's policy would not let it run."""
    hostile = f"{SCRIPT}<svg onload=window.ran=4>"
    html = made(
        rows_of("no_optimization", [9, 9, 8, 8], loss=float("nan"), **ATTACKS),
        rows_of(hostile, [9, 9, 8, 8], **ATTACKS),
        rows_of("torch_compile", [], status="failed", **ATTACKS),
    )
    page = opened(html)
    assert page.locator("script, [onerror], [onload], [onmouseover]").count() == 1
    assert "<script" not in "".join(charts(html))
    page.evaluate(OPEN)
    page.wait_for_function("[...document.images].every(image => image.naturalWidth > 0)")
    shown = page.inner_text("#techniques")
    assert text.plain(hostile) in shown and fits(page)
    assert "1337" not in html and "nan" not in plain(html).split()

    broken = html.replace("<main ", f"{SCRIPT}<main onclick='window.ran = 2' ")
    page = opened(broken, expect="violates the following Content Security Policy")
    page.locator("h1").click()
    assert page.evaluate("window.ran") is None
