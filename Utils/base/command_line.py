"""The command line of scripts and commands: NAME=value, as make passes it, or --name value.

All settings are in settings.toml: name, default, help, type. This does not import torch.
"""

import argparse
import math
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from Utils.base import files, paths
from Utils.base.errors import UserError, nearest, unknown
from Utils.base.gpt2_sizes import CONFIGS

DEFAULT_MINUTES = 10
ABOVE_0 = math.nextafter(0, 1)
BELOW_1 = math.nextafter(1, 0)
LARGEST = 2**53  # results are read as float64, which counts so far
MANY = 100_000  # minutes and rounds: no timer and no list of runs takes many more
ASSIGNMENT = re.compile(r"([A-Za-z]\w*)=(.*)", re.DOTALL)


def _share(text):
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _results_file(text):
    if text.endswith(".jsonl"):
        raise ValueError
    return Path(text)


@dataclass(frozen=True)
class Type:
    """The values that a setting may have.

    convert: returns the value of a text, or raises ValueError.
    valid: the values in words.
    least, most: the least and the largest valid number.
    word: a text that is valid as well.
    """

    convert: object
    valid: str = ""
    least: float | None = None
    most: float = LARGEST
    word: str | None = None


TYPES = {
    "text": Type(str),
    "switch": Type(lambda text: "" if text == "0" else text),  # on at 1, off at 0
    "path": Type(Path),
    "results file": Type(_results_file, "a file of rows: one of .jsonl has their records"),
    "count": Type(int, "a whole number from 1 to 2^53", 1),
    "count from 0": Type(int, "a whole number from 0 to 2^53", 0),
    "few": Type(int, f"a whole number from 1 to {MANY:,}", 1, MANY),
    "auto or count": Type(int, "auto or a whole number from 1 to 2^53", 1, word="auto"),
    "auto or seconds": Type(float, "auto or a number of seconds", 0, MANY, "auto"),
    "auto or minutes": Type(float, "auto or a number of minutes above 0", ABOVE_0, MANY, "auto"),
    "number": Type(float, "a number from 0 up", 0),
    "number above 0": Type(float, "a number above 0", ABOVE_0),
    "share": Type(_share, "a share such as 2%", ABOVE_0, BELOW_1),
    "part": Type(StrEnum("Part", "ladder ablation beyond"), "ladder, ablation or beyond"),
}


@dataclass(frozen=True)
class Setting:
    """A setting as settings.toml states it. type: a key of TYPES."""

    help: str
    type: str = "text"
    default: object = None

    def parse(self, text):
        """Return the value of a text. Raises ArgumentTypeError."""
        type = TYPES[self.type]
        if text == type.word or (not text and self.default is None):
            return text or None
        with suppress(ValueError):
            value = type.convert(text)
            if type.least is None or type.least <= value <= type.most:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {type.valid}")


def _settings(table):
    """Return the Settings of a table of settings.toml, by name."""
    defaults = {"text": "", "switch": ""}
    return {
        name: Setting(**{"default": defaults.get(fields.get("type", "text"))} | fields)
        for name, fields in table.items()
    }


_TABLES = files.tables_beside(__file__, "settings.toml")
RUN_SETTINGS = _settings(_TABLES["run"])
SCRIPT_SETTINGS = _settings(_TABLES["scripts"])
COMMAND_SETTINGS = _settings(_TABLES["commands"])
TRAINING_SETTINGS = _settings(_TABLES["training"])
SETTINGS = RUN_SETTINGS | SCRIPT_SETTINGS | COMMAND_SETTINGS | TRAINING_SETTINGS

