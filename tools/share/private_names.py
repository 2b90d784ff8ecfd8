"""Names of the user, the host and home folders, replaced in texts that are shared."""

import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

from Utils.base.text import HOMES

ANYBODY = {"root", "user", "admin", "ubuntu", "localhost"}  # names that identify no one


def replacements() -> dict[str, str]:
    """Return a mark for each text that identifies user or host: the longest text first."""
    home = Path.home()
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
    hosts = [platform.node(), os.environ.get("HOSTNAME", "")]
    hosts += [host.partition(".")[0] for host in hosts]

    marks = dict.fromkeys([home.name, *users], "<user>") | dict.fromkeys(hosts, "<host>")
    marks[str(home)] = "<home>"
    return {
        name: marks[name]
        for name in sorted(marks, key=len, reverse=True)
        if len(name) > 2 and name.lower() not in ANYBODY
    }


def scrub(value: object, marks: dict[str, str]) -> object:
    """Return a value of JSON with marks in place of names, in all of its texts except for keys.

    The names of `replacements` are replaced as words of their own in any case, and so are all home
    folders.
    """

    def replace(text):
        for name, mark in marks.items():
            word = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            text = re.sub(word, mark, text, flags=re.IGNORECASE)
        return HOMES.sub("<home>", text)

    return with_texts(value, replace)


def with_texts(value: object, function: Callable) -> object:
    """Return a value of JSON with a function of all of its texts, except for keys."""
    if isinstance(value, dict):
        return {key: with_texts(item, function) for key, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item, function) for item in value]
    return function(value) if isinstance(value, str) else value
