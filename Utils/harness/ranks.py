"""One run in several processes: its ranks, what they exchange, and how they end.

torchrun and `launch.torchrun` start the processes and set each one's rank in its environment. All
ranks do the same; rank 0 alone prints and writes. They exchange figures once, after the loop. When
one fails the others cannot continue. The launcher ends all of them as soon as one has ended; so the
rank at fault ends first, and the others wait a moment before they do.
"""

import json
import os
import socket
import sys
import time
from datetime import timedelta
from typing import NamedTuple

import torch

from Utils.base.errors import UserError

GRACE_S = 2.0  # within which whoever starts the ranks has seen that one of them is gone
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "0"}
ALONE |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
NOTICED = 75  # exit code of a rank that ends because another one has ended, or hangs
# How gloo, NCCL and torch's store say that another rank is gone or does not answer.
_GONE = ("closed by peer", "reset by peer", "broken pipe", "socket closed", "remote process exited")
_GONE += ("gloo/transport", "connection closed", "connection refused", "heartbeat", "watchdog")
_LATE = ("timed out", "timeout")


class Ranks(NamedTuple):
    """rank, of world_size; local_rank, of local_world_size on this machine."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def from_environment():
    """The Ranks that this process was started as: by torchrun one of several, else one alone."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Ranks(*(int(os.environ.get(name, ALONE[name])) for name in names))


def patience():
    """Return how long a rank waits for the others in one exchange before it considers them hung: a
    timedelta, from the environment variable PATIENCE_S, in seconds. Raises UserError."""
    text = os.environ.get("PATIENCE_S", "45")
    try:
        if not 0 < float(text) < float("inf"):
            raise ValueError
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise UserError(f"PATIENCE_S={text}: give a number of seconds") from None


def stand_alone():
    """Set what torchrun sets, where it has not: a script started plainly is a group of one."""
    leave()  # the group of a script that ran in this process before
    if _is_another_attempt():
        _move_to_another_store()
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)


def _is_another_attempt():
    """Whether torchrun has started the ranks, all of them on this machine, anew."""
    here = from_environment()
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return again and here.local_world_size == here.world_size


def _move_to_another_store():
    """torchrun's agent keeps one store for all attempts, in which gloo would find the addresses of
    ranks that are gone. Rank 0 opens one of its own instead, and tells the others its port."""
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
    """What every rank has for `value`, in the order of ranks, on rank 0; None on the others."""
    world_size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    values = [None] * world_size if rank == 0 else None
    torch.distributed.gather_object(value, values)
    return values


def node():
    """What tells this machine from the others of a run, without its name."""
    return os.environ.get("GROUP_RANK", "0")


def noticed(error):
    """What an exception says of another rank: "gone", "late", or "" where it is this one's own."""
    text = str(error).lower()
    ours = torch.distributed.is_available() and torch.distributed.is_initialized()
    collective = ours and isinstance(error, RuntimeError)
    if collective and any(word in text for word in _LATE):
        return "late"
    of_torch = torch.distributed.is_available() and isinstance(error, torch.distributed.DistError)
    if of_torch or (collective and any(word in text for word in _GONE)):
        return "gone"
    return ""


def report(message, noticed=None):
    """Leaves a message for whoever started this rank, in the way of torch's own launcher, and what
    it `noticed` of another."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        told = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        with open(path, "w") as file:
            json.dump({"message": told, "noticed": noticed}, file)


def end(code):
    """Ends this rank now: what else would run at exit may wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
