"""The runs of one script, and what they say by themselves."""

import math
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from Utils.analysis import record_figures
from Utils.analysis.record_figures import RecordFigures
from Utils.base.text import plain
from Utils.results import selection


@dataclass(frozen=True, eq=False)
class ScriptRuns:
    """Rows of the runs of one script, and the records of a study by run_id."""

    rows: pd.DataFrame
    records_of_study: dict[str, dict]

    @cached_property
    def timed(self) -> pd.DataFrame:
        """The rows of timed steps."""
        return selection.timed(self.rows)

    @cached_property
    def records(self) -> list[dict]:
        """The records of the runs with timed steps."""
        run_ids = self.timed.run_id.unique()
        records = map(self.records_of_study.get, run_ids)
        return [record for record in records if record is not None]

    @cached_property
    def by_round(self) -> pd.DataFrame:
        """Status, note, grade and run_id of each round."""
        return self.rows.groupby("round")[["status", "note", "grade", "run_id"]].first()

    @cached_property
    def timed_rounds(self) -> pd.DataFrame:
        """The rounds with timings."""
        return self.by_round[self.by_round.status == "ok"]

    @property
    def status(self) -> str:
        """The status "ok" if any round has timings, otherwise that of the last round."""
        return "ok" if len(self.timed_rounds) else self.by_round.status.iloc[-1]

    @property
    def failure(self) -> str:
        """The first round that failed, "out of memory in round 2", or ""."""
        failed = self.by_round[self.by_round.status.isin(["failed", "out_of_memory"])]
        if failed.empty:
            return ""
        return f"{failed.status.iloc[0].replace('_', ' ')} in round {failed.index[0]}"

    @property
    def notes(self) -> list[str]:
        """The notes of rounds with timings, and those without; if all are, that of the last."""
        if self.timed_rounds.empty:
            notes = [self.by_round.note.iloc[-1]]
        else:
            notes = [*self.timed_rounds.note.str.split("; ").explode().unique()]
            for number, run in self.by_round[self.by_round.status != "ok"].iterrows():
                notes.append(f"round {number}: {run.status}: {run.note}")
        return [note for note in notes if note]

    @cached_property
    def disturbed_rounds(self) -> pd.DataFrame:
        return self.timed_rounds[self.timed_rounds.grade == "tainted"]

    @property
    def quality(self) -> str:
        """The number of disturbed rounds, with the reasons for the first; "" without timings."""
        if self.timed_rounds.empty:
            return ""
        if self.disturbed_rounds.empty:
            return "undisturbed"
        text = f"disturbed in {len(self.disturbed_rounds)} of {len(self.timed_rounds)} rounds"
        record = self.records_of_study.get(self.disturbed_rounds.run_id.iloc[0], {})
        reasons = (record.get("quality") or {}).get("reasons")
        return text + plain(f": {' and '.join(reasons)}") if reasons else text

    @property
    def own_batch(self) -> float:
        """The batch size if the script chose it, otherwise NaN."""
        chose = (self.rows.batch_size != self.rows.requested_batch_size).any()
        return self.rows.batch_size.iloc[-1] if chose else math.nan

    @cached_property
    def recorded(self) -> RecordFigures:
        """The figures from records, unknown without timings."""
        if self.timed.empty:
            return RecordFigures()
        last = self.rows.iloc[-1]
        scale = last.requested_batch_size / last.batch_size
        return record_figures.from_records(self.records, last.model, scale)

    @cached_property
    def step_losses(self) -> pd.Series:
        """The losses by round and step."""
        losses = self.rows[self.rows.status == "ok"].set_index(["round", "step"]).loss
        return losses[~losses.index.duplicated()]  # a user's script may have a step twice

    @property
    def warm_up_ms(self) -> float:
        """How much slower than a usual step those of the warm-up are, all together.

        The mean over the runs.
        """
        steps = selection.numbered(self.rows)
        timed_ms = steps.step_ms.where(steps.phase == "timed")
        usual_ms = timed_ms.groupby(steps.run_id, observed=True).transform("median")
        extra_ms = (steps.step_ms - usual_ms)[steps.step < 0]
        return extra_ms.sum() / steps.run_id.nunique()
