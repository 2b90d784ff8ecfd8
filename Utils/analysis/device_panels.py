"""Devices side by side: the speedup of each technique on each device, and the fastest technique.

    python -m Utils.commands gallery [--results-file results.csv]

The gallery reads the folders in results/ and the local results file. Each panel is one device
with one torch version, shape and commit; its speedups are paired within its own clean rounds. All
panels have the most common model and shape; the rest are left out and named.
"""

import numpy as np

from Utils.analysis.summary import summarize
from Utils.base.errors import UserError
from Utils.results import records_file, rows_file, selection, shared_folders
from Utils.scripts.ladder import BASELINE


def collect(results_file):
    """Return the panels to draw and sentences on the results left out: ([{device, shape, described,
    lines}], [sentence]). lines: of `summary.summarize`, without tainted runs.

    results_file: of local results, or None. Raises UserError if there is nothing to draw.
    """
    paths = shared_folders.files()
    if results_file is not None and rows_file.has_rows(results_file):
        paths.append(results_file)
    panels, left_out = [], []
    for path in paths:
        try:
            rows, more = selection.select(rows_file.read(path))
        except UserError as error:
            left_out.append(str(error))
            continue
        if more:
            left_out.append(f"{_name(path)}: {more.removeprefix('left out: ')}")
        records = records_file.read(path, rows.run_id.unique())
        rows = rows[rows.grade != "tainted"]
        panel = _panel(rows, records)
        if panel is None:
            left_out.append(f"{_name(path)}: no clean timings of {BASELINE}")
        elif any(panel["described"] == other["described"] for other in panels):
            left_out.append(f"{_name(path)}: a copy of other results")
        else:
            panels.append(panel)
    if not panels:
        missing = f"no results to draw in {shared_folders.FOLDER} or {results_file}"
        raise UserError("; ".join(left_out) or f"{missing}; make all measures some")
    shapes = [panel["shape"] for panel in panels]
    common = max(shapes, key=lambda shape: (shapes.count(shape), shapes[-1] == shape))
    for panel in panels:
        if panel["shape"] != common:
            shape = _shape(panel["shape"])
            left_out.append(f"{panel['device']}: {shape} is not comparable with {_shape(common)}")
    return [panel for panel in panels if panel["shape"] == common], left_out


def _name(path):
    """Return a results file's folder in results/, else its name: a whole path may name a person."""
    if path.is_relative_to(shared_folders.FOLDER):
        return path.parent.relative_to(shared_folders.FOLDER)
    return path.name


def _panel(rows, records):
    if rows.empty:
        return None
    lines = summarize(rows, records)
    base = selection.baseline(rows)
    if np.isnan(lines.step_ms.get(base, np.nan)):
        return None
    first = rows.iloc[0]
    model = base if base != BASELINE else first.model
    return {
        "device": first.device,
        "shape": (model, int(first.requested_batch_size), int(first.seq_len)),
        "described": selection.describe(rows),
        "rounds": rows["round"].nunique(),
        "torch": first.torch,
        "commit": first.commit,
        "lines": lines,
    }


def _shape(shape):
    model, batch, seq_len = shape
    return f"{model} {batch}x{seq_len}"
