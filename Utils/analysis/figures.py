"""Figures of a script, from which all tables, charts and pages are."""

import math
from dataclasses import dataclass

from Utils.analysis.intervals import LossDifference, Ratio
from Utils.analysis.record_figures import RecordFigures


@dataclass(frozen=True, eq=False)
class ScriptFigures:
    """Figures of a script's runs, alone and beside its base and its parent.

    Unknown numbers are NaN, unknown texts empty, unknown Ratios and LossDifferences false. The
    verdicts of a column are corrected by Holm.
    """

    # The script.
    name: str
    label: str  # "+technique" on a user's script
    parent: str  # "" for a base
    branches_from: str  # the parent's label, if it is not the line above
    base: str  # the script that `speedup` is over
    techniques: frozenset[str]
    in_table: bool  # otherwise only an ablation has it
    unit: str  # of batches; names say tokens for any unit

    # The outcome of its runs.
    status: str  # "ok" if any round has timings
    rounds: int  # with timings
    notes: tuple[str, ...]
    quality: str  # undisturbed, or in how many rounds it was disturbed, and why
    recorded: RecordFigures
    problem: str = ""  # why it cannot be recommended

    # Times. Those of a step are for the requested batch.
    step_ms: float = math.nan  # mean of the rounds' medians
    p20_ms: float = math.nan  # percentiles of the runs' steps, as step_ms is their median
    p80_ms: float = math.nan
    tokens_per_second: float = math.nan  # by the mean step
    first_step_s: float = math.nan
    own_batch: float = math.nan  # the batch_size of a technique that chose its batch
    peak_memory_mib: float = math.nan

    # Ratios.
    speedup: Ratio = Ratio()
    parent_speedup: Ratio = Ratio()
    break_even_steps: float = math.nan  # over the parent, inf for never

    # Losses, in nats a token: on held-out text, or the mean of the last timed steps.
    loss: float = math.nan
    loss_difference: LossDifference = LossDifference()
    # exact, numerics changed, model changed, other batches, other steps, another optimizer
    parity: str = ""

    @property
    def is_timed(self) -> bool:
        return not math.isnan(self.step_ms)

    @property
    def reason(self) -> str:
        """Why there is no timing, or ""."""
        if self.status == "ok":
            return ""
        return ": ".join([self.status.replace("_", " "), *self.notes])

    @property
    def tflops(self) -> float:
        return self.recorded.flops_per_token * self.tokens_per_second / 1e12

    @property
    def ceiling_share(self) -> float:
        """The share of the measured ceiling that it reaches."""
        return self.tflops / self.recorded.ceiling_tflops

    @property
    def mfu(self) -> float:
        """The share of the datasheet's peak that it reaches."""
        return self.tflops / self.recorded.datasheet_tflops

    @property
    def floor_speedup(self) -> float:
        """The headroom to the model's floor."""
        return self.step_ms / self.recorded.floor_ms

    @property
    def hours_per_billion(self) -> float:
        """Hours for 10^9 tokens."""
        return 1e9 / self.tokens_per_second / 3600

    @property
    def kwh_per_billion(self) -> float:
        """Energy of 10^9 tokens."""
        return self.recorded.mean_power_w / 1e3 * self.hours_per_billion
