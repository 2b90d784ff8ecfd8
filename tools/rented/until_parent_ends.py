"""Run a module as `python -m` does, until the process that started it ends.

    python -m tools.rented.until_parent_ends PROCESS_ID MODULE [ARGUMENT ...]

A killed launcher thus leaves nothing behind that holds the GPU or the lock of a results file.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def end_with(parent):
    """Let the kernel kill this process when its parent ends. parent: the parent's id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
