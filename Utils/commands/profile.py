"""Profile the time of a step by kind of work, and print advice.

    python -m Utils.commands profile T=NAME [CPU=1] [MEMORY=1] [GPUS=2] [SETTING=value ...]

NAME is a technique, or all (the ladder), beyond or everything. The script runs as usual, with its
rows in profiles/results.csv; a few more steps then run under torch.profiler. profiles/ is beside
the results file, where `make report` finds it. For each technique it then holds, replacing older
files,

- NAME.trace.json.gz, for ui.perfetto.dev or chrome://tracing
- NAME.json, the summary
- with CPU=1 NAME.prof, of cProfile, for `python -m pstats` or snakeviz
- with MEMORY=1 NAME.memory.pickle, for pytorch.org/memory_viz

Several techniques are stacked in one chart, plots/profile.png. With GPUS, or under torchrun, it
is a run in several processes, and shows rank 0.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from Utils.base import command_line, paths
from Utils.base.errors import UserError, naming
from Utils.base.setting_table import OF_A_RUN, OF_SOME_SCRIPTS
from Utils.device.kernel_kinds import KINDS
from Utils.draw import chart_style, profile_chart
from Utils.profile import profile_report
from Utils.scripts import ladder


def main(argv=None):
    """Profile one technique or several.

    Return the exit code: 0; 1 where a run failed or ran out of memory; 2 for impossible settings.
    """
    # Before the import of torch, which reads it once: the profiler would warn of each block that
    # was allocated before it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    names = (*OF_A_RUN, *OF_SOME_SCRIPTS, "plotsprefix", "t", "cpu", "memory", "gpus")
    parser = command_line.Parser("profile", __doc__, *names)
    parser.add_argument("name", nargs="?", default="", help="the same as T")
    help = "output folder, else profiles/ beside the results file"
    parser.add_argument("--folder", type=Path, help=help)
    args = parser.parse_args(argv)
    args.name = args.name or args.t
    args.t = ""
    args.folder = args.folder or args.results_file.parent / "profiles"
    if not args.name:
        remedy = f"set T to all, or one of {', '.join(ladder.techniques())}"
        raise UserError("no technique is named", remedy)
    command_line.check(args)  # before profiled steps are added
    several = ladder.group({"all": "ladder"}.get(args.name, args.name))
    techniques = several or [ladder.get(args.name)]
    with naming(args.folder):
        args.folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=args.folder).close()  # raises where no file can be made
    if several:
        return _profile_all(techniques, args)
    # Here, as they import torch, which must follow the setting above.
    from Utils.forecast import forecast_plan
    from Utils.launch import rank_launcher
    from Utils.profile import profiled_run

    if args.gpus:
        count, args.gpus = rank_launcher.one_count(args.gpus, args.device), ""
        command = ["-m", "Utils.commands", "profile", args.name, *_flags(args)]
        return rank_launcher.launch(args.name, command, count)
    alone = "RANK" not in os.environ
    expected = forecast_plan.milliseconds_by_kind(techniques[0], args) if alone else {}
    outcome = profiled_run.profile(techniques[0], args, expected)
    if "profile" in outcome:
        print(profile_report.report(outcome, args.folder))
    if outcome["status"] == "ok":
        return 0
    status = outcome["status"].replace("_", " ")
    print(f"{outcome['technique']}: {status}: {outcome['note']}", file=sys.stderr)
    return 0 if status == "unsupported" else 1


def _flags(args):
    """Return this command's flags for these settings, without the technique's name."""
    return command_line.as_flags({k: value for k, value in vars(args).items() if k != "name"})


def _profile_all(techniques, args):
    """Profile each technique in a subprocess, then draw the chart. Return the exit code."""
    outcomes, summaries = set(), []
    for number, technique in enumerate(techniques):
        print(f"\n[{number + 1}/{len(techniques)}]", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "Utils.commands", "profile", technique.name, *_flags(args)]
        with subprocess.Popen(command, env=paths.environment()) as process:
            try:
                outcome = process.wait()
            except KeyboardInterrupt:  # the terminal interrupts it as well: let it end first
                outcome = process.wait()
                if outcome != 130:  # else it has reported that
                    raise
        if outcome in (2, 130):
            return outcome
        outcomes.add(outcome)
        summaries.append(_summary(args.folder, technique, outcome))

    chart_style.save(profile_chart.draw(summaries, KINDS), f"{args.plotsprefix}profile")
    return max(map(bool, outcomes))


def _summary(folder, technique, outcome):
    """Return the summary of a technique's subprocess, or one that says that it failed."""
    try:
        summary = json.loads((folder / f"{technique.name}.json").read_text())
    except (OSError, ValueError):
        summary = {}
    if outcome and summary.get("status") != "out_of_memory":
        return {"technique": technique.name, "status": "failed", "note": "failed"}
    return summary
