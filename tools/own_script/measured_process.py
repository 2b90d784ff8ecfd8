"""The process in which a user's training script runs, unchanged.

It needs only torch and numpy. It appends its rows, or the row that says why there are no timings.
"""

import inspect
import json
import os
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

from tools.own_script import patched_sources
from tools.own_script.descendants import adopt_orphans
from tools.own_script.faults import fault
from tools.own_script.inspection import from_json
from tools.own_script.measured_run import Measured, record_end
from tools.own_script.noted_run import Noted
from tools.own_script.user_code import OURS, TABLES
from Utils.base import paths
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.harness import turn_pipe
from Utils.harness.settings import Settings
from Utils.results import rows_file
from Utils.scripts.identity import identity_from_environment


def settings_of(argv):
    """Return the settings of a run. Its spec is a dict that `own_runs` has written."""
    # Flags.
    parser = Parser("measured_process", __doc__, *RUN_SETTINGS)
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--switches", nargs="*", default=[])
    parser.add_argument("--end", help="status and reason of a run that has no row")
    flags = parser.parse_args(argv)

    # The run.
    turn = turn_pipe.current_turn()
    started = datetime.now(UTC)
    run_id = rows_file.run_id(started, turn and turn.token)

    # Files of the run.
    spec = SimpleNamespace(**json.loads(flags.spec.read_text()))
    spec.inspection = from_json(spec.inspection)
    spec.output = f"{spec.runs}/{run_id}.txt"
    spec.scratch = f"{spec.runs}/scratch/{run_id}"

    name = spec.name
    values = {
        "spec": spec,
        "turn": turn,
        "started": started,
        "run_id": run_id,
        "results_file": flags.results_file.absolute(),  # the script starts in another folder
        "identity": identity_from_environment(name),
        "source": Path(spec.file).read_text(errors="replace"),
        "argv": spec.arguments,
        "minutes": None,  # the launcher's, which bounds turns
        "config": None,
        "hardware": None,
        # Columns of its rows, until they are measured.
        **dict.fromkeys(("technique", "base", "model", "dataset"), name),
        "unit": "steps",
        "batch_size": 1,
        "requested_batch_size": 1,
        "seq_len": 1,
        "commit": "",
    }
    return Settings(**vars(flags) | values | spec.columns)


def hide_our_modules(folder):
    """Let a script import its own modules, even if ours have the same names.

    Our modules are those whose files are in Utils/ or tools/. From now on none of them may be
    imported by name, as the user may have a module of that name. A script that starts in this
    repository imports our modules and keeps them. folder: where the script starts.
    """
    sys.path[:] = [path for path in sys.path if path not in (str(paths.ROOT), "")]
    if Path(folder).resolve() == paths.ROOT:
        return

    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(OURS):
            del sys.modules[name]
            # inspect remembers files by name, and would look for one of a package without a file.
            inspect._filesbymodname.pop(name, None)


def main():
    """Run a script. Exit codes: 0 with a row, 2 if the script is refused, 130 for Ctrl-C."""
    args = settings_of(sys.argv[1:])
    if args.end:
        status, _, reason = args.end.partition(" ")
        return record_end(args, status, reason)

    spec = args.spec
    os.environ.update(TABLES["variables"])
    os.get_terminal_size = lambda *_: os.terminal_size((80, 24))
    opened = patched_sources.install(spec.patched) if spec.patched else set()
    measured = (Noted if spec.perturbation else Measured)(args, opened)
    adopt_orphans()
    hide_our_modules(spec.folder)

    signal.signal(signal.SIGINT, lambda number, frame: measured.end_process(130))
    # What the script prints is kept, and its standard input is empty, so that it does not wait.
    output = os.open(spec.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)

    if spec.inspects or spec.perturbation:
        timer = threading.Timer(60 * spec.timeout, measured.end_in_time)
        timer.daemon = True
        timer.start()

    os.chdir(spec.folder)
    try:
        end = measured.run_script()
    except Exception as error:
        end = fault(error)
    measured.append(end)
    measured.end_process()
