"""One run of a user's script that is not timed, of which notes on its training are kept."""

import time
from functools import partial
from pathlib import Path

from tools.own_script import faults
from tools.own_script.measured_run import Measured
from tools.own_script.perturbation import Perturbation
from tools.own_script.rounding import NOTES
from tools.own_script.training_notes import TrainingNotes
from tools.own_script.user_code import Ended


class Noted(Measured):
    """One run of a script whose steps are noted, up to args.steps, or spec.seconds."""

    def __init__(self, args, opened):
        super().__init__(args, opened)
        self.notes = TrainingNotes(self.watch, Perturbation(self.watch, *self.spec.perturbation))
        self.deadline = time.monotonic() + self.spec.seconds

    @faults.ours
    def begins(self):
        if self.watch.parameters():
            self.watch.observe("begin of a step", self.observed.begin_or_end)
            self.watch.observe("parameters", self.notes.begins)

    def step_ended(self, iteration):
        self.watch.observe("steps", self.notes.step_ended, iteration)
        if time.monotonic() > self.deadline:
            return True
        return self.watch.ended_iterations == self.args.steps

    @faults.ours
    def _result(self):
        if "steps" in self.watch.failures:
            raise Ended(self.watch.failures["steps"])
        return partial(self.notes.write, Path(self.spec.runs, NOTES), self.observed)
