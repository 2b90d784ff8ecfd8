"""Ladders of switches on a user's script, and the suites that run them.

The launcher and the analysis treat such a ladder like the repository's. `make all BASE=` calls
`run`, `make ablate BASE=` begins with `ablation`.
"""

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pandas as pd

from tools.own_script import own_runs, recipe_patch, script_patch
from tools.own_script.own_runs import OwnRuns, OwnScript
from tools.own_script.switch_names import LADDER, MORE, ORDER, REPLACES, name_of
from tools.own_script.training_check import TrainingCheck
from Utils.analysis import recommendation
from Utils.base import paths
from Utils.base.errors import UserError, unknown
from Utils.launch import suite_runner
from Utils.launch.schedule import FEWEST_STEPS, MARGIN
from Utils.scripts.identity import PATCH
from Utils.scripts.ladder import Ladder

PATCH_SHARE = 0.2  # share of a command's time for the patch of its recipe
PATCH_ROUNDS = 2


@dataclass(frozen=True)
class PatchedScript(OwnScript):
    """A user's script with a patch. patch: that field of its records."""

    patch: dict = field(default_factory=dict)

    @property
    def name(self):
        return f"{self.runs.base.name}+{PATCH}"

    @property
    def identity(self):
        identity = super().identity
        return replace(identity, record=identity.record | {PATCH: self.patch})


def run(args, schedule):
    """Run a user's script with switches, as a Schedule asks. Return a suite_runner.Outcome.

    Its recipe is measured as a patch at the end, if a limit of time allows that.

    Later scripts go without the switches that fail in the first round. Of the command's settings
    args, names is ["ladder"] for the switches of the ladder, anything else for all; without has the
    names of switches that are not tried. Raises UserError.
    """
    tried = _tried(args, LADDER if args.names == ["ladder"] else ORDER)

    with own_runs.inspected(args) as runs:
        check = TrainingCheck(OwnScript(runs), args, schedule)
        if schedule.minutes:
            schedule.share = 1 - PATCH_SHARE
        ladder, outcome = _first_round(check, tried, args, schedule)

        # More rounds, of the scripts with timings: those that failed or were refused have their
        # row. With the baseline alone no ratio has an interval.
        timed = _timed(outcome) if outcome.code < 2 else set()
        is_complete = args.rounds == 1 and not args.precision
        if schedule.minutes:
            is_complete = not schedule.rounds_ended  # no other fits
        has_ratio = not args.precision or timed != {ladder.base}
        if ladder.base in timed and has_ratio and not is_complete:
            outcome = suite_runner.run(ladder.part(timed), args, schedule)

        if outcome.code < 2:
            schedule.share = 1.0
            schedule.rounds_ended = 0  # the patch's rounds are counted from zero
            try:
                outcome = _run_patch(check, args, schedule, outcome)
            except UserError as error:
                print(f"the recipe is not measured as a patch: {error}", file=sys.stderr)
        return outcome


def _run_patch(check, args, schedule, outcome):
    """Run the script with the patch of its recipe, if there is time for it. Return an Outcome.

    outcome: that of the switches.
    """
    summary = outcome.summary
    recipe = recommendation.recommend(summary).fastest
    if not recipe:
        return outcome
    patch = recipe_patch.written(recipe, summary, args.results_file)
    names = [summary.study.base, recipe.name]
    run_s = schedule.costs.seconds(names, FEWEST_STEPS, again=True)
    is_long = schedule.minutes and MARGIN * PATCH_ROUNDS * run_s > schedule.seconds_left()
    if not patch.diff or is_long:
        return outcome

    runs = check.script.runs
    base = runs.base
    patched = script_patch.patched_files(patch.file, base.file)
    runs_of_patch = OwnRuns(replace(base, patched=patched), args)
    try:
        runs_of_patch.take_inspection(runs)
        original = check.script
        record = {"digest": patch.digest, "switched": recipe.name}
        script = PatchedScript(runs_of_patch, (), original.name, change=f"+{PATCH}", patch=record)
        check.judge(script)
        ladder = Ladder({original.name: original, script.name: script}, original.name)
        last = suite_runner.run(ladder, args, schedule)
    finally:
        runs_of_patch.close()
    if last.rows is None:
        return last
    rows = pd.concat([outcome.rows, last.rows])
    return suite_runner.Outcome(max(outcome.code, last.code), rows, outcome.path)


