"""Paths of the project and its caches, and the environment of its processes."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Tokens, compiled kernels, the state of suites: all of it can be rebuilt.
CACHE = Path(os.environ.get("CACHE_DIR", ROOT / ".cache")).resolve()


def environment(**more):
    """Return this process's environment variables with the project on Python's path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}
