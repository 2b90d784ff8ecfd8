"""The summary of a profile in words and tables, with advice on the largest costs of a step."""

import pandas as pd

from tools.forecast.kernel_kinds import KINDS
from Utils.analysis import text_tables
from Utils.base import files
from Utils.device import capabilities
from Utils.scripts import diffs

NAME = 50  # letters of an operator's name that are shown; a fused one can have hundreds
MOST_ADVICE = 5  # number of lines
TABLES = files.tables_beside(__file__, "profile_page.toml")
PARTS = TABLES["parts"]
COLUMNS = ["kind", "parts", "of", "least", "words", "techniques"]
COSTS = pd.DataFrame(TABLES["costs"], columns=COLUMNS)


def page(summary, folder, waits=()):
    """Return a summary from `profiled_run` in words and tables, the advice at its end.

    waits: for a user's script, the lines on waits with file:line.
    """
    # Kinds of work, each with its parts below it.
    breakdown = summary["profile"]
    rows = []
    for name, kind in breakdown.kinds.items():
        if not kind.ms:
            continue
        row = {"kind": KINDS[name], "ms a step": f"{kind.ms:,.2f}", "share": f"{kind.share:.1%}"}
        rows.append(row)

        if len(kind.parts) > 1 or name == "idle":
            for part, ms in sorted(kind.parts.items(), key=lambda item: -item[1]):
                share = f"{kind.share * ms / kind.ms:.1%}"
                label = f"- {PARTS.get(part, part)}"
                rows.append({"kind": label, "ms a step": f"{ms:,.2f}", "share": share})

    page_lines = [
        f"{summary['technique']}: {breakdown.steps} steps under the profiler took "
        f"{breakdown.mean_step_ms:,.1f} ms each, without it {summary['timed_median_ms']:,.1f} ms "
        "(median)\n",
        f"{_grid(rows)}\n",
    ]

    # The longest operators.
    rows = [
        {
            "longest": operator["label"][:NAME],
            "kind": KINDS[operator["kind"]],
            "ms a step": f"{operator['ms']:,.2f}",
            "calls a step": f"{operator['calls']:.3g}",
        }
        for operator in breakdown.operators
        if operator["ms"] > 0.01 * breakdown.mean_step_ms
    ]
    page_lines += [_grid(rows), ""]

    trace = folder / f"{summary['technique']}.trace.json.gz"
    page_lines += [*waits, f"trace: {trace}", "", "Advice"]
    page_lines += [f"- {advice}" for advice in summary["advice"]]
    return "\n".join(page_lines)


def _grid(rows):
    """Return dicts of text as a table in Markdown, its first column aligned left."""
    table = pd.DataFrame(rows)
    return text_tables.markdown(table, table.columns[:1])


def advise(breakdown, labels, on_gpu, needs):
    """Return at most MOST_ADVICE lines on a Breakdown, the largest cost first.

    labels: labels of the techniques that may be advised, by name. needs: those of the script.
    """
    device = "GPU" if on_gpu else "CPU"
    precision = "32 bits" if {"bfloat16", "float16"}.isdisjoint(needs) else "16 bits"
    costs = COSTS[COSTS.of.isin(["", device, precision])]

    shares = {}  # shares of the step, by line of advice
    for cost in costs.itertuples():
        kind = breakdown.kinds[cost.kind]
        ms = kind.ms
        if cost.parts:
            ms = sum(kind.parts.get(part, 0.0) for part in cost.parts.split(", "))
        share = ms / breakdown.mean_step_ms
        useful = [labels[name] for name in cost.techniques.split() if name in labels]
        if share > cost.least and useful:
            shares[f"{share:.0%} of the step {cost.words}: {' or '.join(useful)}"] = share

    largest_first = sorted(shares, key=shares.get, reverse=True)
    return largest_first[:MOST_ADVICE] or ["no remaining technique addresses the largest costs"]


def useful_techniques(technique, needs, device, scripts):
    """Return the labels of techniques that a script lacks and that have an effect on a device.

    technique: the one that ran. needs: those that it declared. scripts: Ladder of the device.
    """
    has = {technique.name}
    if technique.parent:
        has.update(scripts.lineage(technique.parent))
    advised = {*" ".join(COSTS.techniques).split()}

    useful = {}
    for name in (scripts.scripts.keys() & advised) - has:
        candidate = scripts.get(name)
        parent = scripts.get(candidate.parent)
        changes = diffs.diff(candidate, parent, context=0)[2:]
        added = [line[1:].strip() for line in changes if line.startswith("+")]
        added_needs = set(candidate.needs) - set(parent.needs)
        has_needs = added_needs and added_needs <= set(needs)
        if has_needs or all(line in technique.code for line in added):
            continue
        checked = [need for need in candidate.needs if need in capabilities.CHECKS]
        runs = all(capabilities.has(need, device) for need in checked)
        if runs and not any(capabilities.check(need, device) for need in added_needs & {*checked}):
            useful[name] = name
    return useful
