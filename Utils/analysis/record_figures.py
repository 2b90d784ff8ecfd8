"""Figures of a script that come from the records of its runs."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import plural

PARTS = ("memory", "compile", "quality")  # parts of a record
MEDIANS = [  # fields of RecordFigures that are medians of the records
    "weights_mib",
    "gradients_mib",
    "optimizer_state_mib",
    "rest_mib",
    "reserved_mib",
    "mean_power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "is_power_capped",
]
POWER_CAP = "sw power cap"  # in throttle_reasons


@dataclass(frozen=True)
class RecordFigures:
    """Figures from the records of a script's runs. Unknown numbers are NaN, unknown texts empty."""

    # Peak memory by kind, and what the allocator reserved.
    weights_mib: float = math.nan
    gradients_mib: float = math.nan
    optimizer_state_mib: float = math.nan
    rest_mib: float = math.nan
    reserved_mib: float = math.nan

    # Power, and the clock at the end of a run.
    mean_power_w: float = math.nan
    power_limit_w: float = math.nan
    sm_clock_mhz: float = math.nan
    is_power_capped: float = math.nan  # at the end, 0 or 1

    # Compilation in words, "1 graph, cold cache".
    compiled: str = ""

    # What rates and times are compared with.
    precision: str = ""  # type of matrix products
    flops_per_token: float = math.nan
    ceiling_tflops: float = math.nan  # measured
    datasheet_tflops: float = math.nan
    floor_ms: float = math.nan  # modelled, of a step of the requested batch


def from_records(records: list[dict], model: str, scale: float) -> RecordFigures:
    """Return the figures from records of runs.

    scale: factor from a step to one of the requested batch.
    """
    recorded = []
    for record in records:
        memory, compiled, quality = (record.get(part) or {} for part in PARTS)
        is_capped = POWER_CAP in (quality.get("throttle_reasons") or [])
        recorded.append(memory | compiled | quality | {"is_power_capped": is_capped})
    values = pd.DataFrame(recorded, columns=[*MEDIANS, "graphs", "recompilations", "cache"])
    medians = values.drop(columns="cache").astype(float).median()

    figures = RecordFigures(**medians[MEDIANS], compiled=_compiled(medians, values["cache"]))

    limits = records[-1].get("limits") if records else None
    if not limits:
        return figures
    ceilings = (limits["ceilings"] or {}).get("matmul_tflops", {})
    floor_ms = math.nan
    if not _has_another_size(medians, model):
        floor_ms = scale * (limits.get("floor_ms") or math.nan)
    return replace(
        figures,
        precision=limits["precision"],
        flops_per_token=limits["flops_per_token"] or math.nan,
        ceiling_tflops=ceilings.get(limits["precision"]) or math.nan,
        datasheet_tflops=limits["datasheet_tflops"] or math.nan,
        floor_ms=floor_ms,
    )


def _compiled(medians, caches):
    """Return what was compiled in words, "" for nothing."""
    if np.isnan(medians.graphs):
        return ""
    text = plural(round(medians.graphs), "graph")
    names = caches.dropna().unique()
    if len(names):
        text += f", {' or '.join(sorted(names))} cache"
    if medians.recompilations:
        text += f"; {medians.recompilations:.0f} recompiled"
    return text


def _has_another_size(medians, model):
    """Return whether weights and state are not those of AdamW in float32, for which the floor is.

    False if their size is unknown.
    """
    if model not in CONFIGS:
        return False
    size_mib = medians.weights_mib + medians.optimizer_state_mib
    modelled_mib = 12 * CONFIGS[model].parameters() / 2**20
    return abs(size_mib / modelled_mib - 1) > 0.01
