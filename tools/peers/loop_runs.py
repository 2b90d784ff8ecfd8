"""The ladder of loops, with their arguments, and scripts of ours."""

import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tools.own_script.own_runs import Base, OwnRuns, OwnScript
from tools.peers.loops import LOOPS, OURS, SIZES, tracked_part
from Utils.base.child import in_child
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.corpus import token_cache
from Utils.launch import suite_runner
from Utils.scripts.ladder import BASELINE, Ladder

FASTEST = "fused_optimizer"  # in the ladder; all loops are compared with it
ON_CPU = {"batch_size": 4, "seq_len": 256}
ON_GPU = {"batch_size": 16, "seq_len": 1024}


@dataclass(frozen=True)
class LoopScript(OwnScript):
    """A loop as a suite runs it, from its copy. It is not inspected, as it has no switches."""

    @property
    def code(self):
        file = Path(self.runs.base.file)
        return file.read_text() if file.is_file() else ""

    @property
    def resume_key(self):
        return f"{self.runs.base}\0{self.code}"


def type_and_precision(name):
    """Return these of a device. In a child, as a process that has used a GPU keeps memory."""
    from Utils.device import capabilities, device_choice  # noqa: PLC0415  (they import torch)

    device = device_choice.choose(name)
    return device.torch_device.type, capabilities.precision(device)


@contextmanager
def ladder_of(args):
    """Yield the Ladder of all loops that are there. Raises UserError.

    Sets the shape of args if it is auto. Each missing loop is a line on stderr.
    """
    # Make one GPU visible, or none for DEVICE=cpu: some loops use every visible GPU.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if args.device == "cpu" else first
    device, precision = in_child(type_and_precision, args.device)

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
        "dtype": precision,
    }
    corpus = token_cache.load_tokens(args.dataset)
    with suppress(UserError):  # a loop that needs it fails by itself
        token_cache.gpt2_encoding()  # fills the cache that loops read

    with ExitStack() as block:
        for loop in LOOPS:
            if not loop.is_there(args.peers):
                get = f"git clone https://github.com/{loop.repository} {loop.clone(args.peers)}"
                print(f"{loop.name}: is not there; {get}", file=sys.stderr)
                continue
            scripts[loop.name] = script_of(loop, args, fields, corpus)
            block.callback(scripts[loop.name].runs.close)
        yield Ladder(scripts, FASTEST)


def script_of(loop, args, fields, corpus):
    """Return the LoopScript of a loop. One that cannot run has a refusal."""
    script = folder = Path()
    head = loop.head(args.peers)
    refusal = loop.reason
    if all(fields[name] in values for name, values in loop.allows.items()):
        try:
            script, folder = loop.copy(args.peers, head, corpus)
            refusal = ""
        except UserError as error:
            refusal = str(error)

    columns = {name: fields[name] for name in ("model", "dataset", "batch_size", "seq_len")}
    base = Base(
        name=loop.name,
        script=str(script),
        is_module=False,
        file=str(script),
        folder=str(folder),
        arguments=loop.arguments.format(**fields).split(),
        python=args.base_python,
        writes=True,
        columns=columns
        | {
            "requested_batch_size": args.batch_size,
            "unit": "tokens",
            "base": BASELINE,
            "commit": head,
        },
    )
    runs = OwnRuns(base, args)
    return LoopScript(runs, (), FASTEST, "peers", refusal=refusal, needs=("compile",))