def _tried(args, switches):
    """Return the switches without those of args.without. Raises UserError for unknown names.

    T, which names scripts of this project, is refused.
    """
    if args.t:
        raise UserError(f"T={args.t}: BASE runs a script of your own", "leave T out")
    without = args.without.split()
    for name in without:
        if name not in ORDER:
            raise unknown(f"WITHOUT={name}: no such switch", name, ORDER)
    return [technique for technique in switches if technique not in without]


def _first_round(check, techniques, args, schedule):
    """Run one round of the ladder until no more switches of it fail. Return (Ladder, Outcome)."""
    failed = set()
    runs = check.script.runs
    while True:
        ladder = ladder_of(runs, techniques, failed)
        for script in ladder:
            if script.parent:
                check.judge(script)
        outcome = suite_runner.run(ladder, args, schedule, first_only=True)
        if outcome.code > 1:
            return ladder, outcome

        # A script fails too if its parent does, so its own switch is tried again without that.
        timed = _timed(outcome)
        ended = [script for script in ladder if script.name not in timed]
        failed |= {script.technique for script in ended if script.parent in timed}
        # A refused one has its row.
        refused = {script.technique for script in ladder if script.refusal}
        techniques = [technique for technique in techniques if technique not in refused]
        # After the last switch of a line there is nothing to run without it.
        if ladder_of(runs, techniques, failed).scripts.keys() <= ladder.scripts.keys():
            return ladder, outcome


def _timed(outcome):
    """Return the names of scripts that were timed, a set."""
    rows = outcome.rows
    return {*rows.technique[rows.status == "ok"]}


@contextmanager
def ablation(args):
    """Yield (name of the script with all switches, Ladder of a user's script).

    Raises UserError if the script cannot be measured, or no switch has an effect on it.
    """
    tried = _tried(args, LADDER)
    with own_runs.inspected(args) as runs:
        yield ablation_of(runs, tried)


def ladder_of(runs, techniques=LADDER, failed=()):
    """Return the Ladder of a user's script: each switch of LADDER is added to those before it.

    Each switch of MORE is added to the last script of LADDER. runs: OwnRuns after the first run.
    techniques: names of the switches to try. Later scripts go without the switches that failed,
    without those that the first run refused, and without bfloat16 if the device emulates it.
    """
    precision = runs.inspection.precision
    base = runs.base.name
    scripts = [OwnScript(runs)]
    effective = []
    for technique in ORDER:
        is_for_device = technique != "float16" or precision == "float16"
        if technique not in techniques or not is_for_device:
            continue

        switch = runs.inspection.switches[technique]
        replaced = REPLACES.get(technique)
        kept = [name for name in effective if name != replaced]
        change = f"+{technique}"
        if replaced in effective:
            change += f"-{replaced}"
        script = OwnScript(
            runs=runs,
            switches=(*kept, technique),
            parent=name_of(base, effective),
            change=change,
            refusal=switch.refusal,
            needs=tuple(switch.needs),
            is_emulated=technique == "brainFloat16" and precision == "float32",
        )
        scripts.append(script)

        is_effective = not switch.refusal and not script.is_emulated
        if technique not in (*MORE, *failed) and is_effective:
            effective.append(technique)
    return Ladder({script.name: script for script in scripts}, base)


def ablation_of(runs, techniques=LADDER):
    """Return (name of the script with all switches, Ladder of the scripts to run).

    The Ladder has the scripts that the first run did not refuse, the user's script with each switch
    alone, and the script with all switches but one. Raises UserError if no switch has an effect.
    """
    ladder = ladder_of(runs, techniques)
    base = ladder.base
    scripts = {script.name: script for script in ladder if not script.refusal}
    *_, complete = scripts.values()
    if complete.name == base:
        raise UserError(
            f"no switch of the ladder has an effect on {base}", f"see {paths.COMMAND} adopt"
        )

    for technique in complete.switches:
        remaining = tuple(switch for switch in complete.switches if switch != technique)
        alone = OwnScript(runs, (technique,), base, "ablation", f"+{technique}")
        without = OwnScript(runs, remaining, complete.name, "ablation", f"-{technique}")
        for script in (alone, without):
            scripts.setdefault(script.name, script)
    return complete.name, Ladder(scripts, base)
