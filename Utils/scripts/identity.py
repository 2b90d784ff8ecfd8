"""What the rows of a script say of its place in a ladder, and how a run learns it."""

import json
import os
import re
from dataclasses import dataclass

VARIABLE = "SCRIPT_IDENTITY"  # what starts a run tells it its Identity by this variable
CHANGE = re.compile(r"([+-])([^+-]+)")


@dataclass(frozen=True)
class Identity:
    """What the rows of a script say of its place in a ladder.

    suite: the ladder that holds it: ladder, beyond, ablation, own, pair or peers.
    parent: name of the script that it is compared with, "" for a base.
    change: what it adds to that, "+flash_attention", or takes away, "-flash_attention".
    """

    suite: str
    parent: str = ""
    change: str = ""


def changes(change):
    """Return the signs and techniques of a change: [("+", "flash_attention")]."""
    return CHANGE.findall(change)


def identity_variable(script):
    """Return the variable by which a run of a script learns its Identity, a dict."""
    return {VARIABLE: json.dumps({"name": script.name, **vars(script.identity)})}


def told_identity(name):
    """Return the Identity that what started this process gave the script `name`, or None."""
    told = json.loads(os.environ.get(VARIABLE, "{}"))
    if told.pop("name", None) != name:  # it was told to the process that started this one
        return None
    return Identity(**told)
