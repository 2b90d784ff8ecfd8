"""Child processes whose lifetime is over with their parent's."""

import ctypes
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor


def end_with(parent):
    """Let the kernel kill this process when its parent ends, and at Ctrl-C.

    Otherwise a worker of a killed launcher waits for ever, with what it has inherited: the lock of
    a results file, or the end of a pipe.

    parent: the parent's id.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def in_child(function, *args):
    """Call a function in a child process, and return its result. Ctrl-C is the parent's alone."""
    with ProcessPoolExecutor(1, initializer=end_with, initargs=(os.getpid(),)) as pool:
        return pool.submit(function, *args).result()
