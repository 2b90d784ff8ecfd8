"""Paired ratios and differences over rounds, with intervals and verdicts."""

import numpy as np
from scipy.special import chdtri, stdtrit

from Utils.base.gpt2_sizes import CONFIGS
from Utils.results import selection

LAST_STEPS = 10  # whose mean loss is a run's loss
CONFIDENCE = 0.95
FIT_ROUNDS = 6  # from which a drift is fitted
NO_INTERVAL = "one round: no interval"
INIT_STD = 0.02  # of GPT-2's weights; an initial logit's is 0.02 sqrt(n_embd)
# Of that: what rounding changes a first loss by, as a deviation over seeds (docs/LOG.md).
ROUNDING = {"bfloat16": 2**-8, "float8": 2**-4.5}
CHANCE = 0.001  # that rounding alone is labelled "model changed"
RATIO = ("speedup", "speedup_low", "speedup_high", "verdict")  # keys of `as_ratio`


def final_loss(losses):
    """Return the loss of a run, the mean of its last steps."""
    return losses.tail(LAST_STEPS).mean()


def losses(timed):
    """Return the loss of each technique and round, a Series in nats per token.

    On held-out text where the rows have it, else the mean of the last timed steps.
    """
    by_round = timed.groupby(["technique", "round"])
    held_out = by_round.held_out_loss.mean()
    return held_out if held_out.notna().any() else by_round.loss.apply(final_loss)


def speedup(reference, medians):
    """Return the paired speedup of `medians` over `reference`, from their common rounds.

    reference, medians: Series of milliseconds, indexed by round. Returns speedup (geometric mean),
    speedup_low and speedup_high (95%, NaN with one round) and a verdict; {} without a common round.
    """
    logs = np.log(reference / medians).dropna()
    return as_ratio(*drift_free(logs)) if len(logs) else {}


def as_ratio(mean, low, high):
    """Return speedup, speedup_low, speedup_high and verdict of a mean log ratio and its interval
    (NaN for none)."""
    verdict = NO_INTERVAL
    if not np.isnan(low):
        verdict = "faster" if low > 0 else "slower" if high < 0 else "no detectable difference"
    return dict(zip(RATIO, (*np.exp([mean, low, high]).tolist(), verdict), strict=True))


def loss_difference(reference, losses):
    """Return the paired difference of `losses` and `reference`, from their common rounds.

    reference, losses: Series of nats a token, indexed by round. Returns loss_difference, loss_low
    and loss_high (95%, NaN with one round) and a loss_verdict; {} without a common round.
    """
    differences = (losses - reference).dropna()
    if differences.empty:
        return {}
    mean, low, high = interval(differences)
    verdict = NO_INTERVAL
    if (differences == 0).all():
        verdict = "indistinguishable"
    elif len(differences) > 1:
        verdict = "worse" if low > 0 else "better" if high < 0 else "indistinguishable"
    keys = ("loss_difference", "loss_low", "loss_high", "loss_verdict")
    return dict(zip(keys, (mean, low, high, verdict), strict=True))


def parity(reference, losses, model, rounding="bfloat16", fewer_updated=False):
    """Return "exact" if the losses of all steps are equal to the last bit, else "model changed" or
    "numerics changed".

    Before the first update both have the same weights and batch, so the first loss compares the
    models. Rounding changes it by as much with many tokens as with few. The model is another
    where rounding gives such squares less than once in a thousand times. reference, losses: Series
    of nats, indexed by round and step. model: its name. rounding: the coarsest type in use, of
    ROUNDING. fewer_updated: true if some of the baseline's parameters were never updated.
    """
    common = losses.index.intersection(reference.index)
    differences = losses[common] - reference[common]
    if len(common) and differences.eq(0).all():
        return "exact"
    first = differences[common.get_level_values("step") == 0].dropna()
    if model in CONFIGS and len(first):
        deviation = ROUNDING[rounding] * INIT_STD * CONFIGS[model].n_embd ** 0.5
        if ((first / deviation) ** 2).sum() > chdtri(len(first), CHANCE):
            return "model changed"
    return "model changed" if fewer_updated else "numerics changed"


def break_even(rows, name, parent, medians):
    """Return the steps after which a compiled script breaks even with its parent: the extra cost of
    its warm-up over the time that a step saves, from their common rounds. inf if it saves nothing;
    NaN if inconclusive, or without a parent.

    medians: of `rounds.step_ms`.
    """
    if parent not in medians:
        return np.nan
    verdict = speedup(medians[parent], medians[name]).get("verdict", "no detectable difference")
    if verdict == "no detectable difference":
        return np.nan
    saved = (medians[parent] - medians[name]).mean()
    if saved <= 0:
        return np.inf

    def warmup_ms(technique):  # beyond usual steps, by round
        steps = rows[(rows.technique == technique) & (rows.status == "ok")]
        usual = steps[steps.phase == "timed"].groupby("run_id").step_ms.median()
        first = selection.initial(steps).groupby(["round", "run_id"]).step_ms
        return (first.sum() - first.count() * usual).groupby("round").mean()

    extra = (warmup_ms(name) - warmup_ms(parent)).mean()
    return float(np.ceil(max(0.0, extra) / saved))


def drift_free(logs):
    """Return (mean, low, high) of log ratios by round, 95%.

    Every other round runs in reverse order, so a drift of the machine adds to one and is taken from
    the next. From FIT_ROUNDS on it is fitted, at the price of one degree of freedom; with fewer it
    counts as noise. logs: Series indexed by round.
    """
    order = np.where(np.asarray(logs.index) % 2 == 0, 1.0, -1.0)
    n, spread = len(logs), order - order.mean()
    if n < FIT_ROUNDS or not spread.any():
        return interval(logs)
    # The value at order 0, half-way between both directions.
    slope = (spread * logs).sum() / (spread**2).sum()
    mean = logs.mean() - slope * order.mean()
    rest = logs - logs.mean() - slope * spread
    variance = (rest**2).sum() / (n - 2) * (1 / n + order.mean() ** 2 / (spread**2).sum())
    half = stdtrit(n - 2, (1 + CONFIDENCE) / 2) * variance**0.5
    return mean, mean - half, mean + half


def interval(values):
    """Return (mean, low, high) of independent values by Student's t, 95%; one value has no low and
    high, NaN."""
    mean, n = values.mean(), len(values)
    half = stdtrit(n - 1, (1 + CONFIDENCE) / 2) * values.std() / n**0.5
    return mean, mean - half, mean + half
