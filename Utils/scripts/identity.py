"""The place of a script in a ladder, as its rows state it, and how a run learns it."""

import json
import os
import re
from dataclasses import dataclass

VARIABLE = "SCRIPT_IDENTITY"  # environment variable in which a launcher passes an Identity
CHANGE = re.compile(r"([+-])([^+-]+)")


@dataclass(frozen=True)
class Identity:
    """The place of a script in a ladder, as its rows state it."""

    suite: str  # name of the ladder: ladder, beyond, ablation, own, pair or peers
    parent: str = ""  # name of the script that it is compared with, "" for a base
    change: str = ""  # difference to the parent: "+flash_attention", or "-flash_attention" without


def changes(change: str) -> list[tuple[str, str]]:
    """Return the signs and techniques of a change: [("+", "flash_attention")]."""
    return CHANGE.findall(change)


def identity_variable(script) -> dict[str, str]:
    """Return the environment variable by which a run of a ladder.Technique learns its Identity."""
    return {VARIABLE: json.dumps({"name": script.name, **vars(script.identity)})}


def identity_from_environment(name: str) -> Identity | None:
    """Return the Identity that the launcher of this process gave the script `name`, or None."""
    told = json.loads(os.environ.get(VARIABLE, "{}"))
    if told.pop("name", None) != name:  # it is the Identity of this process's parent
        return None
    return Identity(**told)
