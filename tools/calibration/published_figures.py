"""Figures from docs/published.csv, published by others or measured by us, as steps of a model.

Four columns decide what a forecast is compared with: device_key (of the table of datasheets),
unsaid (what a source leaves out about its device), step (fields of Step, in TOML) and left_out (why
a row does not count, else empty).
"""

import re
import tomllib
from dataclasses import dataclass

import pandas as pd

from Utils.base import paths

PUBLISHED = paths.ROOT / "docs" / "published.csv"
# A text that names torch 2.5 or older, by its version or by the year
OLD_TORCH = re.compile(r"[01]\.|2\.[0-5]\b|.*\b20(1\d|2[0-4])\b")


@dataclass(frozen=True)
class Step:
    """A training step of another project, with all that decides its kernels."""

    batch: int
    tokens: int
    model: str = "gpt"  # or bert, translation
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50_257
    precision: str = "float32"  # or tf32; bfloat16, float16: autocast; pure_bfloat16: weights too
    attention: str = "explicit"  # or another kind of `other_models.OtherBlock.mix`
    tied: bool = True
    separate: bool = False  # queries, keys and values are three products
    bias: bool = True  # in the products of queries, keys and values
    composed: bool = False  # LayerNorm written out
    gelu: str = "tanh"  # or exact, composed, relu
    dropout: float = 0.0
    attention_dropout: float = 0.0
    compile: bool = False
    loss_apart: bool = False  # the loss is not compiled
    optimizer: str = "foreach"  # or fused, 8bit; none: forward and backward alone
    clip: bool = False
    evaluations: float = 0.0  # more forward passes a step
    microbatches: int = 1  # batches before the optimizer's step
    reads_loss: bool = False  # each step, so that the host waits for the device


@dataclass(frozen=True)
class Figure:
    """A published time of a step."""

    source: str
    key: str  # the device's, in the table of datasheets
    model: str
    technique: str
    torch: str
    step: Step
    seconds: float  # a step
    unsaid: str

    @property
    def is_forecast(self):
        """Whether the step is compared with a forecast, and not only used by the fit."""
        return not OLD_TORCH.match(self.torch)

    @property
    def precision(self):
        return self.step.precision.removeprefix("pure_")


def figures():
    """Return the Figures that count, each step of a source once."""
    table = pd.read_csv(PUBLISHED, dtype=str, keep_default_na=False)
    table = table[table.left_out == ""]
    same = ["source", "url", "device_key", "technique", "model", "step", "batch_size"]
    return [
        figure(row, row.device_key, step_fields(row.step))
        for row in table.drop_duplicates(same).itertuples()
    ]


def step_fields(text):
    """Return the fields of a Step, which a row has in TOML, by name. Raises ValueError."""
    return tomllib.loads(f"step = {{{text}}}")["step"]


def figure(row, key, fields):
    """Return the Figure of a row. key: the device's. fields: those of its Step, by name."""
    tokens = int(re.match(r"\d+", row.seq_len)[0])
    step = Step(int(row.batch_size), tokens, **fields)

    value = float(row.value)
    seconds = {
        "ms": value / 1e3,
        "s": value,
        "tokens/s": step.microbatches * step.batch * tokens / value,
    }
    return Figure(
        row.source,
        key,
        row.model,
        row.technique,
        row.torch,
        step,
        seconds[row.unit],
        row.unsaid,
    )
