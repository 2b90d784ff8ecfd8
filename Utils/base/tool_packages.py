"""The packages of tools/, each of which may be missing."""

import importlib
import importlib.util

from Utils.base.errors import UserError


def load(package, module, purpose):
    """Return a module of a tool's package. Raises UserError if the package is not there.

    purpose: what needs it, in words, as in "BASE=train.py".
    """
    is_there = importlib.util.find_spec("tools") and importlib.util.find_spec(f"tools.{package}")
    if not is_there:
        raise UserError(f"{purpose}: needs tools/{package}, which is not here")
    return importlib.import_module(f"tools.{package}.{module}")
