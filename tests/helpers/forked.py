"""Scripts in forks of a test's process, which has paid for the imports.

A script spends more time in importing torch and its compiler than in training a tiny model. All
else is as ever: one process a run, its own command line, folder, variables and exit code.
"""

import gc
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from multiprocessing import connection, get_context

import scipy.stats  # noqa: F401  these five here, once, and not in each fork
import setuptools  # noqa: F401  before anything imports distutils, which it replaces
import torch
import torch._dynamo.utils
import torch.distributed.fsdp
import torch.distributed.optim

from Utils.corpus import token_cache
from Utils.run import Run, execute

torch._inductor.config.compile_threads = 1  # no fork has the pool of compiling processes
token_cache.find("stdlib")  # lists 1,800 files, once


def prepare_compiler():
    """Compile something, so that no fork imports the compiler and fills its tables by itself."""
    for backend in ("aot_eager_decomp_partition", "inductor"):
        product = torch.compile(lambda x: x @ x, backend=backend)  # which needs no C++
        product(torch.ones(2, 2, requires_grad=True)).sum().backward()
    forget_compiled()


def forget_compiled():
    """Forget what this process has compiled, its statistics too."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()


def run(techniques, flags):
    """Run scripts, two at once. Return their CompletedProcesses, in order.

    For those at the top level Inductor generates and compiles C++, a second a kernel. The others'
    graphs are traced, differentiated and partitioned, and they run by operation.
    """
    return call_all([partial(_technique, technique, flags) for technique in techniques])


def python(script, *flags):
    """Run a script as `python script flags` does. Return a CompletedProcess.

    script: a path, or the name of a module.
    """
    return call(of_script(script, *flags))


def call(main):
    """Call a function in a fork. Return a CompletedProcess."""
    return call_all([main])[0]


def call_all(mains, at_once=2):
    """Call functions in forks, some at once. Return their CompletedProcesses, in order."""
    done = []
    with ExitStack() as stack:
        children = []
        for main in mains:
            running = [child.sentinel for child, *_ in children if child.is_alive()]
            if len(running) == at_once:
                connection.wait(running)
            files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
            children.append((start(main, *files), *files))
        for main, (child, *files) in zip(mains, children, strict=True):
            child.join()
            said = [file.seek(0) or file.read() for file in files]
            done.append(subprocess.CompletedProcess(main, child.exitcode, *said))
    return done


def of_script(script, *flags):
    """Return the function that does in a fork what `python script flags` does."""
    return partial(_script, str(script), [*map(str, flags)])


def start(main, output, errors):
    """Start a fork that calls a function. Return its multiprocessing.Process.

    output, errors: files.
    """
    child = get_context("fork").Process(target=_fork, args=(main, output, errors))
    child.start()
    return child


def _fork(main, output, errors):
    gc.freeze()  # freeing what belongs to the parent's threads would crash the fork
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in ((1, output), (2, errors)):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    torch.set_num_threads(1)  # no fork has the other threads of OpenMP
    main()


def _technique(technique, flags):
    torch._inductor.config.max_autotune_gemm_backends = "ATEN"  # C++ templates take a minute
    if not technique.at_top_level:
        torch.compile = partial(torch.compile, backend="aot_eager_decomp_partition")
    execute(technique, flags, Run, passes=lambda error: False)


def _script(script, flags):
    sys.argv = [script, *flags]
    if script.endswith(".py"):
        sys.path.insert(0, os.path.dirname(script))
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
