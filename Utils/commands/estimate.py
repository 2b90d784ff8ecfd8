"""Print how long a suite will take, from rows of this device or else from its ceilings."""

import math

from Utils.analysis.measured_here import measured_steps
from Utils.base import errors
from Utils.base.command_line import Parser
from Utils.base.text import plural
from Utils.device import measured_ceilings
from Utils.harness import step_work
from Utils.harness.settings import Settings, settle
from Utils.launch import suite_runner, turn_taking
from Utils.scripts import bases, ladder
from Utils.scripts.ladder import BASELINE

START_S = 8  # of a process: imports, the model, the evaluation of its loss
COMPILE_S = 25  # with an empty cache
OVER_FLOOR = 3  # step time of a script over its modelled floor, where no row has it
LONG_MINUTES = 30  # from which fewer steps are suggested where a precision is emulated:
FEW_STEPS, FEW_WARMUP = 8, 3


def main(argv=None):
    parser = Parser("estimate", __doc__)
    suite_runner.add_arguments(parser)
    args = parser.parse_args(argv, Settings())
    settle(args)
    base, techniques, without = suite_runner.asked(args)
    measured = measured_steps(args, base=base)
    known = {name: step.step_ms / 1e3 for name, step in measured.items()}
    source = "roughly, by this device's ceilings"
    if base:
        if base.name not in known:
            print(f"how long this takes is known once {base.name} has run here")
            return
        scripts = bases.ladder_of(base, techniques, without)
        techniques = [script for script in scripts if not bases.refusal(script)]
        source = f"roughly, by the steps of {base.name}"
    if all(t.name in known for t in techniques):
        source = "by rows of this device"
    elif base:
        known = dict.fromkeys((t.name for t in techniques), known[base.name]) | known
    minutes = whole_minutes(techniques, args, known)
    more = ", more where PRECISION asks for it" if args.precision else ""
    rounds = f"{plural(args.rounds, 'round')} of {plural(len(techniques), 'script')}"
    take = "takes" if args.rounds == 1 else "take"
    print(f"{rounds} {take} about {minutes} min ({source}){more}")
    emulated = [t for t in techniques if emulated_tflops(t, args)]
    if emulated and minutes > LONG_MINUTES and args.steps > FEW_STEPS:
        precision = step_work.precision_of(emulated[0].needs)
        args.steps, args.warmup = FEW_STEPS, FEW_WARMUP
        fewer = whole_minutes(techniques, args, known)
        where = f"slowly, in {plural(len(emulated), 'script')}"
        few = f"STEPS={FEW_STEPS} WARMUP={FEW_WARMUP} takes about {fewer} min"
        print(f"this device emulates {precision}, {where}; {few}")
        copied = "" if base else f"cp {BASELINE}.py examples/my_base.py; "
        name = base.name if base else "my_base"
        line = ladder.line(bases.last(emulated[0].name))
        first = next(n for n in line if precision in ladder.get(n).needs)
        print(f"without it: {copied}make all BASE={name} WITHOUT={first}")


def whole_minutes(techniques, args, known):
    """Return the minutes of a suite, rounded up. known: seconds of a step, by technique."""
    again = 1 + 1 / (turn_taking.MOST - 1)  # a parent runs once more for each group of MOST
    seconds = again * args.rounds * sum(run_seconds(t, args, known) for t in techniques)
    return max(1, math.ceil(seconds / 60))


def run_seconds(technique, args, known):
    """Return the seconds that a run of a technique takes. known: of a step, by technique."""
    step_s = known.get(technique.name)
    if step_s is None:
        ceilings = measured_ceilings.ceilings(args.hardware)
        shape = args.config, args.batch_size, args.seq_len
        precision = step_work.precision_of(technique.needs) or "bfloat16"
        floor = ceilings and (
            step_work.floor_ms(*shape, precision, ceilings)
            or step_work.floor_ms(*shape, "float32", ceilings)
        )
        step_s = OVER_FLOOR * (floor or 1000.0) / 1e3
        if rate := emulated_tflops(technique, args):
            flop = sum(n * flop for _, n, flop, _ in step_work.parts(*shape, precision))
            step_s += flop / (1e12 * rate)
    timed_s = max((args.steps - args.warmup) * step_s, args.min_seconds)
    compiling = COMPILE_S if "compile" in technique.needs else 0
    return START_S + compiling + args.warmup * step_s + timed_s


def emulated_tflops(technique, args):
    """Return the rate of a technique's products where this device emulates them, else None."""
    ceilings = measured_ceilings.ceilings(args.hardware)
    return ceilings and ceilings["emulated_tflops"].get(step_work.precision_of(technique.needs))


if __name__ == "__main__":
    with errors.one_line("estimate"):
        main()
