"""Check a script as the base of a ladder: whether it runs, and which techniques apply to it.

The script is read and run for a few steps; nothing is written to results.csv. A technique applies
where its diff finds its places in the script (docs/YOUR_MODEL.md). It may still fail or be
unsupported when it runs here: make all BASE=my_model says so.
"""

import sys

from Utils.base import command_line
from Utils.base.errors import UserError
from Utils.base.setting_table import OF_A_RUN
from Utils.launch import child_process
from Utils.scripts import bases, ladder

STEPS = 4  # of the trial
WARMUP = 1


def main(argv=None):
    """Check a script, and print its unit and batch and each technique. Return the exit code: 0, or
    1 where the script does not run."""
    args = command_line.Parser("adopt", __doc__, *OF_A_RUN, "script").parse_args(argv)
    if not args.script:
        raise UserError("no script is named", "set SCRIPT to its path")
    base = bases.find(args.script)
    problem, row = trial(base, args)
    if problem:
        print(f"{base.path}: {problem}", file=sys.stderr)
        return 1
    length = f"x{row['seq_len']}" if int(row["seq_len"]) > 1 else ""
    print(f"{base.name}: runs; a step is {row['batch_size']}{length} {row['unit']}")
    scripts = bases.ladder_of(base, ladder.group("everything"))[1:]
    refusals = {bases.last(script.name): bases.refusal(script) for script in scripts}
    applied = [name for name, reason in refusals.items() if not reason]
    print(f"\n{len(applied)} of {len(scripts)} techniques apply:")
    for name in applied:
        print(f"  {name}")
    print("\nThe others need another place in the script:")
    for name, reason in refusals.items():
        if reason:
            print(f"  {name}: {reason}")
    print(f"\nNext: make all BASE={base.name} ROUNDS=4")
    return 0


def trial(base, args):
    """Run a base for a few steps. Return (problem, first row): the problem in one line, or ""."""
    flags = command_line.round_flags(args, 0, steps=STEPS, warmup=WARMUP, min_seconds=0)
    # In a suite, a failure is one line.
    rows, done = child_process.trial(base.script.command, flags, SUITE="adopt")
    if rows and rows[0]["status"] == "ok":
        return "", rows[0]
    if rows:
        return f"{rows[0]['status'].replace('_', ' ')}: {rows[0]['note']}", None
    lines = done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"]
    return lines[-1], None
