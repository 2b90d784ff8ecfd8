"""Fixtures of all tests."""

import pytest

from Utils.harness import held_out


@pytest.fixture(autouse=True, scope="session")
def few_held_out_tokens():
    """Evaluate 256 tokens, not 2,048, which takes a second for a run of a few steps."""
    held_out.TOKENS = 256
