"""Write docs/forecast.csv, its chart and docs/hours.csv: what to expect of GPUs that are not here.

    python -m Utils.commands.expectations

forecast.csv has the ladder; each device has the largest shape of 1024 tokens at which the baseline
fits. hours.csv has the hours of PRETRAINING tokens on each device of the table. Every figure is a
forecast with a range of 90%.
"""

import pandas as pd

from Utils.base import errors, paths
from Utils.base.command_line import Parser
from Utils.base.units import GIB
from Utils.commands.forecast import by_device, of_any_memory, settings, unsupported
from Utils.device import auto_shape, datasheets
from Utils.device.cuda import ImaginedGPU
from Utils.draw import expectations_chart
from Utils.forecast import peak_memory, time_range
from Utils.harness.step_work import precision_of
from Utils.scripts import ladder

DEVICES = ("rtx3050", "t4", "rtx4090", "a100", "h100")
DOCS = paths.ROOT / "docs"
PRETRAINING = {"technique": "all_together", "model": "gpt2", "tokens": 1e10}
COLUMNS = (
    "device", "technique", "batch_size", "seq_len", "forecast_ms", "low_ms", "high_ms", "speedup",
    "speedup_low", "speedup_high", "tokens_per_second", "peak_gib", "largest_batch", "mostly",
    "reason",
)  # fmt: skip
COLUMNS_OF_HOURS = (
    "device", "technique", "model", "batch_size", "seq_len", "tokens", "tokens_per_second", "hours",
    "low_hours", "high_hours", "dollars_an_hour", "reason",
)  # fmt: skip


def rows_of(key, techniques):
    """Yield the rows of a device, as COLUMNS has them."""
    entry = datasheets.find(key)
    device = ImaginedGPU(entry.names[0], entry.memory_bytes)
    given = {"device": "cuda", "model": "gpt2", "dataset": "synthetic", "seq_len": 1024}
    args, flags = settings(given, device)
    budget = auto_shape.usable_bytes(entry.memory_bytes)
    found, baseline = peak_memory.forecasts(techniques, flags, device, args, budget), None
    for technique, one in zip(techniques, found, strict=True):
        precision = precision_of(technique.needs)
        row = {"device": key, "technique": technique.name}
        row |= {"batch_size": args.batch_size, "seq_len": args.seq_len}
        if reason := one.reason or unsupported(technique, entry, args):
            yield row | {"reason": reason}
            continue
        looked = time_range.outlook(one.technique, *one.kernels, entry, precision)
        baseline = baseline or looked
        ratio, low, high = time_range.speedup(baseline, looked, looked.factor)
        yield row | {
            "forecast_ms": f"{1e3 * looked.seconds:.2f}",
            "low_ms": f"{1e3 * looked.low:.2f}",
            "high_ms": f"{1e3 * looked.high:.2f}",
            "speedup": f"{ratio:.3f}",
            "speedup_low": f"{low:.3f}" if looked is not baseline else "1.000",
            "speedup_high": f"{high:.3f}" if looked is not baseline else "1.000",
            "tokens_per_second": f"{args.batch_size * args.seq_len / looked.seconds:.0f}",
            "peak_gib": f"{one.peak / GIB:.2f}",
            "largest_batch": one.largest_batch,
            "mostly": looked.bound,
        }


def hours():
    """Yield the rows of docs/hours.csv."""
    prices = time_range.prices(DOCS / "prices.toml")
    given = {"model": PRETRAINING["model"], "dataset": "synthetic"}
    given |= {"batch_size": "auto", "seq_len": "auto"}
    ((technique, one, args),) = of_any_memory([PRETRAINING["technique"]], given)
    same = PRETRAINING | {"batch_size": args.batch_size, "seq_len": args.seq_len}
    for line in by_device(technique, one, args, PRETRAINING["tokens"], prices):
        key, reason, looked, tokens, found, price = line
        row = {"device": key, **same, "dollars_an_hour": price, "reason": reason}
        if looked:
            row["tokens_per_second"] = f"{tokens / looked.seconds:.0f}"
            names = ("hours", "low_hours", "high_hours")
            row |= {name: f"{hour:.2f}" for name, hour in zip(names, found, strict=True)}
        yield row


def main(argv=None):
    Parser("expectations", __doc__).parse_args(argv)
    techniques = ladder.group("ladder")
    rows = [row for key in DEVICES for row in rows_of(key, techniques)]
    forecasts = pd.DataFrame(rows, columns=COLUMNS, dtype=object)
    forecasts.to_csv(DOCS / "forecast.csv", index=False)
    expectations_chart.draw(rows).savefig(DOCS / "forecast.png", dpi=150, bbox_inches="tight")
    table = pd.DataFrame(hours(), columns=COLUMNS_OF_HOURS, dtype=object)
    table.to_csv(DOCS / "hours.csv", index=False)
    print("docs/forecast.csv, docs/forecast.png and docs/hours.csv are written")


if __name__ == "__main__":
    with errors.one_line("expectations"):
        main()
