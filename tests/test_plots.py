"""The charts: what they show, what they refuse to mix, and that they can be drawn again."""

import re

import pytest
from matplotlib.image import imread
from matplotlib.text import Text

import plot_results
from tests.helpers.rows import ladder_runs, rows_of, study_of, write_record
from tools.docs import doc_pages
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.base.errors import UserError
from Utils.draw import chart_style, ladder_charts, ratio_charts
from Utils.results import rows_file, selection

CHARTS = ("step_times", "heatmap", "speedup", "memory")


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Writes runs into a results file, draws it, and returns the SVGs' texts by chart."""
    monkeypatch.chdir(tmp_path)

    def draw(*runs, flags=(), formats=("svg",)):
        for run in runs:
            rows_file.append("results.csv", run)
        monkeypatch.setattr(chart_style, "FORMATS", formats)
        plot_results.main(list(flags))
        texts = {}
        for path in (tmp_path / "plots").glob("*.svg"):
            words = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
            texts[path.stem] = " \n".join(words)
        return texts

    return draw


def shown():
    """The rows of the results file, and the lines of their summary."""
    rows = rows_file.read("results.csv")
    records = rows_file.read_records("results.csv", rows.run_id)
    return rows, summarize(study_of(rows, records)).lines


def points(axes, marker):
    """Where points of a marker are: (x, y)."""
    lines = (line for line in axes.lines if line.get_marker() == marker and len(line.get_xdata()))
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines]


def test_charts_name_device_version_model_shape_units_and_commit(draw):
    texts = draw(*ladder_runs())
    assert {*texts} == {*CHARTS}
    for text in texts.values():
        for word in ("Test GPU", "torch 2.13.0", "gpt2", "1x64", "stdlib", "1 round", "abc1234"):
            assert word in text, word
        places = [text.index(n) for n in ("no_optimization", "tensorFloat32", "brainFloat16")]
        assert places == sorted(places)
    assert "each step (ms)" in texts["step_times"] and "step time (ms)" in texts["heatmap"]


def test_an_ablation_is_drawn_where_there_is_one(draw):
    assert "ablation" not in draw(*ladder_runs())
    texts = draw(rows_of("no_optimization+brainFloat16", [9000, 301, *[250] * 8]))
    assert "1.60x" in texts["ablation"] and "1.60x" not in texts["speedup"]


def test_speedups_are_over_the_script_before_with_memory_and_loss(draw):
    text = draw(*ladder_runs())["speedup"]
    assert re.findall(r"\d\.\d\dx", text) == [
        *("2.00x", "2.00x"),  # over the script before
        *("1.00x", "2.00x", "4.00x"),  # over the baseline
    ]
    assert text.count("900") == 3 and text.count("5.000") == 3
    assert "one round: no interval" in text and "faster" not in text
    runs = [rows_of("flash_attention", [50 + r] * 9, round=r) for r in range(3)]
    runs += [rows_of("fused_optimizer", [80 + r] * 9, round=r) for r in range(3)]
    text = draw(*ladder_runs(rounds=3), *runs)["speedup"]
    assert "95% interval" in text and "over brainFloat16" not in text
    assert "the script before was not measured" in text  # torch_compile
    axes = ladder_charts.speedup(*shown()).axes[0]
    faster = {y: x for x, y in points(axes, "o")}
    assert [faster[1], faster[2]] == pytest.approx([2.0, 2.0], abs=0.03)
    assert points(axes, "s")[-1] == (pytest.approx(51 / 81, abs=0.01), 4)  # slower
    assert "(nats)" in text and "(nats)" not in draw(*ladder_runs(unit="samples"))["speedup"]


def test_an_axis_does_not_follow_the_widest_interval():
    usual = [Ratio(1.1, 1.0, 1.2)] * 6
    low, high = ratio_charts.limits(usual)
    assert (low, high) == pytest.approx((1.0, 1.2))
    assert ratio_charts.limits([*usual, Ratio(1.1, 0.02, 60)])[1] < 1.5
    assert ratio_charts.limits([*usual, Ratio(40, 39, 41)])[1] == pytest.approx(41)
    series = ratio_charts.by_verdict([*usual, Ratio(1.1, 0.02, 60)])
    _, axes = ratio_charts.forest([*"abcdefg"], series, ("A title",), "speedup")
    assert points(axes, ">")[0][0] < 1.5 and points(axes, "<")  # it goes on beyond


