"""Errors of a run: those of the script, and faults of this program."""

import traceback
from itertools import dropwhile

from tools.own_script.user_code import OURS, Ended
from Utils.base.errors import first_line


def fault(error):
    """Return the Ended of a run that an error of this program has ended."""
    text = f"{type(error).__name__}: {first_line(error)}"
    return Ended(f"a fault of this program, not of the script: {text}", "failed")


def is_fault_of_ours(error):
    """Return whether an exception comes from what watches the script.

    Functions of ours that stand in for others have these as
    `usual`, `forward`, `function` or `operator`. A switch that fails is none that applies.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [*filter(_is_ours, dropwhile(_is_ours, frames))]  # after the script has started
    if not ours or ours[-1].f_code.co_filename.endswith("switches.py"):
        return False
    stands_in = {"usual", "forward", "function", "operator"}
    calls = {"listened_call", "__call__", "_method", "_step_begins"}
    return not (stands_in & ours[-1].f_locals.keys() or ours[-1].f_code.co_name in calls)


def _is_ours(frame):
    return frame.f_code.co_filename.startswith(OURS)
