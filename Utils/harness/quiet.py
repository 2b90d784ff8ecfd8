"""Environment and log filters of a training process, set before its script runs."""

import logging
import os
import warnings

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
)


def prepare():
    """Keep compiled kernels in the project's cache, and silence noisy messages."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.CACHE / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(paths.CACHE / "triton"))
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler logs its start
    tqdm.monitor_interval = 0  # no thread of tqdm during the measured loop
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    # A CUDA toolkit without a GPU does not matter to a run.
    logging.getLogger("torch.utils.cpp_extension").addFilter(_names_a_problem)


def _names_a_problem(message):
    return not str(message.msg).startswith("No CUDA runtime is found, using CUDA_HOME")
