"""Settings of a run: its flags, resolved on this device."""

import argparse
import linecache
import os
import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import capabilities, device_choice
from Utils.device.device import Device
from Utils.harness import ranks, turn_pipe
from Utils.results import rows_file
from Utils.scripts import ladder
from Utils.scripts.identity import identity_from_environment

BUCKET_MB = command_line.SCRIPT_SETTINGS["bucket_mb"].default
SECONDS_ON_GPU = 10.0  # shortest time of the timed steps, by default
EMULATED_STEPS = 2  # steps of a script whose precision is emulated: one of warm-up, one timed
MULTIPLE = re.compile(r"batch multiple of ([1-9]\d*)")  # a need


@dataclass
class RunOutcome:
    """What a run finds out. Its Settings stay what was asked.

    notes: phrases that explain the run's timing, or why there is none.
    is_recorded: True if a result is recorded or not required.
    """

    notes: list[str] = field(default_factory=list)
    is_recorded: bool = False


class Settings(argparse.Namespace):
    """The flags of a script, and values derived from them on this device. They are frozen.

    device: torch.device that tensors go to.
    hardware: the same device as a Device, with its clock and memory.
    config: GPTConfig of the model.
    technique: the script's stem.
    identity: Identity of the script, which its rows state.
    needs: those that the docstring states.
    source: the code that runs.
    substitute: the Technique that runs in place of the script on this device, or None.
    rank, world_size, local_rank, local_world_size, node: see `ranks`.
    backend: name of the process group's backend.
    patience: timedelta after which a rank is considered hung.
    turn: Turn of a run that takes turns with others, or None.
    base: name of the script at the root of its ladder.
    unit: unit of batches: tokens, samples or steps.
    minutes: time for all steps, None without a limit.
    explicit: names of the settings that were given.
    outcome: RunOutcome, which all that are made by `replace` share.
    """

    rank = 0
    world_size = 1
    turn = None
    base = ladder.BASELINE
    unit = "tokens"
    minutes = None
    explicit = ()
    substitute = None
    bucket_mb = BUCKET_MB  # for a script without this flag

    def __init__(self, **values):
        vars(self).update({"outcome": RunOutcome()} | values)

    def __setattr__(self, name, value):
        raise AttributeError(f"{name}: settings are what was asked; `replace` makes others")

    def replace(self, **values) -> Self:
        """Return these Settings with other values."""
        return Settings(**vars(self) | values)


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
    source = source if technique else "".join(linecache.getlines(str(script)))  # as it runs
    names = (*command_line.RUN_SETTINGS, *command_line.read_by(source))
    parser = command_line.Parser(technique or script.name, doc, *names)
    flags = parser.parse_args(argv)
    name = technique or script.stem

    try:
        if flags.rounds > 1:
            if ranks.from_environment().world_size > 1:
                raise UserError(f"ROUNDS: torchrun starts one run; {paths.COMMAND} ddp has rounds")
            command = [sys.executable, "-P", "-m", "Utils.commands", "suite", name, *argv]
            os.execve(sys.executable, command, paths.environment())
        args = resolve(flags, hardware)
        rows_file.check(args.results_file)
        technique = ladder.techniques().get(name)
        if technique:
            ladder.lineage(name)  # its parents exist
    except UserError as error:
        parser.error(str(error))

    stated = ladder.docstring_facts(doc)
    alone = ladder.identity(name, script, stated["parent"])
    args = args.replace(technique=name, identity=alone, needs=stated["needs"], source=source)
    precision = capabilities.precision(args.hardware)
    if technique and precision != "bfloat16":
        args = _in_precision(args, precision)

    # What the rows say of the run, and where they go.
    identity = identity_from_environment(name) or args.identity
    # A variant is made of several scripts, as are those that replace scripts in bfloat16.
    is_merged = technique is None or precision != "bfloat16"
    # A side of a pair may not lie in its repository.
    commit = identity.columns.get("commit") or paths.commit(None if is_merged else technique.path)
    started = datetime.now(UTC)
    return args.replace(
        identity=identity,
        commit=commit,
        results_file=paths.at_start(args.results_file),
        started=started,
        run_id=rows_file.run_id(started, args.turn and args.turn.token),
        argv=argv,
    )


