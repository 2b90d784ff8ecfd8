"""The start of a script: its settings, its needs, and its main function."""

import logging
import os
import signal
import warnings
from contextlib import contextmanager
from functools import partial

from torch._functorch import config as functorch
from tqdm import tqdm

from Utils.base import paths
from Utils.base.errors import Unsupported, UserError
from Utils.device import capabilities
from Utils.harness import exits, ranks
from Utils.harness.settings import check_needs, parse_args
from Utils.scripts import ladder, variants

# Messages that are wrong or noisy here. All others are shown.
WARNINGS = (
    ".*Please use the new API settings to control TF32",
    ".*Online softmax is disabled on the fly",
    "Paged optimizers are not supported on CPU",  # a note of the run says so
)
LOGGERS = (
    "bitsandbytes.backends.cpu.ops",  # an optional package is missing
    "torch._dynamo.variables.ctx_manager",  # profiler ranges of DistributedDataParallel
    "torch._higher_order_ops.wrap",  # selective checkpointing: no in-place operations
    "torch.utils._pytree",  # a deprecated call of torchao's
    "torchao",  # inference kernels built for another Python
)


def run_script(main, doc, passes=lambda error: False):
    """Run a training script from the command line.

    main: function of the Settings. doc: the script's docstring, for --help and for its needs.
    An exception ends the process with a row or one line: see `exits.call`, as for `passes`.
    """
    exits.call(partial(start, main), parse_args(doc), passes)


def start(main, args):
    """Check the needs of a script and call its main function."""
    if "bfloat16" in args.needs and not capabilities.has("bfloat16", args.hardware):
        main = _in_float16(args) or main
    prepare(main)
    check_needs(args)
    if "distributed" in args.needs:
        ranks.stand_alone()
    elif args.world_size > 1:
        raise UserError(
            "this script does not support several ranks",
            "use one with distributed among its Needs, such as distributed_data_parallel",
        )
    main(args)


def _in_float16(args):
    """Return the main function of a script merged onto the line in float16; None of a variant."""
    with ladder.on_device(bfloat16=False):
        technique = ladder.techniques().get(args.technique)
    if technique is None:
        return None
    args.needs, args.source = technique.needs, technique.code
    if technique.misfit:
        check_needs(args)
        raise Unsupported(technique.misfit)
    args.notes.append(technique.note)
    return variants.load(technique.code)


def prepare(main):
    """Keep compiled kernels in the project's cache, and silence noisy messages.

    main: of the script, whose other functions are looked at.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.kernels("inductor")))
    os.environ.setdefault("TRITON_CACHE_DIR", str(paths.kernels("triton")))
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler logs its start
    functions = getattr(main, "__globals__", {}).values()
    if any(getattr(function, "_torchdynamo_disable", False) for function in functions):
        # Such a function ends a graph, which may return two views of one tensor. From AOTAutograd's
        # cache they come with sizes of freed memory (torch 2.13): the second run fails.
        functorch.enable_autograd_cache = False
    tqdm.monitor_interval = 0  # no thread of tqdm during the measured loop
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    # A CUDA toolkit without a GPU does not matter to a run.
    logging.getLogger("torch.utils.cpp_extension").addFilter(_names_a_problem)


def _names_a_problem(message):
    return not str(message.msg).startswith("No CUDA runtime is found, using CUDA_HOME")


@contextmanager
def uninterrupted():
    """Delay Ctrl-C until the end of the block."""
    pressed = []
    interrupt = signal.signal(signal.SIGINT, lambda *caught: pressed.append(caught))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if pressed:
        raise KeyboardInterrupt
