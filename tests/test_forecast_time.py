"""The forecast of a step's time: the table of devices, the work of a step, its time, and the check
against what others have published."""

import importlib
import math
import re
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tools.calibration import against_file, forecast_fit, kernel_table, published_figures
from tools.calibration.published_figures import Figure, Step
from tools.forecast import __main__ as forecast_command
from tools.forecast import (
    fake_run,
    forecast_plan,
    forecast_table,
    gpus,
    kernel_work,
    step_time,
)
from tools.forecast.__main__ import read_prices
from tools.forecast.forecast_plan import MemoryForecast, StepForecast, device_of
from tools.forecast.gpus import ImaginedGPU
from tools.forecast.kernel_work import LIST, VIEW, Operation, Tensor, Work, kernels_at
from tools.forecast.step_time import StepTime
from Utils.base import errors
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import datasheets
from Utils.harness.step_work import flops_per_token
from Utils.scripts import ladder

ASKED_FOR = [
    "t4", "v100", "rtx2080ti", "rtx3050", "rtx3060", "rtx3090", "rtx4060", "rtx4090", "rtx5090",
    "a10", "a40", "a6000", "a100", "a100-40", "a100-pcie", "l4", "l40s", "h100", "h100-pcie",
    "h100-nvl", "h200", "gh200", "b200", "mi210", "mi250", "mi300x",
]  # fmt: skip


def square(n, dtype="bfloat16"):
    return Tensor((n, n), dtype)


def product(m, n, k, dtype="bfloat16", **more):
    operands = Tensor((m, k), dtype), Tensor((k, n), dtype)
    return Operation("mm", operands, (Tensor((m, n), dtype),), **more)


def seconds(entry, *operations, times=1):
    work = Work()
    for operation in operations * times:
        work.add(operation)
    return step_time.step_time(kernels_at(work, 1), gpus.find(entry)).seconds


def test_every_device_is_in_the_one_table_with_its_source():
    table = datasheets.datasheets()
    assert set(ASKED_FOR) <= set(table)
    names = [name for entry in table.values() for name in entry.names]
    assert len(names) == len(set(names))
    for entry in table.values():
        assert entry.source
        assert min(entry.float32, entry.float16, entry.bandwidth, entry.memory, entry.sms) > 0
        assert entry.float16 >= entry.float32  # no sparsity, and float32 by general cores


def test_a_technique_does_not_run_on_a_device_without_its_precision():
    args = forecast_plan.settings({"device": "cuda"}, ImaginedGPU("an imagined GPU", 2**40))

    def reason(name, key):
        return forecast_plan.unsupported(ladder.get(name), gpus.find(key), args)

    for key, lacking in (("t4", "Tesla T4 has 7.5"), ("v100", "V100-SXM2-16GB has 7.0")):
        assert "native bfloat16 needs compute capability 8.0; " in reason("brainFloat16", key)
        assert lacking in reason("brainFloat16", key)
    assert reason("fused_optimizer", "a100") == reason("no_optimization", "t4") == ""
    assert "float8 needs compute capability 8.9" in reason("all_together_float8", "a100")
    assert "float8 needs an MI300" in reason("all_together_float8", "mi210")
    assert "MI300 have another exponent bias" in reason("all_together_float8", "mi300x")
    assert reason("all_together_float8", "rtx4090") == reason("all_together_float8", "h100") == ""


def test_an_unknown_device_lists_the_nearest():
    with pytest.raises(UserError, match="rtx4090"):
        gpus.find("rtx4080")
    assert gpus.find("RTX4090").key == "rtx4090"


@pytest.mark.parametrize("name", ["relu", "torchao::scaled_int8_mm", "_int_mm"])
def test_a_kernel_without_a_rule_has_no_forecast_of_time(name):
    work = Work()
    work.add(Operation(name, (), ()))
    memory = MemoryForecast(kernels=kernels_at(work, 1), batch=1)
    args = forecast_plan.settings({"device": "cuda"}, ImaginedGPU("an imagined GPU", 2**40))
    entry, technique = gpus.find("h100"), ladder.get("fused_optimizer")
    step = forecast_plan.step_forecast(technique, memory, args, entry)
    assert (step.time is None) is (name != "relu")


