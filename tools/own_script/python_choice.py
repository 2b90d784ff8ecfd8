"""The Python that runs a user's script."""

import functools
import os
import shutil
import sys

from Utils.base import child, paths
from Utils.base.errors import UserError, say_once

HAS_TORCH = "from importlib.metadata import version; version('torch')"


def python_of(args):
    """Return the Python that args.base_python names, or the default. Raises UserError."""
    python = os.path.expanduser(args.base_python) or default_python()
    if not shutil.which(python):
        raise UserError(f"BASE_PYTHON={python}: there is no such program")
    return python


@functools.cache
def default_python():
    """Return this Python; for the installed package the first that has torch.

    That is the active environment's, this one, or one on the path, which a line names.
    """
    if not paths.VERSION:
        return sys.executable

    active = [f"{os.environ.get(name)}/bin/python" for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    on_path = [f"{folder}/python3" for folder in os.get_exec_path()]
    for python in [*active, sys.executable, *on_path]:
        if child.run([python, "-c", HAS_TORCH]).code == 0:
            if python in on_path and python != sys.executable:
                say_once(f"the script runs with {python}; --python names another")
            return python
    return sys.executable