SELECTION = ("results_file", "device_name", "base")  # settings of commands that read results
USER_SCRIPT_SETTINGS = ("base", "without", "args", "folder", "base_python", "writes")
ALL_SCRIPT_SETTINGS = (*RUN_SETTINGS, *SCRIPT_SETTINGS)
SUITE_SETTINGS = (*RUN_SETTINGS, "timeout", "precision", "all", "t", *USER_SCRIPT_SETTINGS)
MAKEFILE_VARIABLES = {"PYTHON", "TESTS", "WORKERS", "CACHE_DIR", "PATIENCE_S"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser of settings, which reports an error in one line.

    names: names of the settings that it takes. Settings of other commands are ignored if they are
    given as NAME=value, because make gives the same ones to all that it runs.
    """

    def __init__(self, prog, doc, *names):
        doc = paths.as_called(doc)
        super().__init__(prog, description=doc, formatter_class=_Help, allow_abbrev=False)
        for name in names:
            setting = SETTINGS[name]
            options = {"nargs": "?", "const": "1"} if setting.type == "switch" else {}
            default = setting.default
            if default and setting.type in ("path", "results file"):
                default = paths.OUTPUT / default
            options |= {"type": setting.parse, "default": default}
            help = setting.help.replace("%", "%%")
            self.add_argument(_flag(name), help=help, metavar=name.upper(), **options)
        self.names = names

    def parse_known_args(self, args=None, namespace=None):
        """Parse NAME=value as --name=value, which prevails if both are given.

        The namespace has the names of all settings that were given as `explicit`.
        """
        words = sys.argv[1:] if args is None else args
        values, unknown_words = self._assignments(words)
        options = {word.partition("=")[0] for word in unknown_words}
        used = {}
        self.unused = []
        for name, value in values.items():
            if name in self.names and _flag(name) not in options:
                used[name] = value
            else:
                self.unused.append(f"{name.upper()}={value}")

        namespace, unparsed = super().parse_known_args([*as_flags(used), *unknown_words], namespace)
        namespace.explicit = [n for n in self.names if n in used or _flag(n) in options]
        if "warmup" not in namespace.explicit and getattr(namespace, "warmup", None):
            namespace.warmup = min(namespace.warmup, namespace.steps // 2)
        return namespace, unparsed

    def _assignments(self, words):
        """Return the values of words such as NAME=value by the settings' names, and other words."""
        names = {name.upper(): name for name in SETTINGS}
        values = {}
        other_words = []
        for before, word in pairwise(["", *words]):
            assignment = ASSIGNMENT.fullmatch(word)
            option = self._option_string_actions.get(before)
            if not assignment or (option and option.nargs is None):  # it is the option's value
                other_words.append(word)
                continue

            variable, value = assignment.groups()
            if variable not in MAKEFILE_VARIABLES | names.keys():
                near = nearest(variable.upper(), names) or f"see {paths.COMMAND} help"
                self.error(f"{word}: no such variable; {near}")
            if value and variable in names:
                values[names[variable]] = value
                try:
                    SETTINGS[names[variable]].parse(value)
                except argparse.ArgumentTypeError as problem:
                    self.error(f"{word}: {problem}")
        return values, other_words

    def parse_args(self, args=None, namespace=None):
        namespace = super().parse_args(args, namespace)
        self._report_unused(namespace.explicit)
        return namespace

    def _report_unused(self, explicit):
        """Print settings without effect: another command's, or those in the environment.

        The Makefile sets USED to more variables that a target uses, if the user has named it.
        """
        variables = [name.upper() for name in self.names if name not in explicit]
        ignored = [f"{v}={os.environ[v]}" for v in variables if os.environ.get(v)]
        if ignored and "MAKELEVEL" in os.environ:  # make does not pass these on
            problem = f"{', '.join(ignored)}: no effect from the environment"
            remedy = "give it after make, as in make all STEPS=20"
            print(f"{self.prog}: {problem}; {remedy}", file=sys.stderr)

        used = os.environ.pop("USED", "").split()
        unused = [word for word in self.unused if word.partition("=")[0] not in used]
        if unused and "PYTHON" in used and os.environ.get("RANK", "0") == "0":
            print(f"{self.prog}: {', '.join(unused)}: no effect on this command", file=sys.stderr)

    def error(self, message):
        # Rank 0 prints the same; let it end first.
        is_later = os.environ.get("RANK", "").strip("0").isdecimal()
        if is_later and "WORLD_SIZE" in os.environ:
            time.sleep(15)
            self.exit(2)
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


def _flag(name):
    return f"--{name.replace('_', '-')}"


def spelled(name, value):
    """Return a setting as the user gives it: STEPS=4 after make, otherwise --steps 4."""
    variable = f"{name.upper()}={value}"
    if "MAKELEVEL" in os.environ or variable in sys.argv:
        return variable
    return f"{_flag(name)} {value}"


def minutes(args):
    """Return the limit of a command's time in minutes, None without one.

    args: parsed settings, whose `explicit` has the names of those that were given.
    """
    if args.minutes != "auto":
        return args.minutes
    return None if {"steps", "rounds"} & {*args.explicit} else DEFAULT_MINUTES


def check(args):
    """Raise UserError for settings that no run can have, on any device."""
    check_model(args)
    if getattr(args, "without", "") and not args.base:
        raise UserError("WITHOUT leaves switches out on a script of your own", "add BASE")
    if args.warmup >= args.steps:
        problem = f"a warm-up of {args.warmup} steps of {args.steps} leaves no step to time"
        raise UserError(f"{spelled('warmup', args.warmup)}: {problem}")


def check_model(args):
    """Raise UserError for a model that does not exist, or a sequence too long for it."""
    if args.model not in CONFIGS:
        raise unknown(f"{spelled('model', args.model)}: no such model", args.model, CONFIGS)
    longest = CONFIGS[args.model].block_size
    if args.seq_len != "auto" and args.seq_len > longest:
        problem = f"{args.model} takes {longest} tokens at most"
        raise UserError(f"{spelled('seq_len', args.seq_len)}: {problem}")


def as_flags(values):
    """Return a dict of settings as flags: batch_size becomes --batch-size=4."""
    return [f"{_flag(name)}={value}" for name, value in values.items()]


def round_flags(args, r, code="", **changes):
    """Return the flags of a script in round r, from a command's args.

    code: the script's code, which reads settings that only some scripts have.
    changes: settings that replace those of args.
    """
    values = vars(args) | {"rounds": 1, "round": r, "seed": args.seed + r, "minutes": "auto"}
    values |= changes
    names = [*RUN_SETTINGS, *read_by(code)]
    return as_flags({name: values[name] for name in names if name in values})


def read_by(code):
    """Return the names of the settings of SCRIPT_SETTINGS that a script's code reads."""
    return [name for name in SCRIPT_SETTINGS if f"args.{name}" in code]


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
        "Settings of a run": RUN_SETTINGS,
        "Variables of single commands": SCRIPT_SETTINGS | COMMAND_SETTINGS,
        "Variables of `make train`": TRAINING_SETTINGS,
    }
    helps = {}
    for title, settings in tables.items():
        helps[title] = {}
        for name, setting in settings.items():
            default = "" if setting.default is None else setting.default
            helps[title][f"{name.upper()}={default}"] = setting.help
    return helps
