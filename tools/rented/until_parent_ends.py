"""Run a module as `python -m` does, until the process that started it ends.

    python -m tools.rented.until_parent_ends MODULE [ARGUMENT ...]

A killed launcher thus leaves nothing behind that holds the GPU or the lock of a results file.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # of linux/prctl.h

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["LAUNCHER"]):  # it has ended already
        sys.exit(1)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
