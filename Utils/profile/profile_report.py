"""A profile's summary in words and tables."""

from tabulate import tabulate

from Utils.base.units import MIB
from Utils.device.kernel_kinds import KINDS

PARTS = {  # those that are not called by their names
    "data": "waiting for data",
    "dispatch": "dispatch, allocation, autograd",
    "python": "Python",
    "loss": "the loss",
    "norms": "LayerNorm",
    "transfers": "between host and device",
    "embedding": "rows of the embedding",
}
NAME = 50  # letters shown of an operator's name; a fused one can have hundreds
GROWTH_MIB = 4096 / MIB  # a step; scalars that a loop keeps are less


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
        (each["name"][:NAME], KINDS[each["kind"]], f"{each['ms']:,.2f}", f"{each['calls']:.3g}")
        for each in breakdown.operators
        if each["ms"] > 0.01 * breakdown.mean_step_ms
    ]
    lines += [_grid(rows, ("longest", "kind", "ms a step", "calls a step")), summary["python"]]
    gap = f"{breakdown.gap_ms:,.2f} ms a step, between {breakdown.gap_between}"
    lines.append(f"longest gap outside torch: {gap}; CPU=1 names functions")
    reads = f"tensor values read by the host: {breakdown.reads:.3g} a step"
    if breakdown.reads > 1:
        reads += "; run.log needs one, and on a GPU each waits for the device"
    lines.append(reads)
    if breakdown.communication_ms:
        hidden = f"{breakdown.hidden:.0%} of it overlapped with computation"
        lines.append(f"communication: {breakdown.communication_ms:,.2f} ms a step, {hidden}")
    if breakdown.growth_mib is not None:
        growth = "stays"
        if breakdown.growth_mib > GROWTH_MIB:
            growth = f"grows by {breakdown.growth_mib:,.2f} MiB a step: the loop keeps tensors"
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
        row = {"kind": KINDS[name], "ms a step": f"{kind.ms:,.2f}"}
        if kind.forecast_ms is not None:
            row["forecast ms"] = f"{kind.forecast_ms:,.2f}"
        row["share"] = f"{kind.share:.1%}"
        row["of the ceiling"] = "" if kind.ceiling_share is None else f"{kind.ceiling_share:.0%}"
        row["bound by"] = kind.bound or ""
        rows.append(row)
        if len(kind.parts) > 1 or name == "idle":
            for part, ms in sorted(kind.parts.items(), key=lambda item: -item[1]):
                share = f"{kind.share * ms / kind.ms:.1%}"
                label = f"- {PARTS.get(part, part)}"
                rows.append({"kind": label, "ms a step": f"{ms:,.2f}", "share": share})
    return _grid(rows, "keys")


def _grid(rows, headers):
    columns = len(rows[0]) if rows else 0
    align = ("left", *["right"] * (columns - 1))
    return tabulate(rows, headers, "github", colalign=align, disable_numparse=True)
