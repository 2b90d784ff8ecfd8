"""Child processes: the reason of their end, and what they leave."""

import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from tests.helpers.refusal import refused
from Utils.base import child, paths

# How a program ends, and the reason that is given.
ENDS = """\
echo a >&2; echo last >&2; exit 3 | last
kill -9 $$ | killed by SIGKILL (out of memory?)
exit | ended without a result (os._exit(0)?)
wait | did not answer within 1.5 s
"""


@pytest.mark.parametrize("line", ENDS.splitlines())
def test_run_gives_the_reason_of_a_failure_and_leaves_no_process(line):
    """YOUR_SCRIPT: "Processes that a run has started end with it"."""
    ending, reason = line.split(" | ")
    done = child.run(["sh", "-c", f"sleep 60 & echo $!; {ending}"], timeout=1.5)
    assert done.reason == reason
    late = time.monotonic() + 20
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(done.output))
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < late


def test_output_of_a_command_that_fails_is_an_error():
    with refused("^a$"):
        child.output_of(["sh", "-c", "echo ERROR: a >&2; echo advice >&2; exit 1"])
    with refused("^no-such: No such file or directory$"):
        child.output_of(["no-such"])


LAUNCHER = """
import os
from Utils.base import child

def wait():
    process = child.start(["sleep", "60"])
    print(os.getpid(), process.pid, flush=True)
    child.end(process, 60)

child.in_child(wait)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of that end")
def test_processes_end_with_a_launcher_that_is_killed():
    """RENTED: "After a kill no process holds the GPU"."""
    command = [sys.executable, "-c", LAUNCHER]
    launcher = subprocess.Popen(command, cwd=paths.ROOT, stdout=subprocess.PIPE, text=True)
    processes = [psutil.Process(int(pid)) for pid in launcher.stdout.readline().split()]
    launcher.kill()
    launcher.wait()
    _, live = psutil.wait_procs(processes, timeout=20)
    assert not live
