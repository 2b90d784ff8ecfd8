"""Start a measured process in the environment of a user's script.

    python Utils/own_script/start.py --spec=FILE --name=NAME [settings of a run]

What is wrong with the environment is one line, before torch is imported.
"""

import importlib.util
import os
import sys
from importlib.metadata import version

OLDEST_TORCH = (2, 11)


def problem():
    """Return what is wrong with this environment, or ""."""
    if sys.version_info < (3, 11):  # noqa: UP036
        return f"{sys.executable} is older than Python 3.11"
    for package in ("torch", "numpy"):
        if importlib.util.find_spec(package) is None:
            return f"{sys.executable} has no {package}"
    installed = version("torch")
    is_old = tuple(map(int, installed.split(".")[:2])) < OLDEST_TORCH
    return f"torch {installed} is older than {'.'.join(map(str, OLDEST_TORCH))}" if is_old else ""


if __name__ == "__main__":
    if text := problem():
        sys.exit(f"{text}; set BASE_PYTHON to another environment")
    sys.path[0] = os.path.abspath(f"{__file__}/../../..")
    if importlib.util.find_spec("psutil") is None:  # the launcher's, which any Python 3 can load
        sys.path.append(os.environ["OWN_SITE_PACKAGES"])
        import psutil  # noqa: F401

        sys.path.pop()
    from Utils.own_script import measured_process  # here, as it imports torch

    measured_process.main()
