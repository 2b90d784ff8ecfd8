"""Figures of a script, which all tables, charts and pages show."""

from dataclasses import dataclass
from math import isnan, nan

from Utils.analysis.intervals import LossDifference, Ratio
from Utils.analysis.record_figures import Limits, Medians

# Verdicts on the training of a user's script with a change; others are that it is the same.
OTHER = "other"
NEITHER = "neither trained"
NOT_TOLD = "not told"


@dataclass(frozen=True, eq=False)
class ScriptFigures:
    """Figures of a script's runs, alone and beside its base and its parent.

    Unknown numbers are NaN, unknown texts empty, unknown Ratios and LossDifferences false. The
    intervals of a table's ratios hold together, and so do those of its losses.
    """

    # The script.
    name: str
    parent: str  # "" for a base
    base: str  # the script that `speedup` is over
    techniques: frozenset[str]
    in_table: bool  # otherwise only an ablation has it
    unit: str  # what a batch holds; names say tokens for any unit

    # The outcome of its runs.
    status: str  # "ok" if any round has timings
    rounds: int  # with timings
    failure: str  # the first round that failed, "out of memory in round 2"
    quality: str  # undisturbed, or in how many rounds it was disturbed, and why
    notes: tuple[str, ...]

    # Times. Those of a step are for the requested batch.
    step_ms: float  # mean of the rounds' medians
    p20_ms: float  # percentiles of the runs' steps, as step_ms is their median
    p80_ms: float
    tokens_per_second: float  # by the mean step
    first_step_s: float
    own_batch: float  # the batch_size of a technique that chose its batch
    peak_memory_mib: float

    # From records.
    recorded: Medians
    compiled: str  # "1 graph, cold cache"
    limits: Limits

    # Ratios.
    speedup: Ratio
    parent_speedup: Ratio

    # Losses, in nats a token: on held-out text, or the mean of the last timed steps.
    loss: float
    loss_difference: LossDifference
    # exact, numerics changed, model changed, other batches, other steps, another optimizer
    parity: str
    training: dict  # kind, reasons and steps of the verdict on its training; {} without one

    # What is known after all scripts.
    label: str = ""  # "+technique" on a user's script
    branches_from: str = ""  # the parent's label, if it is not the line above
    break_even_steps: float = nan  # over the parent, inf for never
    problem: str = ""  # why it cannot be recommended

    @property
    def is_timed(self) -> bool:
        return not isnan(self.step_ms)

    @property
    def training_problem(self) -> str:
        """Why it trains something else than its base, or worse, or not at all; otherwise ""."""
        if self.training.get("kind") in (OTHER, NEITHER):
            return ": ".join([self.training["kind"], *self.training["reasons"]])
        if self.parity in ("model changed", "another optimizer"):
            return self.parity
        if self.loss_difference.verdict in ("worse", "diverged"):
            return f"its loss: {self.loss_difference.text_with_verdict}"
        return ""

    @property
    def reason(self) -> str:
        """Why there is no timing, or ""."""
        if self.status == "ok":
            return ""
        return ": ".join([self.status.replace("_", " "), *self.notes])

    @property
    def hours_per_billion(self) -> float:
        """Hours for 10^9 tokens."""
        return 1e9 / self.tokens_per_second / 3600

    @property
    def kwh_per_billion(self) -> float:
        """Energy of 10^9 tokens."""
        return self.recorded.mean_power_w / 1e3 * self.hours_per_billion
