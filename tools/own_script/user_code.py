"""The user's own code: its lines, version and end; and functions to hide from torch.compile."""

import hashlib
import inspect
import os
import sys
import sysconfig
import traceback
from pathlib import Path

LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
OURS = (f"{ROOT}Utils{os.sep}", f"{ROOT}tools{os.sep}")
SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"


class Ended(BaseException):
    """Ends the script: no `except Exception` catches it. reason: of a run without timing."""

    def __init__(self, status="ok", reason=""):
        super().__init__(reason)
        self.status = status
        self.reason = reason


def call_site(folder=""):
    """Return "train.py:41", the innermost line that is being run in the folder of the script.

    Without one, return that in another file that is not of a library; "" for none.
    """
    outside = ""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not file.startswith(("<", *OURS)) and SITE_PACKAGES not in file:
            site = f"{os.path.basename(file)}:{line}"
            if folder and file.startswith(folder):
                return site
            if not outside and not file.startswith(LIBRARIES):
                outside = site
    return outside


def version(spec):
    """Return what identifies a version of a script, 7 hexadecimal digits.

    It is a hash of its text, the modules of its folder that it has imported, and its arguments.
    """
    # Modules that Inductor makes of its kernels have no spec.
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    files = [getattr(module_spec, "origin", None) or "" for module_spec in specs]
    inside = [file for file in files if file.startswith(spec["folder"] + os.sep)]
    of_user = [file for file in inside if SITE_PACKAGES not in file and not file.startswith(OURS)]
    sources = {file for file in of_user if file.endswith(".py")}
    digest = hashlib.sha256("\0".join(spec["arguments"]).encode())
    for file in sorted({*sources, spec["file"]}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:7]


def hide_from_dynamo(modules):
    """Let torch.compile skip the frames of these modules' functions, but not of what they call."""
    for module in modules:
        members = list(vars(module).values())
        for kind in filter(inspect.isclass, list(members)):
            members += vars(kind).values()
        for member in members:
            if inspect.isfunction(member) and member.__module__ == module.__name__:
                hide(member.__code__)


def hide(code):
    """Let torch.compile skip the frame of a code object, and of those that are defined in it."""
    from torch._dynamo.decorators import skip_code  # here: seconds, which training takes anyway

    skip_code(code)
    for constant in filter(inspect.iscode, code.co_consts):
        hide(constant)
