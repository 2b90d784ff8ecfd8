"""Check which techniques run here, and why others do not, in seconds and without training.

It prints findings, each fault with its remedy, and the status of each technique: runs, runs without
effect, emulated or unsupported. The exit code is 0 if any technique can run.

The needs that scripts declare are checked as in a run. torch, the driver and packages with native
code are asked in a subprocess: they may crash or hang. This process imports none of them.
"""

import json
from dataclasses import asdict

from tools.doctor.examination import examine
from Utils.base import paths
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.base.errors import run_command
from Utils.base.text import hanging
from Utils.scripts import ladder


def show(findings, rows, hidden=""):
    """Print findings and statuses as text. hidden: a clause on techniques not among the rows."""
    # Findings, each with its remedy below it.
    for finding in findings:
        mark = "FAULT" if finding.state == "fault" else finding.state
        print(hanging(f"{mark:6} {finding.topic:12}  ", finding.what))
        if finding.remedy:
            print(hanging(" " * 21, f"-> {finding.remedy}"))
    print()

    # Techniques, then each reason or note with those that have it.
    width = max(len(row.technique) for row in rows)
    names_by_text = {}
    for row in rows:
        print(f"{row.technique:{width}}  {row.status}")
        for text in filter(None, [row.reason, *row.notes]):
            names_by_text.setdefault(text, []).append(row.technique)
    if names_by_text:
        print()
    for text, names in names_by_text.items():
        print(hanging("- ", f"{', '.join(names)}: {text}"))

    can_run = sum(row.status != "unsupported" for row in rows)
    print(f"\n{can_run} of {len(rows)} scripts run here{hidden}.")
    step = f"apply the remedies above, then {paths.COMMAND} doctor"
    if can_run:
        step = f"{paths.COMMAND} {'all' if paths.VERSION else 'smoke'}"
    print(f"next: {step}")


def main(*words):
    """Return the exit code: 0, or 1 if no technique can run."""
    args = Parser("doctor", __doc__, *RUN_SETTINGS, "json", "all").parse_args(words)
    findings, rows = examine(args)
    can_run = any(row.status != "unsupported" for row in rows)

    if args.json:
        answers = {"findings": findings, "techniques": rows, "can_run": can_run}
        print(json.dumps(answers, indent=1, default=asdict))
    else:
        scripts = ladder.techniques()
        rows.sort(key=lambda row: not scripts[row.technique].at_top_level)
        shown = [row for row in rows if args.all or scripts[row.technique].at_top_level]
        more = len(rows) - len(shown)
        hidden = f"; ALL=1 shows {more} more, of beyond/" if more else ""
        show(findings, shown, hidden)
    return 0 if can_run else 1


if __name__ == "__main__":
    run_command("doctor", main)
