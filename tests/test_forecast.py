"""What a forecast counts, what it says of it, and that runs, torch and publications confirm it."""

import dataclasses
import os
import re

import numpy as np
import pytest

from tests.helpers.rows import append_run
from tools.forecast import __main__ as forecast_command
from tools.forecast import forecast_errors, forecast_plan
from tools.forecast.fake_run import Recording
from tools.forecast.imagined_gpu import ImaginedGPU
from Utils.base import paths
from Utils.base.units import GIB
from Utils.scripts import ladder

GPU = ImaginedGPU("an imagined GPU", 80 * GIB)
TINY = ["--model=gpt2-tiny", "--dataset=synthetic", "--seq-len=64"]


TIMES = """\
no_optimization  50.67       8          1,313 (1,117-1,544)  1                49,902      memory 79%
all_together     6.48        65         195.8 (153.6-249.6)  6.7x (4.4-10.2)  334,750     products 57%
no_optimization  50.67       27         1,087 (786-1,503)    1                60,287      memory 81%
all_together     6.48        217        149.8 (108.3-207.0)  7.3x (4.2-12.7)  437,600     products 58%
no_optimization  50.72       94         108.8 (78.7-150.3)  1                602,594     memory 64%
all_together     6.53        747        12.6 (9.1-17.4)     8.7x (5.0-15.1)  5,217,871   products 56%
no_optimization  50.72       168        89.4 (64.7-123.6)  1                732,934     memory 55%
all_together     6.53        1325       9.1 (6.6-12.5)     9.9x (5.6-17.2)  7,223,783   products 55%
no_optimization  50.65       75         206.4 (137.7-309.3)  1                317,546     memory 69%
all_together     6.47        596        32.6 (21.7-48.8)     6.3x (3.2-12.7)  2,012,272   products 62%
"""  # noqa: E501


def test_forecast_of_time_is_of_the_device(capsys):
    """docs/FORECAST.md: "A constant that was set from one device serves that device": an H200's
    four, of which two serve Hopper; "fewer than three sources"; "the same, of AMD". Chips have
    published figures in this precision, in others, or none; with the torch of requirements.txt. In
    all_together the loss kernel is an operator, and overwrites the logits.
    """
    shape = "--model=gpt2-tiny", "--dataset=synthetic", "--batch-size=64", "--seq-len=1024"
    for key in ("rtx3050", "l4", "h100", "h200", "mi210"):
        forecast_command.main("T=no_optimization all_together", *shape, f"--device={key}")
    rows = re.findall("^(?:no_|all_).*\n", capsys.readouterr().out, re.MULTILINE)
    assert "".join(rows) == TIMES


@pytest.mark.slow
def test_forecast_of_peaks_is_an_h200s(capsys):
    """docs/FORECAST.md: "Within 1% of an H200's peaks"."""
    file = paths.ROOT / "results/NVIDIA_H200/2026-11-26/results.csv"
    forecast_command.main("--device=h200", f"--results-file={file}")
    errors = re.findall(r"GiB \(forecast (\S+)%", capsys.readouterr().out)
    assert len(errors) > 6 and all(-1 < float(error) < 1 for error in errors)


def made(constant, slope, multiple=1):
    """A recording of an operation that leaves `constant` bytes, and `slope` for each sequence."""
    batch = 97 * multiple
    growing = np.array([slope * batch])
    return Recording(batch, multiple, constant + growing, growing)


ONE_BATCH = """\
Estimates for NVIDIA H100 80GB HBM3: gpt2-tiny, 16x64 tokens a step, GiB (2^30 bytes), 75.05 usable of 80.00
Time from NVIDIA H100 datasheet (SXM), half of what it gives with sparsity.
In brackets: 90% ranges.

technique        peak GiB    largest    ms a step      speedup         tokens/s    mostly
                             batch
---------------  ----------  ---------  -------------  --------------  ----------  ----------
no_optimization  0.88        1544       2.8 (2.0-3.8)  1               370,431     memory 52%
brainFloat16     0.69        2062       2.5 (1.8-3.5)  1.1x (0.6-1.9)  409,798     memory 58%
int8_linear      0.31        6007       not forecast
no_sync: runs in several processes, which are not forecast

no_optimization: measured 200.0 ms (forecast -99%), 0.88 GiB (forecast -0.3%)

Ranges are wider for chips and precisions without published figures.
"""  # noqa: E501


def test_forecast_page_has_memory_time_and_what_was_measured(path, capsys):
    """docs/COMMANDS.md: "One table has a row for each technique: its peak memory, the largest batch
    that fits", "Results of the same model, shape and device are listed with the forecast's error".
    """
    device = {"device": "NVIDIA H100 80GB HBM3", "batch_size": 16, "model": "gpt2-tiny"}
    for ms, columns in ((90, {"commit": "old"}), (200, {}), (9, {"batch_size": 8})):
        append_run(path, "no_optimization", [ms] * 3, **device | columns)

    techniques = "T=no_optimization brainFloat16 int8_linear no_sync"
    forecast_command.main(techniques, *TINY, "--device=h100", f"--results-file={path}")
    assert capsys.readouterr().out == ONE_BATCH


