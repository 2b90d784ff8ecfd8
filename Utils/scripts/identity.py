"""Identity of a script in its rows and records, and the way in which a run learns it."""

import json
import os
import re
from dataclasses import dataclass, field

VARIABLE = "SCRIPT_IDENTITY"  # environment variable in which a launcher passes an Identity
PATCH = "patch"  # the change of a user's script that has a recipe's patch
CHANGE = re.compile(r"([+-])([^+-]+)")


@dataclass(frozen=True)
class Identity:
    """What a launcher knows of a run's script: its place in a ladder, and more for its rows.

    A launcher that writes the row of a dead process takes the same object.
    """

    suite: str  # name of the ladder: ladder, beyond, ablation, own, pair or peers
    parent: str = ""  # name of the script that it is compared with, "" for a base
    change: str = ""  # difference to the parent: "+flash_attention", or "-flash_attention" without
    label: str = ""  # its name in rows, "" if that is the script's
    # Of a run that has not measured them: columns of its rows by name, fields of its record.
    columns: dict[str, str | int] = field(default_factory=dict)
    record: dict = field(default_factory=dict)

    @property
    def place(self) -> dict[str, str]:
        """The columns suite, parent and change."""
        return {"suite": self.suite, "parent": self.parent, "change": self.change}


def changes(change: str) -> list[tuple[str, str]]:
    """Return the signs and techniques of a change: [("+", "flash_attention")]."""
    return CHANGE.findall(change)


def identity_variable(script: str, identity: Identity) -> dict[str, str]:
    """Return the environment variable by which the run of a script learns its Identity."""
    return {VARIABLE: json.dumps({"script": script, **vars(identity)})}


def identity_from_environment(script: str) -> Identity | None:
    """Return the Identity that the launcher of this process gave a script, or None."""
    told = json.loads(os.environ.get(VARIABLE, "{}"))
    if told.pop("script", None) != script:  # it is the Identity of this process's parent
        return None
    return Identity(**told)
