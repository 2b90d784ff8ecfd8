"""Environment and log filters of a training process, set before its script runs."""

import logging
import os
import warnings

from torch._functorch import config as functorch
from tqdm import tqdm

from Utils.base import paths

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
