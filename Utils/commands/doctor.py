"""Check which techniques run here, and why others do not, in seconds and without training.

    python -m Utils.commands.doctor [flags of the scripts] [--json]

It prints findings, each fault with its remedy; the status of each technique: runs, runs without
effect, emulated or unsupported; and at most five lines of advice. The exit code is 0 if any
technique can run.

The needs that scripts declare are checked as in a run. torch, the driver and packages with native
code run in subprocesses: they may crash or hang. This process imports none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from dataclasses import asdict
from itertools import chain

from Utils.base import command_line, errors
from Utils.doctor import doctor_advice, findings, host_probes
from Utils.doctor.doctor_advice import UNASKED, Row
from Utils.doctor.findings import Finding, Subprocess
from Utils.doctor.host_probes import OUTSIDE
from Utils.scripts import bases, ladder


def examine(args, argv):
    """Return findings, rows of techniques, and advice."""
    torch_part = Subprocess("-m", "Utils.commands.doctor", "--inside", *argv)
    packages_part = host_probes.start_native()
    try:
        found = list(chain.from_iterable(findings.ask(probe, args) for probe in OUTSIDE))
        output, problem = torch_part.end()
        said = [json.loads(line) for line in output.splitlines() if line.endswith("}")]
        found += [Finding(**line["finding"]) for line in said if "finding" in line]
        found += findings.ask(host_probes.native, packages_part)
    finally:
        torch_part.kill()
        packages_part.kill()
    if problem:
        asked = [line["asking"] for line in said if "asking" in line] or ["torch"]
        remedy = "run nvidia-smi; DEVICE=cpu does without the GPU"
        if asked[-1] == "torch":  # it was being imported
            remedy = "pip install --force-reinstall torch"
        found.append(Finding(asked[-1], f"check ended: {problem}", "fault", remedy, ("run",)))
    rows = {line["row"]["technique"]: Row(**line["row"]) for line in said if "row" in line}
    for name in names_of_techniques(args):
        rows.setdefault(name, Row(name, "unsupported", UNASKED))
    broken = [finding for finding in found if finding.state == "fault"]
    rows = [doctor_advice.overlay(row, broken) for row in rows.values()]
    return found, rows, doctor_advice.advice(found, rows)


def names_of_techniques(args):
    with suppress(OSError):  # a probe has reported it
        base = bases.asked(args.base)
        return [base.name if base and not t.parent else t.name for t in ladder.group("everything")]
    return []


def show(findings, rows, lines, terminal):
    """Print it as text. Faults are marked by words; only a terminal gets colours as well."""
    width = max(60, shutil.get_terminal_size().columns) if terminal else 10_000
    colours = {"fault": "\033[31m", "unsupported": "\033[31m", "note": "\033[33m"}

    def line(state, columns, text):
        indent = " " * len(columns)
        text = textwrap.fill(text, width, initial_indent=columns, subsequent_indent=indent)
        text = text[len(columns) :]
        if terminal and state in colours:
            columns = f"{colours[state]}{columns}\033[0m"
        print(f"{columns}{text}".rstrip())

    for finding in findings:
        mark = finding.state.replace("fault", "FAULT")
        line(finding.state, f"{mark:6} {finding.topic:12}  ", finding.what)
        if finding.remedy:
            line("", " " * 21, f"-> {finding.remedy}")
    print()
    told = {finding.remedy for finding in findings}
    name = max((len(row.technique) for row in rows), default=0)
    status = max((len(row.status) for row in rows), default=0)
    for row in rows:
        why = [row.reason, *({row.remedy} - told)]
        columns = f"{row.technique:{name}}  {row.status:{status}}  "
        line(row.status, columns, " -> ".join(filter(None, why)))
    print("\nAdvice:" if lines else "\nNo advice: nothing here slows or stops a run.")
    for number, one in enumerate(lines, 1):
        line("", f"{number}. ", one["advice"])


def main(argv=None):
    """Return the exit code: 0, or 1 where no technique can run."""
    argv = sys.argv[1:] if argv is None else argv
    parser = command_line.Parser("doctor", __doc__)
    command_line.add_settings(parser)
    command_line.add_extra(parser, "base")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.inside:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # output of libraries is no answer
        from Utils.doctor import torch_side  # here, as it imports torch, which may crash or hang

        torch_side.inside(args, answers)
        return 0
    bases.asked(args.base)  # what is wrong with it ends here
    findings, rows, lines = examine(args, argv)
    can_run = any(row.status != "unsupported" for row in rows)
    known = {"findings": [*map(asdict, findings)], "techniques": [*map(asdict, rows)]}
    known |= {"advice": lines, "can_run": can_run}
    try:
        if args.json:
            print(json.dumps(known, indent=1))
        else:
            show(findings, rows, lines, sys.stdout.isatty())
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0 if can_run else 1


if __name__ == "__main__":
    with errors.one_line("doctor"):
        sys.exit(main())
