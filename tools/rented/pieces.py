"""Pieces of a plan, in the order of their worth, and how long each takes.

A piece is one round of one group of scripts, or a profile: a command in a process of its own.
"""

import math
from dataclasses import dataclass
from statistics import median

from Utils.scripts import variants

START_S = 30.0  # of a process, before one was measured
COMPILE_S = 60.0  # the first step of a compiled script, likewise
STEP_S = 1.0  # of a script with neither a forecast nor a measurement
FAST_SHAPES = ((16, 1024), (64, 1024))
FASTEST = ("all_together", "all_together_float8")
SMALLER = 4  # divides the batch when the ladder is measured at another one
# Techniques with a published gain over a line like fused_optimizer, by how much.
PUBLISHED_GAINS = {
    "int8_linear": 0.71,  # 17K -> 29K tokens/s, Llama 1B, RTX 4090: torchao's quantized_training
    "flash_attention_4": 0.09,  # its version 3, T=2048, H100: nanochat dev/LOG.md 2026-01-11
    "bfloat16_residual": 0.07,  # 154.8 -> 144.7 ms, 8 H100: modded-nanogpt 2024-11-06 and 11-08
    "float8_head": 0.035,  # with fused quantization, H100: modded-nanogpt 2026-01-24
    "inductor_tuning": 0.017,  # 8 H100: modded-nanogpt's notes
    "fused_cross_entropy": 0.01,  # 8 H100: modded-nanogpt, record 75
    "prefetching_loader": 0.01,  # 8 H100: modded-nanogpt
    "master_weights": 0.008,  # 8 H100: modded-nanogpt, record 57
}


@dataclass(frozen=True)
class Piece:
    """A command that measures something.

    title: pieces of the same title differ in their round, which is None for a profile.
    command: a module, with words after it.
    scripts: names of those that it starts.
    """

    title: str
    command: tuple[str, ...]
    scripts: tuple[str, ...]
    batch_size: int
    seq_len: int
    round: int | None = None

    @property
    def name(self) -> str:
        return self.title if self.round is None else f"{self.title}, round {self.round}"

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

    def add(title, command, scripts, shape, rounds=(0, 1)):
        for r in rounds:
            ordered.append(Piece(title, command, tuple(scripts), *shape, r))

    # The ladder, and the fastest scripts.
    shape = batch_size, seq_len
    last = ladder.last_rung()
    rungs = [script.name for script in ladder.group("ladder")]
    fastest = [name for name in FASTEST if not ladder.get(name).misfit]
    suite = "Utils.commands", "suite"
    add("ladder", (*suite, "ladder"), rungs, shape, range(4))
    for batch, tokens in FAST_SHAPES:
        fast_shape = batch, min(tokens, longest)
        title = f"{last} and the fastest at {batch}x{fast_shape[1]}"
        add(title, (*suite, last, *fastest), [last, *fastest], fast_shape)

    add("peers", ("tools.peers",), loops, shape)

    def add_pairs(scripts):
        """Add pieces in which each script takes turns with its parent."""
        for script in scripts:
            both = script.parent, script.name
            add(" and ".join(both), (*suite, *both), both, shape)

    # Single techniques with a published gain, then those of the ladder, as `make ablate` does.
    measured = {*fastest, *rungs}
    single = [
        script
        for script in ladder
        if script.name not in measured
        and last in ladder.lineage(script.name)
        and script.path.parent.name != "distributed"
        and not script.misfit
    ]
    gains = [script for script in single if script.name in PUBLISHED_GAINS]
    add_pairs(sorted(gains, key=lambda script: -PUBLISHED_GAINS[script.name]))
    add_pairs(x for x in variants.ablation(last, ladder) if x.suite == "ablation")

    # Where the time goes, the ladder again, and all other techniques.
    ordered.append(Piece("profile", ("tools.profile", f"T={last}"), (last,), *shape))
    smaller = max(1, batch_size // SMALLER), seq_len
    if smaller != shape:
        add(f"ladder at {smaller[0]}x{seq_len}", (*suite, "ladder"), rungs, smaller)
    add_pairs(script for script in single if script.name not in PUBLISHED_GAINS)
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
        self.reasons = {}  # by script and shape
        self.steps_s = {}  # likewise
        for forecast in forecasts:
            key = forecast["script"], tuple(forecast["shape"])
            self.reasons[key] = forecast["reason"]
            if forecast["seconds"]:
                self.steps_s[key] = forecast["seconds"][0]
        self.starts_s = []
        self.first_steps_s = {}  # by script

    def add(self, ended):
        """Learn from a piece that has ended, a dict of `measured`."""
        if ended["first_steps_s"]:
            self.starts_s.append(ended["start_s"])
        self.first_steps_s |= ended["first_steps_s"]
        for name, seconds in ended["steps_s"].items():
            self.steps_s[name, tuple(ended["shape"])] = seconds

    def seconds(self, piece):
        """Return the expected seconds of a piece."""
        total = median(self.starts_s or [START_S]) * len(piece.scripts)
        for name in piece.scripts:
            key = name, piece.shape
            if self.reasons.get(key):
                continue
            # A variant of an ablation is taken as the slowest rung.
            step_s = self.steps_s.get(key) or max(self.steps_s.values(), default=STEP_S)
            total += max(math.ceil(self.min_seconds / step_s), self.steps) * step_s
            total += self._first_step_s(name)
        return total

    def refusal(self, piece):
        """Return the reason why a piece is not run, or "".

        It is that of its first script, which the others are compared with, or of all others.
        """
        first, *others = [self.reasons.get((name, piece.shape), "") for name in piece.scripts]
        return first or (others[0] if others and all(others) else "")

    def _first_step_s(self, name):
        """Return the seconds of a compiled script's first step, by others if it has not run."""
        if not self._compiles(name):
            return 0.0
        compiled = [s for script, s in self.first_steps_s.items() if self._compiles(script)]
        return self.first_steps_s.get(name) or median(compiled or [COMPILE_S])

    def _compiles(self, name):
        """Return whether a script is compiled. Other people's loops are."""
        return name not in self.ladder.scripts or "compile" in self.ladder.get(name).needs


def measured(piece, rows, seconds):
    """Return what a piece shows of starts, first steps and steps, in seconds.

    rows: those that it has appended, dicts of texts. seconds: that it took.
    """
    runs = {}
    for row in rows:
        if row["status"] == "ok":
            runs.setdefault(row["technique"], []).append(row)

    in_steps_s = sum(float(row["step_ms"]) for steps in runs.values() for row in steps) / 1e3
    timed_ms = {
        name: median(float(row["step_ms"]) for row in steps if row["phase"] == "timed")
        for name, steps in runs.items()
    }
    return {
        "shape": piece.shape,
        "start_s": max(0.0, seconds - in_steps_s) / max(1, len(runs)),
        "first_steps_s": {name: float(steps[0]["first_step_s"]) for name, steps in runs.items()},
        "steps_s": {name: ms / 1e3 for name, ms in timed_ms.items()},
    }
