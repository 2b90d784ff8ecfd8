"""Step times of selected rows, by technique and step."""

import numpy as np
import pandas as pd

from Utils.analysis import selection


def by_step(rows, most=None):
    """Return median, min and max of step_ms over the rounds, and how many steps a row stands for.

    The frame is indexed by technique and step. most: of its steps; where there are more, each
    `size` consecutive ones are merged.
    """
    ok = rows[(rows.status == "ok") & np.isfinite(rows.step)]
    if ok.empty:
        return pd.DataFrame(columns=["median", "min", "max"]), 1
    count = ok.step.max() - ok.step.min() + 1
    size = max(1, int(np.ceil(count / most))) if most else 1
    step = (ok.step // size * size).rename("step")
    return ok.groupby(["technique", step]).step_ms.agg(["median", "min", "max"]), size


def warmup(rows):
    """Return how many steps the longest warm-up took, before the first timed step."""
    steps = selection.initial(rows).step
    return 0 if steps.empty else int(steps.max()) + 1