def test_a_table_of_kernels_sums_up_to_the_step():
    work = Work()
    for operation in (product(4096, 4096, 4096), Operation("relu", (square(64),), (square(64),))):
        work.add(operation)
    work.add(product(4096, 4096, 4096))
    step, entry = kernels_at(work, 1), gpus.find("a100")
    table = kernel_table.table(step, entry).set_index("kind")
    products = table.loc["matrix products 4096x4096x4096"]
    assert list(table.index)[::2] == [products.name, "the step"]
    assert products.kernels == 2 and products.bound == "compute"
    assert products.at_peak_ms == pytest.approx(2 * 2 * 4096**3 / entry.bfloat16 / 1e9)
    parts = step_time.step_time(step, entry).parts
    on_device = sum(parts.values()) - parts["waiting for the host"]
    assert table.ms["the step"] == pytest.approx(1e3 * on_device)
    assert (table.at_peak_ms < table.ms).all()


def test_a_recorded_step_has_the_flop_that_torch_counts():
    """Of the baseline on a GPU, at the prime and at any other batch."""
    device = ImaginedGPU("an imagined GPU", 80 * 2**30)
    flags = ["--model=gpt2-tiny", "--dataset=synthetic", "--seq-len=64", "--batch-size=97"]
    recording = fake_run.recording(ladder.get("no_optimization"), flags, device)
    for batch in (97, 8):
        kernels = kernels_at(recording.work, batch)
        flop, order = kernels.kernels.flop, kernels.order
        expected = flops_per_token(CONFIGS["gpt2-tiny"], 64) * 64 * batch
        assert flop[order].sum() == pytest.approx(expected)
    step = step_time.step_time(kernels, gpus.find("a100"))
    kinds = step.kind_ms
    assert sum(kinds.values()) == pytest.approx(1e3 * step.seconds)
    assert kinds["matmul"] == pytest.approx(1e3 * step.parts["matrix products"])
    assert min(kinds[kind] for kind in ("elementwise", "normalization", "optimizer")) > 0
    assert kinds["idle"] >= 1e3 * step_time.constants()["start"]  # as it reads its loss
    update = kernels.kernels.traffic[order][kernels.kernels.host[order] == LIST].sum()
    assert update > 7 * 4 * CONFIGS["gpt2-tiny"].parameters()  # AdamW in several passes


def test_attention_that_is_causal_does_half_of_the_products():
    q = Tensor((2, 4, 128, 64), "bfloat16")
    flop = []
    for causal in (False, True):
        work = Work()
        work.add(Operation("_scaled_dot_product_flash_attention", (q, q, q), (q,), causal=causal))
        flop.append(kernels_at(work, 1).kernels.flop[0])
    assert flop == [4 * 2 * 4 * 128 * 128 * 64, 2 * 2 * 4 * 128 * 128 * 64]


def test_a_compiled_product_copies_what_it_reads_into_longer_rows_not_what_it_writes():
    head = Tensor((64, 57), "bfloat16", transposed=True)
    reads, writes = (product(8, n, k, host=kernel_work.COMPILED) for n, k in ((64, 57), (57, 64)))
    writes = replace(writes, reads=(writes.reads[0], head))
    assert [kernel_work.kernel(each)["copies"] for each in (reads, writes)] == [2 * 8 * 57 * 2, 0]


@pytest.mark.parametrize("name", ["persistent", "cudnn_attention"])
def test_what_hopper_does_otherwise_changes_no_other_chip(name, monkeypatch):
    q = Tensor((16, 12, 1024, 64), "bfloat16")
    attention = Operation("_scaled_dot_product_flash_attention", (q, q, q), (q,), causal=True)
    before = [seconds(key, product(4096, 768, 768), attention) for key in ("h200", "b200", "a100")]
    monkeypatch.setitem(step_time.constants(), name, 0.1)
    after = [seconds(key, product(4096, 768, 768), attention) for key in ("h200", "b200", "a100")]
    assert [a != b for a, b in zip(after, before, strict=True)] == [True, True, False]


