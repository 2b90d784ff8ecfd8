"""One run in several processes: its ranks, what they exchange, and how they end.

torchrun and `launch.rank_launcher` start the processes and set each rank's environment. All ranks
do the same work; rank 0 alone prints and writes. They exchange measurements once, after the loop.
When one fails, the others cannot continue, and the launcher ends all of them as soon as one has
ended. So the rank at fault ends first, and the others wait a moment.
"""

import os
import re
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from Utils.base import files
from Utils.base.errors import UserError

GRACE_S = 2.0  # enough for the launcher to see that a rank has ended
COUNTS = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 0}
ALONE = COUNTS | {"MASTER_ADDR": "localhost", "MASTER_PORT": 0}
NOTICED = 75  # exit code of a rank that ends because another one ended or hangs
# Errors of gloo, NCCL and torch's store when another rank is gone or does not answer.
GONE = re.compile(
    "closed by peer|reset by peer|broken pipe|socket closed|remote process exited|gloo/transport|"
    "connection closed|connection refused|heartbeat|watchdog"
)
LATE = re.compile("timed out|timeout")


class Ranks(NamedTuple):
    """The place of a process among those of its run, in the order of COUNTS."""

    rank: int
    world_size: int
    local_rank: int  # on this machine
    local_world_size: int
    node: int  # number of the machine


def from_environment() -> Ranks:
    """Return the Ranks of this process, as set by torchrun; by default a single rank.

    Raises UserError for numbers that no launcher sets.
    """
    remedy = "unset it, or start the run with torchrun"
    numbers = []
    for name, alone in COUNTS.items():
        text = os.environ.get(name, str(alone))
        if not re.fullmatch("[0-9]{1,9}", text):
            raise UserError(f"{name}={text}: not a whole number", remedy)
        numbers.append(int(text))

    ranks = Ranks(*numbers)
    if ranks.rank >= ranks.world_size or ranks.local_rank >= ranks.local_world_size:
        raise UserError(f"RANK={ranks.rank}: there are {ranks.world_size}", remedy)
    return ranks


def patience() -> timedelta:
    """Return the time after which a rank that does not answer is considered hung.

    It is PATIENCE_S of the environment, in seconds. Raises UserError.
    """
    text = os.environ.get("PATIENCE_S", "45")
    with suppress(ValueError, OverflowError):
        if float(text) > 0:
            return timedelta(seconds=float(text))
    raise UserError(f"PATIENCE_S={text}: not a duration", "give a number of seconds")


def stand_alone() -> None:
    """Set torchrun's missing variables, so that a script started without it is a group of one."""
    leave()  # the group of a script that ran in this process before
    # DDP reads its own statistics in steps 2 to 11 and then in each 100th. On a GPU it waits for
    # eight events to do so, which other steps do not. torch has no switch for it.
    if hasattr(torch.distributed, "Logger"):
        torch.distributed.Logger.set_runtime_stats_and_log = lambda logger: None
    for name, value in ALONE.items():
        os.environ.setdefault(name, str(value))


def leave() -> None:
    """Leave the process group, if there is one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def gather(value: object) -> list:
    """Return the values of all ranks, in order."""
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def noticed(error: BaseException) -> str:
    """Return "gone" or "late" if an exception is due to another rank, otherwise ""."""
    if not torch.distributed.is_available():
        return ""
    text = str(error).lower()
    collective = isinstance(error, RuntimeError) and torch.distributed.is_initialized()
    if collective and LATE.search(text):
        return "late"
    if isinstance(error, torch.distributed.DistError) or (collective and GONE.search(text)):
        return "gone"
    return ""


def report(message: str, noticed: str | None = None) -> None:
    """Write a message for torch's launcher, and the state `noticed` of another rank.

    The launcher may end this rank meanwhile. It ends with a traceback if the file is empty.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        text = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        files.write_json(Path(path), {"message": text, "noticed": noticed})


def end(code: int) -> NoReturn:
    """End this rank immediately: exit handlers might wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
