"""Parts of a suite that need torch. `suite_runner.in_child` calls them in a child process.

They ask the device, estimate the duration of a suite, and append the rows of dead processes.
"""

import math
import os

from Utils.analysis.summary import measured_steps
from Utils.base.text import plural
from Utils.corpus import token_cache
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.harness import run_record, settings, step_work
from Utils.launch import turn_taking
from Utils.launch.time_plan import COMPILE_S
from Utils.scripts import ladder

START_S = 8  # start of a process: imports, the model, the evaluation of its loss
OVER_FLOOR = 3  # assumed step time of a script over its modelled floor


def precision(device):
    """Return the precision of the repository's scripts on the device of that name."""
    return capabilities.precision(device_choice.choose(device))


def record_ends(ends, flags, suite_id):
    """Append the rows of runs that ended before they could do so, or did not start.

    ends: (script, status, reason) of each of them.
    flags: those of every script.
    """
    os.environ["SUITE_ID"] = suite_id
    for script, status, reason in ends:
        args = settings.parse_args(script.doc, flags, script.name, script.code)
        run_record.record_end(args.replace(identity=script.identity), status, reason)


def announce(scripts, args, minutes=None):
    """Prepare what needs to be made once: the corpus, and the ceilings of this device.

    Print the ceilings, and the duration of a suite.

    minutes: limit of the suite's time, None without one.
    Raises UserError for impossible settings.
    """
    settled = settings.resolve(args).replace(base=ladder.BASELINE)
    token_cache.load_tokens(settled.dataset)  # prepared once, with a progress bar
    ceilings = measured_ceilings.stored_or_measured(settled.hardware)
    print(f"{ceilings['device']}: ceilings of {measured_ceilings.summary(ceilings)}")
    if minutes:
        rounds = f"rounds of {plural(len(scripts), 'script')}"
        print(f"{rounds} for {minutes:g} min at most; MINUTES=N sets another time", flush=True)
    else:
        print(duration(scripts, settled), flush=True)


def duration(techniques, args):
    """Return a line on the duration of a suite.

    Step times are those of rows of this device, or are estimated by its ceilings.

    args: Settings that `resolve` has resolved.
    """
    step_s = {name: step.step_ms / 1e3 for name, step in measured_steps(args).items()}
    source = "roughly, by this device's ceilings"
    if all(technique.name in step_s for technique in techniques):
        source = "by rows of this device"

    # A parent runs once more for each group of MOST_PROCESSES.
    runs_of_each = args.rounds * (1 + 1 / (turn_taking.MOST_PROCESSES - 1))
    seconds = 0.0
    for technique in techniques:
        script_step_s = step_s.get(technique.name) or estimated_step_s(technique, args)
        if technique.is_emulated:
            seconds += START_S + settings.EMULATED_STEPS * script_step_s
            continue
        seconds += runs_of_each * run_s(technique, script_step_s, args)
    minutes = max(1, math.ceil(seconds / 60))

    more = ", more where PRECISION asks for it" if args.precision else ""
    rounds = f"{plural(args.rounds, 'round')} of {plural(len(techniques), 'script')}"
    return f"{rounds}: about {minutes} min ({source}){more}"


def run_s(technique, step_s, args):
    """Return the seconds of a run with steps of step_s, its start included."""
    timed_s = max((args.steps - args.warmup) * step_s, args.min_seconds)
    compile_s = COMPILE_S if "compile" in technique.needs else 0
    return START_S + compile_s + args.warmup * step_s + timed_s


def estimated_step_s(technique, args):
    """Return the seconds of a step by its modelled floor and the rate of emulated products."""
    ceilings = measured_ceilings.ceilings(args.hardware)
    rates = ceilings["matmul_tflops"].copy()
    for name, tflops in ceilings["emulated_tflops"].items():
        rates[name] = OVER_FLOOR * tflops  # emulated products are what takes the time

    precision = step_work.precision_of(technique.needs) or "bfloat16"
    if precision not in rates:
        precision = "float32"
    shape = args.config, args.batch_size, args.seq_len
    floor_ms = step_work.floor_ms(*shape, precision, ceilings | {"matmul_tflops": rates})
    return OVER_FLOOR * floor_ms / 1e3
