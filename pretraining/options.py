"""Settings of a training run: flags, defaults of a device, and what follows from both."""

import math
from datetime import timedelta
from pathlib import Path

from Utils.base.command_line import Parser, at_least, finite
from Utils.base.errors import UserError
from Utils.base.sizes import CONFIGS
from Utils.device import devices, shapes
from Utils.harness import ranks, settings

PATIENCE = timedelta(minutes=30)  # of a rank for the others, as one of them saves and tokenizes

# build-nanogpt's: GPT-2 124M on 10B tokens.
ON_A_GPU = {
    "model": "gpt2",
    "steps": 19_073,
    "tokens_per_step": 524_288,
    "seq_len": 1024,
    "learning_rate": 6e-4,
    "warmup": 715,
    "validate_every": 250,
    "validation_tokens": 10_485_760,
}
# A tiny model whose loss falls within three minutes on two cores.
ON_A_CPU = {
    "model": "gpt2-tiny",
    "steps": 1_200,
    "tokens_per_step": 512,
    "seq_len": 128,
    "learning_rate": 3e-3,
    "warmup": 60,
    "validate_every": 100,
    "validation_tokens": 8_192,
}
EVERYWHERE = {
    "dataset": "stdlib",
    "corpus_tokens": 0,
    "batch_size": "auto",
    "weight_decay": 0.1,
    "clip": 1.0,
    "checkpoint_every": 0,
    "device": "auto",
    "seed": 0,
    "bucket_mb": settings.BUCKET_MB,
}
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
    positive = finite("a number above 0", zero=False)
    add("--steps", type=at_least(1), help="updates of the weights")
    add("--tokens-per-step", type=at_least(1), help="of all ranks and accumulated batches")
    add("--batch-size", type=at_least(1, auto=True), help="sequences that a rank computes at once")
    add("--seq-len", type=at_least(1), help="tokens of a sequence")
    add("--model", help=", ".join(CONFIGS))
    add("--dataset", help="stdlib, synthetic, file or folder, or Hub id")
    add("--corpus-tokens", type=at_least(0), help="use about so many of its tokens; 0: all")
    add("--learning-rate", type=positive, help="the highest, after the warm-up")
    add("--warmup", type=at_least(0), help="steps until the learning rate is reached")
    add("--weight-decay", type=finite("a number from 0 up"), help="of matrices")
    add("--clip", type=positive, help="the largest norm of the gradients")
    add("--validate-every", type=at_least(1), help="steps between validations")
    add("--validation-tokens", type=at_least(1), help="held-out tokens of a validation, at most")
    add("--checkpoint-every", type=at_least(0), help="steps between checkpoints; 0: as validations")
    add("--device", help="auto, cpu, cuda, cuda:N or mps")
    add("--seed", type=at_least(0), help="of the weights and the batches")
    add("--bucket-mb", type=at_least(1), help="MiB of gradients that ranks sum at once")
    add("--with", dest="with_", help="techniques to merge into the loop, or none")
    add("--resume", default="", help="1: go on with the newest run; or a run's folder")
    add("--out", type=Path, help="the run's folder; else training/ and the time")
    add("--plot", default="", help="1: draw the curves while it trains")
    add("--results-file", type=Path, default=Path("results.csv"), help="where the recipe is from")
    args = parser.parse_args(argv)
    for flag in ("resume", "plot"):
        setattr(args, flag, "" if getattr(args, flag) == "0" else getattr(args, flag))
    return args


def names():
    """Return the settings that make a run what it is."""
    return [*ON_A_GPU, *EVERYWHERE]


def fill(given, kind):
    """Return all settings of a new run: those given and the defaults of a kind of device."""
    defaults = EVERYWHERE | (ON_A_GPU if kind == "cuda" else ON_A_CPU)
    filled = defaults | given
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
        raise UserError(
            f"--seq-len {args.seq_len}: {args.model} takes {args.config.block_size} tokens at most"
        )
    here = ranks.from_environment()
    vars(args).update(here._asdict(), patience=PATIENCE)
    args.hardware = hardware or devices.choose(args.device, here.local_rank, here.local_world_size)
    args.device = args.hardware.torch_device
    args.backend = "nccl" if args.device.type == "cuda" else "gloo"
    args.checkpoint_every = args.checkpoint_every or args.validate_every
    args.batch_size, args.accumulation = _shares(args)
    return args


def _shares(args):
    """Return (sequences that a rank computes at once, how often in a step). Raises UserError."""
    unit = args.seq_len * args.world_size
    if args.tokens_per_step % unit:
        raise UserError(
            f"--tokens-per-step {args.tokens_per_step}: not a multiple of {unit}, a sequence for "
            f"each rank; try {unit * -(-args.tokens_per_step // unit)}"
        )
    own = args.tokens_per_step // unit  # sequences of a step for this rank
    if args.batch_size == "auto":
        most = 16
        if args.device.type != "cpu":
            parameters = args.config.parameters()
            shape = {"seq_len": args.seq_len}
            most, _ = shapes.auto_shape(args.hardware, args.config, parameters, **shape)
        size = max(n for n in range(1, min(own, most) + 1) if own % n == 0)
    else:
        size = args.batch_size
        if own % size:
            raise UserError(
                f"--batch-size {size}: a step has {own} sequences for each rank, which is no "
                f"multiple; try {max(n for n in range(1, min(own, size) + 1) if own % n == 0)}"
            )
    return size, own // size
