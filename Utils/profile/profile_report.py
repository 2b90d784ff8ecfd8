"""A profile's summary in words and tables."""

from tabulate import tabulate

from Utils.device.kernel_kinds import KINDS
from Utils.profile.profile_advice import grows

PARTS = {  # those that are not called by their names
    "data": "waiting for data",
    "dispatch": "dispatch, allocation, autograd",
    "python": "Python",
    "loss": "the loss",
    "norms": "LayerNorm",
    "transfers": "between host and device",
    "embedding": "rows of the embedding",
}
NAME = 60  # letters shown of an operator's name; a fused one can have hundreds


def report(summary, folder):
    """Return a summary of `profiled_run` in words and tables, its advice last."""
    breakdown = summary["profile"]
    lines = [
        f"{summary['technique']}: {breakdown.steps} steps under the profiler took "
        f"{breakdown.mean_step_ms:,.1f} ms each, without it {summary['timed_median_ms']:,.1f} ms "
        "(median)",
        "",
        _table(breakdown.kinds),
        "",
    ]
    if all(kind.ceiling_share is None for kind in breakdown.kinds.values()):
        lines += ["No ceiling is known here; `make ceilings` measures them.", ""]
    rows = [
        (operator.name[:NAME], KINDS[operator.kind], f"{operator.ms:,.2f}", f"{operator.calls:.3g}")
        for operator in breakdown.operators
        if operator.ms > 0.01 * breakdown.mean_step_ms
    ]
    lines += [_grid(rows, ("longest", "kind", "ms a step", "calls a step")), ""]
    if summary["python"]:
        rows = [
            (
                row["function"],
                *(f"{row[key]:,.2f}" for key in ("own_ms", "total_ms")),
                f"{row['calls']:.3g}",
            )
            for row in summary["python"]
        ]
        lines += [_grid(rows, ("in Python", "own ms", "with callees", "calls a step")), ""]
    gap = f"{breakdown.gap_ms:,.2f} ms per step, between {breakdown.gap_between}"
    lines.append(f"longest gap outside torch: {gap}")
    lines.append(f"tensor values read by the host: {breakdown.reads:.3g} per step")
    if breakdown.communication_ms:
        hidden = f"{breakdown.hidden:.0%} of it overlapped with computation"
        lines.append(f"communication: {breakdown.communication_ms:,.2f} ms per step, {hidden}")
    if breakdown.growth_mib is not None:
        growth = f"grows by {breakdown.growth_mib:,.2f} MiB a step" if grows(breakdown) else "stays"
        most = f"tensors take {summary['tensors_mib']:,.1f} MiB at most"
        lines.append(f"memory from step to step: {growth}; {most}")
    files = ", ".join(str(folder / name) for name in summary["files"])
    lines += [f"files: {files}", "", "Advice", *(f"- {line}" for line in summary["advice"])]
    return "\n".join(lines)


def _table(kinds):
    """Return the kinds of work, each with its parts below it, and the forecast where known."""
    rows = []
    for name, kind in kinds.items():
        if not kind.ms:
            continue
        forecast = "" if kind.forecast_ms is None else f"{kind.forecast_ms:,.2f}"
        ceiling = "" if kind.ceiling_share is None else f"{kind.ceiling_share:.0%}"
        bound = f"{kind.bound}-bound" if kind.bound else ""
        share = f"{kind.share:.1%}"
        rows.append((KINDS[name], f"{kind.ms:,.2f}", forecast, share, ceiling, bound))
        if len(kind.parts) > 1 or name == "idle":
            for part, ms in sorted(kind.parts.items(), key=lambda item: -item[1]):
                share = f"{kind.share * ms / kind.ms:.1%}"
                rows.append((f"- {PARTS.get(part, part)}", f"{ms:,.2f}", "", share, "", ""))
    headers = ["kind", "ms a step", "forecast ms", "share", "of the ceiling", ""]
    if all(kind.forecast_ms is None for kind in kinds.values()):
        headers.remove("forecast ms")
        rows = [(*row[:2], *row[3:]) for row in rows]
    return _grid(rows, headers)


def _grid(rows, headers):
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate(rows, headers, "github", colalign=align, disable_numparse=True)
