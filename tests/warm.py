"""The suite, with each script in a fork of this process, which has paid for the imports.

    python -m tests.warm TECHNIQUE ... [flags of the scripts]

Thirty-odd scripts spend more time in importing torch and its compiler than in training a tiny
model. All else is as ever: one process a run, its own command line, its own exit code.
"""

import atexit
import importlib
import os
import runpy
import sys
from multiprocessing import get_context
from unittest.mock import patch

from Utils.base import errors
from Utils.commands import suite
from Utils.harness import quiet
from Utils.launch import process

# A pool of compiling processes would be one for all forks, and each of them imports torch as well.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


SHARED = (
    "Utils.commands.record_killed",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
)
SHARED += ("torch._inductor.codegen.cpp_wrapper_cpu", "torch.distributed.optim")


def forked(command, name, minutes=None):
    """What `process.python` does, without a new interpreter. Returns the exit code."""

    def script():
        os.environ["SUITE"] = name
        try:
            if command[0] == "-m":
                sys.argv = command[1:]
                runpy.run_module(command[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = command
                runpy.run_path(command[0], run_name="__main__")
        finally:
            atexit._run_exitfuncs()

    process = get_context("fork").Process(target=script)
    process.start()
    process.join(minutes and 60 * minutes)
    return process.exitcode


if __name__ == "__main__":
    quiet.prepare()  # before the compiler is imported, which reads once where its cache is
    for name in SHARED:
        importlib.import_module(name)
    with errors.one_line("suite"), patch.object(process, "python", forked):
        sys.exit(suite.main(sys.argv[1:]))
