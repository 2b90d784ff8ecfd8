"""Figures of a script that come from the records of its runs."""

from dataclasses import dataclass, fields
from math import nan

import numpy as np
import pandas as pd

from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import plural

PARTS = ("memory", "compile", "quality")  # parts of a record
POWER_CAP = "sw power cap"  # in throttle_reasons


@dataclass(frozen=True)
class Medians:
    """Medians of the records of a script's runs, NaN if unknown."""

    # Peak memory by kind, and what the allocator reserved.
    weights_mib: float
    gradients_mib: float
    optimizer_state_mib: float
    rest_mib: float
    reserved_mib: float

    # Power, and the clock at the end of a run.
    mean_power_w: float
    power_limit_w: float
    sm_clock_mhz: float
    is_power_capped: float  # at the end, 0 or 1

    # Compilation.
    graphs: float
    recompilations: float


@dataclass(frozen=True)
class Limits:
    """Rate and time of a script beside limits. Unknown numbers are NaN."""

    precision: str  # type of matrix products, "" if unknown
    tflops: float
    ceiling_share: float  # share of the measured ceiling, between 0 and 1, like mfu
    mfu: float  # share of the datasheet's peak
    floor_ms: float  # modelled, of a step of the requested batch
    floor_speedup: float  # the headroom to the floor


def medians_of(records: list[dict]) -> Medians:
    """Return the Medians of the records of runs."""
    recorded = []
    for record in records:
        memory, compiled, quality = (record.get(part) or {} for part in PARTS)
        is_capped = POWER_CAP in (quality.get("throttle_reasons") or [])
        recorded.append(memory | compiled | quality | {"is_power_capped": is_capped})
    columns = [field.name for field in fields(Medians)]
    return Medians(**pd.DataFrame(recorded, columns=columns).astype(float).median())


def compiled(records: list[dict], medians: Medians) -> str:
    """Return what was compiled in words, "1 graph, cold cache"; "" for nothing."""
    if np.isnan(medians.graphs):
        return ""
    text = plural(round(medians.graphs), "graph")
    caches = {(record.get("compile") or {}).get("cache") for record in records}
    names = sorted(filter(None, caches))
    if names:
        text += f", {' or '.join(names)} cache"
    if medians.recompilations:
        text += f"; {medians.recompilations:.0f} recompiled"
    return text


def limits_of(
    records: list[dict],
    medians: Medians,
    model: str,
    scale: float,
    step_ms: float,
    tokens_per_second: float,
) -> Limits:
    """Return the Limits of a script.

    scale: factor from a step to one of the requested batch.
    """
    limits = (records[-1].get("limits") if records else None) or {}
    precision = limits.get("precision") or ""
    ceilings = (limits.get("ceilings") or {}).get("matmul_tflops", {})
    tflops = (limits.get("flops_per_token") or nan) * tokens_per_second / 1e12

    # The floor is modelled for AdamW in float32, so not for weights and state of another size.
    floor_ms = scale * (limits.get("floor_ms") or nan)
    size_mib = medians.weights_mib + medians.optimizer_state_mib
    modelled_mib = 12 * CONFIGS[model].parameters() / 2**20 if model in CONFIGS else nan
    if abs(size_mib / modelled_mib - 1) > 0.01:  # False if unknown
        floor_ms = nan
    return Limits(
        precision=precision,
        tflops=tflops,
        ceiling_share=tflops / (ceilings.get(precision) or nan),
        mfu=tflops / (limits.get("datasheet_tflops") or nan),
        floor_ms=floor_ms,
        floor_speedup=step_ms / floor_ms,
    )
