"""The command line of scripts and commands: NAME=value, as make passes it, or --name value.

Importing this costs no torch.
"""

import argparse
import difflib
import os
import re
import sys
import time
from itertools import pairwise

from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.setting_table import OF_A_RUN, OF_SOME_SCRIPTS, SETTINGS

SELECTION = ("results_file", "device_name", "base")  # settings of commands that read results
OF_THE_MAKEFILE = {"PYTHON", "TESTS", "WORKERS", "CACHE_DIR", "PATIENCE_S"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser of settings, which reports an error in one line.

    names: of the settings that it takes. Those of other commands are ignored where they are given
    as NAME=value: make gives the same to all that it runs.
    """

    def __init__(self, prog, doc, *names):
        super().__init__(prog, description=doc, formatter_class=_Help, allow_abbrev=False)
        for name in names:
            setting = SETTINGS[name]
            options = {"nargs": "?", "const": "1"} if setting.type == "switch" else {}
            options |= {"type": setting.parse, "default": setting.default}
            help = setting.help.replace("%", "%%")
            self.add_argument(_flag(name), help=help, metavar=name.upper(), **options)
        self.names = names

    def parse_known_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else args
        flags = self._flags(words)
        flagged = {flag.partition("=")[0] for flag in flags}
        ignored = []  # make does not pass on what it was given by the environment
        for name in self.names if "MAKELEVEL" in os.environ else ():
            value = os.environ.get(name.upper())
            if value and _flag(name) not in flagged:
                ignored.append(f"{name.upper()}={value}")
        if ignored:
            problem = f"{', '.join(ignored)}: no effect from the environment"
            remedy = "give it after make, as in make all STEPS=20"
            print(f"{self.prog}: {problem}; {remedy}", file=sys.stderr)
        return super().parse_known_args(flags, namespace)

    def _flags(self, words):
        """Return a command line with --name=value for each NAME=value."""
        flags = []
        for before, word in pairwise(["", *words]):
            flag_before = self._option_string_actions.get(before)
            is_value = flag_before is not None and flag_before.nargs is None
            assignment = re.fullmatch(r"([A-Za-z]\w*)=(.*)", word, re.DOTALL)
            if assignment and not is_value:
                flags += self._flag_of(*assignment.groups())
            else:
                flags.append(word)
        return flags

    def _flag_of(self, variable, value):
        """Return a list with the flag of a variable, empty where it has no value or no use here."""
        names = {name.upper(): name for name in SETTINGS}
        if variable not in OF_THE_MAKEFILE | names.keys():
            matches = difflib.get_close_matches(variable.upper(), names, n=1)
            nearest = f", the nearest is {matches[0]}" if matches else ""
            self.error(f"{variable}={value}: no such variable{nearest}; see make help")
        if not value or variable not in names:
            return []
        try:
            SETTINGS[names[variable]].parse(value)
        except argparse.ArgumentTypeError as problem:
            self.error(f"{variable}={value}: {problem}")
        return [f"{_flag(names[variable])}={value}"] if names[variable] in self.names else []

    def error(self, message):
        if os.environ.get("RANK", "0") != "0":  # rank 0 prints the same; let it end first
            time.sleep(15)
            self.exit(2)
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


def _flag(name):
    return f"--{name.replace('_', '-')}"


def spelled(name, value):
    """Return a setting as it was given: STEPS=4 where make was called, else --steps 4."""
    variable = f"{name.upper()}={value}"
    if "MAKELEVEL" in os.environ or variable in sys.argv:
        return variable
    return f"{_flag(name)} {value}"


def check(args):
    """Raise UserError for settings that no run can have, on any device."""
    check_model(args)
    if args.warmup >= args.steps:
        changed = "warmup" if args.steps == OF_A_RUN["steps"].default else "steps"
        problem = f"a warm-up of {args.warmup} steps of {args.steps} leaves no step to time"
        raise UserError(f"{spelled(changed, getattr(args, changed))}: {problem}")


def check_model(args):
    """Raise UserError for a model that does not exist, or a sequence too long for it."""
    if args.model not in CONFIGS:
        raise UserError(f"{spelled('model', args.model)}: choose {', '.join(CONFIGS)}")
    longest = CONFIGS[args.model].block_size
    if args.seq_len != "auto" and args.seq_len > longest:
        problem = f"{args.model} takes {longest} tokens at most"
        raise UserError(f"{spelled('seq_len', args.seq_len)}: {problem}")


def as_flags(values):
    """Return a dict of settings as flags: batch_size becomes --batch-size=4."""
    return [f"{_flag(name)}={value}" for name, value in values.items()]


def defaults():
    """Return the default settings of a script, a dict."""
    return {name: setting.default for name, setting in OF_A_RUN.items()}


def round_flags(args, r, code="", **changes):
    """Return the flags of a script in round r, from a command's args.

    code: of the script, for settings that only some scripts have. changes: settings that replace
    those of args.
    """
    values = vars(args) | {"rounds": 1, "round": r, "seed": args.seed + r} | changes
    names = [*OF_A_RUN, *(name for name in read_by(code) if name in values)]
    return as_flags({name: values[name] for name in names})


def read_by(code):
    """Return the names of the settings of OF_SOME_SCRIPTS that a script's code reads."""
    return [name for name in OF_SOME_SCRIPTS if f"args.{name}" in code]
