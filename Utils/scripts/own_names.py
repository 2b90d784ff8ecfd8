"""Names of runs of a user's own script: `train+tensorFloat32+brainFloat16` is train.py with two
switches, in the order in which they are thrown.

All follows from the name, so rows of a script that is gone are understood.
"""

import re

from Utils.scripts import ladder
from Utils.scripts.ladder import BASELINE

LADDER = (
    "tensorFloat32",
    "brainFloat16",
    "float16",
    "torch_compile",
    "flash_attention",
    "fused_optimizer",
    "8bit_optimizer",
)
MORE = (
    "cuda_graphs",
    "gradient_checkpointing",
    "prefetching_loader",
    "channels_last",
    "cudnn_benchmark",
)
ORDER = LADDER + MORE
# Techniques that a switch takes the place of. The script before one of MORE has them.
REPLACES = {
    "float16": {"brainFloat16"},
    "8bit_optimizer": {"fused_optimizer"},
    "cuda_graphs": {"torch_compile"},
}


def name_of(base, techniques):
    """Return the name of a script with those techniques."""
    return "+".join([base, *sorted(techniques, key=ORDER.index)])


def split(name, scripts=None):
    """Return (script, techniques) of the name of an own script; None of one of ours.

    scripts: `ladder.techniques()`, to avoid reading them again.
    """
    base, *techniques = name.split("+")
    first = re.split("-", base)[0]
    if first == BASELINE or first in (scripts or ladder.techniques()):
        return None
    return base, techniques


def parent(name, measured=()):
    """Return the name of the script before one with switches; None of a script alone, or of ours.

    measured: names. A switch of MORE that takes the place of another was thrown on the row with
    that one, if it was measured.
    """
    parts = split(name)
    if not parts or not parts[1]:
        return None
    base, (*before, last) = parts
    replaced = REPLACES.get(last, set()) if last in MORE else set()
    with_replaced = name_of(base, {*before, *replaced})
    return with_replaced if with_replaced in measured else name_of(base, before)


def last(name):
    """Return the technique that was thrown last on an own script; any other name as it is."""
    parts = split(name)
    return parts[1][-1] if parts and parts[1] else name


def labels(names):
    """Return short names for a table or chart with all of these: `+technique` for the scripts of an
    own script's ladder, from the second technique on."""
    names = list(names)
    short = [
        f"+{last(name)}" if name.count("+") > 1 and parent(name, names) in names else name
        for name in names
    ]
    return [s if short.count(s) == 1 else name for s, name in zip(short, names, strict=True)]


def ordered(names):
    """Return names with those of own scripts in the order of their switches, after all others."""
    scripts = ladder.techniques()
    parts = {name: split(name, scripts) for name in names}

    def position(name):
        base, techniques = parts[name]
        return base, [ORDER.index(technique) for technique in techniques[-1:]], len(techniques)

    ours = [name for name in names if parts[name] is None]
    return ours + sorted((name for name in names if parts[name]), key=position)


def is_variant(name, timed):
    """Return whether a script with switches is no part of its ladder, but of an ablation.

    timed: names of scripts with timings.
    """
    parts = split(name)
    if not parts or not parts[1]:
        return False
    base, (*before, last) = parts
    took_effect = {technique for name in timed for technique in (split(name) or ("", []))[1][-1:]}
    earlier = LADDER[: LADDER.index(last)] if last in LADDER else LADDER[:-1]
    expected = [t for t in earlier if t in took_effect and t not in REPLACES.get(last, ())]
    return before != [t for t in expected if t != "8bit_optimizer"]
