"""Figures that others have published, and of results/, as steps of a model whose code is known.

docs/published.csv holds them with their sources. Four of its columns decide what the forecast is
held against: device_key (of the table of datasheets), unsaid (what a source leaves out about its
device), step (fields of Step, in TOML) and left_out (why a row does not count, else empty).
"""

import re
import tomllib
from dataclasses import dataclass

import pandas as pd

from tools.forecast import step_time
from Utils.base import paths

PUBLISHED = paths.ROOT / "docs" / "published.csv"
WORTH = 1.05  # a ratio of two rungs beyond which its direction counts


@dataclass(frozen=True)
class Step:
    """A training step of others.

    model: gpt, bert or translation. precision: float32, tf32, bfloat16 or float16 for autocast,
    pure_bfloat16 for weights too. attention: see `other_models.OtherBlock.mix`. optimizer: "none"
    for forward and backward alone. evaluations: forward passes besides, a step. microbatches: of
    this batch, before the optimizer's step.
    """

    batch: int
    tokens: int
    model: str = "gpt"
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50_257
    precision: str = "float32"
    attention: str = "explicit"
    tied: bool = True
    separate: bool = False  # queries, keys and values are products of their own
    bias: bool = True  # of queries, keys and values
    composed: bool = False  # LayerNorm written out
    gelu: str = "tanh"  # exact, composed or relu
    dropout: float = 0.0
    attention_dropout: float = 0.0
    compile: bool = False
    loss_apart: bool = False  # and so not compiled
    optimizer: str = "foreach"
    clip: bool = False
    evaluations: float = 0.0
    microbatches: int = 1
    reads_loss: bool = False  # each step, so that the host waits for the device


@dataclass(frozen=True)
class Figure:
    """A published time of a step. seconds: of one step. key: of the device in the table."""

    source: str
    key: str
    model: str
    technique: str
    step: Step
    seconds: float
    unsaid: str


def figures():
    """Return the Figures that a forecast is checked against, each step of a source once."""
    table = pd.read_csv(PUBLISHED, dtype=str, keep_default_na=False)
    table = table[table.left_out == ""]
    same = ["source", "url", "device_key", "technique", "model", "step", "batch_size"]
    return [
        figure(row, row.device_key, row.step) for row in table.drop_duplicates(same).itertuples()
    ]


def figure(row, key, described):
    """Return the Figure of a row. key: of its device. described: fields of its Step, in TOML."""
    fields = tomllib.loads(f"step = {{{described}}}")["step"]
    tokens = int(re.match(r"\d+", row.seq_len)[0])
    step = Step(int(row.batch_size), tokens, **fields)
    value = float(row.value)
    seconds = {
        "ms": value / 1e3,
        "s": value,
        "tokens/s": step.microbatches * step.batch * tokens / value,
    }
    named = row.source, key, row.model, row.technique
    return Figure(*named, step, seconds[row.unit], row.unsaid)


def ratios(table):
    """Return the published and the forecast ratio of each script to the next of its ladder.

    table: from `step_time.check_rows`.
    """
    ladders = table.groupby(step_time.LADDER, sort=False)
    columns = ["measured_ms", "forecast_ms"]
    pairs = (table[columns] / ladders[columns].shift(-1)).dropna()
    return pairs.rename(columns={"measured_ms": "published", "forecast_ms": "forecast"})


def rung_summary(table):
    """Return how well the ratios of rungs are forecast, in words."""
    pairs = ratios(table)
    pairs = pairs[pairs.published > WORTH]
    error = (pairs.forecast / pairs.published - 1).abs().median()
    return (
        f"rung to rung, where the published ratio is above {WORTH}: direction right in "
        f"{(pairs.forecast > 1).sum()} of {len(pairs)}, median error of the ratio {error:.1%}"
    )
