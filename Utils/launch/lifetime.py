"""The lifetime of a child process, which is over with its parent's."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends.

    Otherwise a worker of a killed launcher waits for ever, with what it has inherited: the lock of
    a results file, or the end of a pipe.

    parent: the parent's id.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
