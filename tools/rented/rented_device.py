"""The device of a plan. It imports torch, so that callers use it in a child process."""

from dataclasses import dataclass

import torch

from tools.forecast import forecast_plan
from Utils.corpus import token_cache
from Utils.device import capabilities


@dataclass(frozen=True)
class RentedDevice:
    """What decides a plan of a device, here or not.

    torch: its version.
    precision: the ladder's; shape: its batch_size and seq_len.
    """

    name: str
    torch: str
    precision: str
    shape: tuple[int, int]


def find(args):
    """Return the RentedDevice for the settings of a command. Raises UserError."""
    token_cache.load_tokens(args.dataset)  # once, before pieces are timed
    args = forecast_plan.settings_of(args)
    device = args.hardware
    return RentedDevice(
        name=device.name,
        torch=torch.__version__,
        precision=capabilities.precision(device),
        shape=(args.batch_size, args.seq_len),
    )
