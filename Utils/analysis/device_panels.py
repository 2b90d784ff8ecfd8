"""Devices side by side, of the folders in results/ and the local results file.

A panel is one device with one torch version, shape and commit; its speedups are paired within its
own clean rounds. All panels have the most common model and shape; others are left out and named.
"""

from Utils.analysis.summary import summarize
from Utils.base.errors import UserError
from Utils.results import records_file, rows_file, selection, shared_folders
from Utils.scripts.ladder import BASELINE


def collect(results_file):
    """Return the panels to draw and sentences on the results left out: ([{device, shape, described,
    rounds, torch, lines}], [sentence]). lines: of `summary.summarize`, without tainted runs.

    results_file: of local results, or None. Raises UserError if there is nothing to draw.
    """
    paths = shared_folders.files()
    if results_file is not None and rows_file.has_rows(results_file):
        paths.append(results_file)
    panels = {}
    left_out = []
    for path in paths:
        name = path.name  # of a file, as a whole path may name a person
        if path.is_relative_to(shared_folders.FOLDER):
            name = path.parent.relative_to(shared_folders.FOLDER)
        try:
            panel, more = _panel(path)
        except UserError as error:
            left_out.append(str(error))
            continue
        if more:
            left_out.append(f"{name}: {more.removeprefix('left out: ')}")
        if panel is None:
            left_out.append(f"{name}: no clean timings of {BASELINE}")
        elif panel["described"] in panels:
            left_out.append(f"{name}: a copy of other results")
        else:
            panels[panel["described"]] = panel
    if not panels:
        missing = f"no results to draw in {shared_folders.FOLDER} or {results_file}"
        raise UserError("; ".join(left_out) or f"{missing}; make all measures some")
    shapes = [panel["shape"] for panel in panels.values()]
    common = max(shapes, key=lambda shape: (shapes.count(shape), shapes[-1] == shape))
    for panel in panels.values():
        if panel["shape"] != common:
            shapes = ["{} {}x{}".format(*shape) for shape in (panel["shape"], common)]
            left_out.append(f"{panel['device']}: {' is not comparable with '.join(shapes)}")
    return [panel for panel in panels.values() if panel["shape"] == common], left_out


def _panel(path):
    """Return the panel of a results file, None without clean timings of the baseline, and a
    sentence on the rows left out."""
    rows, left_out = selection.select(rows_file.read(path))
    clean = rows[rows.grade != "tainted"]
    base = selection.baseline(rows)
    if base not in selection.timed(clean).technique.unique():
        return None, left_out
    first = clean.iloc[0]
    model = base if base != BASELINE else first.model
    return {
        "device": first.device,
        "shape": (model, int(first.requested_batch_size), int(first.seq_len)),
        "described": selection.describe(clean),
        "rounds": clean["round"].nunique(),
        "torch": first.torch,
        "lines": summarize(clean, records_file.read(path, clean.run_id.unique())),
    }, left_out
