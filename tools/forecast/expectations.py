"""Write docs/forecast.csv: what to expect of GPUs that are not here.

    make expectations

Each model of GPT-2 on each device of the table, at several batches of 1024 tokens that fit: the
ladder, what puts it together and what saves memory. Figures are forecasts, with ranges of 90%.

Next: make readme
"""

from functools import cache

import pandas as pd

from tools.forecast import forecast_plan, step_time
from tools.forecast.imagined_gpu import ImaginedGPU
from tools.forecast.stored_forecast import FILE
from Utils.base import files
from Utils.base.command_line import Parser
from Utils.base.errors import run_command
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.units import GIB
from Utils.device import capabilities, datasheets, device_choice
from Utils.scripts import ladder

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

    files.write(FILE, pd.DataFrame(rows, dtype=object).to_csv(index=False))
    print("docs/forecast.csv is written")


def expected_rows(model):
    """Yield the rows of a model, dicts by column.

    There is one for each technique, device of the table and size of BATCHES that fits, or one with
    the reason why none fits. The baseline's usual batch is added. Each script is recorded once for
    the GPUs of a precision.
    """
    values = {"model": model, "dataset": "synthetic", "device": "cuda", "batch_size": 8}

    @cache
    def recorded(precision):
        """Return the settings, techniques and recordings of devices with this precision."""
        capability = (9, 0) if precision == "bfloat16" else (7, 5)
        device = ImaginedGPU("an imagined GPU", 2**40, capability)
        args = forecast_plan.settings(values | {"seq_len": 1024}, device)
        techniques = forecast_plan.techniques_of(EXPECTED, ladder.repository(precision))
        return args, techniques, forecast_plan.recordings(techniques, args)

    for key in datasheets.datasheets():
        device = forecast_plan.forecast_device(key)
        args, techniques, recordings = recorded(capabilities.precision(device))
        args = args.replace(hardware=device)
        usual, _ = device_choice.auto_shape(device, args.config, "auto", args.seq_len)
        budget = device_choice.usable_bytes(device.memory_bytes)
        baselines = None  # StepTimes of the first technique that fit, by batch

        for technique, recording in zip(techniques, recordings, strict=True):
            forecasts = []
            for batch in sorted({*BATCHES, usual}):
                memory = forecast_plan.memory_forecast(recording, batch, budget, device)
                too_large = ""
                if memory.peak > budget:
                    too_large = f"needs {memory.peak / GIB:.1f} of {budget / GIB:.1f} GiB"
                reason = technique.misfit or too_large
                forecasts.append(forecast_plan.step_forecast(technique, memory, args, reason))

            if baselines is None:
                baselines = {step.batch: step.time for step in forecasts if not step.reason}
            fitting = [forecast for forecast in forecasts if forecast.time]
            for forecast in fitting or forecasts[:1]:
                row = {"device": key, "model": model, "technique": technique.name}
                yield row | expected_row(forecast, args.seq_len, baselines)


def expected_row(forecast, seq_len, baselines):
    """Return the figures of a StepForecast. baselines: StepTimes by batch, of what fits."""
    time = forecast.time
    if not time:
        return {"reason": forecast.reason or forecast_plan.NOT_FORECAST}

    # Time, and speedup if the baseline fits
    row = {"batch_size": forecast.batch, "seq_len": seq_len}
    for name, seconds in zip(("forecast_ms", "low_ms", "high_ms"), time.ends, strict=True):
        row[name] = f"{1e3 * seconds:.4g}"
    baseline = baselines.get(forecast.batch)
    if baseline:
        ratio = step_time.speedup(baseline, time, 0 if time is baseline else time.factor)
        row["speedup"] = f"{ratio.value:.4g}"
        row["speedup_low"] = f"{ratio.low:.4g}"
        row["speedup_high"] = f"{ratio.high:.4g}"

    # Throughput and memory
    return row | {
        "tokens_per_second": f"{float(f'{forecast.tokens / time.seconds:.4g}'):.0f}",
        "peak_gib": f"{forecast.peak / GIB:.4g}",
        "largest_batch": forecast.largest_batch,
        "mostly": " ".join(time.largest_part),
        "reason": "",
    }


if __name__ == "__main__":
    run_command("expectations", main)
