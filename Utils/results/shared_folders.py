"""Results that are shared, in results/<device>/<date>/, and which results a command reads."""

import csv
import re

from Utils.base import paths
from Utils.results import rows_file

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


def for_reading(path):
    """Return the results file that a command reads, and a sentence where it is not `path`, or "".

    Without rows in `path`, that is the newest in results/.
    """
    shared = None if rows_file.has_rows(path) else newest()
    if shared is None:
        return path, ""
    return shared, f"{path} has no rows yet: these are of {shared.relative_to(FOLDER.parent)}"


def is_of_gpu(path):
    """Return whether the first run with timings reserved memory of a device."""
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "ok":
                return bool(row["reserved_memory_mib"])
    return False
