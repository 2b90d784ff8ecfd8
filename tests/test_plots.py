"""The charts: what they show, what they refuse to mix, and that they can be drawn again."""

import re
from itertools import pairwise

import pytest
from matplotlib.image import imread
from matplotlib.text import Text

import plot_results
from tests.rows import ladder_runs, rows_of, write_record
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.draw import chart_style, heatmap_chart, memory_chart, speedup_chart, step_times_chart
from Utils.results import records_file, rows_file, shared_folders
from Utils.scripts import ladder
from Utils.scripts.ladder import Technique

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
        prefix = dict(zip(flags[::2], flags[1::2], strict=True)).get("--plotsprefix", "")
        texts = {}
        for chart in CHARTS:
            svg = (tmp_path / "plots" / f"{prefix}{chart}.svg").read_text()
            texts[chart] = " \n".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
        return texts

    return draw


def test_charts_name_device_version_model_shape_units_and_commit(draw):
    for text in draw(*ladder_runs()).values():
        for word in ("Test GPU", "torch 2.13.0", "gpt2", "1x64", "stdlib", "1 round", "abc1234"):
            assert word in text, word
        for name in ("no_optimization", "tensorFloat32", "brainFloat16"):
            assert name in text
    texts = draw()
    assert "step time (ms)" in texts["step_times"] and "step time (ms)" in texts["heatmap"]


def test_an_ablation_is_drawn_where_there_is_one(draw, tmp_path):
    draw(*ladder_runs())
    drawn = tmp_path / "plots" / "ablation.svg"
    assert not drawn.exists()
    texts = draw(rows_of("no_optimization+brainFloat16", [9000, 301, *[250] * 8]))
    assert "1.60x" in drawn.read_text() and "1.60x" not in texts["speedup"]


def test_bars_carry_value_spread_memory_loss_and_verdicts(draw):
    text = draw(*ladder_runs())["speedup"]
    assert re.findall(r"\d\.\d\dx", text) == ["1.00x", "2.00x", "4.00x"]
    assert "p20-p80 of the steps (one round: no interval)" in text
    assert "peak memory" in text and text.count("900") >= 3 and text.count("5.000") == 3
    text = draw(*ladder_runs(rounds=3))["speedup"]
    assert "95% interval over rounds" in text and "one round: no interval" not in text
    assert text.count("faster") == 2 and text.count("exact") == 2
    alone = draw(rows_of("fused_optimizer", [1, 1, 5], seq_len=32))["speedup"]
    assert "no baseline to compare with" in alone


def test_ladder_order_and_one_colour_a_technique_everywhere(draw):
    runs = list(ladder_runs())
    texts = draw(*runs[::-1])
    for text in texts.values():
        places = [text.index(n) for n in ("no_optimization", "tensorFloat32", "brainFloat16")]
        assert places == sorted(places)
    colours = chart_style.colours()
    assert len({tuple(colour) for colour in colours.values()}) == len(colours)


def test_what_has_no_timing_appears_with_its_reason(draw):
    failed = rows_of("no_optimization", [], status="failed", note="ValueError: on purpose")
    for text in draw(failed).values():  # nothing else is there
        assert "ValueError: on purpose" in text.replace(" \n", " ")
    missing = rows_of("8bit_optimizer", [], status="unsupported", note="needs bitsandbytes")
    for text in draw(*ladder_runs(), missing).values():
        assert "needs bitsandbytes" in text.replace(" \n", " ")


def with_records(folder, runs, **parts):
    """The runs as they are, and beside them records that hold the parts."""
    runs = list(runs)
    for run in runs:
        memory = {"weights_mib": 100, "gradients_mib": 90, "optimizer_state_mib": 200}
        memory |= {"rest_mib": 510, "reserved_mib": None}
        record = {"memory": memory, "updated_parameters": 1, **parts}
        write_record(folder / "results.csv", run, **record)
    return runs


def test_memory_is_stacked_by_kind_up_to_the_measured_peak(draw, tmp_path):
    runs = with_records(tmp_path, ladder_runs())
    text = draw(*runs)["memory"]
    for word in ("weights", "gradients", "optimizer state", "measured peak", "memory (MiB)"):
        assert word in text, word
    assert text.count("900") == 3
    rows = rows_file.read("results.csv")
    lines = summarize(rows, records_file.read("results.csv", rows.run_id))
    axes = memory_chart.draw(rows, lines).axes[0]
    assert sorted(bar.get_width() for bar in axes.patches)[-12:] == sorted([100, 90, 200, 510] * 3)


