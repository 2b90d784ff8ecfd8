"""The ladder of loops and scripts of ours."""

import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tools.own_script.own_runs import Base, OwnRuns, OwnScript
from tools.peers.loops import LOOPS, OURS, SIZES, tracked_part
from Utils.base.child import in_child
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.corpus import token_cache
from Utils.launch import suite_runner
from Utils.scripts.ladder import BASELINE, Ladder

FASTEST = "fused_optimizer"  # of the ladder; all others are compared with it
ON_CPU = {"batch_size": 4, "seq_len": 256}
ON_GPU = {"batch_size": 16, "seq_len": 1024}


def use_one_device(args):
    """Hide all GPUs but one, or all, as some loops take those that there are. Return its type."""
    if ":" in args.device:
        problem = f"DEVICE={args.device}: some loops take the first GPU"
        raise UserError(problem, "set CUDA_VISIBLE_DEVICES to the number of one")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if args.device == "cpu" else first
    return in_child(type_of, args.device)


def type_of(device):
    """Return the type of a device. In a child, as a process that has used a GPU keeps memory."""
    from Utils.device.device_choice import choose  # noqa: PLC0415  (it imports torch)

    return choose(device).torch_device.type


@contextmanager
def ladder_of(args):
    """Yield the Ladder of all loops that are there. Raises UserError.

    Sets the shape of args if that is left to the device. Other loops are lines on stderr.
    """
    device = use_one_device(args)
    shape = ON_CPU if device == "cpu" else ON_GPU
    for name, number in shape.items():
        if getattr(args, name) == "auto":
            setattr(args, name, number)

    here = tracked_part(suite_runner.ladder_of_device(args))
    scripts = {}
    for name in OURS:
        parent = None if name == FASTEST else FASTEST
        scripts[name] = replace(here.get(name), parent=parent, suite="peers")

    fields = vars(args) | vars(CONFIGS[args.model])
    fields |= {
        "tokens": args.batch_size * args.seq_len,
        "size": SIZES.get(args.model),
        "device": device,
        "dtype": suite_runner.in_child("precision", args.device),
    }
    corpus = token_cache.load_tokens(args.dataset)
    with suppress(UserError):  # a loop that needs it fails by itself
        token_cache.gpt2_encoding()  # fills the cache that loops read

    with ExitStack() as block:
        for loop in LOOPS:
            if not loop.is_there(args.peers):
                get = f"git clone {loop.origin} {loop.clone(args.peers)}"
                print(f"{loop.name}: is not there; {get}", file=sys.stderr)
                continue
            scripts[loop.name] = script_of(loop, args, fields, corpus)
            block.callback(scripts[loop.name].runs.close)
        yield Ladder(scripts, FASTEST)


def script_of(loop, args, fields, corpus):
    """Return a loop as a suite runs it, from its copy. A loop that cannot run has a refusal."""
    is_allowed = all(fields[name] in values for name, values in loop.allows.items())
    refusal = "" if is_allowed else loop.reason
    script = folder = Path()
    head = ""
    try:
        head = loop.head(args.peers)
        if is_allowed:
            script, folder = loop.copy(args.peers, head, corpus)
    except UserError as error:
        refusal = str(error)

    shape = {name: fields[name] for name in ("model", "dataset", "batch_size", "seq_len")}
    more = {"requested_batch_size": args.batch_size, "unit": "tokens"}
    base = Base(
        name=loop.name,
        script=str(script),
        is_module=False,
        file=str(script),
        folder=str(folder),
        arguments=loop.arguments.format(**fields).split(),
        python=args.base_python,
        writes=True,
        columns=shape | more | {"base": BASELINE, "commit": head},
    )
    runs = OwnRuns(base, args)  # without a look, as no switch is tried
    source = script.read_text() if script.is_file() else ""
    runs.look = {"version": f"{base.arguments} {source}", "record": {"source": source}}
    return OwnScript(runs, (), FASTEST, "peers", refusal=refusal, needs=("compile",))
