"""Profile the time of a step by kind of work, and print advice.

    make profile T=NAME [SETTING=value ...]

The script runs as usual, with its rows in profiles/results.csv; a few more steps then run under
torch.profiler. profiles/ is beside the results file. For each technique it then holds, replacing
older files,

- NAME.trace.json.gz, for ui.perfetto.dev or chrome://tracing
- NAME.json, the summary

Under torchrun the run has several processes, and rank 0 is shown:

    .venv/bin/torchrun --standalone --nproc-per-node=2 -m tools.profile T=distributed_data_parallel

    make profile BASE=~/mine/train.py [ARGS=...] [FOLDER=...] [BASE_PYTHON=...]

profiles your own training script, unchanged: the same page, with the lines that wait for the GPU.

Next: try the advice
"""

import os
import tempfile

from tools.own_script import inspection_report, own_runs
from Utils.base import command_line
from Utils.base.errors import naming, run_command
from Utils.launch import suite_runner

SETTINGS = (
    *command_line.ALL_SCRIPT_SETTINGS,
    *command_line.USER_SCRIPT_SETTINGS,
    "timeout",
    "t",
)


def main(*words):
    """Profile a technique or a user's script. It ends as a run of the script does."""
    # Settings.
    args = command_line.Parser("profile", __doc__, *SETTINGS).parse_args(words)
    args.output = args.results_file.parent / "profiles"
    command_line.check(args)  # before profiled steps are added

    # The profiler would warn of each block that was allocated before it. torch reads this once,
    # when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    technique = None if args.base else suite_runner.ladder_of_device(args).get(args.t)
    with naming(args.output):
        args.output.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=args.output).close()  # raises if no file can be created

    # It imports torch, which must follow the setting above.
    from tools.profile import profile_page, profiled_run  # noqa: PLC0415

    if args.base:
        with own_runs.inspected(args, profiles=True) as runs:
            name = runs.base.name.replace("/", "_")
            summary = profiled_run.profile_own(name, runs.inspection, runs.trace, args.output)
            print(f"on {summary['device']}, torch {summary['torch']}")
            waits = [*inspection_report.waits(runs.inspection)]
            print(profile_page.page(summary, args.output, waits))
        return

    summary = profiled_run.profile(technique, args)
    if "profile" in summary:
        print(profile_page.page(summary, args.output))


if __name__ == "__main__":
    run_command("profile", main)
