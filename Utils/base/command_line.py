"""The flags that scripts, suite, table and charts share. Importing this costs no torch."""

import argparse
import math
import os
import time
from pathlib import Path

from Utils.base.sizes import CONFIGS


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is answered in one line, and no flag can be abbreviated."""

    def __init__(self, prog, doc):
        super().__init__(prog, description=doc, formatter_class=_Help, allow_abbrev=False)

    def error(self, message):
        if os.environ.get("RANK", "0") != "0":  # rank 0 says the same, and others wait until it has
            time.sleep(15)
            self.exit(2)
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


def as_flags(values):
    """Return the command line of settings, a dict: --batch-size=4 of batch_size."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def defaults():
    """Return the settings of every script as they are without flags, a dict."""
    parser = Parser("", "")
    add_settings(parser)
    return vars(parser.parse_args([]))


def round_flags(args, r, code="", **changes):
    """Return the command line of a script in round r: those of a command's args that it takes.

    code: of the script, for the settings that only some scripts have. changes: settings in place
    of those of args.
    """
    values = vars(args) | {"rounds": 1, "round": r, "seed": args.seed + r} | changes
    names = [*defaults(), *(name for name in read_by(code) if name in values)]
    return as_flags({name: values[name] for name in names})


def read_by(code):
    """Return the names of the settings that only some scripts have and this code reads."""
    return [name for name in EXTRA if f"args.{name}" in code]


def at_least(minimum, auto=False):
    """The type of a flag that takes a whole number from `minimum` up, or the word auto."""

    def parse(text):
        if auto and text == "auto":
            return text
        if not text.lstrip("-").isdecimal() or int(text) < minimum:
            kind = "auto or a whole number" if auto else "a whole number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind} from {minimum} up")
        return int(text)

    return parse


BUCKETS = "MiB of gradients that ranks sum at once"
EXTRA = {
    "bucket_mb": {"type": at_least(1), "default": 25, "help": BUCKETS}
}  # of scripts reading it


def add_settings(parser):
    """The flags of every script. The Makefile's variables are these, in capitals."""
    add = parser.add_argument
    add("--steps", type=at_least(1), default=50, help="training steps, warm-up included")
    add("--warmup", type=at_least(0), default=5, help="steps at the start that no statistic uses")
    add("--batch-size", type=at_least(1, auto=True), default="auto", help="sequences a step")
    add("--seq-len", type=at_least(1, auto=True), default="auto", help="tokens a sequence")
    add("--model", default="gpt2", help=", ".join(CONFIGS))
    add("--dataset", default="stdlib", help="stdlib, synthetic, file or folder, or Hub id")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    add("--seed", type=at_least(0), default=0, help="of the weights and the batches")
    add("--rounds", type=at_least(1), default=1, help="runs, each a process with its own seed")
    add("--round", type=at_least(0), default=0, help="which of the rounds this run is")
    add_results_file(parser)


def add_extra(parser, name):
    """A flag of EXTRA."""
    parser.add_argument(f"--{name.replace('_', '-')}", **EXTRA[name])


def add_timeout(parser):
    help = "minutes after which a run is ended"
    parser.add_argument("--timeout", type=at_least(1), default=60, help=help)


def add_plotsprefix(parser):
    parser.add_argument("--plotsprefix", default="", help="of the charts' file names")


def add_results_file(parser):
    help = "where rows are appended or read"
    parser.add_argument("--results-file", type=Path, default=Path("results.csv"), help=help)


def add_selection(parser):
    """The flags of what reads results."""
    add_results_file(parser)
    help = "part of it; else the newest run's device is shown"
    parser.add_argument("--device-name", default="", help=help)


def hourly_price(text):
    """A number from 0 up, or None for no text."""
    try:
        price = float(text or "nan")
    except ValueError:
        price = -1.0
    if price < 0 or math.isinf(price):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price")
    return None if math.isnan(price) else price
