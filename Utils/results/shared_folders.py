"""Results that are shared, in results/<device>/<date>/, and the rows that a command shows."""

import csv
import re
import sys
from typing import NamedTuple

from Utils.base import paths
from Utils.results import records_file, rows_file, selection

FOLDER = paths.ROOT / "results"


def files():
    """Return the results files of all folders."""
    return sorted(FOLDER.glob("*/*/results.csv"))


def folder_of(device, run_id):
    """Return the folder of a device for the day of its newest run."""
    name = re.sub(r"[^\w.-]+", "_", device).strip("._-") or "device"
    return FOLDER / name / f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"


def newest():
    """Return the newest results file of a GPU, else the newest of all; None without any."""
    return max(files(), key=lambda path: (is_of_gpu(path), path.parent.name, path), default=None)


def is_of_gpu(path):
    """Return whether the first run with timings reserved memory of a device."""
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "ok":
                return bool(row["reserved_memory_mib"])
    return False


def reading(path):
    """Return the results file that a command reads: without rows in `path`, and then it says so,
    the newest in results/."""
    shared = None if rows_file.has_rows(path) else newest()
    if shared is None:
        return path
    shown = shared.relative_to(FOLDER.parent)
    print(f"{path} has no rows yet: these are of {shown}", file=sys.stderr)
    return shared


class ShownRows(NamedTuple):
    """Rows of one device, version, model, shape and commit, a DataFrame.

    left_out: a sentence on rows that are not shown, or "". with_variants: the rows, and those of an
    ablation. records: of these, by run_id.
    """

    rows: object
    left_out: str
    with_variants: object
    records: dict


def selected(args):
    """Return the ShownRows that a command's results_file, device_name and base select. Raises
    UserError."""
    path = reading(args.results_file)
    all_rows = rows_file.read(path)
    rows, left_out = selection.select(all_rows, args.device_name, base=args.base)
    with_variants, _ = selection.select(all_rows, args.device_name, True, args.base, rows)
    records = records_file.read(path, with_variants.run_id.unique())
    return ShownRows(rows, left_out, with_variants, records)
