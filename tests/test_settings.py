"""Settings as they are given: their values, and flags made of them."""

import argparse

import pytest

from Utils.base import command_line
from Utils.base.command_line import SETTINGS

REFUSED = "refused"


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("precision", "2%", 0.02),
        ("precision", "100%", REFUSED),
        ("steps", "1", 1),
        ("steps", "0", REFUSED),
        ("warmup", "0", 0),
        ("batch_size", "auto", "auto"),
        ("min_seconds", "inf", REFUSED),
        ("tokens", "1e10", 1e10),
        ("seed", str(2**53), 2**53),
        ("seed", str(2**53 + 1), REFUSED),
        ("rounds", "100001", REFUSED),
        ("minutes", "1e300", REFUSED),
        ("tokens", "", None),
        ("json", "0", ""),
    ],
)
def test_setting_has_a_value_in_its_bounds(name, text, value):
    try:
        parsed = command_line.SETTINGS[name].parse(text)
    except argparse.ArgumentTypeError:
        parsed = REFUSED
    assert parsed == value


def test_every_number_that_is_taken_is_one_that_results_are_read_with():
    most = {command_line.TYPES[setting.type].most for setting in SETTINGS.values()}
    assert max(most) == 2**53 == float(2**53) and 2 * 2**53 < 2**63  # SEED + ROUND
