"""The charts: what they show, what they refuse to mix, and that they can be drawn again."""

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

import plot_results
from tests.helpers.rows import ladder_runs, rows_of
from Utils.draw import chart_style
from Utils.results import rows_file

NEVER = {"status": "unsupported", "note": "needs a later GPU than this one, " * 3}


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Appends runs to a results file and draws it. Returns figures by name, not saved."""
    monkeypatch.chdir(tmp_path)

    def draw(*runs, flags=()):
        chart_style.plt.close("all")
        figures = {}
        for run in runs:
            rows_file.append("results.csv", run)
        with monkeypatch.context() as patch:
            patch.setattr(
                "Utils.draw.chart_style.save", lambda figure, name: figures.update({name: figure})
            )
            plot_results.main(*flags)
        return figures

    return draw


def words(figure):
    """The texts of a figure, a line a text."""
    return "\n".join(filter(None, (text.get_text() for text in figure.findobj(Text)))) + "\n"


KINDS = {"weights_mib": 100, "gradients_mib": 90, "optimizer_state_mib": 200, "rest_mib": 510}
WORDS = """\
# step_times
line: median of the rounds; band: all rounds; dashed: the script before; grey: warm-up
Test GPU, torch 2.13.0, gpt2, 1x64 tokens a step, stdlib, 4 rounds, commit abc1234
Time of each step: 401.5 ms in no_optimization, 98.49 ms in brainFloat16
step
ms
no_optimization
step
tensorFloat32
step
brainFloat16
step
flash_attention (batch 2)
# heatmap
Test GPU, torch 2.13.0, gpt2, 1x64 tokens a step, stdlib, 4 rounds, commit abc1234
Time of each step: 401.5 ms in no_optimization, 98.49 ms in brainFloat16
Not measured:
8bit_optimizer: unsupported: needs a later GPU than this one, needs a later GPU than this one, needs
a later GPU than this one,
step; before 0: the end of the warm-up
no_optimization
no_optimization
tensorFloat32
tensorFloat32
brainFloat16
brainFloat16
flash_attention (batch 2)
flash_attention (batch 2)
ms a step
# memory
Test GPU, torch 2.13.0, gpt2, 1x64 tokens a step, stdlib, 4 rounds, commit abc1234
Peak memory by kind: 900 MiB in no_optimization
900
900
900
900
Not measured:
8bit_optimizer: unsupported: needs a later GPU than this one, needs a later GPU than this one, needs
a later GPU than this one,
memory (MiB); median of the runs
no_optimization
no_optimization
tensorFloat32
tensorFloat32
brainFloat16
brainFloat16
flash_attention (batch 2)
flash_attention (batch 2)
measured peak
weights
gradients
optimizer state
rest: activations,
workspace, libraries
# speedup
Test GPU, torch 2.13.0, gpt2, 1x64 tokens a step, stdlib, 4 rounds, commit abc1234
Speedup over the script before: brainFloat16 is 4.08x as fast as no_optimization
over the
script before
2.01x (1.98-2.03)
2.03x (1.92-2.14)
over the
baseline
1.00x
2.01x
4.08x
2.51x
peak memory
(MiB)
900
900
900
900
loss
(nats)
5.000
5.000
5.000
5.000
Not measured:
8bit_optimizer: unsupported: needs a later GPU than this one, needs a later GPU than this one, needs
a later GPU than this one,
the baseline
the script before was not measured
step time of the script before / step time (x)
line: 95% interval, for all ratios together
1x
1x
1.2x
1.2x
1.4x
1.4x
1.6x
1.6x
1.8x
1.8x
2x
2x
2.2x
2.2x
no_optimization
no_optimization
tensorFloat32
tensorFloat32
brainFloat16
brainFloat16
flash_attention (batch 2)
over torch_compile
flash_attention (batch 2)
over torch_compile
faster
"""


def test_charts_of_a_ladder(draw, capsys):
    """DESIGN: "A speedup never appears without its memory and its loss"; "No number without its
    device, its versions, its commit and its spread"; "What cannot run says why". METHOD: "The first
    step of a turn is warm-up".

    Speedups are over the script before; flash_attention, whose parent was not measured, has twice
    the batch.
    """
    for run in ladder_runs(rounds=4):
        run[5] |= {"phase": "warmup", "step_ms": 999}  # of a second turn
        rows_file.append("results.csv", run, {"memory": KINDS, "updated_parameters": 1})
    more = {"batch_size": 2, "requested_batch_size": 1}
    runs = [rows_of("flash_attention", [320] * 10, round=r, **more) for r in range(4)]
    other = rows_of("fused_optimizer", [9, 9, 1], device="Other GPU")
    figures = draw(other, *runs, rows_of("8bit_optimizer", [], **NEVER))
    assert "".join(f"# {name}\n{words(figures[name])}" for name in figures) == WORDS
    assert "my_memory" in draw(flags=["--device-name=other", "--plotsprefix=my_"])

    bars = [bar.get_width() for bar in figures["memory"].axes[0].patches]
    assert bars[:3] == [100] * 3 and bars[12:] == [510] * 3 + [0] * 4 + [900]  # no record: the peak
    steps = figures["heatmap"].axes[0].collections[0]
    assert steps.get_array().shape == (4, 10)  # warm-up too
    assert steps.get_clim() == pytest.approx((98.5, 401.5))  # timed steps; outliers are cut
    lines = [line for axes in figures["step_times"].axes for line in axes.lines]
    times = [list(line.get_ydata()) for line in lines]
    assert times[1:3] == [[500, 410, *[401.5] * 7], [500, 210, *[200] * 7]]
    assert times[5:] == [[160] * 10] and lines[0].get_xdata()[0] == -2


def test_chart_without_timings_says_why_and_is_saved_the_same_twice(tmp_path, monkeypatch, capsys):
    """README: "charts"; what cannot be drawn or written is one line."""
    monkeypatch.chdir(tmp_path)
    failed = rows_of("no_optimization", [], status="failed", note="in /home/ada: on purpose")
    rows_file.append("results.csv", failed)

    files = []
    for _ in range(2):
        plot_results.main()
        assert capsys.readouterr().out == "plots/speedup.png\nplots/speedup.svg\n"
        files.append([path.read_bytes() for path in sorted(tmp_path.glob("plots/*"))])
    assert files[0] == files[1]
    with Image.open("plots/speedup.png") as image:
        assert "failed: in ~: on purpose" in " ".join(image.text["Description"].split())
        assert image.size[0] > 1000 and np.asarray(image.convert("L")).std() > 10