def test_no_product_is_faster_than_the_peak_and_no_copy_than_the_bandwidth():
    for key, entry in datasheets.datasheets().items():
        n = 8192
        for dtype in ("float32", "float16"):
            rate = 2 * n**3 / seconds(key, product(n, n, n, dtype)) / 1e12
            assert 0.05 * entry.peak(dtype) < rate < entry.peak(dtype), (key, dtype)
        copied = Tensor((2**30,), "float32")
        copy = Operation("copy", (copied,), (copied,))
        assert 0.5 < 8 * 2**30 / seconds(key, copy) / (1e9 * entry.bandwidth) < 1


def test_a_width_that_is_no_multiple_of_16_bytes_costs_time_in_16_bits_only():
    odd, even = (product(8192, n, 768) for n in (50_257, 50_304))
    assert seconds("a100", odd) > 2 * seconds("a100", even)
    odd, even = (product(8192, n, 768, "float32") for n in (50_257, 50_304))
    assert seconds("a100", odd) == pytest.approx(seconds("a100", even), rel=0.05)


def test_many_small_kernels_take_as_long_as_the_host_needs():
    small = Operation("add", (square(64),), (square(64),))
    eager = step_time.constants()["eager"]
    assert seconds("h100", small, times=1000) == pytest.approx(eager * 1e-3, rel=0.02)
    view = Operation("view", (), (), host=VIEW)
    assert 0 < seconds("h100", view, times=1000) < seconds("h100", small, times=1000)


def test_waits_of_the_8_bit_update_are_counted():
    weight, moment = Tensor((1000,), "float32"), Tensor((1000,), "int8")
    update = (weight, weight, moment, moment), (weight, moment, moment)
    waits = Operation("optimizer_update_8bit_blockwise", *update)
    assert seconds("a100", waits, times=148) > 148 * step_time.constants()["wait"]


def test_every_published_row_is_used_or_left_out_with_a_reason():
    table = pd.read_csv(published_figures.PUBLISHED, keep_default_na=False)
    used = table[table.left_out == ""]
    assert 0 < len(published_figures.figures()) <= len(used)
    assert (used.device_key != "").all() and not used.device.str.match(r"\d+x ").any()
    for figure in published_figures.figures():
        assert 0.01 < figure.seconds < 10 and figure.key in datasheets.datasheets()


def test_the_check_that_is_kept_holds_every_figure_once():
    figures, rows = published_figures.figures(), step_time.check_rows()
    assert list(rows.technique) == [figure.technique for figure in figures]
    published_ms = [1e3 * figure.seconds for figure in figures]
    assert list(rows.measured_ms) == pytest.approx(published_ms, abs=1e-3)
    assert (rows.low_ms < rows.forecast_ms).all() and (rows.forecast_ms < rows.high_ms).all()


def test_figures_are_mostly_in_their_ranges_and_directions_mostly_right():
    assert step_time.check_rows().in_range.mean() >= 0.85
    ratios = published_figures.ratios(step_time.check_rows())
    assert (ratios[ratios.published > published_figures.WORTH].forecast > 1).mean() >= 0.9


def test_the_check_is_printed_with_its_errors_and_reasons(capsys):
    against_file.main(["AGAINST=published"])
    said = capsys.readouterr().out
    printed_rows = [line for line in said.splitlines() if line.startswith("|")]
    assert len(printed_rows) == len(step_time.check_rows()) + 2
    error = step_time.check_rows().error.abs().median()
    assert f"all: {len(step_time.check_rows())} figures, median error {error:.1%}" in said
    assert "of them in their range" in said


