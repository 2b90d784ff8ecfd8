"""Start and end of a run: its settings, its folder, and one line on stderr if it fails."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

import torch

from pretraining import history, loop_techniques, options
from pretraining.training_run import Interrupted
from Utils.base import files, paths
from Utils.base.errors import Unsupported, UserError, naming
from Utils.device import capabilities, device_choice
from Utils.harness import ranks, script_start
from Utils.scripts import ladder, variants

FOLDER = Path("training")  # holds a folder for each run
LOCKS = []  # open files, locked until this process ends


def run_script(main, doc):
    """Train as the command line says, and end the process if that fails.

    main: the loop without techniques. With techniques, the loop with their diffs runs instead.
    """
    flags = options.parse(doc)
    args = None
    try:
        chosen = _agreed(lambda: plan(flags))
        args = options.resolve(chosen["settings"])
        args = args.replace(folder=Path(chosen["folder"]), resumes=chosen["resumes"])

        # Merge the techniques into the loop, and check that they run on this device.
        names = list(chosen["techniques"])
        if args.world_size > 1:
            names.append(loop_techniques.RANKS)
        scripts = _scripts_on(args.hardware)
        source = loop_techniques.merged(names, scripts)
        args.hardware.keep_freed_memory(grows=True)
        loop_techniques.check(names, args, scripts)
        if args.world_size > 1:
            ranks.stand_alone()
        if args.rank == 0:
            files.write(args.folder / "loop.py", source)
            _announce(args, chosen)

        # Train, and draw the curves meanwhile if --plot asks for it.
        loop = variants.load(source) if names else main
        script_start.prepare(loop)
        draws = flags.plot and args.rank == 0
        with _curves(args.folder) if draws else contextlib.nullcontext():
            loop(args)

        if args.rank == 0:
            run = history.read_run(args.folder)
            files.write_json(args.folder / "run.json", run | {"ended": _now()})
        ranks.leave()
    except (Exception, KeyboardInterrupt) as error:
        _end(error, args)


def _announce(args, chosen):
    """Print the device, the size and the techniques of a run."""
    several = f" and {args.world_size - 1} more like it" if args.world_size > 1 else ""
    techniques = ", ".join(chosen["techniques"]) or "none"
    tokens = args.steps * args.tokens_per_step
    print(
        f"{args.folder}: {args.model} on {args.hardware.name}{several}, {args.dataset}\n"
        f"  {args.steps:,} steps of {args.tokens_per_step:,} tokens, {tokens:,} in all; "
        f"{args.batch_size}x{args.seq_len} at once, {args.accumulation} times a step\n"
        f"  techniques: {techniques} ({chosen['techniques_from']})",
        file=sys.stderr,
    )


def plan(flags):
    """Return the plan of a run, a dict for JSON: settings, techniques, folder, whether it resumes.

    flags: from `options.parse`. Creates the folder and locks it. Raises UserError.
    """
    explicit = {n: vars(flags)[n] for n in options.ON_A_GPU if vars(flags)[n] is not None}
    if flags.resume:
        return _resumed(flags, explicit)

    # Settings: the flags that were given, and the defaults for this device.
    here = ranks.from_environment()
    device = explicit.get("device", "auto")
    hardware = device_choice.choose(device, here.local_rank, here.local_world_size)
    settings = options.fill(explicit, hardware.torch_device.type)
    args = options.resolve(settings, hardware)

    # Techniques: those asked for, or the recipe's.
    scripts = _scripts_on(hardware)
    if scripts.replaced:
        print(ladder.PRECISIONS["float16"].message, file=sys.stderr)
    names, source = loop_techniques.choose(flags.with_, args, flags.results_file, scripts)

    # Folder: a new one, locked, with run.json.
    started = datetime.now(UTC)
    folder = flags.out or FOLDER / f"{started:%Y%m%d-%H%M%S}-{args.model}"
    if (folder / "run.json").exists():
        raise UserError(f"{folder}: holds a run; RESUME={folder} continues it")
    files.claim(folder, lambda folder: {file.name for file in folder.iterdir()} == {"lock"})
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _lock(folder)
    chosen = {"settings": settings, "techniques": names, "techniques_from": source}
    files.write_json(folder / "run.json", {**chosen, "started": _now(), "sessions": [_session()]})
    return {**chosen, "folder": str(folder), "resumes": False}


def _scripts_on(hardware):
    """Return the Ladder of the repository's scripts in the precision of the device."""
    return ladder.repository(capabilities.precision(hardware))


