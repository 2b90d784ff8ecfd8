"""Places in the user's own code, and functions of ours that torch.compile is not to see."""

import os
import sys
import sysconfig
import types

LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SITE_PACKAGES = f"{os.sep}site-packages{os.sep}"


def call_site(folder=""):
    """Return "train.py:41", the innermost line of the user's own code that is being run; "" for
    none.

    folder: of the script. A line of a file in it counts before one of another file that is not of
    a library.
    """
    outside = ""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", OURS)) and SITE_PACKAGES not in file:
            place = f"{os.path.basename(file)}:{frame.f_lineno}"
            if folder and file.startswith(folder):
                return place
            if not outside and not file.startswith(LIBRARIES):
                outside = place
        frame = frame.f_back
    return outside


def hide_from_dynamo(*modules):
    """Let torch.compile skip the frames of all functions of these modules.

    The functions that they call are compiled as ever.
    """
    for module in modules:
        for value in vars(module).values():
            members = vars(value).values() if isinstance(value, type) else [value]
            for member in members:
                if isinstance(member, types.FunctionType) and member.__module__ == module.__name__:
                    hide(member.__code__)


def hide(code):
    """Let torch.compile skip the frame of a code object, and of those that are defined in it."""
    from torch._dynamo.decorators import skip_code  # here: seconds, which training takes anyway

    skip_code(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            hide(constant)
