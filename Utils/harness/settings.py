"""Settings of a run: its flags, resolved on this device."""

import argparse
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from Utils.base import command_line, paths
from Utils.base.command_line import OF_A_RUN, OF_SOME_SCRIPTS, spelled
from Utils.base.errors import Unsupported, UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import capabilities, device_choice
from Utils.harness import ranks, turn_pipe
from Utils.results import rows_file
from Utils.scripts import ladder
from Utils.scripts.identity import told_identity

BUCKET_MB = OF_SOME_SCRIPTS["bucket_mb"].default
SECONDS_ON_GPU = 10.0  # that the timed part of a run lasts at least
MULTIPLE = re.compile(r"batch multiple of ([1-9]\d*)")  # a need


class Settings(argparse.Namespace):
    """The flags of a script, and values derived from them.

    device: torch.device that tensors go to; hardware: its clock and memory.
    config: GPTConfig of the model. technique: the script's stem. needs: of its docstring.
    rank, world_size, local_rank, local_world_size: of `ranks`. backend: name, of the process group.
    patience: timedelta after which a rank is considered hung.
    turn: Turn of a run that takes turns with others, else None.
    suite, base, parent, change: columns of its rows. unit: of its batches.
    notes: phrases that explain the run's timing, or its lack.
    """

    rank, world_size = 0, 1  # until `settle`
    turn = None
    suite = "ladder"
    base = ladder.BASELINE
    parent = change = ""
    unit = "tokens"
    bucket_mb = BUCKET_MB  # where the script has no such flag


def parse_args(doc, argv=None, technique=None, source="", hardware=None):
    """Return the Settings of a training script. doc: its docstring, which --help prints.

    argv, technique, source: replace this process's command line and script name. hardware: replaces
    the device that --device names.
    An impossible setting ends the process with one line and exit code 2.
    """
    doc, argv = doc or "", sys.argv[1:] if argv is None else argv
    script = Path(sys.argv[0])
    source = source if technique else script.read_text()  # now: it may be edited during the run
    names = (*OF_A_RUN, *command_line.read_by(source))
    parser = command_line.Parser(technique or script.name, doc, *names)
    args = parser.parse_args(argv, Settings(technique=technique or script.stem))
    if args.rounds > 1:
        command = [sys.executable, "-m", "Utils.commands", "suite", args.technique, *argv]
        if ranks.from_environment().world_size > 1:
            parser.error("--rounds: torchrun starts one run; make scaling has rounds")
        os.execve(sys.executable, command, paths.environment())
    try:
        settle(args, hardware)
        rows_file.check(args.results_file)
    except UserError as error:
        parser.error(str(error))
    args.started = datetime.now(UTC)
    args.run_id = rows_file.run_id(args.started, args.turn and args.turn.token)
    stated = ladder.facts(doc)
    identity = told_identity(args.technique)
    identity = identity or ladder.identity(args.technique, script, stated["parent"])
    vars(args).update(vars(identity))
    args.needs = stated["needs"]
    args.notes = []
    args.argv = argv
    args.commit = paths.commit()
    args.source = source
    return args


def settle(args, hardware=None):
    """Resolve automatic settings on the device, by default the chosen one. Raises UserError."""
    command_line.check(args)
    args.config = CONFIGS[args.model]
    here = ranks.from_environment()
    vars(args).update(here._asdict(), patience=ranks.patience())
    args.turn = turn_pipe.taken()
    partners = args.turn.partners() if args.turn else ()
    args.hardware = hardware or device_choice.choose(
        args.device, here.local_rank, here.local_world_size, partners
    )
    args.device = args.hardware.torch_device
    if args.min_seconds == "auto":
        args.min_seconds = 0.0 if args.device.type == "cpu" else SECONDS_ON_GPU
    args.backend = "nccl" if args.device.type == "cuda" else "gloo"
    args.batch_size, args.seq_len = device_choice.auto_shape(
        args.hardware, args.config, args.batch_size, args.seq_len, args.world_size
    )
    args.requested_batch_size = args.batch_size  # a technique may choose its own
    if args.batch_size % args.world_size:
        fits = args.world_size * -(-args.batch_size // args.world_size)
        setting = spelled("batch_size", args.batch_size)
        problem = f"{setting}: {args.world_size} ranks cannot share it evenly"
        raise UserError(problem, f"try {spelled('batch_size', fits)}")


def check_needs(args):
    """Check all needs of the script, and note limits of its timing. Raises Unsupported where a
    need is not met here, and UserError where one is unknown.
    """
    args.notes += filter(None, (check_need(need, args) for need in args.needs))


def check_need(need, args):
    """Return the limit of a technique with this need here, in words, or "".

    need: "text" (a corpus of text), "batch multiple of N" (sequences of a rank), the name of
        another technique (for variants), or one of `capabilities.CHECKS`.
    Raises Unsupported and UserError as `check_needs` does.
    """
    if need == "text":
        if args.dataset == "synthetic":
            reason = "has random tokens: there is no text to stream"
            raise Unsupported(f"{spelled('dataset', 'synthetic')} {reason}")
        return ""
    if multiple := MULTIPLE.fullmatch(need):
        n = int(multiple[1]) * args.world_size
        if args.batch_size % n:
            fits = spelled("batch_size", n * -(-args.batch_size // n))
            reason = f"needs a batch size that is a multiple of {n}, not {args.batch_size}"
            raise Unsupported(f"{reason}; try {fits}")
        return ""
    if need == "distributed" and args.world_size > 1 and args.bucket_mb != BUCKET_MB:
        args.notes.append(f"buckets of {args.bucket_mb} MiB")
    if need not in capabilities.CHECKS and need in ladder.techniques():
        return ""
    return capabilities.check(need, args.hardware)
