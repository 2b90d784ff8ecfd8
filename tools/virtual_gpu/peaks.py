"""Peaks of the allocator, compared with those that `make forecast` prints."""

from dataclasses import dataclass, field

from tools.forecast import forecast_plan
from Utils.base import files
from Utils.base.units import GIB, MIB
from Utils.device import device_choice
from Utils.scripts import ladder

EXPECTED = files.tables_beside(__file__, "expected.toml")
FORECAST_ERROR = 0.05  # share of the allocator's peak


@dataclass
class Line:
    """A line of the table, without its name.

    facts: its figures in docs/virtual_gpu.csv, if it is a run.
    """

    problems: list
    seconds: float = 0.0
    facts: dict = field(default_factory=dict)


def forecast(lines, model, batch_size, seq_len):
    """Compare peaks at a shape on an H100 with those that `make forecast` prints.

    Techniques that ran out of memory must be forecast not to fit.
    """
    device = forecast_plan.forecast_device("cuda", 80 * GIB)
    shape = {"model": model, "batch_size": batch_size, "seq_len": seq_len}
    args = forecast_plan.settings(shape | {"device": "cuda"}, device)
    budget = device_choice.usable_bytes(device.memory_bytes)
    steps = forecast_plan.forecasts_on_device(list(ladder.repository()), args, budget)
    forecasts = {step.technique: step for step in steps if not step.reason}

    problems = []
    for facts in (run.facts for run in lines):
        name = facts["technique"]
        if name not in forecasts or facts["batch_size"] != str(batch_size):
            continue  # larger_batch has another

        step = forecasts[name]
        facts["forecast_mib"] = round(step.peak / MIB)
        if facts["status"] == "out_of_memory" and step.largest_batch >= batch_size:
            problems.append(f"{name}: {step.peak / GIB:.2f} GiB forecast, which do not fit")
        if facts["status"] == "ok" and not forecast_is_near(facts):
            problems.append(f"{name}: {step.peak / GIB:.2f} GiB forecast")
    return Line(problems)


def forecast_is_near(facts):
    """Return whether a forecast is near enough to the allocator's peak. facts: as in Line."""
    most_error = EXPECTED["forecast_error"].get(facts["technique"], FORECAST_ERROR)
    error = float(facts["forecast_mib"]) / float(facts["peak_mib"]) - 1
    return abs(error) <= most_error
