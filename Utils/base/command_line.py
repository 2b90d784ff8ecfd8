"""The flags that scripts, suite, table and charts share. Importing this costs no torch."""

import argparse
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from Utils.base.gpt2_sizes import CONFIGS


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line and takes no abbreviated flag."""

    def __init__(self, prog, doc):
        super().__init__(prog, description=doc, formatter_class=_Help, allow_abbrev=False)

    def error(self, message):
        if os.environ.get("RANK", "0") != "0":  # rank 0 prints the same; let it end first
            time.sleep(15)
            self.exit(2)
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


def as_flags(values):
    """Return a dict of settings as flags: batch_size becomes --batch-size=4."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def defaults():
    """Return the default settings of a script, a dict."""
    parser = Parser("", "")
    add_settings(parser)
    return vars(parser.parse_args([]))


def round_flags(args, r, code="", **changes):
    """Return the flags of a script in round r, from a command's args.

    code: of the script, for settings that only some scripts have. changes: settings that replace
    those of args.
    """
    values = vars(args) | {"rounds": 1, "round": r, "seed": args.seed + r} | changes
    names = [*defaults(), *(name for name in read_by(code) if name in values)]
    return as_flags({name: values[name] for name in names})


def read_by(code):
    """Return the names of the settings of EXTRA that a script's code reads."""
    return [name for name in EXTRA if f"args.{name}" in code]


def checked(convert, valid, what, word=None):
    """Return the type of a flag: what `convert` makes of a text, if it is valid; also that word,
    None if it is empty.

    what: the value in words.
    """

    def parse(text):
        if text == word:
            return word or None
        with suppress(ValueError):
            if valid(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return parse


def at_least(minimum, auto=False):
    """Return the type of a flag: a whole number from `minimum` up; with `auto`, also that word."""
    what = f"{'auto or ' * auto}a whole number from {minimum} up"
    return checked(_whole, lambda n: n >= minimum, what, "auto" if auto else None)


def _whole(text):
    return int(text) if text.lstrip("-").isdecimal() else -math.inf


def finite(what, zero=True, word=None):
    """Return the type of a flag: a number above 0, or from 0 up with `zero`; else as `checked`."""
    return checked(float, lambda x: 0 <= x < math.inf and (zero or x), what, word)


def _share(text):
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


# Flags of those scripts only whose code reads them.
EXTRA = {
    "bucket_mb": {"type": at_least(1), "default": 25, "help": "MiB of gradients reduced at once"}
}
# Flags of several commands.
OF_COMMANDS = {
    "timeout": {"type": at_least(1), "default": 60, "help": "minutes until a run is killed"},
    "precision": {
        "type": checked(_share, lambda x: 0 < x < 1, "a share such as 2%", word=""),
        "help": "add rounds until every interval over a parent is so narrow either way, as in 2%%",
    },
    "base": {
        "default": "",
        "help": "script of your own at the root of the ladder: its name or path",
    },
}


def add_settings(parser):
    """Add the flags of every script; the Makefile's variables are the same in capitals."""
    add = parser.add_argument
    add("--steps", type=at_least(1), default=50, help="training steps, including warm-up")
    add("--warmup", type=at_least(0), default=5, help="first steps, excluded from statistics")
    add(
        "--min-seconds",
        type=finite("auto or a number of seconds", word="auto"),
        default="auto",
        help="shortest timed part, for which steps are added; auto: 10 on a GPU, 0 on a CPU",
    )
    add("--batch-size", type=at_least(1, auto=True), default="auto", help="sequences per step")
    add("--seq-len", type=at_least(1, auto=True), default="auto", help="tokens per sequence")
    add("--model", default="gpt2", help=", ".join(CONFIGS))
    add("--dataset", default="stdlib", help="stdlib, synthetic, file or folder, or Hub id")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    add("--seed", type=at_least(0), default=0, help="random seed of weights and batches")
    add("--rounds", type=at_least(1), default=1, help="repeated runs, each with its own seed")
    add("--round", type=at_least(0), default=0, help="number of the first round")
    add_results_file(parser)


def add_extra(parser, *names):
    """Add flags of EXTRA or OF_COMMANDS."""
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", **(EXTRA | OF_COMMANDS)[name])


def add_plotsprefix(parser):
    parser.add_argument("--plotsprefix", default="", help="prefix of the charts' file names")


def add_results_file(parser):
    help = "file of the rows"
    parser.add_argument("--results-file", type=Path, default=Path("results.csv"), help=help)


def add_selection(parser):
    """Add the flags of commands that read results."""
    add_results_file(parser)
    help = "part of a device's name; else the newest run's device"
    parser.add_argument("--device-name", default="", help=help)
    add_extra(parser, "base")