@pytest.mark.slow
def test_the_calibration_writes_the_check_and_the_constants(tmp_path, monkeypatch):
    constants = tmp_path / "step_time.toml"
    constants.write_text(step_time.FILE.read_text())
    check = tmp_path / "check.csv"
    monkeypatch.setattr(step_time, "FILE", constants)
    monkeypatch.setattr(step_time, "CHECK", check)
    step = Step(8, 64, layers=4, heads=2, width=64, vocabulary=1000)
    half = replace(step, precision="bfloat16", compile=True, evaluations=0.5, clip=True)
    figures = [
        Figure("one", "a100", "GPT", "float32", step, 0.02, ""),
        Figure("one", "a100", "GPT", "bfloat16", half, 0.01, ""),
        Figure("two", "h100", "GPT", "float32", step, 0.01, "variant"),
    ]
    monkeypatch.setattr(published_figures, "figures", lambda: figures)
    before = tomllib.loads(constants.read_text())
    importlib.import_module("tools.calibration.__main__").main()
    table = pd.read_csv(check)
    assert list(table.measured_ms) == [20, 10, 10] and set(table.columns) <= {
        *step_time.check_rows().columns
    }
    assert (table.factor > 1).tolist() == [True, True, True]  # no other source has these chips
    after = tomllib.loads(constants.read_text())
    assert after.keys() == before.keys()
    assert after["eager"]["value"] > before["eager"]["value"]  # the steps are slow for their work
    assert after["eager"]["origin"] == before["eager"]["origin"]


def test_a_range_is_wider_where_no_figure_is_alike():
    covered = {("a100", "float32"), ("a100", "bfloat16"), ("h100", "float32")}
    ceilings = {"matmul_tflops": {"float32": 0.2}, "emulated_tflops": {}, "bandwidth_gb_s": 40.0}
    here = gpus.of_device(ImaginedGPU("AMD EPYC (2 threads)", 2**34), ceilings)
    entries = [*map(gpus.find, ("a100", "h100", "b200", "mi210")), here]
    factors = [step_time.range_factor(entry, "bfloat16", covered) for entry in entries]
    wider = [step_time.OTHER_PRECISION, step_time.OTHER_CHIP, step_time.OTHER_MAKER]
    assert factors == [1, *wider, step_time.UNLISTED] == sorted(factors)
    assert here.memory_bytes == 2**34 and here.bandwidth == 40
    assert gpus.of_device(device_of("t4"), ceilings) is gpus.find("t4")


@pytest.mark.parametrize("name", ["bfloat16_residual", "all_together", "float8_head"])
def test_a_precision_without_published_figures_has_the_wider_range(name):
    work = Work()
    work.add(product(64, 64, 64))
    args = forecast_plan.settings({"device": "cuda"}, ImaginedGPU("an imagined GPU", 2**40))
    entry = gpus.find("a100")
    for script, factor in ((name, step_time.OTHER_PRECISION), ("fused_optimizer", 1.0)):
        memory = MemoryForecast(kernels=kernels_at(work, 1), batch=1)
        step = forecast_plan.step_forecast(ladder.get(script), memory, args, entry)
        assert step.time.factor == factor


def test_a_width_covers_what_it_says():
    random = np.random.default_rng(0)
    factors = random.choice([1.0, 2.0], 1000)
    off = random.normal(size=1000) * factors
    half = step_time.width(off, factors)
    assert np.mean(np.abs(off) <= half * factors) == pytest.approx(step_time.COVERED, abs=0.01)


