"""Steps and peaks that were measured on a device, for a forecast or an estimate to stand beside."""

from dataclasses import dataclass

from Utils.analysis import round_levels
from Utils.analysis.intervals import typical_ms
from Utils.results import rows_file, selection


@dataclass(frozen=True)
class MeasuredStep:
    """A technique's step as `make table` shows it. peak_mib: NaN where no run has it."""

    step_ms: float
    peak_mib: float


def measured_steps(args, devices=None):
    """Return the MeasuredSteps of techniques, by name, at the base, model and shape of args.

    They are of the newest code and torch, without tainted runs. devices: names; by default the one
    of args.
    """
    if not rows_file.has_rows(args.results_file):
        return {}
    rows = rows_file.read(args.results_file)
    same = {"base": args.base, "model": args.model, "seq_len": args.seq_len}
    same["requested_batch_size"] = args.batch_size
    for column, value in same.items():
        rows = rows[rows[column] == value]
    rows = rows[rows.device.isin(devices or [args.hardware.name])]
    rows = rows[(rows.status == "ok") & (rows.grade != "tainted")]
    if rows.empty:
        return {}
    rows, _ = selection.select(rows, with_variants=True)
    step_ms = round_levels.step_ms(selection.timed(rows))
    peaks = rows.groupby("technique").peak_memory_mib.median()
    return {name: MeasuredStep(typical_ms(step_ms[name]), peak) for name, peak in peaks.items()}
