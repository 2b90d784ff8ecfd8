"""Names of runs of a user's own script: `train+tensorFloat32+brainFloat16` is train.py with two
switches, in the order in which they are thrown. All that is to be known follows from the name."""

from functools import cache

from Utils.scripts import ladder

LADDER = ("tensorFloat32", "brainFloat16", "float16", "torch_compile", "flash_attention")
LADDER += ("fused_optimizer", "8bit_optimizer")
MORE = ("cuda_graphs", "gradient_checkpointing", "prefetching_loader", "channels_last")
MORE += ("cudnn_benchmark",)
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


@cache
def our_scripts():
    return {ladder.BASELINE, *ladder.techniques()}


def split(name):
    """Return (script, techniques) of the name of an own script; None of one of ours."""
    script, *techniques = name.split("+")
    return None if script.partition("-")[0] in our_scripts() else (script, techniques)


def switches(name):
    """Return the techniques that were thrown on an own script; none on one of ours."""
    return split(name)[1] if split(name) else []


def last(name):
    """Return the technique that was thrown last on an own script; any other name as it is."""
    return (switches(name) or [name])[-1]


def parent(name, measured=()):
    """Return the name of the script before one with switches; None of a script alone, or of ours.
    A switch of MORE that takes the place of another was thrown on the row with it, if measured."""
    if not switches(name):
        return None
    script, (*before, last) = split(name)
    replaced = REPLACES.get(last, set()) if last in MORE else set()
    with_replaced = name_of(script, {*before, *replaced})
    return with_replaced if with_replaced in measured else name_of(script, before)


def labels(names):
    """Return short names for a table or chart with all of these: `+technique` for the scripts of an
    own script's ladder, from the second technique on."""
    names = list(names)
    in_ladder = [name.count("+") > 1 and parent(name, names) in names for name in names]
    short = [f"+{last(n)}" if shown else n for n, shown in zip(names, in_ladder, strict=True)]
    return [s if short.count(s) == 1 else name for s, name in zip(short, names, strict=True)]


def ordered(names):
    """Return names with those of own scripts in the order of their switches, after all others."""

    def position(name):
        script, techniques = split(name) or ("", [])
        return script, [ORDER.index(technique) for technique in techniques[-1:]], len(techniques)

    return sorted(names, key=position)


def is_variant(name, timed_names):
    """Return whether a script with switches is no part of its ladder, but of an ablation."""
    if not switches(name):
        return False
    *before, last = switches(name)
    took_effect = {technique for name in timed_names for technique in switches(name)[-1:]}
    earlier = LADDER[: LADDER.index(last)] if last in LADDER else LADDER
    replaced = {"8bit_optimizer", *REPLACES.get(last, ())}
    return before != [t for t in earlier if t in took_effect and t not in replaced]
