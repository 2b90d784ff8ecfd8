"""Look at your own training script: its step, its switches, its waits for the GPU.

It runs unchanged for a few steps. Nothing is written to results.csv.
"""

import textwrap

from tools.own_script import inspection_report, own_runs
from Utils.base import paths
from Utils.base.command_line import RUN_SETTINGS, USER_SCRIPT_SETTINGS, Parser
from Utils.base.errors import UserError, run_command

SETTINGS = (*RUN_SETTINGS, *USER_SCRIPT_SETTINGS, "script", "timeout")


def main(*words):
    args = Parser("adopt", __doc__, *SETTINGS).parse_args(words)
    args.base = args.script or args.base
    if not args.base:
        raise UserError("no script is named", "set SCRIPT to its path")
    with own_runs.inspected(args) as runs:
        for line in inspection_report.sentences(runs.base.name, runs.inspection):
            line = textwrap.fill(line, inspection_report.WIDTH, drop_whitespace=False, max_lines=1)
            print(line)
        print(f"next: {paths.COMMAND} all {' '.join(runs.settings())}")


if __name__ == "__main__":
    run_command("adopt", main)
