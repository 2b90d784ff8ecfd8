"""Settings of a training run: flags, defaults of a device, and what follows from both."""

import math
from datetime import timedelta
from pathlib import Path

from Utils.base.command_line import Parser, at_least, finite
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import auto_shape, device_choice
from Utils.harness import ranks, settings

PATIENCE = timedelta(minutes=30)  # of a rank for the others, as one of them saves and tokenizes

AUTO, BUCKET_MB = "auto", settings.BUCKET_MB
COUNT, POSITIVE = at_least(1), finite("a number above 0", zero=False)
# What makes a run what it is: type, help, and the default on a GPU and on a CPU. Those of a GPU are
# build-nanogpt's, GPT-2 124M on 10B tokens; the tiny model's loss falls within three minutes on two
# cores.
SETTINGS = {
    "steps": (COUNT, "updates of the weights", 19_073, 1_200),
    "tokens_per_step": (COUNT, "of all ranks and accumulated batches", 524_288, 512),
    "batch_size": (at_least(1, auto=True), "sequences that a rank computes at once", AUTO, AUTO),
    "seq_len": (COUNT, "tokens of a sequence", 1024, 128),
    "model": (str, ", ".join(CONFIGS), "gpt2", "gpt2-tiny"),
    "dataset": (str, "stdlib, synthetic, file or folder, or Hub id", "stdlib", "stdlib"),
    "corpus_tokens": (at_least(0), "use about so many of its tokens; 0: all", 0, 0),
    "learning_rate": (POSITIVE, "the highest, after the warm-up", 6e-4, 3e-3),
    "warmup": (at_least(0), "steps until the learning rate is reached", 715, 60),
    "weight_decay": (finite("a number from 0 up"), "of matrices", 0.1, 0.1),
    "clip": (POSITIVE, "the largest norm of the gradients", 1.0, 1.0),
    "validate_every": (COUNT, "steps between validations", 250, 100),
    "validation_tokens": (COUNT, "held-out tokens of a validation, at most", 10_485_760, 8_192),
    "checkpoint_every": (at_least(0), "steps between checkpoints; 0: as validations", 0, 0),
    "device": (str, "auto, cpu, cuda, cuda:N or mps", AUTO, AUTO),
    "seed": (at_least(0), "of the weights and the batches", 0, 0),
    "bucket_mb": (COUNT, "MiB of gradients that ranks sum at once", BUCKET_MB, BUCKET_MB),
}
ON_A_GPU = {name: default for name, (*_, default, _) in SETTINGS.items()}
ON_A_CPU = {name: default for name, (*_, default) in SETTINGS.items()}
# What a resumed run may be given anew. Of these, steps changes the schedule from there on.
CHANGEABLE = {"steps", "batch_size", "validate_every", "checkpoint_every", "device", "bucket_mb"}


class Settings(settings.Settings):
    """The settings that `settle` makes of the flags, with more attributes.

    device, hardware, config, backend, patience, rank, world_size, local_rank, local_world_size:
        as for the ladder's scripts.
    batch_size: sequences that a rank computes at once; accumulation: how often in a step.
    folder: of the run. techniques: merged into its loop. resumes: whether it has begun before.
    """


def parse(doc, argv=None):
    """Return the flags that were given, a Namespace; None for the others."""
    parser = Parser("train", doc)
    add = parser.add_argument
    for name, (kind, help, *_) in SETTINGS.items():
        add(f"--{name.replace('_', '-')}", type=kind, help=help)
    add("--with", dest="with_", help="techniques to merge into the loop, or none")
    add("--resume", default="", help="1: go on with the newest run; or a run's folder")
    add("--out", type=Path, help="the run's folder; else training/ and the time")
    add("--plot", default="", help="1: draw the curves while it trains")
    add("--results-file", type=Path, default=Path("results.csv"), help="where the recipe is from")
    args = parser.parse_args(argv)
    for flag in ("resume", "plot"):
        setattr(args, flag, "" if getattr(args, flag) == "0" else getattr(args, flag))
    return args


def fill(given, kind):
    """Return all settings of a new run: those given and the defaults of a kind of device."""
    filled = (ON_A_GPU if kind == "cuda" else ON_A_CPU) | given
    if "warmup" not in given:
        filled["warmup"] = min(filled["warmup"], math.ceil(filled["steps"] / 20))
    return filled


def settle(chosen, hardware=None):
    """Return settings of those values, a dict, on this device and rank. Raises UserError."""
    args = Settings(**chosen, technique="train", notes=[])
    if args.model not in CONFIGS:
        raise UserError(f"--model {args.model}: choose {', '.join(CONFIGS)}")
    args.config = CONFIGS[args.model]
    if args.seq_len > args.config.block_size:
        longest = args.config.block_size
        raise UserError(f"--seq-len {args.seq_len}: {args.model} takes {longest} tokens at most")
    here = ranks.from_environment()
    vars(args).update(here._asdict(), patience=PATIENCE)
    args.hardware = hardware or device_choice.choose(
        args.device, here.local_rank, here.local_world_size
    )
    args.device = args.hardware.torch_device
    args.backend = "nccl" if args.device.type == "cuda" else "gloo"
    args.checkpoint_every = args.checkpoint_every or args.validate_every
    args.batch_size, args.accumulation = _shares(args)
    return args


def _shares(args):
    """Return (sequences that a rank computes at once, how often in a step). Raises UserError."""
    unit = args.seq_len * args.world_size
    if args.tokens_per_step % unit:
        problem = f"not a multiple of {unit}, a sequence for each rank"
        remedy = f"try {unit * -(-args.tokens_per_step // unit)}"
        raise UserError(f"--tokens-per-step {args.tokens_per_step}: {problem}", remedy)
    own = args.tokens_per_step // unit  # sequences of a step for this rank
    most = args.batch_size
    if most == AUTO and args.device.type == "cpu":
        most = 16
    elif most == AUTO:
        model = args.hardware, args.config, args.config.parameters()
        most, _ = auto_shape.auto_shape(*model, seq_len=args.seq_len)
    size = max(n for n in range(1, min(own, most) + 1) if own % n == 0)
    if args.batch_size not in (AUTO, size):
        problem = f"a step has {own} sequences for each rank, which is no multiple"
        raise UserError(f"--batch-size {most}: {problem}", f"try {size}")
    return size, own // size