def test_what_has_no_timing_appears_with_its_reason(draw):
    failed = rows_of("no_optimization", [], status="failed", note="ValueError: on purpose")
    texts = draw(failed)  # nothing else is there
    assert {*texts} == {"speedup"} and "ValueError: on purpose" in texts["speedup"]
    why = "needs " + "an NVIDIA GPU of a later compute capability than this one has, " * 3
    missing = rows_of("8bit_optimizer", [], status="unsupported", note=why)
    texts = draw(*ladder_runs(), missing)
    for chart in ("heatmap", "speedup", "memory"):
        (line,) = [line for line in texts[chart].splitlines() if "unsupported" in line]
        assert line.startswith("8bit_optimizer: unsupported: needs an NVIDIA GPU")
        assert line.rstrip().endswith(" ...") and len(line) <= 91


def test_memory_is_stacked_by_kind_up_to_the_measured_peak(draw):
    text = draw(*ladder_runs())["memory"]
    assert text.count("900") == 3 and "weights" not in text
    kinds = {"weights_mib": 100, "gradients_mib": 90, "optimizer_state_mib": 200, "rest_mib": 510}
    for run in (runs := list(ladder_runs())):
        write_record("results.csv", run, memory=kinds, updated_parameters=1)
    text = draw(*runs)["memory"]
    for word in ("weights", "gradients", "optimizer state", "measured peak", "memory (MiB)"):
        assert word in text, word
    widths = sorted(bar.get_width() for bar in ladder_charts.memory(*shown()).axes[0].patches)
    assert text.count("900") == 3 and widths[-12:] == sorted([*kinds.values()] * 3)


def test_memory_of_a_gpu_is_in_gib(draw):
    texts = draw(rows_of("8bit_optimizer", [9] * 3, peak_memory_mib=512, reserved_memory_mib=600))
    assert all("(GiB)" in texts[chart] and "0.50" in texts[chart] for chart in CHARTS[2:])


def test_taint_and_a_batch_of_ones_own_stand_beside_the_name(draw):
    own = {"batch_size": 64, "requested_batch_size": 1, "grade": "tainted"}
    for text in draw(*ladder_runs(), rows_of("fused_optimizer", [800] * 9, **own)).values():
        assert text.count("fused_optimizer (batch 64) (tainted)") == text.count("(tainted)") == 1


def test_devices_are_not_mixed_and_what_is_left_out_is_said(draw, capsys):
    other = rows_of("fused_optimizer", [9, 9, 1], device="Other GPU")
    for text in draw(other, *ladder_runs()).values():
        assert "Other GPU" not in text and "fused_optimizer" not in text
    assert "left out: 1 run of gpt2 1x64 on Other GPU" in capsys.readouterr().out
    flags = ("--device-name", "other", "--plotsprefix", "mine_")
    assert "fused_optimizer" in draw(flags=flags)["mine_heatmap"]


def test_warm_up_has_a_scale_of_its_own_and_one_hiccup_does_not_wash_out_the_heatmap(draw):
    draw(rows_of("no_optimization", [5000, 300, *[100, 101] * 49, 9000, 100]))
    warmup, timed = ladder_charts.heatmap(*shown()).axes[0].collections[:2]
    assert timed.get_clim() == (100, 101) and warmup.get_clim()[0] > 300


def test_no_timed_step_is_drawn_as_warm_up(draw):
    """On a GPU, one script of a turn can have many more steps of warm-up than another."""
    draw(
        rows_of("no_optimization", [400] * 12, warmup=2),
        rows_of("tensorFloat32", [900] * 40 + [200] * 10, warmup=40),
    )
    figure = ladder_charts.step_times(*shown())
    for axes, ms in zip(figure.axes, (400, 200), strict=False):
        *_, line = axes.lines
        timed = [
            y for x, y in zip(*line.get_data(), strict=True) if x > axes.patches[0].get_bbox().x1
        ]
        assert timed == [ms] * 10


