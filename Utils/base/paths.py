"""Paths of the project, its outputs and its caches, its commit, and its processes' environment."""

import getpass
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Version of the installed package, whose command `stepladder` sets it; "" in a clone.
VERSION = os.environ.get("STEPLADDER_VERSION", "")
COMMAND = "stepladder" if VERSION else "make"  # what starts the commands that messages name
OUTPUT = Path("stepladder" if VERSION else "")  # folder of results, charts, pages and patches
PYTHON = shlex.quote(sys.executable)  # in commands that are printed: the shell's may be another
# Tokens, compiled kernels, the state of suites: all of it can be rebuilt.
CACHE = Path(os.environ.get("CACHE_DIR", ROOT / ".cache")).resolve()

# Variables that point git to a repository, as its hooks have them: git runs for one that is named.
for variable in (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
):
    os.environ.pop(variable, None)


def as_called(text):
    """Return a text of this program that names its commands by what the user has called."""
    return re.sub("(^ *|`|Next: )make (?=[a-z])", rf"\1{COMMAND} ", text, flags=re.MULTILINE)


def at_start(path):
    """Return an absolute path; a relative one is from the folder in which the process started."""
    main = getattr(sys.modules["__main__"], "__file__", None) or ""
    started_in = main[: -len(sys.argv[0])] if main.endswith(sys.argv[0]) else ""
    return Path(started_in, path).absolute()


def is_script(path):
    """Return whether a path can be read: false for a folder or an editor's dangling link."""
    return path.name.isprintable() and os.path.isfile(path) and os.access(path, os.R_OK)


def digest(text):
    """Return 16 digits that identify a text, for the name of a file."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def kernels(compiler):
    """Return the folder of a compiler's kernels, in the cache if its path needs no quotes.

    Inductor writes paths into a command line without quotes.
    """
    if not needs_quotes(CACHE):
        return CACHE / compiler
    folder = f"torchinductor_{getpass.getuser()}_{digest(str(CACHE))}"  # as PyTorch names its own
    return Path(tempfile.gettempdir()) / folder / compiler


def kernel_variables():
    """Return the variables that name compilers' folders of kernels, by default in the cache."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    return {name: os.environ.get(name, str(kernels(folders[name]))) for name in folders}


def needs_quotes(path):
    return shlex.quote(str(path)) != str(path)


def environment(**more):
    """Return this process's environment variables with the project on Python's path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def commit(script=None):
    """Return the short hash, with -dirty if the code is modified; "" without git.

    That of an installed package is its VERSION.

    script: path of a run's script, which then counts with Utils alone; otherwise all tracked files.
    """
    if VERSION:
        return VERSION
    names = ["-uall", "--", "Utils", script]
    if script is None:  # runs change results
        excluded = [f":(exclude){path}" for path in ("*.csv", "*.jsonl", "results")]
        names = ["-uno", "--", ".", *excluded]
    short = git("rev-parse", "--short=7", "HEAD")

    return short and short + "-dirty" * bool(git("status", "-s", *names))


def git(*command):
    """Return what git prints of the project, or "" without git."""
    command = ["git", "-C", str(ROOT), *command]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
