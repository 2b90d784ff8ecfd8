"""Requests that are refused."""

import pytest

from Utils.base.errors import UserError


def refused(words):
    """Return a context that has to raise a UserError, whose line matches the words."""
    return pytest.raises(UserError, match=words)
