"""Losses of runs -> paired differences, and whether two scripts compute the same."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import chdtri

from Utils.analysis.figures import NOT_TOLD
from Utils.analysis.intervals import CONFIDENCE, SAME_LOSS, LossDifference, of_each
from Utils.analysis.script_runs import ScriptRuns, gradient_norms, step_losses
from Utils.base.gpt2_sizes import CONFIGS
from Utils.results.row_rules import LAST_STEPS
from Utils.results.study import Study

OWN_LOSS = 0.01  # share of its descent by which the loss of a user's script may differ
INIT_STD = 0.02  # GPT-2's weights; an initial logit has 0.02 sqrt(n_embd)
# Rounding changes a first loss by this share of that, as a deviation over seeds (docs/FINDINGS.md).
ROUNDING = {"bfloat16": 2**-8, "float8": 2**-4.5}
# And the logarithm of the norm of the first gradients by this.
NORM_ROUNDING = {"bfloat16": 2**-10, "float8": 2**-5.5}
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
    reference: pd.Series, losses: pd.Series, margin: float = SAME_LOSS, count: int = 1
) -> LossDifference:
    """Return the paired difference of losses in nats a token by round.

    margin: largest difference of equal losses.
    count: number of differences whose intervals hold together.
    """
    differences = (losses - reference).dropna()
    if len(differences) and differences.eq(0).all():  # to the last bit: one round is enough
        return LossDifference(0.0, 0.0, 0.0, margin)
    mean, error = differences.mean(), differences.sem()
    confidence = of_each(CONFIDENCE, count)
    difference = LossDifference.by_t(mean, error, len(differences) - 1, confidence)

    return replace(difference, margin=margin)


@dataclass(frozen=True)
class Losses:
    """Loss of a script in nats a token, its difference to the base's, and its parity with it."""

    loss: float
    difference: LossDifference = LossDifference()
    parity: str = ""


def losses_of(chosen: Study, name: str, runs: dict[str, ScriptRuns]) -> Losses:
    """Return the Losses of a script; those of other batches or another optimizer have no pair."""
    script = runs[name]
    if script.timed.empty:
        return Losses(math.nan)
    losses = loss_of_round(script.timed)
    loss = losses.mean()
    if not chosen.is_ours and step_losses(script).isna().all():
        return Losses(loss)  # a user's script that calls no backward
    has_diverged = not np.isfinite(script.timed.loss).all()
    difference = LossDifference(math.inf if has_diverged else math.nan)

    # Some losses are not comparable with the base's, or with those of the other side of a pair.
    is_side = chosen.identities[name].suite == "pair"
    base = runs.get(chosen.parent(name) if is_side else chosen.base)
    has_own_batch = script.rows.batch_size.ne(script.rows.requested_batch_size).any()
    if base is None or base.timed.empty or base is script or has_own_batch:
        return Losses(loss, difference)
    if any(record.get("dataset_facts", {}).get("streamed") for record in script.records):
        return Losses(loss, difference, "other batches")
    losses = losses.drop(_rounds_of_other_steps(script, base), errors="ignore")
    if losses.empty:
        return Losses(loss, difference, "other steps")
    technique = chosen.technique(name)
    if technique and technique.stated_parity == "another optimizer":
        return Losses(loss, difference, technique.stated_parity)

    losses_of_base = loss_of_round(base.timed)
    margin = SAME_LOSS
    if not chosen.is_ours:
        if script.rows.seed.nunique() == 1:  # a fixed seed: rounds repeat each other
            losses = losses.iloc[:1]
        first_loss = step_losses(base).groupby("round").first().mean()
        margin = OWN_LOSS * abs(losses_of_base.mean() - first_loss)
        if script.training.get("kind", NOT_TOLD) != NOT_TOLD or np.ptp(losses_of_base) > margin:
            margin = math.nan  # judged otherwise, or the base differs from itself by more
    paired = loss_difference(losses_of_base, losses, margin, len(runs) - 1)
    if chosen.is_ours and paired:
        loss = losses_of_base.mean() + paired.value  # rounds may be missing
    return Losses(loss, difference if has_diverged else paired, _parity(script, base, technique))


def _rounds_of_other_steps(script, base):
    """Return the rounds in which a run of one of them was cut, or emulated: a list."""
    steps, steps_of_base = [
        {record.get("round"): (record.get("settings") or {}).get("steps") for record in own.records}
        for own in (script, base)
    ]
    return [r for r in steps.keys() & steps_of_base if steps[r] != steps_of_base[r]]


def _parity(script, base, technique):
    """Return "exact" (all losses are equal), "model changed" or "numerics changed".

    Before the first update both have the same weights and batch, so the first loss and the norm of
    the first gradients compare the models. Rounding alone gives "model changed" with the
    probability CHANCE. Some parameters that are never updated give it too.
    """
    differences = (step_losses(script) - step_losses(base)).dropna()
    if len(differences) and differences.eq(0).all():
        return "exact"

    updated = min((r.get("updated_parameters", np.inf) for r in script.records), default=np.inf)
    updated_by_base = max((r.get("updated_parameters", 0) for r in base.records), default=0)
    changed = updated < updated_by_base
    model = script.rows.model.iloc[0]
    is_approximate = technique and technique.stated_parity == "approximate"
    if model in CONFIGS and not is_approximate:
        products = "float8" if technique and "float8" in technique.needs else "bfloat16"
        loss_rounding = ROUNDING[products] * INIT_STD * CONFIGS[model].n_embd ** 0.5
        first = differences[differences.index.get_level_values("step") == 0]
        norms = np.log(gradient_norms(script) / gradient_norms(base)).dropna()
        deviations = [*first / loss_rounding, *norms / NORM_ROUNDING[products]]
        changed |= np.square(deviations).sum() > chdtri(len(deviations), CHANCE)
    return "model changed" if changed else "numerics changed"
