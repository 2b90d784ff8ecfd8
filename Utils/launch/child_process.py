"""Run one process of this project, and explain its end.

python -m Utils.launch.child_process NAME REASON [flags of the script] records a run that was killed
before it could record itself.
"""

import signal
import subprocess
import sys
from contextlib import suppress

from Utils.base import paths
from Utils.base.errors import UserError, one_line
from Utils.scripts import variants


def python(command, suite):
    """Run Python with the project on its path. Return the exit code."""
    process = subprocess.Popen([sys.executable, *command], env=paths.environment(SUITE=suite))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass  # the terminal interrupts the child as well: let it end first


def why_ended(code, minutes=None):
    """Explain the end of a process without a row. code: None after so many minutes."""
    if code is None:
        return f"ended after the time-out of {minutes} minutes"
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code} before it could say why"


def _record_killed(name, reason, *flags):
    from Utils.harness import exits  # these here, as torch takes a second
    from Utils.harness.settings import parse_args

    doc = source = ""
    with suppress(UserError, OSError):  # the script is gone
        technique = variants.find(name)
        doc, source = technique.doc, technique.path.read_text()
    exits.record_end(parse_args(doc, flags, name, source), "failed", reason)


if __name__ == "__main__":
    with one_line(sys.argv[1]):
        _record_killed(*sys.argv[1:])
