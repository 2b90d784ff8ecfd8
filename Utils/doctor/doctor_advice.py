"""What faults take away from techniques, and the most important faults and notes."""

from dataclasses import replace

UNASKED = "not checked"
MOST = 5  # lines of advice
MACHINE = ("gpu", "processor", "threads")  # topics whose notes are advice


def overlay(row, faults):
    """Return a TechniqueStatus, unsupported where a fault takes away what it needs."""
    for fault in faults:
        unmet = {"run", *row.needs} & {*fault.blocks}
        if not unmet:
            continue
        row = replace(row, lacks=sorted({*row.lacks, *unmet}))
        if row.status != "unsupported" or row.reason == UNASKED:
            reason = f"{fault.topic}: {fault.what}"
            row = replace(row, status="unsupported", reason=reason, remedy=fault.remedy)
    return row


def advice(findings, rows):
    """Return the most important lines: dicts of `advice` and `because`, the topics they repeat.

    Faults come first, by the number of techniques that each alone blocks.
    """

    def blocked(fault):
        return sum(bool(row.lacks) and {*row.lacks} <= {*fault.blocks} for row in rows)

    lines = []
    faults = [finding for finding in findings if finding.state == "fault"]
    for fault in sorted(faults, key=blocked, reverse=True):
        if blocked(fault):
            text = f"{fault.topic} blocks {blocked(fault)} of {len(rows)} techniques"
            lines.append((fault, text))
        elif not fault.blocks:
            lines.append((fault, f"{fault.topic}: {fault.what}"))
    notes = [f for f in findings if f.state == "note" and f.remedy and f.topic in MACHINE]
    lines += [(note, note.what) for note in notes]
    return [
        {"advice": f"{text} -> {finding.remedy}", "because": [finding.topic]}
        for finding, text in lines[:MOST]
    ]
