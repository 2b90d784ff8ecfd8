"""Settings of a training run: flags, a device's defaults, and values computed from both."""

import math
import tomllib
from argparse import ArgumentTypeError, Namespace
from datetime import timedelta
from pathlib import Path

from Utils.base.command_line import SETTINGS, Parser, check_model, spelled
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import device_choice
from Utils.harness import ranks, settings

PATIENCE = timedelta(minutes=30)  # a rank waits for the one that saves or tokenizes

DEFAULTS = tomllib.loads(Path(__file__).with_name("defaults.toml").read_text())
ON_A_GPU = DEFAULTS["gpu"] | {"bucket_mb": settings.BUCKET_MB}
ON_A_CPU = ON_A_GPU | DEFAULTS["cpu"]
# Settings that a resumed run may change. A new number of steps changes the schedule from there on.
CHANGEABLE = {"steps", "batch_size", "validate_every", "checkpoint_every", "device", "bucket_mb"}


def parse(doc, argv=None):
    """Return the flags as a Namespace; flags that were not given are None."""
    parser = Parser("train", doc, *ON_A_GPU, "with", "resume", "out", "plot", "results_file")
    parser.set_defaults(**dict.fromkeys(ON_A_GPU))
    for action in parser._actions:
        action.help = DEFAULTS["help"].get(action.dest, action.help)
    args = parser.parse_args(argv)
    args.with_ = vars(args).pop("with")
    if args.seq_len == "auto":
        args.seq_len = None
    return args


def fill(explicit, kind):
    """Return all settings of a new run: explicit ones, and defaults for a kind of device."""
    filled = (ON_A_GPU if kind == "cuda" else ON_A_CPU) | explicit
    if "warmup" not in explicit:
        filled["warmup"] = min(filled["warmup"], math.ceil(filled["steps"] / 20))
    return filled


def checked(settings, path):
    """Return settings of a file as the command line would read them. Raises UserError."""
    values = {}
    for name in ON_A_GPU:
        try:
            values[name] = SETTINGS[name].parse(str(settings[name]))
        except KeyError:
            raise UserError(f"{path}: {name} is missing") from None
        except ArgumentTypeError as error:
            raise UserError(f"{path}: {name} {error}") from None
    return values


def resolve(chosen, hardware=None):
    """Return the Settings of a dict of values on this device and rank. Raises UserError.

    They have device, hardware, config, backend and ranks like those of the ladder's scripts. Of
    the sequences of a step, a rank computes batch_size at once, accumulation times.
    """
    # Model, ranks and device, as for the scripts.
    asked = Namespace(**chosen)
    check_model(asked)
    here = ranks.from_environment()
    hardware = hardware or device_choice.choose(
        asked.device, here.local_rank, here.local_world_size
    )
    device = hardware.torch_device
    values = {
        "technique": "train",
        "config": CONFIGS[asked.model],
        "patience": PATIENCE,
        "hardware": hardware,
        "device": device,
        "backend": "nccl" if device.type == "cuda" else "gloo",
        "checkpoint_every": asked.checkpoint_every or asked.validate_every,
    }
    args = settings.Settings(**chosen | here._asdict() | values)

    # A step must have the same number of whole sequences on each rank.
    unit = args.seq_len * args.world_size
    if args.tokens_per_step % unit:
        problem = f"not a multiple of {unit}, a sequence for each rank"
        remedy = f"try {unit * -(-args.tokens_per_step // unit)}"
        raise UserError(f"{spelled('tokens_per_step', args.tokens_per_step)}: {problem}", remedy)
    sequences = args.tokens_per_step // unit  # per step and rank

    # The batch is the largest divisor of these that fits the device.
    most = args.batch_size
    if most == "auto" and args.device.type == "cpu":
        most = 16
    elif most == "auto":
        most, _ = device_choice.auto_shape(args.hardware, args.config, seq_len=args.seq_len)
    size = max(n for n in range(1, min(sequences, most) + 1) if sequences % n == 0)
    if args.batch_size not in ("auto", size):
        problem = f"a step has {sequences} sequences for each rank, not a multiple"
        raise UserError(f"{spelled('batch_size', most)}: {problem}", f"try {size}")
    return args.replace(batch_size=size, accumulation=sequences // size)
