"""Devices side by side: what each technique is worth on each of them, and how fast the best is.

    python -m Utils.commands.gallery [--results-file results.csv]

Reads the submissions in results/ and the local results file. Each panel is one device with one
torch version, shape and commit; its speedups are paired within its own rounds, those of tainted
runs left out. Panels share the model and the shape that most of them have; what has another one is
left out and named.
"""

import numpy as np

from Utils.analysis import selection
from Utils.analysis.summary import summarize
from Utils.base import results
from Utils.base.errors import UserError
from Utils.base.ladder import BASELINE
from Utils.share import submission


def collect(results_file=None, folder=None):
    """The panels to draw, and sentences on what was left out: ([{device, shape, described,
    lines}], [sentence]). lines: of `summary.summarize`, without tainted runs.

    folder: of the submissions. Raises UserError where there is nothing to draw.
    """
    folder = submission.COLLECTION if folder is None else folder
    paths = sorted(folder.glob("*/*/results.csv"))
    if results_file is not None and results_file.exists():
        paths.append(results_file)
    panels, left_out = [], []
    for path in paths:
        try:
            rows, more = selection.select(results.read(path))
        except UserError as error:
            left_out.append(str(error))
            continue
        if more:
            left_out.append(f"{path}: {more.removeprefix('left out: ')}")
        records = results.records(path, rows.run_id.unique())
        rows = rows[rows.grade != "tainted"]
        panel = _panel(path, rows, records)
        if panel is None:
            left_out.append(f"{path}: no clean timings of {BASELINE}")
        elif any(panel["described"] == other["described"] for other in panels):
            left_out.append(f"{path}: the same results as another's")
        else:
            panels.append(panel)
    if not panels:
        nothing = f"no results to draw in {folder} or {results_file}; make all writes some"
        raise UserError("; ".join(left_out) or nothing)
    shapes = [panel["shape"] for panel in panels]
    common = max(shapes, key=lambda shape: (shapes.count(shape), shapes[::-1].index(shape) == 0))
    for panel in panels:
        if panel["shape"] != common:
            left_out.append(
                f"{panel['device']}: {_shape(panel['shape'])}, where the others are "
                f"{_shape(common)}, which is no comparison"
            )
    return [panel for panel in panels if panel["shape"] == common], left_out


def _panel(path, rows, records):
    if rows.empty:
        return None
    lines = summarize(rows, records)
    if np.isnan(lines.median_ms.get(BASELINE, np.nan)):
        return None
    first = rows.iloc[0]
    return {
        "device": first.device,
        "shape": (first.model, int(first.requested_batch_size), int(first.seq_len)),
        "described": selection.describe(rows),
        "rounds": rows["round"].nunique(),
        "torch": first.torch,
        "commit": first.commit,
        "lines": lines,
    }


def _shape(shape):
    model, batch, seq_len = shape
    return f"{model} {batch}x{seq_len}"