def _resumed(flags, explicit):
    """Return the plan of a resumed run. Its settings are kept, but for `options.CHANGEABLE`."""
    # Which run: the newest, or the one of a folder.
    folder = Path(flags.resume)
    if flags.resume == "1":
        runs = sorted(FOLDER.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        if not runs:
            raise UserError(f"RESUME=1: no run in {FOLDER}/; RESUME=FOLDER names one elsewhere")
        folder = runs[-1].parent
    if flags.out:
        raise UserError("OUT: a resumed run stays where it is; RESUME=FOLDER names it")
    run = history.read_run(folder)

    # What was given must agree with what the run has.
    settings = options.checked(run["settings"], folder / "run.json")
    kept = "which a resumed run keeps; leave it out, or begin another run"
    for name, value in explicit.items():
        if name not in options.CHANGEABLE and value != settings[name]:
            raise UserError(f"{name.upper()}={value}: {folder} has {settings[name]}, {kept}")
    names = run["techniques"] or ["none"]
    if flags.with_ and flags.with_.split() != names:
        raise UserError(f"WITH={flags.with_}: {folder} has {' '.join(names)}, {kept}")

    _lock(folder)
    if run.get("ended") and explicit.get("steps", 0) <= settings["steps"]:
        print(f"{folder}: has ended after {settings['steps']} steps; a larger STEPS continues")
        raise SystemExit(0)

    run |= {"settings": settings | explicit, "sessions": [*run["sessions"], _session()]}
    run.pop("ended", None)
    files.write_json(folder / "run.json", run)
    chosen = {key: run[key] for key in ("settings", "techniques", "techniques_from")}
    return {**chosen, "folder": str(folder), "resumes": True}


def _lock(folder):
    """Keep other processes out of a run's folder until this process ends, also if it is killed."""
    lock = open(folder / "lock", "w")  # noqa: SIM115, closed with the process
    LOCKS.append(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(f"{folder}: another process is training there") from None


def _agreed(make):
    """Return on all ranks what `make` returns on rank 0, a dict for JSON."""
    here = ranks.from_environment()
    if here.world_size == 1:
        return make()

    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    store = torch.distributed.TCPStore(address, port, is_master=False, timeout=options.PATIENCE)
    key = f"pretraining, attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if here.rank == 0:
        store.set(key, json.dumps(make()))
    return json.loads(store.get(key))


def _session():
    return {
        "began": _now(),
        "torch": torch.__version__,
        "commit": paths.commit(),
        "world_size": ranks.from_environment().world_size,
        "command": sys.argv[1:],
    }


def _now():
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _curves(folder):
    """Draw the curves in another process while the block runs."""
    command = [sys.executable, "-m", "pretraining.curves", str(folder), "--live"]
    drawing = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        drawing.stdin.close()  # the end of its input ends it, also if this process is killed
        with contextlib.suppress(subprocess.TimeoutExpired):
            drawing.wait(20)


def _end(error, args):
    """End the process with one line on stderr, or with a traceback if the error is a bug."""
    here = ranks.from_environment()
    lost_rank = ranks.noticed(error) if here.world_size > 1 else None
    if lost_rank:
        ranks.report(f"train: rank {here.rank} lost another rank", lost_rank)
        time.sleep(ranks.GRACE_S)
        ranks.end(ranks.NOTICED)

    code = 1
    line = ""
    if isinstance(error, Interrupted):
        code = 128 + error.signum
        line = f"train: {error}, and saved; make train RESUME={args.folder} continues"
    elif isinstance(error, KeyboardInterrupt):
        code = 130
        line = "train: interrupted"
        if args and (args.folder / "checkpoints").exists():
            line += f"; make train RESUME={args.folder} continues after the last checkpoint"
    elif isinstance(error, UserError | Unsupported):
        code = 2
        line = f"train: error: {error}"
    elif device_choice.is_out_of_memory(error):
        size = f", such as {max(1, args.batch_size // 2)}" if args else ""
        line = f"train: out of memory; try a smaller BATCH_SIZE{size}"
    else:
        traceback.print_exception(error)
        if here.world_size > 1:
            line = f"train: rank {here.rank}: failed: {type(error).__name__}"

    if here.rank == 0 and line:
        print(line, file=sys.stderr)
    elif here.rank and not isinstance(error, Interrupted):
        time.sleep(ranks.GRACE_S)  # rank 0 may say the same
        ranks.report(line)
    ranks.end(code)
