"""Settings of a run: what was asked for, and what follows from it on this device."""

import argparse

from Utils.base.errors import Unsupported, UserError
from Utils.base.sizes import CONFIGS
from Utils.device import checks, devices, shapes
from Utils.harness import ranks

BUCKET_MB = 25  # of DistributedDataParallel, and of ours


class Settings(argparse.Namespace):
    """What the command line asked for, and what follows from it on this device.

    device: torch.device that tensors go to; hardware: its clock and memory.
    config: GPTConfig of the model. technique: the script's stem.
    rank, world_size, local_rank, local_world_size: of `ranks`. backend, patience: of the group that
    ranks form, by name and as the timedelta after which a rank is taken for hanging.
    """

    rank, world_size = 0, 1  # until `settle` knows

    def require(self, need):
        """Declares what the technique needs: one of `hardware.CHECKS`, such as "tf32", or the name
        of a package.

        Raises Unsupported where this device lacks it, which ends the run with a row that says so.
        Where the technique can run but not as meant, that goes into the run's note.
        """
        self.needs.append(need)
        if note := checks.check(need, self.hardware):
            self.notes.append(note)

    def require_ranks(self):
        """Declares that the script's processes form a group, be it of one. Raises Unsupported."""
        self.require("distributed")
        if self.world_size > 1 and self.bucket_mb != BUCKET_MB:
            self.notes.append(f"buckets of {self.bucket_mb} MiB")
        ranks.stand_alone()

    def require_batch_multiple(self, n):
        """Declares that a rank's sequences of a step are dealt out to n equal parts. Raises
        Unsupported."""
        n *= self.world_size
        if self.batch_size % n:
            raise Unsupported(
                f"needs a batch size that is a multiple of {n}, not {self.batch_size}; "
                f"try --batch-size {n * -(-self.batch_size // n)}"
            )

    def require_text(self):
        """Declares that the corpus has to be text. Raises Unsupported."""
        if self.dataset == "synthetic":
            raise Unsupported("--dataset synthetic is random tokens: there is no text to stream")


def settle(args):
    """Turns what was asked for into what will run, on the device chosen. Raises UserError."""
    if args.model not in CONFIGS:
        raise UserError(f"--model {args.model}: choose {', '.join(CONFIGS)}")
    args.config = CONFIGS[args.model]
    if args.warmup >= args.steps:
        raise UserError(f"--warmup {args.warmup} of --steps {args.steps} leaves no step to time")
    longest = args.config.block_size
    if args.seq_len != "auto" and args.seq_len > longest:
        raise UserError(f"--seq-len {args.seq_len}: {args.model} takes {longest} tokens at most")
    here = ranks.from_environment()
    vars(args).update(here._asdict(), patience=ranks.PATIENCE)
    args.hardware = devices.choose(args.device, here.local_rank, here.local_world_size)
    args.device = args.hardware.torch_device
    args.backend = "nccl" if args.device.type == "cuda" else "gloo"
    given = {"batch_size": args.batch_size, "seq_len": args.seq_len}
    args.auto = [name for name, value in given.items() if value == "auto"]
    args.batch_size, args.seq_len = shapes.auto_shape(
        args.hardware,
        args.config,
        args.config.parameters(),
        **{name: value for name, value in given.items() if name not in args.auto},
        ranks=args.world_size,
    )
    args.requested_batch_size = args.batch_size  # a technique may choose its own
    if args.batch_size % args.world_size:
        fits = args.world_size * -(-args.batch_size // args.world_size)
        raise UserError(
            f"--batch-size {args.batch_size}: {args.world_size} ranks cannot share it evenly; "
            f"try --batch-size {fits}"
        )
