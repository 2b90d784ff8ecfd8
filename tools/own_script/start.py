"""Start a measured process in the environment of a user's script.

    .venv/bin/python tools/own_script/start.py --spec=FILE --name=NAME [settings of a run]

A problem of the environment is reported in one line, before torch is imported.
"""

import os
import sys
from importlib.metadata import distributions, version

if __name__ == "__main__":
    # By metadata: a hook on the import of torch, of a sitecustomize, would take a search for it.
    missing = [name for name in ("torch", "numpy") if not [*distributions(name=name)]]
    problem = ""
    if sys.version_info < (3, 11):  # noqa: UP036
        problem = "is older than Python 3.11"
    elif missing:
        problem = f"has no {missing[0]}"
    elif [int(number) for number in version("torch").split(".")[:2]] < [2, 11]:
        problem = f"has torch {version('torch')}, which is older than 2.11"
    if problem:
        setting = "--python" if "STEPLADDER_VERSION" in os.environ else "BASE_PYTHON"
        sys.exit(f"{sys.executable} {problem}; set {setting} to another environment")
    sys.path[0] = os.path.abspath(f"{__file__}/../../..")
    sys.path.append(os.environ["OWN_SITE_PACKAGES"])  # its psutil works with any Python 3
    import psutil  # noqa: F401

    sys.path.pop()
    from tools.own_script import measured_process  # it imports torch

    measured_process.main()
