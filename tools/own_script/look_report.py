"""The lines that `make adopt` prints about a user's script."""

import textwrap

from tools.own_script.switch_names import ORDER
from Utils.base.text import plural

WIDTH = 100
NAMES = {"_local_scalar_dense": ".item()", "item": ".item()"}  # what a person writes
MOST = 2  # number of models, of optimizers and of loaders that are listed


def sentences(runs):
    """Yield at most 30 lines. runs: OwnRuns after the first run."""
    # Models, optimizers and loaders.
    look = runs.look
    row = look["row"]
    own_script = look["record"]["own_script"]
    yield f"{runs.base.name} on {row['device']}"

    texts_by_kind = {
        "model": [f"{name}, called at {site}" for name, site in own_script["models"]],
        "optimizer": [f"{name}, made at {site}" for name, site in own_script["optimizers"]],
        "loader": [
            f"made at {loader['site']}, {plural(loader['workers'], 'worker')}"
            for loader in look["loaders"]
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
    flop = f", {look['flop'] / 1e9:.3g} GFLOP" if look["flop"] else ""
    yield f"  a step     {batch}{flop}"
    losses = own_script["losses_per_step"]
    loss = f"the sum of {plural(losses, 'backward')} a step" if losses else "none"
    yield f"  the loss   {loss}"

    # Switches, and why some are refused.
    refusals = {name: look["switches"][name]["refusal"] for name in ORDER}
    tried = ", ".join(name for name, reason in refusals.items() if not reason)
    yield from textwrap.wrap(f"switches     {tried}", WIDTH, subsequent_indent=" " * 13)
    for name, reason in refusals.items():
        if reason:
            yield f"  not {name}: {reason}"

    yield from waits(look)
    yield from look["failures"]


def waits(look):
    """Yield lines that name where the script waits for the GPU."""
    if look["device"] == "cpu":
        yield "waits        on a CPU, copies to the host cannot be seen; other waits:"
    else:
        yield "waits        for the GPU:"
    for operator, site, times in sorted(look["waits"], key=lambda wait: -wait[2])[:5]:
        yield f"  {site}: {NAMES.get(operator, operator)}, {plural(times, 'time')} a step"
    if not look["waits"]:
        yield "  none"
