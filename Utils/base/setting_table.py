"""All settings, from settings.toml: name, default, help, and the check of their texts."""

import argparse
import math
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ABOVE_0 = math.nextafter(0, 1)


def _switch(text):
    return "" if text == "0" else text


def _share(text):
    value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    return value if value < 1 else math.nan


@dataclass(frozen=True)
class Type:
    """The values that a setting may have.

    convert: returns the value of a text, or raises ValueError. valid: the values in words. least:
    of numbers, which are finite. word: a text that is valid as well; the empty one means None.
    """

    convert: object
    valid: str = ""
    least: float | None = None
    word: str | None = None


TYPES = {
    "text": Type(str),
    "switch": Type(_switch),  # on at 1, off at 0
    "path": Type(Path),
    "count": Type(int, "a whole number from 1 up", 1),
    "count from 0": Type(int, "a whole number from 0 up", 0),
    "count from 2": Type(int, "a whole number from 2 up", 2),
    "auto or count": Type(int, "auto or a whole number from 1 up", 1, "auto"),
    "auto or seconds": Type(float, "auto or a number of seconds", 0, "auto"),
    "number": Type(float, "a number from 0 up", 0),
    "number above 0": Type(float, "a number above 0", ABOVE_0),
    "price": Type(float, "a price", 0, ""),
    "tokens": Type(float, "a number of tokens, as in 1e10", ABOVE_0, ""),
    "share": Type(_share, "a share such as 2%", ABOVE_0, ""),
    "published": Type(StrEnum("Against", "published"), "published", word=""),
    "part": Type(StrEnum("Part", "ladder ablation beyond"), "ladder, ablation or beyond", word=""),
}


@dataclass(frozen=True)
class Setting:
    help: str
    type: str = "text"
    default: object = None

    def parse(self, text):
        """Return the value of a text. Raises ArgumentTypeError."""
        type = TYPES[self.type]
        if text == type.word:
            return text or None
        with suppress(ValueError):
            value = type.convert(text)
            if type.least is None or type.least <= value < math.inf:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {type.valid}")


def _settings(table):
    """Return the Settings of a table of settings.toml, by name."""
    settings = {}
    for name, fields in table.items():
        if TYPES[fields.get("type", "text")].convert in (str, _switch):
            fields = {"default": ""} | fields
        settings[name] = Setting(**fields)
    return settings


_TABLES = tomllib.loads(Path(__file__).with_name("settings.toml").read_text())
OF_A_RUN = _settings(_TABLES["run"])
OF_SOME_SCRIPTS = _settings(_TABLES["scripts"])
OF_COMMANDS = _settings(_TABLES["commands"])
OF_TRAINING = _settings(_TABLES["training"])
SETTINGS = OF_A_RUN | OF_SOME_SCRIPTS | OF_COMMANDS | OF_TRAINING
