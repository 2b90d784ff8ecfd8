"""Two modes in the steps of runs, which a median does not show."""

import numpy as np
import pandas as pd
from scipy.cluster.vq import kmeans2
from scipy.stats import kendalltau

CHANCE = 0.001  # as for the grade of a run
MODE_STEPS = 30  # fewer cannot show modes
MODE_SHARE = 0.2  # least share of the steps in a mode
MODE_GAP = 0.05  # least distance of the modes, as a logarithm
MODE_VARIANCE = 0.85  # share of the variance between modes; 0.64 in a normal distribution
PERSISTENCE = 3.3  # deviations below the switches between modes that chance would make


def remarks(timed: pd.DataFrame) -> list[str]:
    """Return remarks on the timed steps of a script, for a table."""
    by_run = np.log(timed.step_ms).groupby(timed.run_id.astype(str))
    modes = [means for _, run in by_run if (means := _modes(run.to_numpy())) is not None]
    if not modes:
        return []
    fast_ms, slow_ms = np.exp(np.median(modes, axis=0))
    runs = f"{len(modes)} of {len(by_run)} runs"
    return [f"two modes in {runs}: {fast_ms:.4g} and {slow_ms:.4g} ms"]


def _modes(logs):
    """Return the means of the two modes of a run's logarithms, or None.

    They explain its variance, or steps stay in one longer than by chance.
    """
    count = len(logs)
    if count < MODE_STEPS:
        return None

    values = np.clip(logs, *np.quantile(logs, [0.05, 0.95]))
    ends = np.quantile(values, [0.1, 0.9])
    if ends[1] - ends[0] < MODE_GAP:
        return None

    means, is_slow = kmeans2(values, ends, minit="matrix")
    slow = is_slow.sum()
    if min(slow, count - slow) < MODE_SHARE * count or means[1] - means[0] < MODE_GAP:
        return None

    expected = 2 * slow * (count - slow) / count  # switches by chance
    deviation = np.sqrt(expected * (expected - 1) / (count - 1))
    switches = np.count_nonzero(np.diff(is_slow))
    is_persistent = switches < expected - PERSISTENCE * deviation and not _has_trend(logs)
    explains = (values - means[is_slow]).var() < (1 - MODE_VARIANCE) * values.var()
    return means if explains or is_persistent else None


def _has_trend(logs):
    return kendalltau(range(len(logs)), logs).pvalue < CHANCE