def test_a_file_of_figures_is_forecast_or_left_out_with_a_reason(tmp_path, capsys):
    """By names and words, or by a described step; a file without the columns is refused."""
    file = tmp_path / "figures.csv"
    header = "source,device,model,batch_size,seq_len,technique,metric,value,unit,device_key,step"
    header += ",left_out"
    step = "layers = 2, heads = 2, width = 64, vocabulary = 1000"
    lines = [
        "a,NVIDIA GeForce RTX 4090,gpt2-tiny,8,64,fp32 eager,step time,9,ms,,",
        "a,AMD Instinct MI300X,gpt2-tiny,8,64,no_optimization,throughput,90000,tokens/s,,",
        f'a,ours,mine,8,64,mine,step time,9,ms,a100,"{step}",kept apart',
        "a,8x NVIDIA L4,gpt2-tiny,8,64,fp32,step time,9,ms,,",
        "a,NVIDIA L7,gpt2-tiny,8,64,fp32,step time,9,ms,,",
        "a,NVIDIA L4,Llama,8,64,fp32,step time,9,ms,,",
        "a,NVIDIA L4,gpt2-tiny,eight,64,fp32,step time,9,ms,,",
        "a,NVIDIA L4,gpt2-tiny,8,64,magic,step time,9,ms,,",
        "a,NVIDIA L4,gpt2-tiny,8,64,fp32,peak memory,9,MiB,,",
    ]
    file.write_text("\n".join([header, *lines]))
    against_file.main([f"AGAINST={file}"])
    said = capsys.readouterr().out
    assert "all: 3 figures, median error" in said and "AMD: 1 figures" in said
    reasons = ["several GPUs", "no device 'NVIDIA L7'", "no size of GPT-2"]
    reasons += ["'eight' is not a number", "'magic' is no script", "no time or throughput"]
    assert [word for word in reasons if word not in said] == []
    for text in ("a,b", ""):
        file.write_text(text)
        with pytest.raises(UserError, match=r"figures\.csv: .*header"):
            against_file.read(file)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--device=rtx4091"], "rtx4090"),
        (["--device=all", "--tokens=abc"], "'abc' is not a number"),
        (["--device=all", "--prices=-"], "-: "),
        (["--tokens=1e9"], "--device all"),
        (["--base=my_script.py"], "not yet for scripts of your own"),
    ],
)
def test_bad_input_is_answered_in_one_line(flags, words, capsys):
    with pytest.raises(SystemExit) as ended, errors.one_line("forecast"):
        forecast_command.main(*flags)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and words in said


@pytest.mark.parametrize(
    "content, words",
    [("h1000 = 2", "no device 'h1000'"), ("a100 = -1", "not a price"), ("a100", "a100 = 1.79")],
)
def test_a_file_of_prices_is_refused_with_the_line_to_mend(tmp_path, content, words):
    file = tmp_path / "prices.toml"
    file.write_text(content)
    with pytest.raises(UserError, match=words):
        read_prices(file)
    file.write_text("a100 = 1.79\n")
    assert read_prices(file) == {"a100": 1.79}


def test_devices_that_do_not_run_a_technique_stand_below_the_table():
    time = StepTime(0.05, {"attention": 0.05}, 0.04, 0.06)

    def forecast_on(device, reason=""):
        return StepForecast(device, "x", 8192, MemoryForecast(), None if reason else time, reason)

    forecasts = [forecast_on("t4", "no native bfloat16"), forecast_on("a100"), forecast_on("l4")]
    lines = forecast_table.device_table(forecasts, 8192 * 72_000, {"a100": 1.79}).splitlines()
    *table, blank, reason = lines
    assert (blank, reason) == ("", "t4: no native bfloat16")
    cells = {row.split()[0]: re.split(r"\s{2,}", row) for row in table}
    assert cells["t4"][1] == "no" and cells["a100"][1] == "yes" and "163,840" in cells["a100"]
    assert cells["a100"][-1] == "1.79 (1.43-2.15)" and cells["l4"][-1] == "no price"


def test_a_speedup_has_the_ratio_of_the_two_forecasts():
    slow, fast = (StepTime(seconds, {}) for seconds in (2.0, 0.5))
    ratio = step_time.speedup(slow, fast, 1.0)
    assert ratio.value == 4 and ratio.low * ratio.high == pytest.approx(16)
    assert ratio.low < 4 < ratio.high and all(map(math.isfinite, step_time.widths()))


def test_figures_of_a_source_share_a_deviation_and_an_outlier_pulls_no_harder():
    """So figures of one source say more on ratios than on levels."""

    def level(sources, deviations):
        count = len(sources)
        line = forecast_fit.Line(
            sources, np.zeros(1), np.array(deviations), np.ones((count, 1)), np.ones(1), np.zeros(1)
        )
        return forecast_fit.solved(line, np.ones(count, dtype=bool))[0]

    apart, together = level([*"abcd"], [0.1] * 4), level([*"aaaa"], [0.1] * 4)
    variance = forecast_fit.SIGMA**2 / 4 + forecast_fit.SHARED**2
    assert together == pytest.approx(0.1 / (1 + variance), abs=1e-6) and together < apart < 0.1
    assert level([*"abc"], [0.1, 0.1, 5.0]) == pytest.approx(level([*"abc"], [0.1, 0.1, 9.0]))