def test_forecast_memory_is_in_binary_or_decimal_units():
    assert forecast_command.memory_size("1.5 gib") == 1.5 * GIB
    assert forecast_command.memory_size("24GB") == 24e9


IMAGINED = """\
Estimates for an imagined GPU: gpt2-tiny, 16x64 tokens a step, GiB (2^30 bytes), 2.85 usable of 4.00
In brackets: 90% ranges.

technique        peak GiB    largest
                             batch
---------------  ----------  ---------
brainFloat16     0.69        75
no_optimization  0.88        56
no_sync: runs in several processes, which are not forecast"""


def test_forecast_for_a_gpu_that_is_not_there(path, capsys):
    """README: "`make forecast DEVICE=cuda MEMORY=4GiB`: which batch fits"."""
    forecast_command.main(
        "T=brainFloat16 no_optimization no_sync",
        *TINY,
        "--device=cuda:99",
        "--memory=4GiB",
        f"--results-file={path}",
    )
    assert capsys.readouterr().out.partition("\n\nNo forecast of time")[0] == IMAGINED
    assert not path.exists()


def test_forecast_of_a_script_that_cannot_run_is_its_reason(tmp_path):
    script = ladder.get("no_optimization")
    broken = dataclasses.replace(script, path=tmp_path / "broken_script.py")
    broken.path.write_text(script.path.read_text().replace("loss.backward()", "loss.nothing()"))
    problem = forecast_plan.recorded((broken, TINY, GPU))
    for recording, batch, words in (
        (problem, 2, "cannot be forecast: AttributeError"),
        (made(0, 1, multiple=4), 2, "a multiple of 4, not 2"),
    ):
        assert words in forecast_plan.memory_forecast(recording, batch, GIB, GPU).reason


@pytest.mark.parametrize(
    "name, written", [("fused_cross_entropy", "bfloat16"), ("all_together_float8", "float8_e5m2")]
)
def test_forecast_records_the_types_that_our_kernel_reads_and_writes(name, written):
    """Logits in 16 bits, indices in 64, losses in 32; the gradient as its products take it."""
    pytest.importorskip("triton")
    words = [*TINY, "--batch-size=97"]
    recording = forecast_plan.recorded((ladder.get(name), words, GPU))
    operations = recording.work.operations
    (kernel,) = [each for each in operations if each.name == "cross_entropy_kernel"]
    assert [tensor.dtype for tensor in kernel.reads] == ["bfloat16", "int64"]
    assert {tensor.dtype for tensor in kernel.writes} == {"float32", written}


def test_forecast_process_that_dies_has_no_recording(monkeypatch):
    monkeypatch.setattr("tools.forecast.fake_run.recording", os._exit)
    assert forecast_plan.recorded([1]) is None


def test_forecast_check_has_most_figures_in_their_range():
    """docs/FORECAST.md: "90% of all figures are within theirs"; "the direction is right in 15 of
    15"; "In-sample".
    """
    rows = forecast_errors.check_rows()
    assert set(forecast_errors.check_rows(in_sample=True).source) == {"this repository"}
    speedups = forecast_errors.speedups()
    right = speedups[speedups.measured_ms > 1.05].forecast_ms > 1
    page = (paths.ROOT / "docs" / "FORECAST.md").read_text()
    assert f"the direction is right in {right.sum()} of {len(right)}" in page and right.all()
    assert rows.in_range.mean() >= forecast_errors.COVERED


CHECK = """\
source,key,model,technique,batch,tokens,precision,measured_ms,forecast_ms,in_sample,factor,low_ms,\
high_ms,roofline_ms,bound
a,h100,GPT-2,x,2,1000,float32,23.0,46.0,False,2,20.0,60.0,184,matrix products
b,h100,GPT-2,x,2,1000,float32,320,640,False,2,400,900,320,matrix products
c,h100,BERT,x,2,1000,float32,656,82,False,2,10,700,82,matrix products
this repository,h100,GPT-2,x,2,1000,bfloat16,92,46,True,2,20,60,92,matrix products
"""


def test_forecast_errors_are_of_figures_whose_source_was_left_out(tmp_path, monkeypatch):
    """FORECAST: "without the figure's source"; "Its errors test nothing".

    Errors: 100%, 100% and 87.5%.
    """
    (tmp_path / "check.csv").write_text(CHECK)
    monkeypatch.setattr("tools.forecast.forecast_errors.CHECK", tmp_path / "check.csv")
    monkeypatch.setattr(
        "tools.forecast.forecast_errors.check_rows", forecast_errors.check_rows.__wrapped__
    )
    parts = {"ours": forecast_errors.check_rows(in_sample=True)}
    errors = forecast_errors.summary(parts | {"others": forecast_errors.check_rows()})

    assert errors.to_numpy().tolist() == [
        ["ours", "1", "1", "50.0%", "50.0%", "0%"],
        ["others", "3", "3", "100.0%", "100.0%", "67%"],
    ]
