"""The lines that `make adopt` prints about a user's script."""

import textwrap

from tools.own_script.switch_names import ORDER
from Utils.base.text import plural

WIDTH = 100
NAMES = {"_local_scalar_dense": ".item()", "item": ".item()"}  # what a person writes
MOST = 2  # number of models, of optimizers and of loaders that are listed


def sentences(name, inspection):
    """Yield at most 30 lines on the Inspection of a script."""
    # Models, optimizers and loaders.
    row = inspection.row
    own_script = inspection.record["own_script"]
    yield f"{name} on {row['device']}"

    texts_by_kind = {
        "model": [f"{model}, called at {place}" for model, place in own_script["models"]],
        "optimizer": [f"{kind}, made at {place}" for kind, place in own_script["optimizers"]],
        "loader": [
            f"made at {place}, {plural(workers, 'worker')}" for place, workers in inspection.loaders
        ],
    }
    for kind, texts in texts_by_kind.items():
        texts = list(dict.fromkeys(texts))
        shown = texts[:MOST]
        if len(texts) > MOST:
            shown[-1] += f", and {len(texts) - MOST} more"
        yield from (f"  {kind:10} {text}" for text in shown)

    # A step and its loss.
    batch = f"{row['batch_size']} {row['unit']}" if row["unit"] != "steps" else "no DataLoader"
    flop = f", {inspection.flop / 1e9:.3g} GFLOP" if inspection.flop else ""
    yield f"  a step     {batch}{flop}"
    losses = own_script["losses_per_step"]
    loss = f"the sum of {plural(losses, 'backward')} a step" if losses else "none"
    yield f"  the loss   {loss}"

    # Switches, and why some are refused.
    refusals = {switch: inspection.switches[switch].refusal for switch in ORDER}
    tried = ", ".join(switch for switch, reason in refusals.items() if not reason)
    yield from textwrap.wrap(f"switches     {tried}", WIDTH, subsequent_indent=" " * 13)
    for switch, reason in refusals.items():
        if reason:
            yield f"  not {switch}: {reason}"

    yield from waits(inspection)
    yield from inspection.failures


def waits(inspection):
    """Yield lines that name where the script waits for the GPU."""
    if inspection.device == "cpu":
        yield "waits        on a CPU, copies to the host cannot be seen; other waits:"
    else:
        yield "waits        for the GPU:"
    for operator, place, times in sorted(inspection.waits, key=lambda wait: -wait[2])[:5]:
        yield f"  {place}: {NAMES.get(operator, operator)}, {plural(times, 'time')} a step"
    if not inspection.waits:
        yield "  none"
