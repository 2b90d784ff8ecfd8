"""Settings of a run: its flags, resolved on this device."""

import argparse
import os
import re
import sys
from datetime import UTC, datetime

from Utils.base import command_line, paths
from Utils.base.command_line import RUN_SETTINGS, SCRIPT_SETTINGS, spelled
from Utils.base.errors import Unsupported, UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import capabilities, device_choice
from Utils.device.device import Device
from Utils.harness import ranks, turn_pipe
from Utils.results import rows_file
from Utils.scripts import ladder
from Utils.scripts.identity import identity_from_environment

BUCKET_MB = SCRIPT_SETTINGS["bucket_mb"].default
SECONDS_ON_GPU = 10.0  # shortest time of the timed steps, by default
MULTIPLE = re.compile(r"batch multiple of ([1-9]\d*)")  # a need


class Settings(argparse.Namespace):
    """The flags of a script, and values derived from them.

    device: torch.device that tensors go to.
    hardware: the same device as a Device, with its clock and memory.
    config: GPTConfig of the model.
    technique: the script's stem.
    identity: Identity of the script, which its rows state.
    needs: those that the docstring states.
    rank, world_size, local_rank, local_world_size, node: see `ranks`.
    backend: name of the process group's backend.
    patience: timedelta after which a rank is considered hung.
    turn: Turn of a run that takes turns with others, or None.
    base: name of the script at the root of its ladder.
    unit: unit of batches: tokens, samples or steps.
    minutes: time for all steps, None without a limit.
    explicit: names of the settings that were given.
    is_recorded: whether the run has ended with a result, or needs none.
    notes: phrases that explain the run's timing, or why there is none.
    """

    rank = 0  # these two until `resolve`
    world_size = 1
    turn = None
    base = ladder.BASELINE
    unit = "tokens"
    minutes = None
    explicit = ()
    is_recorded = False
    bucket_mb = BUCKET_MB  # for a script without this flag


def parse_args(
    doc: str | None,
    argv: list[str] | None = None,
    technique: str | None = None,
    source: str = "",
    hardware: Device | None = None,
) -> Settings:
    """Return the Settings of a training script.

    An impossible setting ends the process with one line and exit code 2.

    doc: the script's docstring, which --help prints.
    argv, technique, source: replace this process's command line, script name and script.
    hardware: replaces the device that --device names.
    """
    doc = doc or ""
    argv = sys.argv[1:] if argv is None else argv
    script = paths.at_start(sys.argv[0])
    source = source if technique else script.read_text()  # now: it may be edited during the run
    names = (*RUN_SETTINGS, *command_line.read_by(source))
    parser = command_line.Parser(technique or script.name, doc, *names)
    args = parser.parse_args(argv, Settings(technique=technique or script.stem))

    try:
        if args.rounds > 1:
            if ranks.from_environment().world_size > 1:
                raise UserError("ROUNDS: torchrun starts one run; make scaling has rounds")
            command = [sys.executable, "-m", "Utils.commands", "suite", args.technique, *argv]
            os.execve(sys.executable, command, paths.environment())
        resolve(args, hardware)
        rows_file.check(args.results_file)
        technique = ladder.techniques().get(args.technique)
        if technique:
            ladder.lineage(args.technique)  # its parents exist
    except UserError as error:
        parser.error(str(error))

    # What the rows say of the run, and where they go.
    args.results_file = paths.at_start(args.results_file)
    args.started = datetime.now(UTC)
    args.run_id = rows_file.run_id(args.started, args.turn and args.turn.token)
    stated = ladder.docstring_facts(doc)
    args.identity = identity_from_environment(args.technique) or ladder.identity(
        args.technique, script, stated["parent"]
    )
    args.needs = stated["needs"]
    args.notes = []
    args.argv = argv
    # A variant is made of several scripts, as are those that replace scripts in bfloat16.
    is_merged = technique is None or capabilities.precision(args.hardware) != "bfloat16"
    # A side of a pair may not lie in its repository.
    args.commit = args.identity.columns.get("commit") or paths.commit(
        None if is_merged else technique.path
    )
    args.source = source
    return args


def resolve(args: Settings, hardware: Device | None = None) -> None:
    """Resolve automatic settings on a device, by default the chosen one. Raises UserError."""
    command_line.check(args)
    args.config = CONFIGS[args.model]

    # Ranks, turns and the device.
    vars(args).update(ranks.from_environment()._asdict(), patience=ranks.patience())
    args.turn = turn_pipe.current_turn()
    partners = args.turn.partners() if args.turn else ()
    args.hardware = hardware or device_choice.choose(
        args.device, args.local_rank, args.local_world_size, partners
    )
    args.device = args.hardware.torch_device
    runs_alone = args.turn is None and args.world_size == 1
    args.minutes = command_line.minutes(args) if runs_alone else None
    args.backend = "nccl" if args.device.type == "cuda" else "gloo"
    if args.min_seconds == "auto":
        args.min_seconds = 0.0 if args.device.type == "cpu" else SECONDS_ON_GPU

    # The shape of a batch.
    args.batch_size, args.seq_len = device_choice.auto_shape(
        args.hardware, args.config, args.batch_size, args.seq_len, args.world_size
    )
    args.requested_batch_size = args.batch_size  # a technique may choose another
    if args.batch_size % args.world_size:
        setting = spelled("batch_size", args.batch_size)
        problem = f"{setting}: {args.world_size} ranks cannot share it evenly"
        raise UserError(problem, _larger_batch(args, args.world_size))


def _larger_batch(args, divisor):
    """Return the advice to take the next batch size that a number divides."""
    batch_size = divisor * -(-args.batch_size // divisor)
    return f"try {spelled('batch_size', batch_size)}"


def check_needs(args: Settings) -> None:
    """Check all needs of the script, and note limits of its timing.

    Raises Unsupported if a need is not met here, and UserError if one is unknown.
    """
    args.notes += filter(None, (check_need(need, args) for need in args.needs))


def check_need(need: str, args: Settings) -> str:
    """Return the limit of a technique with this need on this device, in words, or "".

    need: "text" (a corpus of text), "batch multiple of N" (sequences of a rank), the name of
        another technique (for variants), or one of `capabilities.CHECKS`.
    Raises Unsupported and UserError as `check_needs` does.
    """
    if need == "distributed" and args.world_size > 1 and args.bucket_mb != BUCKET_MB:
        args.notes.append(f"buckets of {args.bucket_mb} MiB")

    multiple = MULTIPLE.fullmatch(need)
    if need == "text":
        if args.dataset == "synthetic":
            reason = "has random tokens: there is no text to stream"
            raise Unsupported(f"{spelled('dataset', 'synthetic')} {reason}")
    elif multiple:
        n = int(multiple[1]) * args.world_size
        if args.batch_size % n:
            reason = f"needs a batch size that is a multiple of {n}, not {args.batch_size}"
            raise Unsupported(f"{reason}; {_larger_batch(args, n)}")
    elif need in capabilities.CHECKS or need not in ladder.techniques():
        return capabilities.check(need, args.hardware)
    return ""
