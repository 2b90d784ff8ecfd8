"""One run in several processes: its ranks, what they exchange, and how they end.

torchrun and `launch.torchrun` start the processes and set each rank's environment. All ranks do the
same work; rank 0 alone prints and writes. They exchange measurements once, after the loop. When one
fails, the others cannot continue, and the launcher ends all of them as soon as one has ended. So
the rank at fault ends first, and the others wait a moment.
"""

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch

from Utils.base import files
from Utils.base.errors import UserError

GRACE_S = 2.0  # enough for the launcher to see that a rank has ended
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "0"}
ALONE |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
NOTICED = 75  # exit code of a rank that ends because another one ended or hangs
# Errors of gloo, NCCL and torch's store when another rank is gone or does not answer.
_GONE = ("closed by peer", "reset by peer", "broken pipe", "socket closed", "remote process exited")
_GONE += ("gloo/transport", "connection closed", "connection refused", "heartbeat", "watchdog")
_LATE = ("timed out", "timeout")


class Ranks(NamedTuple):
    """rank of world_size; on this machine, local_rank of local_world_size."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def from_environment():
    """Return the Ranks of this process, as set by torchrun; by default a single rank."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Ranks(*(int(os.environ.get(name, ALONE[name])) for name in names))


def patience():
    """Return the timedelta after which a rank that does not answer is considered hung.

    From the environment variable PATIENCE_S, in seconds. Raises UserError.
    """
    text = os.environ.get("PATIENCE_S", "45")
    try:
        if not 0 < float(text) < float("inf"):
            raise ValueError
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise UserError(f"PATIENCE_S={text}: not a duration", "give a number of seconds") from None


def stand_alone():
    """Set torchrun's missing variables, so that a script started plainly is a group of one."""
    leave()  # the group of a script that ran in this process before
    # DDP reads its own statistics in steps 2 to 11 and then in each 100th, and on a GPU waits for
    # eight events to do so: no part of a usual step. torch has no switch for it.
    if hasattr(torch.distributed, "Logger"):
        torch.distributed.Logger.set_runtime_stats_and_log = lambda logger: None
    if _is_another_attempt():
        _move_to_another_store()
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)


def _is_another_attempt():
    """Return whether torchrun has restarted the ranks, all of them on this machine."""
    current = from_environment()
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return restarted and current.local_world_size == current.world_size


def _move_to_another_store():
    """Open a new store for this attempt.

    torchrun's agent keeps one store for all attempts, in which gloo would find the addresses of
    ended ranks. Rank 0 opens another, and publishes its port in the agent's.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agents = torch.distributed.TCPStore(address, port, is_master=False, timeout=patience())
    key = f"port of attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}"
    if from_environment().rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            agents.set(key, str(free.getsockname()[1]))
    os.environ["MASTER_PORT"] = agents.get(key).decode()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def leave():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def gather(value):
    """Return the values of all ranks, in order, on rank 0; None on the others."""
    world_size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    values = [None] * world_size if rank == 0 else None
    torch.distributed.gather_object(value, values)
    return values


def largest(value):
    """Return the largest of the ranks' values, the same on all."""
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return max(values)


def node():
    """Return an anonymous identifier of this machine within a run."""
    return os.environ.get("GROUP_RANK", "0")


def noticed(error):
    """Return "gone" or "late" where an exception is due to another rank, else ""."""
    text = str(error).lower()
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    collective = grouped and isinstance(error, RuntimeError)
    if collective and any(word in text for word in _LATE):
        return "late"
    of_torch = torch.distributed.is_available() and isinstance(error, torch.distributed.DistError)
    if of_torch or (collective and any(word in text for word in _GONE)):
        return "gone"
    return ""


def report(message, noticed=None):
    """Write a message, and the state `noticed` of another rank, for torch's launcher.

    The file appears with its text: torch's launcher ends with a traceback if one is empty.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        body = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        # The launcher may end this rank in between.
        files.write_json(Path(path), {"message": body, "noticed": noticed})


def end(code):
    """End this rank immediately: exit handlers might wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
