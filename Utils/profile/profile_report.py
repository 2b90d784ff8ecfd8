"""A profile's summary in words and tables."""

from tabulate import tabulate

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
NAME = 60  # letters shown of an operator's name; a fused one can have hundreds


def report(summary, folder):
    """Return a summary in words and tables, its advice last."""
    found = summary["profile"]
    lines = [
        f"{summary['technique']}: {found['steps']} steps under the profiler took "
        f"{found['mean_step_ms']:,.1f} ms each, without it {summary['timed_median_ms']:,.1f} ms "
        "(median)",
        "",
        _table(found["kinds"]),
        "",
    ]
    if all(facts["ceiling_share"] is None for facts in found["kinds"].values()):
        lines += ["No ceiling is known here; `make ceilings` measures them.", ""]
    shown = [one for one in found["operators"] if one["ms"] > 0.01 * found["mean_step_ms"]]
    rows = [
        (one["name"][:NAME], KINDS[one["kind"]], f"{one['ms']:,.2f}", f"{one['calls']:.3g}")
        for one in shown
    ]
    lines += [_grid(rows, ("longest", "kind", "ms a step", "calls a step")), ""]
    if summary["python"]:
        rows = []
        for one in summary["python"]:
            ms = f"{one['own_ms']:,.2f}", f"{one['total_ms']:,.2f}"
            rows.append((one["function"], *ms, f"{one['calls']:.3g}"))
        lines += [_grid(rows, ("in Python", "own ms", "with callees", "calls a step")), ""]
    gap, memory = found["gap"], found["memory"]
    between = f"between {gap['after']} and {gap['before']}"
    lines.append(f"longest gap outside torch: {gap['ms']:,.2f} ms per step, {between}")
    lines.append(f"tensor values read by the host: {found['reads']:.3g} per step")
    if exchange := found["communication"]:
        hidden = f"{exchange['hidden']:.0%} of it overlapped with computation"
        lines.append(f"communication: {exchange['ms']:,.2f} ms per step, {hidden}")
    if memory["grows"] is not None:
        grows = f"grows by {memory['growth_mib']:,.2f} MiB a step" if memory["grows"] else "stays"
        most = f"tensors take {summary['tensors_mib']:,.1f} MiB at most"
        lines.append(f"memory from step to step: {grows}; {most}")
    files = ", ".join(str(folder / name) for name in summary["files"])
    lines += [f"files: {files}", "", "Advice", *(f"- {line}" for line in summary["advice"])]
    return "\n".join(lines)


def _table(found):
    """Return the kinds of work, each with its parts below it, and the forecast where known."""
    rows, known = [], any("forecast_ms" in facts for facts in found.values())
    for kind, facts in found.items():
        if not facts["ms"]:
            continue
        expected = [f"{facts['forecast_ms']:,.2f}"] if known else []
        reached = facts["ceiling_share"]
        reached = "" if reached is None else f"{reached:.0%}"
        bound = f"{facts['bound']}-bound" if facts["bound"] else ""
        ms, share = f"{facts['ms']:,.2f}", f"{facts['share']:.1%}"
        rows.append((KINDS[kind], ms, *expected, share, reached, bound))
        if len(facts["parts"]) > 1 or kind == "idle":
            share = facts["share"] / facts["ms"]
            for part, ms in sorted(facts["parts"].items(), key=lambda item: -item[1]):
                name = f"- {PARTS.get(part, part)}"
                rows.append((name, f"{ms:,.2f}", *[""] * known, f"{ms * share:.1%}", "", ""))
    expected = ["forecast ms"] if known else []
    return _grid(rows, ("kind", "ms a step", *expected, "share", "of the ceiling", ""))


def _grid(rows, headers):
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate(rows, headers, "github", colalign=align, disable_numparse=True)
