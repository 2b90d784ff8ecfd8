"""Measure other people's training loops, unchanged, in turns with ours.

PEERS is a folder with clones of their repositories; nothing is written there.
"""

import os

from tools.own_script import own_runs
from tools.peers import loop_runs, loop_table
from Utils.analysis.summary import summarize
from Utils.base import command_line
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.base.errors import UserError, run_command
from Utils.launch import suite_runner
from Utils.launch.schedule import Schedule
from Utils.results import study

SETTINGS = (*RUN_SETTINGS, "peers", "base_python", "timeout", "precision")


def main(*words):
    args = Parser("peers", __doc__, *SETTINGS).parse_args(words)
    args.peers = os.path.expanduser(args.peers)
    if os.path.isfile(args.peers):
        raise UserError(f"PEERS={args.peers}: is not a folder", "give the one with clones")
    args.base_python = own_runs.python_of(args)
    command_line.check(args)
    schedule = Schedule(args, command_line.minutes(args))

    path = args.results_file
    with suite_runner.only_suite(path), loop_runs.ladder_of(args) as ladder:
        outcome = suite_runner.run(ladder, args, schedule)
    if outcome.code < 2 and len(outcome.rows):
        summary = summarize(study.of_suite(outcome.rows, path))
        print(loop_table.page_of(summary))
    return outcome.code


if __name__ == "__main__":
    run_command("peers", main)
