"""Start a measured process in the environment of a user's script.

    python Utils/own_script/start.py --spec=FILE --name=NAME [settings of a run]

What is wrong with the environment is one line, before torch is imported.
"""

import importlib.util
import os
import sys
from importlib.metadata import PackageNotFoundError, version

OLDEST_TORCH = (2, 11)
REMEDY = "set BASE_PYTHON to another environment"


def problem():
    """Return what is wrong with this environment, or ""."""
    if sys.version_info < (3, 11):  # noqa: UP036
        return f"{sys.executable} is older than Python 3.11"
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        return f"{sys.executable} has no torch"
    if tuple(map(int, torch_version.split(".")[:2])) < OLDEST_TORCH:
        return f"torch {torch_version} is older than {'.'.join(map(str, OLDEST_TORCH))}"
    return "" if importlib.util.find_spec("numpy") else f"{sys.executable} has no numpy"


if __name__ == "__main__":
    if text := problem():
        sys.exit(f"{text}; {REMEDY}")
    sys.path[0] = os.path.abspath(f"{__file__}/../../..")
    if importlib.util.find_spec("psutil") is None:  # the launcher's, which any Python 3 can load
        sys.path.append(os.environ["OWN_SITE_PACKAGES"])
        import psutil  # noqa: F401

        sys.path.pop()
    from Utils.own_script import measured_process  # here, as it imports torch

    measured_process.main()
