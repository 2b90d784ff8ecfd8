"""Look at a training script of your own: what a step of it is, which switches can be thrown at it,
and where it waits for the GPU.

It runs unchanged for a few steps; nothing is written to results.csv.
"""

import textwrap

from Utils.base import command_line
from Utils.base.errors import UserError
from Utils.base.setting_table import OF_A_RUN
from Utils.base.text import plural
from Utils.commands.suite import OF_AN_OWN_SCRIPT
from Utils.launch import own_scripts
from Utils.scripts import own_names

WIDTH = 100
INDENT = " " * 13
MOST_WAITS = 5


def main(argv=None):
    """Print what was seen. Raises UserError where the script cannot be measured."""
    args = command_line.Parser("adopt", __doc__, *OF_A_RUN, *OF_AN_OWN_SCRIPT, "script").parse_args(
        argv
    )
    args.base = args.script or args.base
    if not args.base:
        raise UserError("no script is named", "set SCRIPT to its path")
    with own_scripts.looked_at(args) as runs:
        for line in lines(runs):
            print(textwrap.fill(line, WIDTH, subsequent_indent=INDENT, drop_whitespace=False))
    return 0


def lines(runs):
    """Yield the lines on what a look saw, at most 30."""
    look = runs.look
    own = look["record"]["own_script"]
    batch = f"{look['row']['batch_size']} {look['row']['unit']}"
    losses = plural(own["losses_per_step"], "backward")
    flop = f", {look['flop'] / 1e9:.3g} GFLOP" if look["flop"] else ""
    yield f"{runs.base.name} on {look['row']['device']}"
    for name, site in own["models"]:
        yield f"  model      {name}, called at {site}"
    for name, site in dict.fromkeys(map(tuple, own["optimizers"])):
        yield f"  optimizer  {name}, made at {site}"
    for loader in look["loaders"]:
        workers = plural(loader["workers"], "worker")
        yield f"  loader     made at {loader['site']}, {workers}"
    yield f"  a step     {batch if look['row']['unit'] != 'steps' else 'no DataLoader'}{flop}"
    yield f"  the loss   the sum of {losses} a step" if losses[0] != "0" else "  the loss   none"
    refused = {name: look["refusals"][name] for name in own_names.ORDER if look["refusals"][name]}
    tried = [name for name in own_names.ORDER if name not in refused]
    yield f"switches     {', '.join(tried)}"
    for name, reason in refused.items():
        yield f"  not {name}: {reason}"
    yield from waits(look)
    yield f"Next: make all BASE={runs.base.name} ROUNDS=4"


def waits(look):
    """Yield where the script waits for the GPU."""
    if look["device"] == "cpu":
        yield "waits        on a CPU, copies to the host cannot be seen; other waits:"
    else:
        yield "waits        for the GPU:"
    most_often = sorted(look["waits"], key=lambda wait: -wait[2])
    for operator, site, times in most_often[:MOST_WAITS]:
        yield f"  {site}: {operator}, {plural(times, 'time')} a step"
    if not most_often:
        yield "  none"
