"""Write docs/forecast.csv and its chart: what to expect of the ladder on GPUs that are not here.

    python -m Utils.commands.expectations

Each device has the largest shape of 1024 tokens at which the baseline fits. Every figure is a
forecast with a range of 90%.
"""

import csv
import sys

from Utils.base import errors, ladder, paths
from Utils.base.command_line import Parser
from Utils.base.units import GIB
from Utils.commands.forecast import settings, unsupported
from Utils.device import datasheets, shapes
from Utils.device.cuda import ImaginedGPU
from Utils.diagnose import forecast, outlook
from Utils.draw import expectations_chart
from Utils.harness.work import precision_of

DEVICES = ("rtx3050", "t4", "rtx4090", "a100", "h100")
FILE = paths.ROOT / "docs" / "forecast.csv"
COLUMNS = (
    "device", "technique", "batch_size", "seq_len", "forecast_ms", "low_ms", "high_ms", "speedup",
    "speedup_low", "speedup_high", "tokens_per_second", "peak_gib", "largest_batch", "mostly",
    "reason",
)  # fmt: skip


def rows_of(key, techniques):
    """Yield the rows of a device, as COLUMNS has them."""
    entry = datasheets.find(key)
    device = ImaginedGPU(entry.names[0], entry.memory_bytes)
    given = {"device": "cuda", "model": "gpt2", "dataset": "synthetic", "seq_len": 1024}
    args, flags = settings(given, device)
    budget = shapes.usable_bytes(entry.memory_bytes)
    found, baseline = forecast.forecasts(techniques, flags, device, args, budget), None
    for technique, one in zip(techniques, found, strict=True):
        precision = precision_of(technique.needs)
        row = {"device": key, "technique": technique.name}
        row |= {"batch_size": args.batch_size, "seq_len": args.seq_len}
        if reason := one.reason or unsupported(technique, entry, args):
            yield row | {"reason": reason}
            continue
        looked = outlook.outlook(one.technique, *one.kernels, entry, precision)
        baseline = baseline or looked
        ratio, low, high = outlook.speedup(baseline, looked, looked.factor)
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


def main(argv=None):
    Parser("expectations", __doc__).parse_args(argv)
    techniques = ladder.group("ladder")
    rows = [row for key in DEVICES for row in rows_of(key, techniques)]
    with open(FILE, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    chart = paths.ROOT / "docs" / "forecast.png"
    expectations_chart.draw(rows).savefig(chart, dpi=150, bbox_inches="tight")
    print(f"{FILE.relative_to(paths.ROOT)} and {chart.relative_to(paths.ROOT)} are written")


if __name__ == "__main__":
    with errors.one_line("expectations"):
        main(sys.argv[1:])
