"""Errors of a run: those of the script, and faults of this program."""

import traceback

from tools.own_script.user_code import OURS, Ended
from Utils.base.errors import first_line

STANDS_IN = {"usual", "forward", "function", "operator"}  # locals that hold what is replaced
CALLS = {"run_script", "listened_call", "__call__", "_step_begins"}


def fault(error):
    """Print an error of this program. Return the Ended of the run that it has ended."""
    traceback.print_exception(error)
    text = f"{type(error).__name__}: {first_line(error)}"
    return Ended("failed", f"a fault of this program, not of the script: {text}")


def is_fault_of_ours(stack):
    """Return whether an exception comes from what watches the script, and not from a switch.

    stack: of its traceback, the outermost frame first. A function of ours that merely calls the
    script's or torch's code is one of CALLS, or has that in a variable of STANDS_IN.
    """
    ours = [frame for frame, _ in stack if frame.f_code.co_filename.startswith(OURS)]
    code = ours[-1].f_code
    is_call = code.co_name in CALLS or STANDS_IN & ours[-1].f_locals.keys()
    return not is_call and not code.co_filename.endswith("switches.py")
