"""The processes that a user's script leaves behind, in whatever session they are."""

import os
from contextlib import suppress

import psutil

from Utils.base import child


def adopt_orphans():
    """Let descendants whose parent has ended become children of this process, on Linux."""
    with suppress(AttributeError):
        child.LIBC.prctl(36, 1)  # 36 is PR_SET_CHILD_SUBREAPER


def end_descendants():
    """Kill this process's descendants in other sessions."""
    session = os.getsid(0)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, ProcessLookupError):  # it has ended
            if os.getsid(process.pid) != session:
                process.kill()
