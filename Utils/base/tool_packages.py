"""The packages of tools/, each of which may be missing."""

import importlib
import importlib.util

from Utils.base.errors import UserError


def find(package, module):
    """Return a module of a tool's package, None if the package is not there."""
    for name in ("tools", f"tools.{package}"):
        if importlib.util.find_spec(name) is None:
            return None
    return importlib.import_module(f"tools.{package}.{module}")


def load(package, module, purpose):
    """Return a module of a tool's package. Raises UserError if the package is not there.

    purpose: the request that needs it, such as "BASE=train.py".
    """
    tool = find(package, module)
    if tool is None:
        raise UserError(f"{purpose}: needs tools/{package}, which is not here")
    return tool
