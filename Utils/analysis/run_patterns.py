"""Patterns in the steps of runs that a median does not show: a drift, and two modes."""

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

CHANCE = 0.001  # as for the grade of a run
MOST_CHECKED = 20  # runs of a script whose drift is tested, those that drift most
MODE_STEPS = 30  # fewer cannot show modes
MODE_SHARE = 0.2  # least share of the steps in a mode
MODE_GAP = 0.05  # least distance of the modes, as a logarithm
MODE_VARIANCE = 0.85  # share of the variance between modes; 0.64 in a normal distribution
PERSISTENCE = 3.3  # deviations below the switches between modes that chance would make


def remarks(timed: pd.DataFrame, width: float) -> list[str]:
    """Return remarks on the timed steps of a script, for a table.

    width: of the script's interval to each side, a share; a smaller drift is not mentioned, nor any
        if it is NaN.
    """
    logs = np.log(timed.step_ms)
    texts = []
    drift = _largest_drift(logs, timed.run_id, width)
    if drift:
        pace = "slower" if drift > 0 else "faster"
        texts.append(f"{abs(drift):.1%} {pace} at the end than at the start of a run")

    is_long = timed.groupby("run_id", observed=True).step_ms.transform("size") >= MODE_STEPS
    by_run = logs[is_long].groupby(timed.run_id[is_long].astype(str))
    modes = [ends for _, run in by_run if (ends := _modes(run.to_numpy()))]
    if modes:
        fast_ms, slow_ms = np.exp(np.median(modes, axis=0))
        runs = f"{len(modes)} of {timed.run_id.nunique()} runs"
        texts.append(f"two modes in {runs}: {fast_ms:.4g} and {slow_ms:.4g} ms")
    return texts


def _largest_drift(logs, run_ids, width):
    """Return the largest change from the first third of a run to the last, 0 for none.

    It is larger than `width`, and significant by Kendall's rank correlation of time and step.
    """
    run_ids = run_ids.astype(str)
    by_run = logs.groupby(run_ids)
    third = by_run.cumcount() * 3 // by_run.transform("size")
    medians = logs.groupby([run_ids, third]).median().unstack().reindex(columns=range(3))
    drifts = np.expm1(medians[2] - medians[0])
    candidates = drifts[drifts.abs() > width]

    for run_id in candidates.abs().nlargest(MOST_CHECKED).index:
        steps = logs[run_ids == run_id]
        if kendalltau(range(len(steps)), steps).pvalue < CHANCE:
            return candidates[run_id]
    return 0


def _modes(logs):
    """Return the medians of the two modes of a run's logarithms, or None.

    They explain its variance, or steps stay in one longer than by chance.
    """
    # The split into a fast and a slow part with the largest variance between them.
    count = len(logs)
    values = np.sort(np.clip(logs, *np.quantile(logs, [0.05, 0.95])))
    fast = np.arange(1, count)
    means = np.cumsum(values)[:-1] / fast, np.cumsum(values[::-1])[-2::-1] / fast[::-1]
    between = (means[1] - means[0]) ** 2 * fast * fast[::-1] / count
    split = between.argmax() + 1
    ends = np.median(values[:split]), np.median(values[split:])
    if min(split, count - split) < MODE_SHARE * count or ends[1] - ends[0] < MODE_GAP:
        return None

    is_slow = logs > values[split - 1]
    switches = np.count_nonzero(np.diff(is_slow))
    expected = 2 * split * (count - split) / count
    deviation = np.sqrt(expected * (expected - 1) / (count - 1))
    is_persistent = switches < expected - PERSISTENCE * deviation
    explained = between.max() / (count * values.var())
    is_trend = kendalltau(range(count), logs).pvalue < CHANCE
    return ends if explained > MODE_VARIANCE or (is_persistent and not is_trend) else None
