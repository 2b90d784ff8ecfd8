"""Pieces of a plan, the most useful first, and what each shows of the time of runs.

A piece is one round of one group of scripts, or a profile: a command in a process of its own.
"""

from dataclasses import dataclass

from Utils.launch.round_plan import RoundPlan
from Utils.scripts import variants

FAST_SHAPES = ((16, 1024), (64, 1024))
FASTEST = ("all_together", "all_together_float8")
RUN = {"script": str, "start_s": float, "first_step_s": float, "step_s": float}
SMALLER = 4  # divides the batch when the ladder is measured at another one
# Techniques with a published gain over a line like fused_optimizer, the largest first.
PUBLISHED_GAINS = (
    "int8_linear",  # 17K -> 29K tokens/s, Llama 1B, RTX 4090: torchao's quantized_training
    "flash_attention_4",  # 9% by version 3, T=2048, H100: nanochat dev/LOG.md 2026-01-11
    "bfloat16_residual",  # 154.8 -> 144.7 ms, 8 H100: modded-nanogpt 2024-11-06 and 2024-11-08
    "inductor_tuning",  # 1.7%, 8 H100: modded-nanogpt's notes
    "float8_head",  # 1%, H100: nanochat dev/LOG.md 2026-01-13
    "fused_cross_entropy",  # 1%, 8 H100: modded-nanogpt, record 75
    "prefetching_loader",  # 1%, 8 H100: modded-nanogpt
    "master_weights",  # 0.8%, 8 H100: modded-nanogpt, record 57
)


@dataclass(frozen=True)
class Piece:
    """A command that measures something.

    title: pieces of the same title differ in their round.
    command: a module, with words after it.
    scripts: names of those that it starts.
    """

    title: str
    command: tuple[str, ...]
    scripts: tuple[str, ...]
    batch_size: int
    seq_len: int
    round: int = 0

    @property
    def name(self) -> str:
        return f"{self.title}, round {self.round}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.batch_size, self.seq_len


def in_order(ladder, batch_size, seq_len, longest, loops) -> list[Piece]:
    """Return the pieces for a device, those that matter most first.

    ladder: the repository's, in the precision of the device.
    batch_size, seq_len: the shape of the ladder there.
    longest: tokens a sequence may have.
    loops: names of what `make peers` runs.
    """
    ordered = []
    shape = batch_size, seq_len

    def add(title, scripts, command=(), shape=shape, rounds=2):
        """Add pieces of a command, by default the suite of the scripts."""
        command = command or ("Utils.commands", "suite", *scripts)
        ordered.extend(Piece(title, command, (*scripts,), *shape, r) for r in range(rounds))

    def add_pairs(scripts):
        """Add pieces in which each script takes turns with its parent."""
        for script in scripts:
            both = script.parent, script.name
            add(" and ".join(both), both)

    # What the device can do at most, the ladder, the fastest scripts, and other people's loops.
    add("ceilings", [ladder.base], ("Utils.commands", "ceilings"), rounds=1)
    last = ladder.last_rung()
    rungs = ladder.group("ladder").scripts
    add("ladder", rungs, rounds=4)
    fastest = [last, *(name for name in FASTEST if not ladder.get(name).misfit)]
    for batch, tokens in FAST_SHAPES:
        fast_shape = batch, min(tokens, longest)
        title = f"{last} and the fastest at {batch}x{fast_shape[1]}"
        add(title, fastest, shape=fast_shape)
    add("peers", loops, ("tools.peers",))

    # Single techniques with a published gain, then those of the ladder, as `make ablate` does.
    single = {
        script.name: script
        for script in ladder
        if script.name not in {*rungs, *fastest}
        and last in ladder.lineage(script.name)
        and script.path.parent.name != "distributed"
        and not script.misfit
    }
    add_pairs(single.pop(name) for name in PUBLISHED_GAINS if name in single)
    add_pairs(x for x in variants.ablation(last, ladder) if x.suite == "ablation")

    # Where the time goes, the ladder again, and all other techniques.
    add("profile", [last], ("tools.profile", f"T={last}"), rounds=1)
    smaller = max(1, batch_size // SMALLER), seq_len
    if smaller != shape:
        add(f"ladder at {smaller[0]}x{seq_len}", rungs, shape=smaller)
    add_pairs(single.values())
    return ordered


def runs(piece, ladder):
    """Return the names of the runs of a piece: a parent of many in the ladder runs again."""
    loops_and_variants = [name for name in piece.scripts if name not in ladder.scripts]
    return RoundPlan(ladder.part({*piece.scripts})).runs_left() + loops_and_variants


def measured(rows, seconds):
    """Return what a piece shows of the time of its runs, a dict of RUN for each.

    rows: those that it has appended, dicts of texts.
    seconds: that it took.
    """
    runs = {row["run_id"]: row for row in rows if row["status"] == "ok"}
    in_steps_s = sum(float(row["step_ms"]) for row in rows if row["step_ms"]) / 1e3
    return [
        {
            "script": row["technique"],
            "start_s": max(0.0, seconds - in_steps_s) / len(runs),
            "first_step_s": float(row["first_step_s"]),
            "step_s": float(row["step_ms"]) / 1e3,  # the last
        }
        for row in runs.values()
    ]
