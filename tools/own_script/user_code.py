"""The user's code: its lines, version and end, and how to hide functions from torch.compile."""

import hashlib
import os
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

from Utils.base import files

TABLES = files.tables_beside(__file__, "tables.toml")
LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
ROOT = f"{Path(__file__).absolute().parents[2]}{os.sep}"
OURS = (f"{ROOT}Utils{os.sep}", f"{ROOT}tools{os.sep}")
SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"


class Ended(BaseException):
    """Ends the script; `except Exception` does not catch it.

    reason: why a run has no timing, "" if it has. status: of its rows, or refused for no row.
    """

    def __init__(self, reason, status="refused"):
        super().__init__(reason)
        self.status = status
        self.reason = reason


def is_of_user(file):
    """Return whether a file is neither a library's nor ours."""
    return not file.startswith(("<", *OURS, *LIBRARIES)) and SITE_PACKAGES not in file


@dataclass(frozen=True)
class Place:
    """A line of the user's code. Its text is train.py:41."""

    file: str
    line: int

    def __str__(self):
        return f"{os.path.basename(self.file)}:{self.line}"


def call_place(folder):
    """Return the innermost Place on the stack that is in the script's folder.

    Without one, return the innermost one outside libraries; None if there is none.
    """
    outside = None

    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if is_of_user(file):
            place = Place(file, line)
            if file.startswith(folder):
                return place
            outside = outside or place
    return outside


def first_sentence(error):
    """Return the first sentence of an exception's message; of a DataLoader worker's own error."""
    lines = str(error).strip().splitlines() or [""]
    if "Original Traceback" in str(error):
        return lines[-1]
    return re.split(r"(?<=[a-z)'\"])[.!] +(?=[A-Z])", lines[0].strip())[0].removesuffix(".")


def sources_of(spec):
    """Return the paths of a script and of the modules in its folder that it has imported."""
    sources = {spec.file}
    for module in list(sys.modules.values()):
        # Modules that Inductor generates have no spec.
        file = getattr(getattr(module, "__spec__", None), "origin", None) or ""
        is_inside = file.startswith(spec.folder + os.sep) and file.endswith(".py")
        if is_inside and is_of_user(file):
            sources.add(file)
    return sorted(sources)


def digest_of(file):
    """Return a digest of a file's content, "" without the file."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if os.path.isfile(file) else ""


def version(spec):
    """Return 7 hexadecimal digits that identify a version of a script.

    They are a hash of its arguments and the content of `sources_of` it.
    """
    digest = hashlib.sha256("\0".join(spec.arguments).encode())
    for file in sources_of(spec):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:7]


def hide_from_dynamo():
    """Let torch.compile skip the frames of our functions, but not those of what they call."""
    from torch._dynamo import trace_rules  # noqa: PLC0415  (seconds, if nothing compiles)

    trace_rules.SKIP_DIRS.extend(OURS)
    trace_rules._recompile_re()
