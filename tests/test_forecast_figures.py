"""The forecast beside figures of others, and docs/forecast.csv, by small cases worked by hand."""

from tests.helpers.stand_ins import answer
from tools.forecast import expectations, forecast_errors
from tools.forecast.forecast_plan import MemoryForecast, StepForecast
from tools.forecast.step_time import StepTime

CHECK = """\
source,key,model,technique,batch,tokens,precision,measured_ms,forecast_ms,in_sample,factor,low_ms,\
high_ms,roofline_ms,bound
a,h100,GPT-2,x,2,1000,float32,23.0,46.0,False,2,20.0,60.0,184,matrix products
b,h100,GPT-2,x,2,1000,float32,320,640,False,2,400,900,320,matrix products
c,h100,BERT,x,2,1000,float32,656,82,False,2,10,700,82,matrix products
this repository,h100,GPT-2,x,2,1000,bfloat16,92,46,True,2,20,60,92,matrix products
"""


def test_forecast_errors_are_of_figures_whose_source_was_left_out(tmp_path, monkeypatch):
    """FORECAST: "without the figure's source"; "Its errors are no test".

    Errors: 100%, 100% and 87.5%, of the roofline 700%, 0 and 87.5%; 90%: 87.5% + 0.8 x 612.5%.
    """
    (tmp_path / "check.csv").write_text(CHECK)
    monkeypatch.setattr(forecast_errors, "CHECK", tmp_path / "check.csv")
    monkeypatch.setattr(forecast_errors, "check_rows", forecast_errors.check_rows.__wrapped__)
    assert forecast_errors.beside_roofline() == (
        "Each source left out: median error 100.0% (plain roofline 87.5%, 0.9x), "
        "90% within 100.0% (plain roofline 577.5%, 5.8x)."
    )
    parts = {"ours": forecast_errors.check_rows(in_sample=True)}
    errors = forecast_errors.summary(parts | {"others": forecast_errors.check_rows()})
    assert errors.to_numpy().tolist() == [
        ["ours", "1", "1", "50.0%", "50.0%", "0%"],
        ["others", "3", "3", "100.0%", "100.0%", "67%"],
    ]


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
