"""Noted runs of a user's script and of its changes, and the verdict on each change."""

import math
import sys
import time

from tools.own_script.own_runs import FOLDER
from tools.own_script.training_verdict import NOT_TOLD, Comparison, Notes, Verdict
from Utils.base import files, paths
from Utils.base.errors import UserError

STEPS = 20  # of one of these runs
SECONDS = 60  # for the steps of one of them
SHARE = 1 / 3  # of the time of a command
TRAINING = {"kind": str, "reasons": [str], "steps": int, "remarks": [str]}  # a file of the cache


class TrainingCheck:
    """Judges changes of a user's script, whose noted runs are kept for the next change.

    script: an own_runs.OwnScript. schedule: of the command; the check takes SHARE of its time.
    """

    def __init__(self, script, args, schedule):
        self.script = script
        self.args = args
        self.notes = {}  # by perturbation and number
        self.steps = STEPS
        self.begin(schedule)

    def begin(self, schedule):
        """Take the Schedule of the next changes."""
        schedule.start()
        self.deadline = time.monotonic() + 60 * SHARE * (schedule.minutes or math.inf)

    def judge(self, script):
        """Let the records of a changed script have the Verdict on it, if it is not known."""
        runs = script.runs
        if script.refusal or script.switches in runs.training:
            return

        row = runs.inspection.row
        keys = [self.script.resume_key, script.resume_key, *script.switches]
        digest = paths.digest("\0".join([*keys, row["device"], row["torch"]]))
        file = FOLDER / "verdicts" / digest
        training = files.read_cache(file, TRAINING)
        if not training:
            print(f"{script.label}: is it the same training?", file=sys.stderr)
            training = vars(self._verdict(script))
            if training["kind"] != NOT_TOLD:
                files.write_json(file, training)

        runs.training[script.switches] = training
        print(f"{script.label}: {text_of(training)}", file=sys.stderr)

    def _verdict(self, script):
        notes = {}
        try:
            return Comparison(
                lambda kind="", number=0: self._noted(self.script, self.notes, kind, number),
                lambda kind="", number=0: self._noted(script, notes, kind, number),
            ).verdict()
        except UserError as problem:
            return Verdict(NOT_TOLD, [str(problem)])

    def _noted(self, script, notes, kind, number):
        """Return the Notes of a run, from a dict if it was there before. Raises UserError."""
        if (kind, number) not in notes:
            is_first = not self.notes  # later runs take no more steps than this one
            left_s = self.deadline - time.monotonic()
            seconds = min(SECONDS, left_s) if is_first else left_s
            if left_s > 0:
                file = script.runs.note(script, self.steps, [kind, number], seconds)
                notes[kind, number] = Notes(file)
            if time.monotonic() > self.deadline:
                raise UserError("no time was left")
            if is_first:
                self.steps = len(notes[kind, number].steps)
        return notes[kind, number]


def text_of(training):
    """Return a Verdict of a record in words."""
    reasons = "; ".join([*training["reasons"], *training["remarks"]])
    return f"{training['kind']}: {reasons}" if reasons else training["kind"]
