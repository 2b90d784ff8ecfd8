"""Settings as they are given: their values, and flags made of them."""

import argparse

import pytest

from Utils.base import command_line

REFUSED = "refused"


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("precision", "2%", 0.02),
        ("precision", "100%", REFUSED),
        ("steps", "1", 1),
        ("steps", "0", REFUSED),
        ("steps", str(2**53 + 1), REFUSED),  # results are read as float64
        ("warmup", "0", 0),
        ("batch_size", "auto", "auto"),
        ("min_seconds", "inf", REFUSED),
        ("seed", str(2**53), 2**53),
        ("rounds", "100001", REFUSED),
        ("price", "", None),
        ("json", "0", ""),
    ],
)
def test_setting_has_a_value_in_its_bounds(name, text, value):
    try:
        parsed = command_line.SETTINGS[name].parse(text)
    except argparse.ArgumentTypeError:
        parsed = REFUSED
    assert parsed == value
