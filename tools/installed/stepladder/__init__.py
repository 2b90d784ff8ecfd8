"""The start of the command `stepladder`: it sets paths, and runs tools/installed.

The wheel has this file as stepladder/__init__.py, beside Utils and tools.
"""

import os
import runpy
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main():
    """End the process with the exit code of a command. Nothing is written below ROOT."""
    if sys.platform == "win32":
        sys.exit("stepladder: error: Windows needs WSL 2")
    if not (ROOT / "Utils").is_dir():
        sys.exit("stepladder: error: is installed with -e; run make in the clone, or omit -e")

    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.path.abspath(os.environ.get("CACHE_DIR") or f"{caches}/stepladder")
    sys.pycache_prefix = f"{cache}/bytecode"
    os.environ |= {
        "CACHE_DIR": cache,
        "PYTHONPYCACHEPREFIX": sys.pycache_prefix,
        "STEPLADDER_VERSION": version("stepladder"),
        "GIT_CEILING_DIRECTORIES": str(ROOT.parent),  # a repository around it is the user's
        "USED": "PYTHON",  # settings without effect are reported
    }

    # The installer has compiled all modules, or none: then Python has compiled this one.
    if not (ROOT / "Utils" / "__pycache__").exists():
        Path(__cached__).unlink(missing_ok=True)
    sys.path.insert(0, str(ROOT))
    runpy.run_module("tools.installed", run_name="__main__", alter_sys=True)
