"""Errors of a run: those of the script, and faults of this program."""

import functools
import importlib
import shlex
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from tools.own_script.replaced import unwatched
from tools.own_script.user_code import TABLES, Ended, first_sentence
from Utils.base import paths
from Utils.base.errors import UserError, first_line
from Utils.device import device_choice


def ours(method):
    """Decorate a method of this program that runs within the script. Its errors are faults."""

    @functools.wraps(method)
    def call(*args):
        try:
            with unwatched:
                return method(*args)
        except Exception as error:
            raise fault(error) from error

    return call


def fault(error):
    """Return the Ended of a run that an error in this program has ended."""
    if isinstance(error, UserError):
        return Ended(str(error))
    text = f"{type(error).__name__}: {first_line(error)}"
    return _ended_by(error, f"internal error, not caused by your script: {text}", "failed")


def end_of_script(error, spec, has_switches):
    """Return the Ended of a script that an exception has ended."""
    if isinstance(error, SystemExit):
        sys.stderr.flush()
        output = Path(spec.output).read_text(errors="replace").strip()
        last_line = error.code if isinstance(error.code, str) else output.rpartition("\n")[2]
        return Ended(f"ends early: {last_line or 'no message'}")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _ended_by(error, missing_import(error, spec))

    # Any other error, with the line of the script that it came from.
    reason = f"{type(error).__name__}: {first_sentence(error)}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(spec.folder):
            reason += f" ({Path(frame.filename).name}:{frame.lineno})"
            break
    if not has_switches:
        return _ended_by(error, reason)
    return _ended_by(error, f"the script raises {reason}", "unsupported")


def _ended_by(error, reason, status="refused"):
    with suppress(OSError):  # its disk is full
        traceback.print_exception(error)
    if device_choice.is_out_of_memory(error):
        return Ended("make its batch smaller", "out_of_memory")
    return Ended(reason, status)


def missing_import(error, spec):
    """Return what is missing and, if it is known, what to do. error: a ModuleNotFoundError."""
    name = error.name.partition(".")[0]
    text = f"imports {error.name}, which is not there"
    statement = traceback.extract_tb(error.__traceback__)[-1].line

    for folder in map(str, Path(spec.file).parent.parents):
        sys.path.insert(0, folder)
        with suppress(BaseException):  # it is the user's module
            importlib.import_module(statement.split()[1])
            path = shlex.quote(folder)
            return f"{text}; {name} lies in {folder}: export PYTHONPATH={path}:$PYTHONPATH"

    package = TABLES["packages"].get(name)
    if package is None:
        return text
    constraints = shlex.quote(str(paths.ROOT / "requirements.txt"))
    return f"{text}; {paths.PYTHON} -m pip install -c {constraints} {package}"
