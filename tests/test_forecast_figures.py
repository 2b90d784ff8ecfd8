"""The forecast beside figures of others, and docs/forecast.csv, by small cases worked by hand."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.helpers.stand_ins import answer
from tools.forecast import __main__ as forecast_command
from tools.forecast import (
    described_step,
    expectations,
    forecast_errors,
    forecast_plan,
    gpus,
    step_time,
)
from tools.forecast.forecast_plan import MemoryForecast, StepForecast
from tools.forecast.kernel_work import kernels_at
from tools.forecast.step_time import StepTime

GPU = gpus.datasheet_by_key("h100")
CHECK = """\
source,key,model,technique,batch,tokens,precision,measured_ms,forecast_ms,in_sample,factor,low_ms,\
high_ms,roofline_ms,bound
a,h100,GPT-2,x,2,1000,float32,23.0,46.0,False,2,20.0,60.0,184,matrix products
b,h100,GPT-2,x,2,1000,float32,320,640,False,2,400,900,320,matrix products
c,h100,BERT,x,2,1000,float32,656,82,False,2,10,700,82,matrix products
this repository,h100,GPT-2,x,2,1000,bfloat16,92,46,True,2,20,60,92,matrix products
"""
ERRORS = """
| all | 3 | 3 | 100.0% | 100.0% | 67% |
| GPT-2 124M | 2 | 2 | 100.0% | 100.0% | 50% |
| c | 1 | 1 | 87.5% | 87.5% | 100% |
| in sample, and not in the sums | 1 | 1 | 50.0% | 50.0% | 0% |
Each source left out: median error 100.0% (plain roofline 87.5%, 0.9x), \
90% within 100.0% (plain roofline 577.5%, 5.8x).
| h100 | GPT-2 | x | 2 | 1000 | 23.0 | 46.0 | 20.0 | 60.0 | +100.0% |
"""


def test_forecast_against_published_has_each_figure_and_errors_by_source(
    tmp_path, monkeypatch, capsys
):
    """FORECAST: "`make forecast AGAINST=published` prints every figure of forecast_check.csv, and
    how far a plain roofline is off".

    Errors: 100%, 100% and 87.5%, of the roofline 700%, 0 and 87.5%; 90%: 87.5% + 0.8 x 612.5%.
    """
    (tmp_path / "check.csv").write_text(CHECK)
    monkeypatch.setattr(forecast_errors, "CHECK", tmp_path / "check.csv")
    monkeypatch.setattr(forecast_errors, "check_rows", forecast_errors.check_rows.__wrapped__)
    forecast_command.main("AGAINST=published")
    text = re.sub(" +", " ", capsys.readouterr().out)
    for line in ERRORS.splitlines():
        assert line in text


def test_forecast_described_step_has_its_arithmetic_and_passes(monkeypatch):
    """In FLOP of a sequence: T = 16 tokens, C = 32, V = 64, two layers. Backward, each product has
    two more.

    A layer: 4 products of C x C and 2 of C x 4C, 24 T C² = 393,216, with scores and their sums
    4 T² C = 32,768. The head: 2 T C V = 65,536. So 6 x 425,984 + 3 x 65,536; of FlashAttention,
    which is causal and has 5 backward, 32,768 x 3.5 / 2 in place of 32,768 x 3.

    Half an evaluation is a sixth of that, three more batches are three times that. A third layer is
    3 x 425,984 more.
    """
    step = described_step.step_of(97, 16, "layers = 2, heads = 2, width = 32, vocabulary = 64")
    flash = replace(step, attention="sdpa", compile=True, optimizer="fused", clip=True)
    for each, flop in {step: 2_752_512, flash: 2_670_592}.items():
        traced = kernels_at(described_step.operations(each), 1)
        assert traced.kernels.flop[traced.order].sum() == flop

    def seconds_of_flop(kernels, entry):
        return SimpleNamespace(seconds=kernels.kernels.flop[kernels.order].sum() / 97)

    monkeypatch.setattr(step_time, "step_time", seconds_of_flop)
    more = replace(step, layers=3, evaluations=0.5, microbatches=4)
    expected = (2_752_512 + 3 * 425_984) * (1 + 3 + 0.5 / 3)
    assert described_step.seconds(more, GPU) == pytest.approx(expected)


AGAINST = """\
device,model,batch_size,seq_len,technique,metric,value,unit,device_key,step,unsaid,torch,left_out
NVIDIA L4,gpt2,8,64,no_optimization,throughput,5120,tokens/s,,,,,
a card,GPT-2,8,64,theirs,step time,110,ms,l4,layers = 2,its power limit,,
a card,GPT-2,8,64,theirs,throughput,102400,tokens/s,l4,microbatches = 20,,,
NVIDIA L7,gpt2,8,64,no_optimization,step time,9,ms,,,,,
NVIDIA L4,Llama,8,64,no_optimization,step time,9,ms,,,,,
NVIDIA L4,gpt2,eight,64,no_optimization,step time,9,ms,,,,,
NVIDIA L4,gpt2,8,64,magic,step time,9,ms,,,,,
NVIDIA L4,GPT-2,8,64,magic,step time,9,ms,,magic = 1,,,
NVIDIA L4,gpt2,8,64,no_optimization,peak memory,9,MiB,,,,,
NVIDIA L4,gpt2,8,64,no_optimization,step time,9,ms,,,,2.5.1,
"""


def test_forecast_against_a_file_has_errors_and_ranges_or_reasons(tmp_path, monkeypatch, capsys):
    """docs/FORECAST.md: "`AGAINST=FILE` prints the errors of yours".

    8 x 64 tokens at 5120 a second take 100 ms: 110 are +10%, their range exp(±0.1). 80 for 110 ms
    are -27.3%; their range is exp(±0.25), 2 x 1.25 as wide, for the chip and what is unsaid. 20
    batches of 8 x 64 tokens at 102,400 a second take 100 ms as well.
    """
    file = tmp_path / "figures.csv"
    file.write_text(AGAINST)

    def ours(techniques, args, *device):
        time = StepTime(args.batch_size * args.seq_len * 0.11 / 512, {})
        return [StepForecast("", 512, MemoryForecast(), time, "")]

    monkeypatch.setattr(forecast_plan, "forecasts_on_device", ours)
    answer(
        monkeypatch,
        {
            "tools.forecast.described_step.seconds": 0.08,
            "tools.forecast.forecast_errors.range_factor": 2,
            "tools.forecast.forecast_errors.widths": (0.1, 0),
        },
    )
    forecast_command.main(f"AGAINST={file}")
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "100.0 | 110.0 | 99.5 | 121.6 | +10.0%",
        "110.0 | 80.0 | 62.3 | 102.7 | -27.3%",
        "100.0 | 80.0 | 65.5 | 97.7 | -20.0%",
        "all | 1 | 3 | 20.0% | 25.8% | 33%",
        "no device 'NVIDIA L7'",
        "'Llama' is no script of ours at a model of ours",
        "'eight' is not a number",
        "'magic' at 'gpt2' is no script of ours",
        "unexpected keyword argument 'magic'",
        "no time or throughput",
        "kernels of 2.5 and older",
    ):
        assert words in text


def test_forecast_expectation_has_speedup_throughput_and_memory(monkeypatch):
    """0.4 s over 0.1 s is 4, its range exp(±0.1 x 2). 16 x 1024 tokens in 0.1 s are 163,840."""
    answer(monkeypatch, {"tools.forecast.forecast_errors.widths": (0, 0.1)})
    forecast = StepForecast(
        "a technique",
        16_384,
        MemoryForecast(peak=6 * 2**30, largest_batch=50, batch=16),
        StepTime(0.1, {"optimizer": 0.09}, 0.08, 0.125, 2),
        "",
    )
    row = expectations.expected_row(forecast, 1024, {16: StepTime(0.4, {})})
    values = "16, 1024, 100, 80, 125, 4, 3.275, 4.886, 163800, 6, 50, optimizer 90%, "
    assert ", ".join(map(str, row.values())) == values