def _in_precision(args, precision):
    """Return the Settings of a script of the repository in another precision.

    What is emulated runs for EMULATED_STEPS, unless a user has asked for more.
    """
    script = ladder.repository(precision).get(args.technique)
    args = args.replace(identity=script.identity)
    if "bfloat16" not in args.needs:
        return args
    if not script.is_emulated:
        return args.replace(substitute=script, needs=script.needs, source=script.code)
    if args.turn or "steps" not in args.explicit:
        return args.replace(steps=EMULATED_STEPS, warmup=EMULATED_STEPS - 1)
    return args


def resolve(flags: argparse.Namespace, hardware: Device | None = None) -> Settings:
    """Return the Settings of flags on a device, by default the chosen one. Raises UserError."""
    command_line.check(flags)
    config = CONFIGS[flags.model]

    # Ranks, turns and the device.
    process = ranks.from_environment()
    turn = turn_pipe.current_turn()
    partners = turn.partners() if turn else ()
    hardware = hardware or device_choice.choose(
        flags.device, process.local_rank, process.local_world_size, partners
    )
    device = hardware.torch_device
    runs_alone = turn is None and process.world_size == 1

    # The shape of a batch.
    batch_size, seq_len = device_choice.auto_shape(
        hardware, config, flags.batch_size, flags.seq_len, process.world_size
    )
    if batch_size % process.world_size:
        setting = command_line.spelled("batch_size", batch_size)
        problem = f"{setting}: {process.world_size} ranks cannot share it evenly"
        raise UserError(problem, _larger_batch(batch_size, process.world_size))

    resolved = {
        "config": config,
        "patience": ranks.patience(),
        "turn": turn,
        "hardware": hardware,
        "device": device,
        "minutes": command_line.minutes(flags) if runs_alone else None,
        "backend": "nccl" if device.type == "cuda" else "gloo",
        "min_seconds": min_seconds(flags, hardware),
        "batch_size": batch_size,
        "seq_len": seq_len,
        "requested_batch_size": batch_size,  # a technique may choose another
    }
    return Settings(**vars(flags) | process._asdict() | resolved)


def min_seconds(flags: argparse.Namespace, hardware: Device) -> float:
    """Return the shortest time of the timed steps on a device."""
    if flags.min_seconds != "auto":
        return flags.min_seconds
    return 0.0 if hardware.torch_device.type == "cpu" else SECONDS_ON_GPU


def _larger_batch(batch_size, divisor):
    """Return the advice to take the next batch size that a number divides."""
    batch_size = divisor * -(-batch_size // divisor)
    return f"try {command_line.spelled('batch_size', batch_size)}"


def check_needs(args: Settings) -> None:
    """Check all needs of the script, and note limits of its timing.

    Raises Unsupported if a need is not met here, and UserError if one is unknown.
    """
    args.outcome.notes += filter(None, (check_need(need, args) for need in args.needs))


def check_need(need: str, args: Settings) -> str:
    """Return the limit of a technique with this need on this device, in words, or "".

    need: "text" (a corpus of text), "batch multiple of N" (sequences of a rank), the name of
        another technique (for variants), or one of `capabilities.CHECKS`.
    Raises Unsupported and UserError as `check_needs` does.
    """
    if need == "distributed" and args.world_size > 1 and args.bucket_mb != BUCKET_MB:
        args.outcome.notes.append(f"buckets of {args.bucket_mb} MiB")

    multiple = MULTIPLE.fullmatch(need)
    if need == "text":
        if args.dataset == "synthetic":
            reason = "has random tokens: there is no text to stream"
            raise Unsupported(f"{command_line.spelled('dataset', 'synthetic')} {reason}")
    elif multiple:
        n = int(multiple[1]) * args.world_size
        if args.batch_size % n:
            reason = f"needs a batch size that is a multiple of {n}, not {args.batch_size}"
            raise Unsupported(f"{reason}; {_larger_batch(args.batch_size, n)}")
    elif need in capabilities.CHECKS or need not in ladder.techniques():
        return capabilities.check(need, args.hardware)
    return ""
