"""Losses of runs -> paired differences, and whether two scripts compute the same."""

from dataclasses import replace

import pandas as pd
from scipy.special import chdtri

from Utils.analysis.intervals import SAME_LOSS, LossDifference
from Utils.base.gpt2_sizes import CONFIGS

LAST_STEPS = 10  # a run's loss is the mean loss of these
INIT_STD = 0.02  # GPT-2's weights; an initial logit has 0.02 sqrt(n_embd)
# Rounding changes a first loss by this share of that, as a deviation over seeds (docs/FINDINGS.md).
ROUNDING = {"bfloat16": 2**-8, "float8": 2**-4.5}
CHANCE = 0.001  # probability that rounding alone is labelled "model changed"


def loss_of_round(timed: pd.DataFrame) -> pd.Series:
    """Return the loss of a technique by round, in nats a token.

    It is the loss on held-out text if the rows have it, otherwise the mean of the last timed steps.
    """
    runs = timed.groupby(["round", "run_id"], observed=True)  # turns may need several runs
    loss_of_run = runs.held_out_loss.mean()
    if loss_of_run.isna().all():
        loss_of_run = runs.loss.apply(lambda losses: losses.tail(LAST_STEPS).mean())
    return loss_of_run.groupby("round").mean()


def loss_difference(
    reference: pd.Series, losses: pd.Series, margin: float = SAME_LOSS
) -> LossDifference:
    """Return the paired difference of losses in nats a token by round. margin: of the same loss."""
    differences = (losses - reference).dropna()
    rounds = len(differences)
    difference = LossDifference.by_t(differences.mean(), differences.sem(), rounds - 1, rounds)
    if rounds and differences.eq(0).all():  # to the last bit: one round is enough to say so
        difference = LossDifference(0.0, 0.0, 0.0, 1.0, rounds)
    return replace(difference, margin=margin)


def parity(
    reference: pd.Series,
    losses: pd.Series,
    model: str,
    rounding: str,
    fewer_updated: bool,
) -> str:
    """Return "exact" (all losses are equal), "model changed" or "numerics changed".

    Before the first update both have the same weights and batch, so the first loss compares the
    models. Rounding alone gives "model changed" with the probability CHANCE.

    reference, losses: nats, indexed by round and step.
    rounding: the coarsest type in use.
    fewer_updated: some parameters were never updated.
    """
    common = losses.index.intersection(reference.index)
    differences = losses[common] - reference[common]
    if len(common) and differences.eq(0).all():
        return "exact"

    first = differences[common.get_level_values("step") == 0].dropna()
    changed = fewer_updated
    if model in CONFIGS and len(first):
        deviation = ROUNDING[rounding] * INIT_STD * CONFIGS[model].n_embd ** 0.5
        changed |= ((first / deviation) ** 2).sum() > chdtri(len(first), CHANCE)
    return "model changed" if changed else "numerics changed"
