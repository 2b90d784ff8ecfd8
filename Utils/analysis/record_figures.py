"""Columns of a summary that come from the records of runs."""

import numpy as np
import pandas as pd

from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import plural

PARTS = ("memory", "compile", "quality")  # parts of a record
FIGURES = [  # medians of records
    "weights_mib",
    "gradients_mib",
    "optimizer_state_mib",
    "rest_mib",
    "reserved_mib",
    "mean_power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "is_power_capped",  # at the end, 0 or 1
]
POWER_CAP = "sw power cap"  # in throttle_reasons


def from_records(line: dict, records: list[dict], model: str, scale: float) -> dict:
    """Return the columns from records of runs.

    line: has step_ms and tokens_per_second.
    scale: factor from a step to one of the requested batch.
    """
    recorded = []
    for record in records:
        memory, compiled, quality = (record.get(part) or {} for part in PARTS)
        is_capped = POWER_CAP in (quality.get("throttle_reasons") or [])
        recorded.append(memory | compiled | quality | {"is_power_capped": is_capped})
    values = pd.DataFrame(recorded, columns=[*FIGURES, "graphs", "recompilations", "cache"])
    medians = values.drop(columns="cache").astype(float).median()
    columns = medians[FIGURES].to_dict()

    if not np.isnan(medians.graphs):
        columns["compiled"] = plural(round(medians.graphs), "graph")
        caches = values["cache"].dropna().unique()
        if len(caches):
            columns["compiled"] += f", {' or '.join(sorted(caches))} cache"
        if medians.recompilations:
            columns["compiled"] += f"; {medians.recompilations:.0f} recompiled"

    limits = records[-1].get("limits") if records else None
    if limits:
        columns |= _limits(limits, line, medians, model, scale)
    columns["hours_per_billion"] = 1e9 / line["tokens_per_second"] / 3600
    columns["kwh_per_billion"] = columns["mean_power_w"] / 1e3 * columns["hours_per_billion"]
    return columns


def _limits(limits, line, medians, model, scale):
    """Return the columns that compare a rate and a time with limits. medians: the records'."""
    tflops = (limits["flops_per_token"] or np.nan) * line["tokens_per_second"] / 1e12
    ceilings = (limits["ceilings"] or {}).get("matmul_tflops", {})
    columns = {
        "precision": limits["precision"],
        "tflops": tflops,
        "ceiling_share": tflops / (ceilings.get(limits["precision"]) or np.nan),
        "mfu": tflops / (limits["datasheet_tflops"] or np.nan),
    }

    # The floor is modelled for AdamW in float32, so not for weights and state of another size.
    size_mib = medians.weights_mib + medians.optimizer_state_mib
    modelled_mib = 12 * CONFIGS[model].parameters() / 2**20 if model in CONFIGS else np.nan
    has_another_size = abs(size_mib / modelled_mib - 1) > 0.01  # False if unknown
    if not has_another_size:
        columns["floor_ms"] = scale * (limits.get("floor_ms") or np.nan)
        columns["floor_speedup"] = line["step_ms"] / columns["floor_ms"]
    return columns
