"""Profile the time of a step by kind of work, and print advice.

    make profile T=NAME [CPU=1] [MEMORY=1] [GPUS=2] [SETTING=value ...]

NAME is a technique, or all (the ladder), beyond or everything. The script runs as usual, with its
rows in profiles/results.csv; a few more steps then run under torch.profiler. profiles/ is beside
the results file, where `make report` finds it. For each technique it then holds, replacing older
files,

- NAME.trace.json.gz, for ui.perfetto.dev or chrome://tracing
- NAME.json, the summary
- with CPU=1 NAME.prof, of cProfile, for `python -m pstats` or snakeviz
- with MEMORY=1 NAME.memory.pickle, for pytorch.org/memory_viz

Several techniques share one chart, plots/profile.png. With GPUS, or under torchrun, the run has
several processes, and rank 0 is shown.

    make profile BASE=~/mine/train.py [ARGS=...] [FOLDER=...] [BASE_PYTHON=...]

profiles your own training script, unchanged: the same page, with the lines that wait for the GPU,
but no forecast. Only the trace and the summary are written.

Next: make a technique of the advice
"""

import os
import secrets
import sys
import tempfile

from tools.own_script import inspection_report, own_runs
from tools.profile import kind_chart
from Utils.base import child, command_line, paths
from Utils.base.errors import naming, run_command
from Utils.device import datasheets
from Utils.draw import chart_style
from Utils.launch import suite_runner

SETTINGS = (
    *command_line.ALL_SCRIPT_SETTINGS,
    *command_line.USER_SCRIPT_SETTINGS,
    "plotsprefix",
    "timeout",
    "t",
    "cpu",
    "memory",
    "gpus",
)


def main(*words):
    """Profile one technique or several. Return the exit code.

    It is 0, 1 if a run failed or ran out of memory, 2 for impossible settings.
    """
    # Settings.
    args = command_line.Parser("profile", __doc__, *SETTINGS).parse_args(words)
    args.output = args.results_file.parent / "profiles"
    command_line.check(args)  # before profiled steps are added

    # The profiler would warn of each block that was allocated before it. torch reads this once,
    # when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    # What is to be profiled: a user's script, a group of techniques, or one.
    several = ()
    if not args.base:
        scripts = suite_runner.ladder_of_device(args)
        several = scripts.group("ladder" if args.t == "all" else args.t)
        technique = None if several else scripts.get(args.t)

    with naming(args.output):
        args.output.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=args.output).close()  # raises if no file can be created
    if several:
        return _profile_all(several, args)

    # They import torch, which must follow the setting above.
    from tools.profile import profile_page, profiled_run  # noqa: PLC0415
    from Utils.launch import rank_launcher  # noqa: PLC0415

    if args.base:
        with own_runs.inspected(args, profiles=True) as runs:
            name = runs.base.name.replace("/", "_")
            summary = profiled_run.keep_own(name, runs.inspection, runs.trace, args.output)
            print(f"on {summary['device']}, torch {summary['torch']}")
            waits = [*inspection_report.waits(runs.inspection)]
            print(profile_page.page(summary, args.output, waits))
        return 0
    if args.gpus:
        (count,) = rank_launcher.counts(args.gpus, args.device, several=False)
        args.gpus = ""
        return rank_launcher.launch(args.t, _command(args.t, args), count)

    alone = "RANK" not in os.environ
    forecast_ms = _forecast_ms(technique, args) if alone else {}
    summary = profiled_run.profile(technique, args, forecast_ms)
    if "profile" in summary:
        print(profile_page.page(summary, args.output))
    if summary["status"] == "ok":
        return 0
    status = summary["status"].replace("_", " ")
    print(f"{technique.name}: {status}: {summary['note']}", file=sys.stderr)
    return 0 if status == "unsupported" else 1


def _command(name, args):
    """Return Python's arguments to profile one technique with these settings."""
    values = {setting: getattr(args, setting) for setting in SETTINGS}
    return ["-m", "tools.profile", *command_line.as_flags(values | {"t": name})]


def _forecast_ms(technique, args):
    """Return the forecast milliseconds of a step by kind of work, or {} without a forecast.

    It forks, so no device may be in use.
    """
    # It imports torch.
    from tools.forecast import forecast_plan  # noqa: PLC0415

    device = forecast_plan.forecast_device(args.device)
    values = {name: getattr(args, name) for name in command_line.RUN_SETTINGS}
    args = forecast_plan.settings(values, device)
    entry = datasheets.datasheet_for(device.name)
    if entry is None:
        return {}
    (forecast,) = forecast_plan.forecasts_on_device([technique], args, entry, device.memory_bytes)
    return forecast.time.kind_ms if forecast.time else {}


def _profile_all(techniques, args):
    """Profile each technique in a subprocess, then draw the chart. Return the exit code."""
    environment = paths.environment(SUITE_ID=f"profile-{secrets.token_hex(4)}")
    summaries = []
    failed = False
    for number, technique in enumerate(techniques, start=1):
        print(f"\n[{number}/{len(techniques)}]", file=sys.stderr, flush=True)
        command = [sys.executable, *_command(technique.name, args)]
        code = child.run_in_terminal(command, environment)
        if code in (2, child.INTERRUPTED):  # impossible settings, or Ctrl-C
            return code

        summary = kind_chart.read_summary(args.output / f"{technique.name}.json")
        if not summary or (code and summary["status"] != "out_of_memory"):
            summary = {"technique": technique.name, "status": "failed", "note": "failed"}
        summaries.append(summary)
        failed = failed or code != 0

    chart_style.save(kind_chart.draw(summaries), f"{args.plotsprefix}profile")
    return 1 if failed else 0


if __name__ == "__main__":
    run_command("profile", main)
