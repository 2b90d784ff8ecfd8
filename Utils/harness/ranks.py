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
from collections import namedtuple
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch

from Utils.base import files
from Utils.base.errors import UserError

GRACE_S = 2.0  # enough for the launcher to see that a rank has ended
# rank of world_size; on this machine, local_rank of local_world_size; node numbers the machines.
Ranks = namedtuple("Ranks", "rank world_size local_rank local_world_size node")
COUNTS = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 0}
ALONE = {name: str(count) for name, count in COUNTS.items()}
ALONE |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
NOTICED = 75  # exit code of a rank that ends because another one ended or hangs
# Errors of gloo, NCCL and torch's store when another rank is gone or does not answer.
GONE = re.compile(
    "closed by peer|reset by peer|broken pipe|socket closed|remote process exited|gloo/transport|"
    "connection closed|connection refused|heartbeat|watchdog"
)
LATE = re.compile("timed out|timeout")


def from_environment():
    """Return the Ranks of this process, as set by torchrun; by default a single rank."""
    return Ranks(*(int(os.environ.get(name, alone)) for name, alone in COUNTS.items()))


def patience():
    """Return the timedelta after which a rank that does not answer is considered hung: PATIENCE_S
    of the environment, in seconds. Raises UserError.
    """
    text = os.environ.get("PATIENCE_S", "45")
    with suppress(ValueError, OverflowError):
        if float(text) > 0:
            return timedelta(seconds=float(text))
    raise UserError(f"PATIENCE_S={text}: not a duration", "give a number of seconds")


def stand_alone():
    """Set torchrun's missing variables, so that a script started plainly is a group of one."""
    leave()  # the group of a script that ran in this process before
    # DDP reads its own statistics in steps 2 to 11 and then in each 100th, and on a GPU waits for
    # eight events to do so: no part of a usual step. torch has no switch for it.
    if hasattr(torch.distributed, "Logger"):
        torch.distributed.Logger.set_runtime_stats_and_log = lambda logger: None
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)


def leave():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def gather(value):
    """Return the values of all ranks, in order."""
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def noticed(error):
    """Return "gone" or "late" where an exception is due to another rank, else ""."""
    if not torch.distributed.is_available():
        return ""
    text = str(error).lower()
    collective = isinstance(error, RuntimeError) and torch.distributed.is_initialized()
    if collective and LATE.search(text):
        return "late"
    if isinstance(error, torch.distributed.DistError) or (collective and GONE.search(text)):
        return "gone"
    return ""


def report(message, noticed=None):
    """Write a message, and the state `noticed` of another rank, for torch's launcher. It may end
    this rank meanwhile, and ends with a traceback where the file is empty.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        text = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        files.write_json(Path(path), {"message": text, "noticed": noticed})


def end(code):
    """End this rank immediately: exit handlers might wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
