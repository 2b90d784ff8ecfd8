"""What holds for all tests."""

import pytest

from Utils.harness import held_out


@pytest.fixture(autouse=True, scope="session")
def few_held_out_tokens():
    """Evaluating 2,048 tokens takes a second; hardly a test trains for so long."""
    held_out.TOKENS = 256
