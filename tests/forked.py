"""Scripts in forks of a test's process, which has paid for the imports.

Thirty-odd scripts spend more time in importing torch and its compiler than in training a tiny
model. All else is as ever: one process a run, its own command line, its own exit code.
"""

import os
import sys
import tempfile
from multiprocessing import get_context

import torch
import torch._dynamo  # these here, once, and not in each fork
import torch._inductor.codegen.cpp_wrapper_cpu
import torch._inductor.compile_fx
import torch._inductor.config as inductor
import torch.distributed.fsdp
import torch.distributed.optim

from Utils.run import Run, execute


def run(technique, flags):
    """Run a technique's script. Return its exit code and what it printed, a string."""
    with tempfile.TemporaryFile("w+") as output:
        child = get_context("fork").Process(target=_script, args=(technique, flags, output))
        child.start()
        child.join()
        output.seek(0)
        return child.exitcode, output.read()


def _script(technique, flags, output):
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
    torch.set_num_threads(1)  # no fork has the other threads of OpenMP
    inductor.compile_threads = 1  # nor the pool of compiling processes
    inductor.max_autotune_gemm_backends = "ATEN"  # timing C++ templates takes a minute
    execute(technique, flags, Run, passes=lambda error: False)
