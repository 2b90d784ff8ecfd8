"""Time that a side spends outside of its timed steps, and that it may have moved there."""

import numpy as np
import pandas as pd

from Utils.analysis.intervals import LossDifference
from Utils.analysis.script_runs import ScriptRuns, warm_up_ms

SHARE = 0.03  # of the time of the timed steps; a growth above it is printed
CONFIDENCE = 0.98  # of the interval that is above SHARE then
STEPS = "timed steps"  # not a place, but what the others are measured by
PLACES = {
    "before_s": "before the first timed step",
    "beside_cpu_s": "in other threads and processes (CPU time)",
    "after_s": "on the device after the last boundary",
}


def growths(summary, sides):
    """Return texts on the places where B of TwoSides takes more time than A, by script."""
    timed = [name for name, ratio in sides.ratios.items() if ratio]
    return {
        name: [*_growths(summary, sides.figures_a[name], sides.figures_b[name])] for name in timed
    }


def _growths(summary, figures_a, figures_b):
    a, b = (_by_round(summary.runs[figures.name]) for figures in (figures_a, figures_b))
    a, b = a.align(b, join="inner", axis=0)
    for place, words in PLACES.items():
        growth = (b[place] - a[place]) / b[STEPS]
        if place == "beside_cpu_s":  # threads work longer, too, if steps take longer
            growth = np.fmin(growth, b[place] / b[STEPS] - a[place] / a[STEPS])
        interval = LossDifference.by_t(growth.mean(), growth.sem(), len(growth) - 1, CONFIDENCE)
        if interval.low > SHARE:
            compiled = ", compiling included" if place == "before_s" and figures_b.compiled else ""
            seconds = f"{b[place].median():.2g} s for {a[place].median():.2g} s"
            yield f"{words}{compiled}: {seconds}, {growth.median():.0%} of the time of its steps"


def _by_round(runs):
    """Return the seconds of each of PLACES, and of STEPS: a row a round, NaN if not recorded."""
    seconds = {}
    for record in runs.records:
        quality = record.get("quality") or {}
        of_run = runs.rows[runs.rows.run_id == record["run_id"]]
        # Steps of the warm-up that take longer than others do more than others.
        more_s = warm_up_ms(ScriptRuns(of_run, of_run, [])) / 1e3
        places = {place: quality.get(place, np.nan) for place in PLACES}
        places["before_s"] += more_s
        seconds[of_run["round"].iloc[0]] = places | {STEPS: quality.get("clock_s", np.nan)}
    return pd.DataFrame.from_dict(seconds, orient="index")
