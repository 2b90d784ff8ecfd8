"""What a forecast counts, what it says of it, and that runs, torch and publications confirm it."""

import dataclasses
import os
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.helpers.rows import append_run
from tests.helpers.stand_ins import answer
from tools.forecast import __main__ as forecast_command
from tools.forecast import expectations, forecast_errors, forecast_plan, gpus
from tools.forecast.fake_run import Recording
from tools.forecast.forecast_plan import StepForecast
from tools.forecast.imagined_gpu import ImaginedGPU
from tools.forecast.kernel_work import Operation, StepOperations, kernels_at
from tools.forecast.step_time import StepTime
from Utils.base import paths
from Utils.base.units import GIB
from Utils.results import rows_file
from Utils.scripts import ladder

GPU = ImaginedGPU("an imagined GPU", 80 * GIB)
TINY = ["--model=gpt2-tiny", "--dataset=synthetic", "--seq-len=64"]


def test_forecast_is_that_of_the_committed_table(tmp_path, monkeypatch):
    """RESULTS: "the forecasts of docs/forecast.csv". Recorded, counted and timed anew, of chips
    with published figures in this precision, in others, of none, and of AMD; with the torch of
    requirements.txt.

    docs/FORECAST.md: "A constant that was set from one device serves that device": an H200's four,
    of which two serve Hopper; "fewer than three sources". In all_together the loss kernel is an
    operator, and overwrites the logits.
    """
    committed = pd.read_csv(expectations.FILE)
    techniques = ["no_optimization", "all_together", "gradient_accumulation"]
    entries = {
        key: gpus.datasheet_by_key(key) for key in ("rtx3050", "l4", "h100", "h200", "mi210")
    }
    monkeypatch.setattr(
        "tools.forecast.expectations.datasheets", SimpleNamespace(datasheets=lambda: entries)
    )
    monkeypatch.setattr("tools.forecast.expectations.FILE", tmp_path / "forecast.csv")
    monkeypatch.setattr("tools.forecast.expectations.CONFIGS", ["gpt2-tiny"])
    monkeypatch.setattr("tools.forecast.expectations.EXPECTED", techniques)

    expectations.main()

    same = committed.model.eq("gpt2-tiny") & committed.technique.isin(techniques)
    expected = committed[same & committed.device.isin(entries)].reset_index(drop=True)
    rows = pd.read_csv(expectations.FILE)
    pd.testing.assert_frame_equal(rows, expected, check_dtype=False, rtol=1e-3)


def test_forecast_of_peaks_is_an_h200s():
    """docs/FORECAST.md: "Within 1% of an H200's peaks"."""
    h200 = rows_file.read(paths.ROOT / "results/NVIDIA_H200/2026-11-26/results.csv")
    measured_mib = h200.groupby("technique", observed=True).peak_memory_mib.max()
    shape = "device == 'h200' and model == 'gpt2' and batch_size == 16"
    forecasts = pd.read_csv(expectations.FILE).query(shape).set_index("technique")
    ratios = (1024 * forecasts.peak_gib / measured_mib).dropna()
    assert len(ratios) > 6 and ratios.between(0.99, 1.01).all()


def made(constant, slope, multiple=1):
    """A recording of an operation that leaves `constant` bytes, and `slope` for each sequence."""
    batch = 97 * multiple
    growing = np.array([slope * batch])
    return Recording(batch, multiple, constant + growing, growing)


def step_of(name, gib=0, largest_batch=0, time=None, reason=""):
    """The StepForecast of 16 sequences of 1,024 tokens with this peak."""
    return StepForecast(name, 16 * 1024, gib * GIB, largest_batch, reason, batch=16, time=time)


def time_of(seconds, part, factor=1.0):
    parts = {part: 0.9 * seconds, "attention": 0.1 * seconds}
    return StepTime(seconds, parts, 0.8 * seconds, 1.25 * seconds, factor)


STEPS = [
    step_of("no_optimization", 10, 20, time_of(0.4, "matrix products")),
    step_of("brainFloat16", 6, 50, time_of(0.1, "optimizer", 2.0)),
    step_of("larger", 18.1, 1, time_of(1.5, "waiting for the host")),
    step_of("untimed", 4.5, 60),
    step_of("missing", reason="needs a thing"),
]
ONE_BATCH = """\
Estimates for NVIDIA H100 80GB HBM3: gpt2, 16x1024 tokens a step, GiB (2^30 bytes), 75.05 usable of 80.00
Time from NVIDIA H100 datasheet (SXM), half of what it gives with sparsity.
In brackets: 90% ranges.

technique        peak GiB    largest    ms a step            speedup            tokens/s    mostly
                             batch
---------------  ----------  ---------  -------------------  -----------------  ----------  -------------
no_optimization  10.00       20         400.0 (320.0-500.0)  1                  40,960      products 90%
brainFloat16     6.00        50         100.0 (80.0-125.0)   4.0x (3.3-4.9)     163,840     optimizer 90%
larger           18.10       1          1,500 (1,200-1,875)  0.27x (0.24-0.29)  10,923      host 90%
untimed          4.50        60         not forecast
missing: needs a thing

no_optimization: measured 200.0 ms (forecast +100%), 0.88 GiB (forecast +1037.8%)

Ranges are wider for chips and precisions without published figures.
"""  # noqa: E501


def test_forecast_page_has_memory_time_and_what_was_measured(path, monkeypatch, capsys):
    """docs/COMMANDS.md: "One table has a row for each technique: its peak memory, the largest batch
    that fits", "Results of the same model, shape and device are listed with the forecast's error".
    """
    device = {"device": "NVIDIA H100 80GB HBM3", "batch_size": 16, "seq_len": 1024}
    for ms, columns in ((90, {"commit": "old"}), (200, {}), (9, {"batch_size": 8})):
        append_run(path, "no_optimization", [ms] * 3, **device | columns)
    plan = "tools.forecast.forecast_plan"
    answers = {
        f"{plan}.forecasts_on_device": STEPS,
        f"{plan}.techniques_of": STEPS,
        "tools.forecast.forecast_errors.widths": (0.2, 0.1),
    }
    answer(monkeypatch, answers)

    words = "--device=h100", "--batch-size=16", "--seq-len=1024", f"--results-file={path}"
    forecast_command.main(*words)
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


@pytest.mark.parametrize(
    "name, kernel, factor",
    [
        ("fused_optimizer", "relu", 1.0),
        ("fused_optimizer", "_int_mm", None),  # a kernel without a rule
        ("float8_head", "relu", forecast_errors.OTHER_PRECISION),
    ],
)
def test_forecast_of_time_needs_rules_and_is_wider_without_figures(name, kernel, factor):
    work = StepOperations()
    work.add(Operation(kernel, (), ()))
    memory = StepForecast(kernels=kernels_at(work, 1), batch=1)
    args = forecast_plan.settings({"device": "a100"}, forecast_plan.forecast_device("a100"))
    step = forecast_plan.step_forecast(ladder.get(name), memory, args)
    assert (step.time and step.time.factor) == factor


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
