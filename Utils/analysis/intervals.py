"""Paired ratios and differences over rounds, their intervals and verdicts."""

import numpy as np
from scipy import stats

from Utils.base.sizes import CONFIGS

LAST_STEPS = 10  # whose mean loss is a run's loss
CONFIDENCE = 0.95
NO_INTERVAL = "one round: no interval"
INIT_STD = 0.02  # of GPT-2's weights, and so 0.02 sqrt(n_embd) that of a logit at the start
ROUNDING = 2**-4  # of that: what the first losses may differ by; docs/METHOD.md has the figures


def final_loss(losses):
    """The loss of a run: the mean of its last steps."""
    return losses.tail(LAST_STEPS).mean()


def round_medians(timed):
    """Milliseconds: the median step of each technique in each round, a Series indexed by both. Of
    a technique that chose its own batch, what as many tokens take as the others' steps have."""
    by_run = timed.groupby(["technique", "round"])
    scale = by_run.requested_batch_size.first() / by_run.batch_size.first()
    return by_run.step_ms.median() * scale


def speedup(reference, medians):
    """How many times faster `medians` is than `reference`, from the rounds that both have.

    reference, medians: Series of milliseconds, indexed by round. Returns speedup (geometric mean),
    speedup_low and speedup_high (95%, NaN with one round) and a verdict; {} without a common round.
    """
    logs = np.log(reference / medians).dropna()
    if logs.empty:
        return {}
    return as_ratio(*interval(logs))


def as_ratio(mean, low, high):
    """speedup, speedup_low, speedup_high and verdict of a mean log ratio and its interval, which
    is NaN where there is none."""
    verdict = NO_INTERVAL
    if not np.isnan(low):
        verdict = "faster" if low > 0 else "slower" if high < 0 else "no detectable difference"
    values = {"speedup": mean, "speedup_low": low, "speedup_high": high}
    return {**{key: float(np.exp(value)) for key, value in values.items()}, "verdict": verdict}


def loss_difference(reference, losses):
    """How much higher `losses` are than `reference`, from the rounds that both have.

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


def parity(reference, losses, shape, fewer_updated=False):
    """Whether two techniques compute the same: "exact" where the losses of all steps are the same
    to the last bit, "model changed", else "numerics changed".

    Before the first update both have the same weights and see the same batch, so that the loss of
    the first step compares the two models themselves. bfloat16 rounds to 2^-9, relatively; beyond
    `ROUNDING` deviations of a logit, shared among the step's tokens, it is not rounding.
    reference, losses: Series of nats, indexed by round and step. shape: a row, for model, batch
    and length. fewer_updated: whether parameters of the baseline's were never updated.
    """
    common = losses.index.intersection(reference.index)
    differences = losses[common] - reference[common]
    if len(common) and differences.eq(0).all():
        return "exact"
    first = differences[common.get_level_values("step") == 0].dropna()
    if shape.model in CONFIGS and len(first):
        deviation = INIT_STD * CONFIGS[shape.model].n_embd ** 0.5
        rounding = ROUNDING * deviation / (shape.batch_size * shape.seq_len) ** 0.5
        if (first**2).mean() ** 0.5 > rounding:
            return "model changed"
    return "model changed" if fewer_updated else "numerics changed"


def break_even(rows, name, parent):
    """After how many steps a script that compiles has overtaken its parent, from the rounds that
    both have: what its warm-up cost more, over what a step saves. inf where it saves nothing; NaN
    where that cannot be told, by too wide an interval or for want of a parent."""

    def warmup_and_median(technique):
        own = rows[(rows.technique == technique) & (rows.status == "ok")]
        medians = own[own.phase == "timed"].groupby("round").step_ms.median()
        first = own[(own.phase == "warmup") | (own.step == 0)].groupby("round").step_ms
        return first.sum() - first.count() * medians, medians  # milliseconds, beyond usual steps

    cost, median = warmup_and_median(name)
    parents_cost, parents_median = warmup_and_median(parent)
    verdict = speedup(parents_median, median).get("verdict", "no detectable difference")
    if verdict == "no detectable difference":
        return np.nan
    saved = (parents_median - median).mean()
    if saved <= 0:
        return np.inf
    return float(np.ceil(max(0.0, (cost - parents_cost).mean()) / saved))


def interval(values):
    """(mean, low, high) of independent values: Student's t, 95%; low and high are NaN for one."""
    mean, n = values.mean(), len(values)
    if n == 1:
        return mean, np.nan, np.nan
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std() / n**0.5
    return mean, mean - half, mean + half
