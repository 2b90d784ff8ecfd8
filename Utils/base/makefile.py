"""The targets of the Makefile, and the variables that it passes on, with their help."""

import re

from Utils.base import paths
from Utils.base.setting_table import OF_A_RUN, OF_COMMANDS, OF_SOME_SCRIPTS, OF_TRAINING


def targets():
    """Return the help of each target by its name, by the title of its section."""
    sections = {}
    text = (paths.ROOT / "Makefile").read_text()
    for section in re.split(r"^##@ ", text, flags=re.MULTILINE)[1:]:
        lines = re.findall(r"^([\w-]+):[^=\n]*## (.*)", section, re.MULTILINE)
        sections[section.splitlines()[0]] = dict(lines)
    return sections


def variables():
    """Return the help of each variable by NAME=default, by the title of its table."""
    tables = {
        "Settings of a run": OF_A_RUN,
        "Variables of single commands": OF_SOME_SCRIPTS | OF_COMMANDS,
        "Variables of `make train`": OF_TRAINING,
    }
    helps = {}
    for title, settings in tables.items():
        helps[title] = {}
        for name, setting in settings.items():
            default = "" if setting.default is None else setting.default
            helps[title][f"{name.upper()}={default}"] = setting.help
    return helps
