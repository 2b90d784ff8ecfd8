"""Pieces of a plan, the most useful first: commands with their minutes."""

from dataclasses import dataclass
from pathlib import Path

FAST_BATCHES = (16, 64)
FASTEST = ("all_together", "all_together_float8")
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

    command: a module, with words after it.
    minutes: the time that it takes at most.
    scripts: names of those that a suite runs in every round.
    rounds: number of rounds of each script, after which it has ended.
    file: the file that it writes in place of rows, None for a suite.
    """

    title: str
    command: tuple[str, ...]
    minutes: float
    batch_size: int
    seq_len: int
    scripts: tuple[str, ...] = ()
    rounds: int = 1
    file: Path | None = None

    def rounds_done(self, runs):
        """Return the number of rounds that all its scripts have; 1 if its file is there.

        runs: a row of each run of this device, version and commit, a DataFrame.
        """
        if self.file:
            return int(self.file.exists())

        has_shape = (runs.requested_batch_size == self.batch_size) & (runs.seq_len == self.seq_len)
        is_of_peers = self.command[0] == "tools.peers"
        runs = runs[has_shape & ((runs.suite == "peers") == is_of_peers)]
        rounds = runs.groupby("technique")["round"].nunique()
        for name in runs.technique[runs.status == "unsupported"]:
            rounds[name] = self.rounds
        return min(rounds.get(name, 0) for name in self.scripts)


def in_order(ladder, device, loops, folder) -> list[Piece]:
    """Return the pieces for a device, those that matter most first.

    ladder: the repository's, in the precision of the device.
    device: a RentedDevice.
    loops: names of what `make peers` runs.
    folder: that of the results file.
    """
    shape = device.shape
    last = ladder.last_rung()
    rungs = [*ladder.group("ladder").scripts]
    fastest = [last] + [name for name in FASTEST if not ladder.get(name).misfit]

    def suite(title, names, shape=shape, rounds=2, module=()):
        """Return a suite whose scripts have a minute each, and half a minute for what is common."""
        command = module or ("Utils.commands", "suite", *names)
        return Piece(title, command, len(names) + 0.5, *shape, tuple(names), rounds)

    def pairs(scripts):
        """Return suites in which each script takes turns with its parent."""
        return [suite(f"{s.parent} and {s.name}", (s.parent, s.name)) for s in scripts]

    # Single techniques: those with a published gain, and others.
    single = {
        script.name: script
        for script in ladder
        if script.name not in {*rungs, *fastest}
        and last in ladder.lineage(script.name)
        and script.path.parent.name != "distributed"
        and not script.misfit
    }
    published = [single.pop(name) for name in PUBLISHED_GAINS if name in single]

    # The fastest scripts at two batches.
    _, T = shape
    fast = [suite(f"{last} and the fastest at {B}x{T}", fastest, (B, T)) for B in FAST_BATCHES]

    profile_file = folder / f"profiles/{last}.json"
    return [
        suite("ladder", rungs),
        suite("ladder, four rounds", rungs, rounds=4),
        *fast,
        suite("peers", loops, module=("tools.peers",)),
        *pairs(published),
        Piece("profile", ("tools.profile", f"T={last}"), 2, *shape, file=profile_file),
        *pairs(single.values()),
    ]