@pytest.mark.slow
def test_pictures_are_large_and_drawing_again_gives_the_same_files(draw, tmp_path):
    draw(*ladder_runs(), formats=("png", "svg"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    draw(formats=("png", "svg"))
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    assert set(before) == {f"{chart}.{kind}" for chart in CHARTS for kind in ("png", "svg")}
    for path in (tmp_path / "plots").glob("*.png"):
        image = imread(path)
        assert image.shape[1] > 1000 and image[..., :3].std() > 0.05


def test_what_cannot_be_drawn_or_written_is_one_line(draw, tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "SHARED", tmp_path / "results")
    for content, words in ((None, "no such file"), ("", "no results yet"), ("a\n", "csv:1: ")):
        if content is not None:
            (tmp_path / "results.csv").write_text(content)
        with pytest.raises(UserError, match=words):
            plot_results.main([])
    assert not (tmp_path / "plots").exists()
    (tmp_path / "results.csv").unlink()
    (tmp_path / "plots").write_text("a file, not a folder")
    with pytest.raises(UserError, match="plots: File exists"):
        draw(*ladder_runs())


def test_step_times_are_a_panel_a_technique_beside_the_script_before(draw):
    draw(*ladder_runs(rounds=2))
    panels = ladder_charts.step_times(*shown()).axes[:3]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == ["no_optimization", "tensorFloat32", "brainFloat16"]
    assert [len(axes.lines) for axes in panels] == [1, 2, 2]
    before, own = panels[1].lines
    assert list(own.get_ydata())[2:] == [200] * 8 and list(before.get_ydata())[2:] == [400.5] * 8


def test_speedups_of_beyond_have_a_chart_of_their_own_with_their_parents(draw):
    padded = rows_of("padded_vocabulary", [40, 40, 50, 50])
    texts = draw(*ladder_runs(), rows_of("fused_optimizer", [80, 80, 80, 80]), padded)
    assert "fused_optimizer" in texts["speedup"] and "padded_vocabulary" not in texts["speedup"]
    for name in ("no_optimization", "fused_optimizer", "padded_vocabulary"):
        assert name in texts["speedup_beyond"]
    assert "tensorFloat32" not in texts["speedup_beyond"]


def test_a_users_script_has_charts_of_its_ladder_its_switches_of_beyond_and_its_ablation(draw):
    compiled = "train+tensorFloat32+torch_compile"
    times = {"train": 400, "train+tensorFloat32": 200, compiled: 100}
    runs = [rows_of(name, [9, 9, ms, ms], base="train") for name, ms in times.items()]
    graphs = {"parent": compiled, "change": "+cuda_graphs-torch_compile"}
    runs.append(rows_of("train+tensorFloat32+cuda_graphs", [9, 9, 80, 80], base="train", **graphs))
    runs.append(rows_of("train+torch_compile", [9, 9, 160, 160], base="train", suite="ablation"))
    texts = draw(*runs)
    assert {*texts} == {*CHARTS, "speedup_beyond", "memory_beyond", "ablation"}
    for name in CHARTS:
        assert "+torch_compile" in texts[name] and "cuda_graphs" not in texts[name]
    assert "+cuda_graphs" in texts["speedup_beyond"]
    assert re.findall(r"\d\.\d\dx", texts["speedup_beyond"]) == [
        *("2.00x", "1.25x"),  # of torch_compile, which cuda_graphs takes the place of
        *("1.00x", "4.00x", "5.00x"),  # over the script itself
    ]
    for ratio in ("2.00x", "2.50x", "1.60x"):
        assert ratio in texts["ablation"]


def test_the_chart_of_gpus_is_legible_on_a_phone():
    figure = doc_pages.gpus_chart()
    figure.canvas.draw()
    inches = figure.get_tightbbox(figure.canvas.get_renderer()).width + 0.2
    sizes = {text.get_text(): text.get_fontsize() for text in figure.findobj(Text)}
    assert min(size for text, size in sizes.items() if text) / 72 * 358 / inches >= 8  # pixels
    assert {"TF32", "A100, build-nanogpt", "A100, forecast", "our CPU, measured by us"} <= {*sizes}
    axes = figure.axes[0]
    assert points(axes, "o")[0][0] == pytest.approx(1000 / 333)  # build-nanogpt's TF32
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    ranges = [line for line in axes.lines if len({*line.get_ydata()}) == 1 < len(line.get_xdata())]
    assert hollow and len(ranges) >= 18
