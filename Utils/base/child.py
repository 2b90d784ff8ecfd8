"""Child processes: start, time limit, output, why they ended, and cleanup of what they started.

A process leads a session of its own, so that what it has started is ended with it. On Linux it also
ends when this process does.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from Utils.base.errors import UserError

INTERRUPTED = 130
LIBC = ctypes.CDLL(None)  # loaded here, as a fork of a process with threads may load nothing


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

    code: its exit code; None after the time-out.
    output, errors: what it printed to stdout and to stderr.
    timeout: seconds, or None.
    """

    code: int | None
    output: str = ""
    errors: str = ""
    timeout: float | None = None

    @property
    def reason(self) -> str:
        """The reason of a failure, on one line."""
        if self.code is None:
            return f"did not answer within {self.timeout:g} s"
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1] if lines and self.code > 0 else why_ended(self.code)


def why_ended(code, minutes=None):
    """Explain the end of a process without a row.

    code: its exit code; None if it was killed after `minutes`.
    """
    if code is None:
        return f"ended after the time-out of {minutes} minutes"
    if code == 0:
        return "ended without a result (os._exit(0)?)"
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code} without a message"


def run(command, env=None, timeout=None, **options):
    """Run a command without input, and end what it leaves behind. Return how it Ended.

    timeout: seconds after which it is ended.
    options: keyword arguments of subprocess.Popen.
    """
    with _memory_file() as output, _memory_file() as errors:
        try:
            process = start(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                **options,
            )
        except OSError as error:
            return Ended(127, errors=f"{command[0]}: {error.strerror}")  # the code of a shell
        code = end(process, timeout)

        output.seek(0)
        errors.seek(0)
        return Ended(code, output.read(), errors.read(), timeout)


def _memory_file():
    """Open a temporary text file, in memory on Linux: the doctor runs on a full disk too."""
    with suppress(AttributeError):
        return open(os.memfd_create("output"), "w+", errors="replace")
    return tempfile.TemporaryFile("w+", errors="replace")


def output_of(command, env=None):
    """Return what a command prints. Raises UserError with its first ERROR, or its last line."""
    done = run(command, env)
    if done.code:
        marked = [line for line in done.errors.splitlines() if line.startswith("ERROR: ")]
        raise UserError([*marked, done.reason][0].removeprefix("ERROR: "))  # pip ends with advice
    return done.output


def start(command, **options):
    """Start a process that `end` ends. options: of subprocess.Popen."""
    parent = os.getpid()
    return subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=lambda: end_with(parent),
        **options,
    )


def end(process, timeout=0.0):
    """Wait for a process, then kill it and what it has started, as far as they still run.

    Return its exit code, INTERRUPTED after Ctrl-C; None if it was killed after the timeout, which
    is in seconds.
    """
    try:
        code = process.wait(timeout)
        return INTERRUPTED if code == -signal.SIGINT else code
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):  # it has ended, or leads no session
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_with(parent):
    """Let the kernel kill this process when its parent ends, and at Ctrl-C.

    Otherwise a worker of a killed launcher waits forever and keeps inherited locks and pipes open.

    parent: the parent's id.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports it
    with suppress(AttributeError):  # only Linux has it
        LIBC.prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def in_child(function, *args):
    """Call a function in a child process, and return its result. Ctrl-C is the parent's alone."""
    with ProcessPoolExecutor(1, initializer=end_with, initargs=(os.getpid(),)) as pool:
        return pool.submit(function, *args).result()
