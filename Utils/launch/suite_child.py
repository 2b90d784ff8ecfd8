"""Parts of a suite that need torch. `suite_runner.in_child` calls them in a child process.

They ask the device, estimate the duration of a suite, and append the rows of dead processes.
"""

import math
import os

from Utils.analysis.summary import measured_steps
from Utils.base import tool_packages
from Utils.base.text import plural
from Utils.corpus import token_cache
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.harness import run_record, settings
from Utils.launch.costs import Costs
from Utils.scripts.ladder import BASELINE


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


def announce(ladder, args, minutes=None):
    """Prepare what needs to be made once: the corpus, and the ceilings of this device.

    Print the ceilings, and the duration of a suite.

    minutes: limit of the suite's time, None without one.
    Raises UserError for impossible settings.
    """
    settled = settings.resolve(args).replace(base=BASELINE)
    token_cache.load_tokens(settled.dataset)  # prepared once, with a progress bar
    ceilings = measured_ceilings.stored_or_measured(settled.hardware)
    print(f"{ceilings['device']}: ceilings of {measured_ceilings.summary(ceilings)}")
    if minutes:
        rounds = f"rounds of {plural(len(ladder), 'script')}"
        print(f"{rounds} for {minutes:g} min at most; MINUTES=N sets another time", flush=True)
    else:
        print(duration(ladder, settled), flush=True)


def duration(ladder, args):
    """Return a line on the duration of a suite, by the steps of rows, of a forecast or neither.

    args: Settings that `resolve` has resolved.
    """
    by_rows = {name: step.step_ms / 1e3 for name, step in measured_steps(args).items()}
    stored_forecast = tool_packages.find("forecast", "stored_forecast")
    by_forecast = stored_forecast.step_s(args) if stored_forecast else {}
    step_s = by_forecast | by_rows

    source = "roughly"
    if ladder.scripts.keys() <= by_rows.keys():
        source = "by rows of this device"
    elif ladder.scripts.keys() <= step_s.keys():
        source = "by forecast"

    costs = Costs(args, ladder, step_s)
    seconds = costs.round_s(again=False) + (args.rounds - 1) * costs.round_s()
    emulated = [script.name for script in ladder if script.is_emulated]
    seconds += costs.seconds(emulated, settings.EMULATED_STEPS)
    minutes = max(1, math.ceil(seconds / 60))

    more = ", more where PRECISION asks for it" if args.precision else ""
    rounds = f"{plural(args.rounds, 'round')} of {plural(len(ladder), 'script')}"
    return f"{rounds}: about {minutes} min ({source}){more}"
