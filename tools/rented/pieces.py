"""Pieces of a plan, the most useful first, and how long each takes.

A piece is one round of one group of scripts, or a profile: a command in a process of its own.
"""

import math
from dataclasses import dataclass
from statistics import median

from Utils.scripts import variants

START_S = 30.0  # of a process, before one was measured
COMPILE_S = 60.0  # the first step of a compiled script, likewise
STEP_S = 1.0  # of a script without a forecast, if none has one
FAST_SHAPES = ((16, 1024), (64, 1024))
FASTEST = ("all_together", "all_together_float8")
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


class Costs:
    """Seconds of pieces, by forecasts and by what those that have ended took.

    ladder: as for `in_order`.
    steps: least number of steps of a run. min_seconds: least time of its steps.
    forecasts: of `expected_steps.forecasts`.
    """

    def __init__(self, ladder, steps, min_seconds, forecasts):
        self.ladder = ladder
        self.steps = steps
        self.min_seconds = min_seconds
        self.forecasts = {(f["script"], *f["shape"]): f for f in forecasts}
        self.starts_s = []
        self.compilations_s = []

    def add(self, ended):
        """Learn from a piece that has ended, a dict of `measured`."""
        self.starts_s += ended["starts_s"]
        self.compilations_s += ended["compilations_s"]

    def seconds(self, piece):
        """Return the expected seconds of a piece."""
        start_s = median(self.starts_s or [START_S])
        compile_s = median(self.compilations_s or [COMPILE_S])
        # A script without a forecast is taken as the slowest with one.
        known_s = [f["seconds"][0] for f in self.forecasts.values() if f["seconds"]]
        slowest_s = max(known_s, default=STEP_S)

        total = 0.0
        for name in piece.scripts:
            forecast = self.forecasts.get((name, *piece.shape), {})
            step_s = (forecast.get("seconds") or [slowest_s])[0]
            total += start_s + max(math.ceil(self.min_seconds / step_s), self.steps) * step_s
            total += compile_s if compiles(name, self.ladder) else 0
        return total

    def refusal(self, piece):
        """Return the reason why the first script of a piece, its base, does not run, or ""."""
        return self.forecasts.get((piece.scripts[0], *piece.shape), {}).get("reason", "")


def compiles(name, ladder):
    """Return whether a script is compiled. Other people's loops are."""
    return name not in ladder.scripts or "compile" in ladder.get(name).needs


def measured(rows, seconds, ladder):
    """Return what a piece shows of starts and compilations, lists of seconds.

    rows: those that it has appended, dicts of texts. seconds: that it took.
    """
    runs = {row["run_id"]: row for row in rows if row["status"] == "ok"}
    in_steps_s = sum(float(row["step_ms"]) for row in rows if row["step_ms"]) / 1e3
    start_s = (seconds - in_steps_s) / max(1, len(runs))
    return {
        "starts_s": [max(0.0, start_s)] * len(runs),
        "compilations_s": [
            float(run["first_step_s"])
            for run in runs.values()
            if compiles(run["technique"], ladder)
        ],
    }
