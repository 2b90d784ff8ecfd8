"""Parts of a suite that need torch. `suite_runner.in_child` calls them in a child process.

They ask the device, prepare what a suite needs once, and append the rows of dead processes.
"""

import os

from Utils.base.text import plural
from Utils.corpus import token_cache
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.harness import run_record, settings
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


def announce(ladder, args, minutes):
    """Prepare what needs to be made once: the corpus, and the ceilings of this device.

    Print the ceilings, and the rounds of a suite.

    minutes: limit of the suite's time, None without one.
    Raises UserError for impossible settings.
    """
    settled = settings.resolve(args).replace(base=BASELINE)
    token_cache.load_tokens(settled.dataset)  # prepared once, with a progress bar
    ceilings = measured_ceilings.stored_or_measured(settled.hardware)
    print(f"{ceilings['device']}: ceilings of {measured_ceilings.summary(ceilings)}")
    rounds = plural(args.rounds, "round")
    limit = ""
    if minutes:
        rounds = "rounds"
        limit = f" for {minutes:g} min at most; MINUTES=N sets another time"
    print(f"{rounds} of {plural(len(ladder), 'script')}{limit}", flush=True)
