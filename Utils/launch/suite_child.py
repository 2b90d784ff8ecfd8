"""Parts of a suite that need torch, which `suite_runner.in_child` calls: questions to the device,
the duration of a suite, the row of a run that was killed.
"""

import math
import os

from Utils.analysis.summary import measured_steps
from Utils.base.text import plural
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.harness import script_start, settings, step_work
from Utils.launch import turn_taking
from Utils.scripts import ladder

START_S = 8  # of a process: imports, the model, the evaluation of its loss
COMPILE_S = 25  # with an empty cache
OVER_FLOOR = 3  # step time of a script over its modelled floor, where no row has it
LONG_MINUTES = 30  # from which fewer steps are suggested where a precision is emulated


def has_bfloat16(device):
    return capabilities.has("bfloat16", device_choice.choose(device))


def record_end(script, status, reason, flags, suite_id):
    """Append the row of a run that has ended before it could record itself."""
    os.environ["SUITE_ID"] = suite_id
    args = settings.parse_args(script.doc, flags, script.name, script.path.read_text())
    vars(args).update(vars(script.identity))
    script_start.record_end(args, status, reason)


def announce(scripts, args):
    """Measure the ceilings of this device once, and print both them and the duration of a suite.

    Raises UserError for impossible settings.
    """
    settled = settings.Settings(**vars(args) | {"base": ladder.BASELINE})
    settings.settle(settled)
    ceilings = measured_ceilings.here(settled.hardware)
    print(f"{ceilings['device']}: ceilings of {measured_ceilings.summary(ceilings)}")
    print(*sentences(scripts, settled), sep="\n", flush=True)


def sentences(techniques, args):
    """Return the duration of a suite in words, a list of lines, and how to make it shorter.

    The steps are those of rows of this device, or else roughly by its ceilings. args: Settings that
    `settle` has resolved.
    """
    step_s = {name: step.step_ms / 1e3 for name, step in measured_steps(args).items()}
    source = "roughly, by this device's ceilings"
    if all(technique.name in step_s for technique in techniques):
        source = "by rows of this device"
    seconds = 0.0
    for technique in techniques:
        one_step_s = step_s.get(technique.name) or estimated_step_s(technique, args)
        timed_s = max((args.steps - args.warmup) * one_step_s, args.min_seconds)
        compile_s = COMPILE_S if "compile" in technique.needs else 0
        seconds += START_S + compile_s + args.warmup * one_step_s + timed_s
    again = 1 + 1 / (turn_taking.MOST - 1)  # a parent runs once more for each group of MOST
    minutes = max(1, math.ceil(again * args.rounds * seconds / 60))
    more = ", more where PRECISION asks for it" if args.precision else ""
    rounds = f"{plural(args.rounds, 'round')} of {plural(len(techniques), 'script')}"
    take = "takes" if args.rounds == 1 else "take"
    lines = [f"{rounds} {take} about {minutes} min ({source}){more}"]
    emulated = [technique for technique in techniques if emulated_tflops(technique, args)]
    if emulated and minutes > LONG_MINUTES:
        precision = step_work.precision_of(emulated[0].needs)
        where = f"this device emulates {precision}, slowly, in {plural(len(emulated), 'script')}"
        names = ladder.line(emulated[0].name)
        first = next(name for name in names if precision in ladder.get(name).needs)
        lines.append(f"{where}; set STEPS=8 WARMUP=3, or leave it out:")
        lines.append(f"make all BASE={ladder.BASELINE}.py WITHOUT={first}")
    return lines


def estimated_step_s(technique, args):
    """Return the seconds of a step by the modelled floor, or by the rate of emulated products."""
    ceilings = measured_ceilings.ceilings(args.hardware)
    shape = args.config, args.batch_size, args.seq_len
    precision = step_work.precision_of(technique.needs) or "bfloat16"
    floor_ms = None
    if ceilings:
        floor_ms = step_work.floor_ms(*shape, precision, ceilings)
        floor_ms = floor_ms or step_work.floor_ms(*shape, "float32", ceilings)
    seconds = OVER_FLOOR * (floor_ms or 1000.0) / 1e3
    if tflops := emulated_tflops(technique, args):
        flop = sum(count * flop for _, count, flop, _ in step_work.parts(*shape, precision))
        seconds += flop / (1e12 * tflops)
    return seconds


def emulated_tflops(technique, args):
    """Return the rate of a technique's products where this device emulates them, else None."""
    ceilings = measured_ceilings.ceilings(args.hardware)
    return ceilings and ceilings["emulated_tflops"].get(step_work.precision_of(technique.needs))