def test_memory_that_is_not_known_by_kind_is_one_bar_and_large_memory_is_in_gib(draw):
    text = draw(*ladder_runs())["memory"]
    assert text.count("900") == 3 and "weights" not in text
    text = draw(rows_of("8bit_optimizer", [9, 9, 9], peak_memory_mib=5120))["memory"]
    assert "memory (GiB)" in text and "5.00" in text and "0.88" in text


@pytest.mark.parametrize(("floor_ms", "shown"), [(50, "8.0x "), (8, "50.0x, beyond the axis")])
def test_the_modelled_floor_stands_in_the_speedup_chart(floor_ms, shown, draw, tmp_path):
    limits = {"flops_per_token": 1, "precision": "float32", "datasheet_tflops": None}
    limits |= {"ceilings": None, "floor_ms": floor_ms}
    adamw = {"weights_mib": 475, "optimizer_state_mib": 949}  # which the floor is modelled for
    runs = with_records(tmp_path, ladder_runs(), limits=limits, memory=adamw)
    assert f"modelled floor: {shown}" in draw(*runs)["speedup"]
    assert "floor" not in draw(rows_of("no_optimization", [9, 9, 9], seq_len=32))["speedup"]


def test_tainted_runs_are_marked_in_every_chart_of_times(draw):
    runs = [*ladder_runs(), rows_of("torch_compile", [9, 9, 9], grade="tainted")]
    texts = draw(*runs)
    assert "torch_compile (tainted)" in texts["step_times"]
    assert "torch_compile (tainted)" in texts["heatmap"]
    assert "hatched: tainted runs" in texts["speedup"]
    assert texts["heatmap"].count("(tainted)") == 1
    rows = rows_file.read("results.csv")
    bars = speedup_chart.draw(rows, summarize(rows)).axes[0].patches
    assert [bool(bar.get_hatch()) for bar in bars] == [False, False, False, True]


def test_devices_are_not_mixed_and_what_is_left_out_is_said(draw, capsys):
    other = rows_of("fused_optimizer", [9, 9, 1], device="Other GPU")
    for text in draw(other, *ladder_runs()).values():
        assert "Other GPU" not in text and "fused_optimizer" not in text
    assert "left out: 1 run of gpt2 1x64 on Other GPU" in capsys.readouterr().out
    flags = ("--device-name", "other", "--plotsprefix", "mine_")
    assert "fused_optimizer" in draw(flags=flags)["heatmap"]


def test_one_hiccup_does_not_wash_out_the_heatmap(draw, tmp_path):
    steps = [*[100, 101] * 49, 9000, 100]
    draw(rows_of("no_optimization", steps))
    rows = rows_file.read(tmp_path / "results.csv")
    figure = heatmap_chart.draw(rows, summarize(rows))
    assert figure.axes[0].collections[0].get_clim() == (100, 101)


