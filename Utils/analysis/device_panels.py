"""Devices side by side, of the folders in results/ and the local results file.

A panel is one device with one torch version, shape and commit; its speedups are paired within its
own clean rounds. All panels have the most common model and shape; others are left out and named.
"""

from Utils.analysis.summary import summarize
from Utils.base.errors import UserError
from Utils.results import records_file, rows_file, selection, shared_folders
from Utils.scripts.ladder import BASELINE


def collect(results_file):
    """Return the panels to draw and sentences on the results left out: ([{device, shape, rounds,
    torch, lines}], [sentence]). lines: of `summary.summarize`, without tainted runs.

    results_file: of local results. Raises UserError if there is nothing to draw.
    """
    panels = {}
    left_out = []
    local = [results_file] if rows_file.has_rows(results_file) else []
    for path in [*shared_folders.files(), *local]:
        try:
            rows, _ = selection.select(rows_file.read(path))
        except UserError as error:
            left_out.append(str(error))
            continue
        first = rows.iloc[0]
        clean = rows[rows.grade != "tainted"]
        if first.base not in selection.timed(clean).technique.unique():
            left_out.append(f"{first.device}: no clean timings of {first.base}")
            continue
        model = first.model if first.base == BASELINE else first.base
        panels[selection.describe(clean)] = {  # of equal results one
            "device": first.device,
            "shape": (model, int(first.requested_batch_size), int(first.seq_len)),
            "rounds": clean["round"].nunique(),
            "torch": first.torch,
            "lines": summarize(clean, records_file.read(path, clean.run_id.unique())),
        }
    if not panels:
        missing = f"no results to draw in {shared_folders.FOLDER} or {results_file}"
        raise UserError("; ".join(left_out) or f"{missing}; make all measures some")
    shapes = [panel["shape"] for panel in panels.values()]
    common = max(shapes, key=lambda shape: (shapes.count(shape), shapes[-1] == shape))
    for panel in panels.values():
        if panel["shape"] != common:
            shape, other = ("{} {}x{}".format(*shape) for shape in (panel["shape"], common))
            left_out.append(f"{panel['device']}: {shape} is not comparable with {other}")
    return [panel for panel in panels.values() if panel["shape"] == common], left_out
