"""The runs of one script: notes, failures, quality and losses."""

from dataclasses import dataclass

import pandas as pd

from Utils.base.text import plain
from Utils.results import selection


@dataclass(frozen=True, eq=False)
class ScriptRuns:
    """Runs of a script.

    timed: the rows of timed steps.
    records: those of the runs with timed steps.
    """

    rows: pd.DataFrame
    timed: pd.DataFrame
    records: list[dict]

    @property
    def training(self) -> dict:
        """The newest verdict on a change of a user's script, or {}; an ablation gives none."""
        training = {}
        for record in self.records:
            training = record.get("training", training)
        return training


def runs_of(rows: pd.DataFrame, records: dict[str, dict]) -> ScriptRuns:
    """Return the runs of a script. records: by run_id, of these runs and others."""
    timed = selection.timed(rows)
    recorded = [records[run_id] for run_id in timed.run_id.unique() if run_id in records]
    return ScriptRuns(rows, timed, recorded)


def notes_of(by_round: pd.DataFrame) -> list[str]:
    """Return notes of the rounds with timings, and on the others; if all are, the last one's."""
    is_ok = by_round.status == "ok"
    notes = [*by_round.note[is_ok].str.split("; ").explode().unique()]
    if not notes:
        notes = [by_round.note.iloc[-1]]
    else:
        for number, run in by_round[~is_ok].iterrows():
            notes.append(f"round {number}: {run.status}: {run.note}")
    return [note for note in notes if note]


def failure_of(by_round: pd.DataFrame) -> str:
    """Return which round failed first, "out of memory in round 2", or ""."""
    failed = by_round.status[by_round.status.isin(["failed", "out_of_memory"])]
    if failed.empty:
        return ""
    return f"{failed.iloc[0].replace('_', ' ')} in round {failed.index[0]}"


def quality_of(by_round: pd.DataFrame, records: dict[str, dict]) -> str:
    """Return how many rounds were disturbed, and why the first was; "" without timings."""
    timed = by_round[by_round.status == "ok"]
    if timed.empty:
        return ""
    disturbed = timed.run_id[timed.grade == "tainted"]
    if disturbed.empty:
        return "undisturbed"
    text = f"disturbed in {len(disturbed)} of {len(timed)} rounds"
    quality = records.get(disturbed.iloc[0], {}).get("quality") or {}
    reasons = quality.get("reasons")
    return text + plain(f": {' and '.join(reasons)}") if reasons else text


def step_losses(runs: ScriptRuns) -> pd.Series:
    """Return the losses of a script by round, seed and step: those of equal ones have one batch."""
    losses = runs.rows[runs.rows.status == "ok"].set_index(["round", "seed", "step"]).loss
    return losses[~losses.index.duplicated()]  # a user's script may have a step twice


def gradient_norms(runs: ScriptRuns) -> pd.Series:
    """Return the norm of a script's gradients before its first update, by round and seed.

    NaN if it is not in the record.
    """
    firsts = {record.get("run_id"): record.get("before_update", {}) for record in runs.records}
    norms = {run_id: first.get("gradient_norm") for run_id, first in firsts.items()}
    by_run = runs.rows.drop_duplicates(["round", "seed"]).set_index(["round", "seed"]).run_id
    return by_run.map(norms).astype(float)


def warm_up_ms(runs: ScriptRuns) -> float:
    """Return how much slower than a usual step those of the warm-up are, all together.

    The mean over the runs.
    """
    steps = selection.numbered(runs.rows)
    timed_ms = steps.step_ms.where(steps.phase == "timed")
    usual_ms = timed_ms.groupby(steps.run_id, observed=True).transform("median")
    extra_ms = (steps.step_ms - usual_ms)[steps.step < 0]
    return extra_ms.sum() / steps.run_id.nunique()