def test_pictures_are_large_and_drawing_again_gives_the_same_files(draw, tmp_path):
    draw(*ladder_runs(), formats=("png", "svg"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    draw(formats=("png", "svg"))
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    assert set(before) == {f"{chart}.{kind}" for chart in CHARTS for kind in ("png", "svg")}
    for chart in CHARTS:
        image = imread(tmp_path / "plots" / f"{chart}.png")
        assert image.shape[1] > 1000 and image[..., :3].std() > 0.05


def test_what_cannot_be_drawn_or_written_is_one_line(draw, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_folders, "FOLDER", tmp_path / "results")
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


def test_forty_techniques_are_told_apart(draw, tmp_path, monkeypatch):
    own, child = ladder.techniques(), ladder.facts("Parent: fused_optimizer")
    more = {
        name: Technique(name, paths.ROOT / "beyond" / f"{name}.py", "", "", child)
        for name in (f"idea_{i}" for i in range(40 - len(own)))
    }
    colours_of_the_ladder = [chart_style.colours()[t.name] for t in own.values() if t.at_top_level]
    monkeypatch.setattr(ladder, "techniques", lambda: own | more)
    colours, styles = chart_style.colours(), chart_style.styles()
    assert len({(colours[name], styles[name]) for name in colours}) == len(colours) == 40
    assert list(colours.values())[: len(colours_of_the_ladder)] == colours_of_the_ladder
    assert {styles[t.name] for t in own.values() if t.at_top_level} == {"-"}
    for name in colours:
        rows_file.append("results.csv", rows_of(name, [500, 210, *[200] * 8]))
    rows = rows_file.read("results.csv")
    figure = step_times_chart.draw(rows, summarize(rows))
    figure.canvas.draw()
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.axison}
    assert list(panels) == list(ladder.techniques())
    for name, axes in panels.items():
        *parent, own = axes.lines
        assert len(parent) == (name != "no_optimization")
        assert own.get_color() == colours[name] and list(own.get_ydata())[2:] == [200] * 8
    titles = [axes._left_title.get_window_extent() for axes in panels.values()]
    assert not any(a.overlaps(b) for a, b in pairwise(titles))


def test_a_few_techniques_share_one_panel_and_many_are_each_beside_their_parent(draw):
    text = draw(*ladder_runs())["step_times"]
    assert "its parent" not in text and "step (grey: warm-up)" in text
    names = list(ladder.techniques())[: step_times_chart.MOST_LINES + 1]
    runs = [rows_of(name, [9, 9, 100 + i, 100 + i]) for i, name in enumerate(names)]
    runs.append(rows_of(names[1], [9, 9, 50], round=1, grade="tainted"))
    runs.append(rows_of("all_together", [], status="unsupported", note="needs a GPU"))
    draw(*runs)
    rows = rows_file.read("results.csv")
    figure = step_times_chart.draw(rows, summarize(rows))
    text = "\n".join(label.get_text() for label in figure.findobj(Text))
    assert all(name in text for name in names) and text.count("tainted") == 1
    assert "black, dashed: its parent" in text and text.count("step time (ms)") == 3
    assert "all_together" not in text  # which the other charts speak of


def test_a_long_reason_stays_within_its_row(draw):
    why = "needs " + "an NVIDIA GPU of a later compute capability than this one has, " * 3
    missing = rows_of("tensorFloat32", [], status="unsupported", note=why)
    draw(*list(ladder_runs())[:1], missing)
    rows = rows_file.read("results.csv")
    lines = summarize(rows)
    for chart in (heatmap_chart, speedup_chart, memory_chart):
        figure = chart.draw(rows, lines)
        figure.canvas.draw()
        label = figure.axes[0].xaxis.label
        (line,) = [line for line in label.get_text().splitlines() if "unsupported" in line]
        assert line.startswith("tensorFloat32: unsupported: needs an NVIDIA GPU")
        assert line.endswith(" ...") and len(line) <= 90
        extent = label.get_window_extent()
        assert extent.x0 > 0 and extent.x1 < figure.bbox.x1


def test_a_batch_of_ones_own_stands_beside_the_name(draw):
    own = {"batch_size": 64, "requested_batch_size": 1}
    own = rows_of("fused_optimizer", [9000, 800, *[800] * 8], **own)
    for text in draw(*ladder_runs(), own).values():
        assert "fused_optimizer (batch 64)" in text and "1x64" in text
    rows = rows_file.read("results.csv")
    axes = speedup_chart.draw(rows, summarize(rows)).axes[0]
    whiskers = [line.get_xdata() for line in axes.lines if line.get_color() == "black"]
    assert list(whiskers[-1]) == pytest.approx([32, 32])


def test_speedups_of_beyond_have_a_chart_of_their_own_with_their_parents(draw, tmp_path):
    padded = rows_of("padded_vocabulary", [40, 40, 50, 50])
    runs = [*ladder_runs(), rows_of("fused_optimizer", [80, 80, 80, 80]), padded]
    ladder = draw(*runs)["speedup"]
    assert "fused_optimizer" in ladder and "padded_vocabulary" not in ladder
    beyond = (tmp_path / "plots" / "speedup_beyond.svg").read_text()
    for name in ("no_optimization", "fused_optimizer", "padded_vocabulary"):
        assert f">{name}<" in beyond
    assert "tensorFloat32" not in beyond
