"""Where the time of a step goes, by kind of work, and what to do about it.

    python -m Utils.commands.profile NAME [--cpu] [--memory] [--gpus 2] [flags of the scripts]

NAME is a technique, or all for the ladder, beyond or everything. The script runs as ever, its rows
going to profiles/results.csv; when its last timed step has ended, a few more run under
torch.profiler. profiles/ lies beside the results file, where `make report` looks for it. For each
technique it then holds, in place of what was there,

- NAME.trace.json.gz, for ui.perfetto.dev or chrome://tracing
- NAME.json, the summary
- with --cpu NAME.prof, of cProfile, for `python -m pstats` or snakeviz
- with --memory NAME.memory.pickle, for pytorch.org/memory_viz

Several techniques are stacked in one chart, plots/profile.png. With --gpus, or started by torchrun,
it is a run in several processes, and rank 0 is shown.
"""

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from Utils.base import command_line, errors, ladder, paths
from Utils.base.command_line import Parser
from Utils.base.errors import Unsupported, UserError
from Utils.device import devices
from Utils.diagnose import profiled_run
from Utils.diagnose.profiled_run import MEMORY_STEPS, PYTHON_STEPS, STEPS, ProfiledRun
from Utils.draw import profile_chart, style
from Utils.launch import torchrun
from Utils.run import execute


def main(argv=None):
    """Profiles one technique or several. Returns the exit code: 0, or 1 where a run failed or did
    not fit into memory, or 2 where the settings are not possible."""
    parser = Parser("profile", __doc__)
    command_line.add_settings(parser)
    add = parser.add_argument
    add("name", nargs="?", default="", help="a technique, or all, beyond, everything")
    add("--cpu", action="store_true", help="as well: where Python's time goes, by cProfile")
    add("--memory", action="store_true", help="as well: what was allocated when")
    add("--gpus", default="", help="in how many processes to run it, else in one")
    add("--folder", type=Path, help="where all of it goes, else profiles/ beside the results file")
    args = parser.parse_args(argv)
    args.folder = args.folder or args.results_file.parent / "profiles"
    if not args.name:
        raise UserError(f"T=NAME says what: all, or one of {', '.join(ladder.techniques())}")
    if args.warmup >= args.steps:  # before steps are added that the run knows nothing of
        raise UserError(f"--warmup {args.warmup} of --steps {args.steps} leaves no step to time")
    several = ladder.group({"all": "ladder"}.get(args.name, args.name))
    techniques = several or [ladder.get(args.name)]
    try:
        args.folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=args.folder).close()  # raises where no file can be made
    except OSError as error:
        raise UserError(f"{args.folder}: {error.strerror}") from None
    if several:
        return _profile_all(techniques, args)
    if args.gpus:
        count, args.gpus = torchrun.one_count(args.gpus, args.device), ""
        command = ["-m", "Utils.commands.profile", args.name, *_flags(args, own=True)]
        return torchrun.launch(args.name, command, count)
    return _profile(techniques[0], args)


def _flags(args, own=()):
    """The command line of a script with the settings of ours, or, with our `own`, of ourselves."""
    values = {name: value for name, value in vars(args).items() if name != "name"}
    switches = [f"--{name}" for name in ("cpu", "memory") if values.pop(name) and own]
    if not own:
        del values["folder"], values["gpus"]
    return [*switches, *command_line.as_flags(values)]


def _profile(technique, args):
    import torch._inductor.config as inductor  # here, since without a script there is no need

    inductor.cpp.enable_kernel_profile = True  # else compiled C++ is one dark stretch of the trace
    args.results_file, args.rounds = args.folder / "results.csv", 1
    args.steps += 1 + STEPS + 1 + PYTHON_STEPS * args.cpu + MEMORY_STEPS * args.memory
    note = {"technique": technique.name, "torch": torch.__version__}
    try:
        execute(technique, _flags(args), partial(ProfiledRun, technique, args))
        return 0
    except Unsupported as reason:
        note |= {"status": "unsupported", "note": str(reason)}
    except Exception as error:
        if not devices.is_out_of_memory(error):
            raise  # to the script's own hook, which records a failed run
        note |= {"status": "out_of_memory", "note": "out of memory; a smaller BATCH_SIZE may fit"}
    print(f"{technique.name}: {note['status'].replace('_', ' ')}: {note['note']}", file=sys.stderr)
    with profiled_run._replacing(args.folder, technique.name) as folder:
        facts = note | {"device": devices.choose(args.device).name}
        (folder / f"{technique.name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if note["status"] == "unsupported" else 1


def _profile_all(techniques, args):
    """One process each, then the chart."""
    outcomes, found = set(), []
    for number, technique in enumerate(techniques):
        print(f"\n[{number + 1}/{len(techniques)}]", file=sys.stderr, flush=True)
        command = [
            sys.executable,
            "-m",
            "Utils.commands.profile",
            technique.name,
            *_flags(args, own=True),
        ]
        with subprocess.Popen(command, env=paths.environment()) as process:
            try:
                outcome = process.wait()
            except KeyboardInterrupt:  # the terminal has told it as well: let it end first
                outcome = process.wait()
                if outcome != 130:  # else it said so
                    raise
        if outcome in (2, 130):
            return outcome
        outcomes.add(outcome)
        found.append(_summary(args.folder, technique, outcome))

    style.save(profile_chart.draw(found), f"{args.plotsprefix}profile")
    return max(map(bool, outcomes))


def _summary(folder, technique, outcome):
    """What a technique's process has left; of one that left nothing, an old file says nothing."""
    try:
        summary = json.loads((folder / f"{technique.name}.json").read_text())
    except (OSError, ValueError):
        summary = {}
    if outcome and summary.get("status") != "out_of_memory":
        return {"technique": technique.name, "status": "failed", "note": "failed"}
    return summary


if __name__ == "__main__":
    with errors.one_line("profile"):
        sys.exit(main())
