"""Ladders of switches on a user's script, and the suites that run them.

The launcher and the analysis take such a ladder as they take the repository's: `run` is what
`make all BASE=` does, `ablation` what `make ablate BASE=` starts with.
"""

from argparse import Namespace
from contextlib import contextmanager

from tools.own_script import own_runs
from tools.own_script.own_runs import OwnScript
from tools.own_script.switch_names import LADDER, MORE, ORDER, REPLACES, name_of
from Utils.base.errors import UserError
from Utils.launch import suite_runner
from Utils.scripts.ladder import Ladder

ENDS = ("8bit_optimizer", *MORE)  # no other switch is thrown on a script with these


def run(args):
    """Run a user's script with switches in args.rounds rounds. Return a suite_runner.Outcome.

    Switches that fail in the first round are left out of the scripts after them. args: settings of
    the command; names, [] or ["ladder"] for the switches of the ladder, else all; without, names of
    switches that are not tried. Raises UserError.
    """
    without = args.without.split()
    for name in without:
        if name not in ORDER:
            raise UserError(f"WITHOUT={name}: no such switch", f"choose {', '.join(ORDER)}")
    wanted = LADDER if args.names in ([], ["ladder"]) else ORDER
    tried = [technique for technique in wanted if technique not in without]

    with own_runs.looked_at(args) as runs:
        ladder, outcome = _first_round(runs, tried, args)
        has_base = outcome.code < 2 and ladder.base in _timed(outcome)
        if not has_base or (args.rounds == 1 and not args.precision):
            return outcome
        return suite_runner.run(ladder, args, runs)


def _first_round(runs, techniques, args):
    """Run one round of the ladder until no more switches of it fail. Return (Ladder, Outcome)."""
    settings = Namespace(**vars(args) | {"rounds": 1, "precision": None})
    failed = set()
    while True:
        ladder = ladder_of(runs, techniques, failed)
        outcome = suite_runner.run(ladder, settings, runs)
        if outcome.code > 1:
            return ladder, outcome

        # A script on one that failed fails too: its own switch is tried without that.
        timed = _timed(outcome)
        ended = [script for script in ladder if script.name not in timed and not script.refusal]
        new = {script.technique for script in ended if script.parent in timed} - failed
        if not new:
            return ladder, outcome
        failed |= new


def _timed(outcome):
    """Return the names of scripts that were timed, a set."""
    rows = outcome.rows
    return {*rows.technique[rows.status == "ok"]}


@contextmanager
def ablation(args):
    """Yield (name of the script with all switches, Ladder, recorder) for a suite_runner.run.

    Raises UserError if the user's script cannot be measured, or no switch has an effect on it.
    """
    with own_runs.looked_at(args) as runs:
        whole, ladder = ablation_of(runs)
        yield whole, ladder, runs


def ladder_of(runs, techniques=LADDER, failed=()):
    """Return the Ladder of a user's script: each switch of LADDER on those before it.

    Those of MORE are each thrown on the end of the ladder. runs: OwnRuns after a look. techniques:
    names of the switches to try. failed: those that the next ones go on without, as they do without
    those that the look refused.
    """
    base = runs.base.name
    scripts = [OwnScript(base, runs)]
    effective = []
    for technique in ORDER:
        is_for_device = technique != "float16" or not runs.look["bfloat16"]
        if technique not in techniques or not is_for_device:
            continue

        switch = runs.look["switches"][technique]
        replaced = REPLACES.get(technique, set())
        kept = [before for before in effective if before not in replaced]
        before = kept if technique in LADDER else effective
        taken = [t for t in before if t in replaced]
        script = OwnScript(
            name=name_of(base, [*kept, technique]),
            runs=runs,
            parent=name_of(base, before),
            change=f"+{technique}" + "".join(f"-{t}" for t in taken),
            refusal=switch["refusal"],
            needs=tuple(switch["needs"]),
        )
        scripts.append(script)
        if technique not in ENDS and technique not in failed and not switch["refusal"]:
            effective.append(technique)
    return Ladder({script.name: script for script in scripts}, base)


def ablation_of(runs):
    """Return (name, Ladder): the script with all switches of the ladder, and what to run.

    The Ladder has the rungs that the look did not refuse, each switch alone on the user's script,
    and the whole without each. Raises UserError if no switch has an effect.
    """
    ladder = ladder_of(runs, LADDER[:-1])
    base = ladder.base
    scripts = {script.name: script for script in ladder if not script.refusal}
    *_, whole = scripts.values()
    if whole.name == base:
        raise UserError(f"no switch of the ladder has an effect on {base}", "see make adopt")

    rungs = [script for script in scripts.values() if script.parent]
    techniques = [script.technique for script in rungs]
    variants = []
    for technique in techniques:
        alone = name_of(base, [technique])
        variants.append((alone, base, f"+{technique}"))
        without = name_of(base, [other for other in techniques if other != technique])
        variants.append((without, whole.name, f"-{technique}"))
    for name, parent, change in variants:
        script = OwnScript(name, runs, parent, "ablation", change)
        scripts.setdefault(name, script)
    return whole.name, Ladder(scripts, base)
