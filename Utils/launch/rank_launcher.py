"""One run in several processes of this machine, started by torchrun's library."""

import json
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from Utils.base import command_line, paths
from Utils.base.child import why_ended
from Utils.base.errors import UserError
from Utils.device import device_choice
from Utils.harness import ranks

DEFAULT = "distributed_data_parallel"
SHUTDOWN_S = 5  # between SIGTERM and SIGKILL of the ranks


def count(text, wanted):
    """Return the number of processes in a text; "all" is the largest possible.

    Raises UserError, also if the device has no room for them.

    wanted: the device by name.
    """
    most, available = device_choice.available(wanted)
    if text == "all":
        return most
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise UserError(f"GPUS={text}: there are {available} here", f"give 1 to {most}, or all")
    return int(text)


def command(technique, args, r):
    """Return Python's arguments to run a technique in round r.

    Raises UserError for a setting that the script does not read.
    """
    read = command_line.read_by(technique.code)
    for name, setting in command_line.SCRIPT_SETTINGS.items():
        if name not in read and getattr(args, name) != setting.default:
            problem = f"{name.upper()}={getattr(args, name)}: {technique.name} does not use it"
            raise UserError(problem)
    flags = command_line.round_flags(args, r, technique.code)
    return [*technique.command, *flags]


def launch(name, command, count):
    """Run `count` ranks. Return 0, the exit code of a rank that failed, or 130 if interrupted.

    name: the technique's name, for messages.
    command: Python's arguments for each rank.
    """
    # They take a second, and messages about wrong settings do not need them.
    from torch.distributed.elastic.multiprocessing import (  # noqa: PLC0415
        DefaultLogsSpecs,
        SignalException,
    )
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    threads = str(max(1, device_choice.available("cpu")[0] // count))  # a share of the cores
    environment = patch.dict(os.environ, {"OMP_NUM_THREADS": threads} | paths.environment())

    with environment, tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id=name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            shutdown_timeout=SHUTDOWN_S,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            elastic_launch(config, sys.executable)("-u", *command)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            files = Path(folder).rglob("[0-9]*/error.json")
            reports = {int(f.parent.name): json.loads(f.read_text()).get("noticed") for f in files}
            problem = diagnosis(codes, reports)
            if problem:
                print(f"{name}: {problem}; nothing was recorded", file=sys.stderr)
            return 2 if 2 in codes.values() else 1
        except (SignalException, KeyboardInterrupt):
            print(f"\n{name}: interrupted", file=sys.stderr)
            return 130
    return 0


def diagnosis(codes, reports):
    """Return the ranks at fault and their failure; "" if one has reported it.

    codes: exit codes by rank.
    reports: the state of another rank, as noticed by each rank: "late", "gone" or None.
    """
    aborted = {rank for rank, code in codes.items() if code == -signal.SIGABRT}  # NCCL's watchdog
    noticed = {rank for rank, state in reports.items() if state} | aborted
    if 2 in codes.values() or reports.keys() - noticed:
        return ""

    at_fault = sorted(codes.keys() - noticed)
    if "late" in reports.values() or (aborted and at_fault):
        failure = f"hung: the others waited for {ranks.patience().total_seconds():g} s"
    else:
        by_itself = [rank for rank in at_fault if codes[rank] != -signal.SIGTERM]
        at_fault = by_itself or at_fault or sorted(codes)
        code = codes[at_fault[0]]
        failure = f"{'was ' if code < 0 else ''}{why_ended(code)}"
    names = ", ".join(map(str, at_fault))
    return f"{'rank' if len(at_fault) == 1 else 'ranks'} {names} {failure}"
