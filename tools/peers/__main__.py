"""Measure other people's training loops, unchanged, in turns with ours.

PEERS is a folder with clones of their repositories; nothing is written there.
"""

from tools.own_script import own_runs
from tools.peers import loop_runs, loop_table
from Utils.base import command_line
from Utils.base.errors import run_command
from Utils.launch import suite_runner

SETTINGS = (*command_line.RUN_SETTINGS, "peers", "base_python", "timeout", "precision")


def main(*words):
    args = command_line.Parser("peers", __doc__, *SETTINGS).parse_args(words)
    args.base_python = own_runs.python_of(args)
    command_line.check(args)

    with suite_runner.only_suite(args.results_file), loop_runs.ladder_of(args) as ladder:
        outcome = suite_runner.run(ladder, args)
    if outcome.code < 2 and len(outcome.rows):
        print(loop_table.page_of(outcome.summary))
    return outcome.code


if __name__ == "__main__":
    run_command("peers", main)
