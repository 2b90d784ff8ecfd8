"""Write docs/forecast.csv: what to expect of GPUs that are not here.

    make expectations

Each model of GPT-2 on each device of the table, at several batches of 1024 tokens that fit: the
ladder, what puts it together and what saves memory. Figures are forecasts, with ranges of 90%.

Next: make readme
"""

import pandas as pd

from tools.forecast import forecast_plan, step_time
from tools.forecast.stored_forecast import FILE
from Utils.base.command_line import Parser
from Utils.base.errors import run_command
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.units import GIB

EXPECTED = (
    "ladder",
    "all_together",
    "small_card",
    "gradient_checkpointing",
    "selective_checkpointing",
    "bfloat16_moments",
    "paged_optimizer",
    "optimizer_in_backward",
    "gradient_accumulation",
)
BATCHES = 1, 4, 16, 64


def main(*words):
    Parser("expectations", __doc__).parse_args(words)

    rows = []
    for model in CONFIGS:
        rows += expected_rows(model)
        print(f"{model}: forecast", flush=True)

    pd.DataFrame(rows, dtype=object).to_csv(FILE, index=False)
    print("docs/forecast.csv is written")


def expected_rows(model):
    """Yield the rows of a model, dicts by column.

    There is one for each technique, device of the table and size of BATCHES that fits, or one with
    the reason why none fits.
    """
    values = {"model": model, "dataset": "synthetic", "batch_size": "auto", "seq_len": 1024}
    for args, steps in forecast_plan.settings_and_steps(EXPECTED, values, BATCHES):
        baselines = {step.memory.batch: step.time for step in steps[0] if not step.reason}
        for forecasts in steps:
            fitting = [forecast for forecast in forecasts if forecast.time]
            for forecast in fitting or forecasts[:1]:
                row = {"device": forecast.device, "model": model, "technique": forecast.technique}
                yield row | expected_row(forecast, args.seq_len, baselines)


def expected_row(forecast, seq_len, baselines):
    """Return the figures of a StepForecast. baselines: StepTimes by batch, of what fits."""
    time = forecast.time
    if not time:
        return {"reason": forecast.reason or forecast_plan.NOT_FORECAST}

    # Time, and speedup if the baseline fits
    memory = forecast.memory
    row = {"batch_size": memory.batch, "seq_len": seq_len}
    for name, seconds in zip(("forecast_ms", "low_ms", "high_ms"), time.ends, strict=True):
        row[name] = f"{1e3 * seconds:.4g}"
    baseline = baselines.get(memory.batch)
    if baseline:
        ratio = step_time.speedup(baseline, time, 0 if time is baseline else time.factor)
        row["speedup"] = f"{ratio.value:.4g}"
        row["speedup_low"] = f"{ratio.low:.4g}"
        row["speedup_high"] = f"{ratio.high:.4g}"

    # Throughput and memory
    return row | {
        "tokens_per_second": f"{float(f'{forecast.tokens / time.seconds:.4g}'):.0f}",
        "peak_gib": f"{memory.peak / GIB:.4g}",
        "largest_batch": memory.largest_batch,
        "mostly": time.mostly,
        "reason": "",
    }


if __name__ == "__main__":
    run_command("expectations", main)
