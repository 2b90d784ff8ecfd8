"""All settings: name, default, help, and the check of their texts. `make help` prints them."""

import argparse
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from Utils.base.gpt2_sizes import CONFIGS


@dataclass(frozen=True)
class Setting:
    """One setting. parse: function of its text, which raises ArgumentTypeError."""

    default: object
    help: str
    parse: object = str


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


def switch(text):
    """Return the text of a setting that 1 switches on, "" for 0."""
    return "" if text == "0" else text


def _no_default(help, parse=str):
    return Setting(None, help, parse)


COUNT = at_least(1)
SHARE = checked(_share, lambda x: 0 < x < 1, "a share such as 2%", word="")
PART = checked(str, {"ladder", "ablation", "beyond"}.__contains__, "ladder, ablation or beyond")
POSITIVE = finite("a number above 0", zero=False)
*_MODELS, _LAST_MODEL = CONFIGS
SUITES = "all, beyond, everything, ablate"

OF_A_RUN = {
    "steps": Setting(50, "training steps, warm-up included", COUNT),
    "warmup": Setting(5, "first steps, which no statistic uses", at_least(0)),
    "min_seconds": Setting(
        "auto",
        "shortest timed part, for which steps are added; auto: 10 on a GPU, 0 on a CPU",
        finite("auto or a number of seconds", word="auto"),
    ),
    "batch_size": Setting(
        "auto",
        "sequences per step; auto: the shape that the baseline fits on this device",
        at_least(1, auto=True),
    ),
    "seq_len": Setting("auto", "tokens per sequence; auto: as for BATCH_SIZE", at_least(1, True)),
    "model": Setting("gpt2", f"{', '.join(_MODELS)} or {_LAST_MODEL}"),
    "dataset": Setting(
        "stdlib", "stdlib, synthetic, a file or folder of text, or a Hugging Face Hub id"
    ),
    "device": Setting("auto", "auto, cpu, cuda, cuda:N or mps"),
    "seed": Setting(0, "seed of weights and batches; round r uses SEED + r", at_least(0)),
    "rounds": Setting(
        1, "runs per script, in turns with its parent; intervals need 2 or more", COUNT
    ),
    "round": Setting(0, "number of the first round, to add rounds to others", at_least(0)),
    "results_file": Setting(Path("results.csv"), "file that rows are appended to", Path),
}
# Settings of those scripts whose code reads them, and of what runs these.
OF_SOME_SCRIPTS = {
    "bucket_mb": Setting(25, "ddp, scaling, profile: MiB of gradients per all-reduce", COUNT),
}
OF_COMMANDS = {
    "plotsprefix": Setting(
        "", "plots, ablate, compare, profile, scaling, gallery: prefix of the charts' file names"
    ),
    "device_name": Setting(
        "",
        "plots, table, report, recipe, submit, field-report: part of a device's name; default: the "
        "newest run's",
    ),
    "precision": _no_default(
        f"{SUITES}: add rounds until intervals over the parent are so narrow, as in 2%", SHARE
    ),
    "base": Setting(
        "",
        f"{SUITES}, recipe, forecast, doctor, table, plots, report: a script of your own, by name "
        "or path",
    ),
    "script": Setting("", "adopt: path of a script of your own"),
    "timeout": Setting(
        60,
        f"{SUITES}, together, recipe: minutes until a run is stopped; with PRECISION also the "
        "whole",
        COUNT,
    ),
    "price": _no_default(
        "table, report: price of one hour of this device", finite("a price", word="")
    ),
    "report": Setting(Path("report.html"), "report: the page to write", Path),
    "json": Setting("", "doctor: 1 prints JSON", switch),
    "n": Setting(2, "together: number of processes", at_least(2)),
    "t": Setting(
        "",
        "diff, profile, forecast, together: a technique, or all; ablate: last script of the line; "
        "ddp, scaling: a distributed script",
    ),
    "gpus": Setting(
        "",
        'ddp, profile, train: number of GPUs; scaling: several numbers, as in GPUS="1 2 4"',
    ),
    "without": Setting(
        "",
        "all, beyond, everything with BASE: techniques to leave out; diff: one whose diff is "
        "removed from T",
    ),
    "cpu": Setting("", "profile: 1 adds Python's functions", switch),
    "memory": Setting(
        "",
        "forecast: memory of a device that need not be here, as in 24GiB; profile: 1 adds a memory "
        "snapshot; virtual-gpu: 1 compares peaks",
        switch,
    ),
    "tokens": _no_default(
        "forecast with DEVICE=all: tokens to train on, as in 1e10",
        finite("a number of tokens, as in 1e10", zero=False, word=""),
    ),
    "prices": Setting(
        "", "forecast with DEVICE=all: a TOML file of dollars per hour, as in a100 = 1.79"
    ),
    "against": Setting(
        "",
        "forecast: published compares it with published figures",
        checked(str, {"published"}.__contains__, "published", word=""),
    ),
    "write": Setting(
        "", "forecast with AGAINST=published: 1 makes the check and its constants anew", switch
    ),
    "a": Setting("", "compare, report: a results file, or FILE:WORDS, as in A=results.csv:2.11"),
    "b": Setting("", "compare, report: the same for the other side, as in B=results.csv:2.13"),
    "recipe": Setting("", "recipe: the script to write; default .cache/recipe/recipe.py"),
    "check": Setting("", "submit: a folder to check instead, or results for all"),
    "torch": Setting("", "virtual-gpu: another torch, as in 2.11, or newest"),
    "part": Setting("", "reference: ladder, ablation or beyond; else all", PART),
}
# Of `make train`, whose defaults for STEPS, MODEL and the rest are its own too.
OF_TRAINING = {
    "tokens_per_step": _no_default(
        "of all ranks and accumulated batches; default 524288 on a GPU", COUNT
    ),
    "learning_rate": _no_default("peak learning rate; default 6e-4 on a GPU", POSITIVE),
    "weight_decay": _no_default("of matrices; default 0.1", finite("a number from 0 up")),
    "clip": _no_default("largest norm of the gradients; default 1", POSITIVE),
    "validate_every": _no_default("steps between validations; default 250 on a GPU", COUNT),
    "validation_tokens": _no_default("most held-out tokens per validation", COUNT),
    "checkpoint_every": _no_default(
        "steps between checkpoints; default: VALIDATE_EVERY", at_least(0)
    ),
    "corpus_tokens": _no_default("tokens of the corpus to use; default: all", at_least(0)),
    "with": _no_default("techniques to merge into the loop, or none; default: the recipe's"),
    "resume": Setting("", "1 resumes the newest run; or a run's folder", switch),
    "out": _no_default("the run's folder; default training/ and the time", Path),
    "plot": Setting("", "1 draws the loss curves during training", switch),
}
SETTINGS = OF_A_RUN | OF_SOME_SCRIPTS | OF_COMMANDS | OF_TRAINING
