"""Places in a user's script at which lines are added: after an import, after a model is made."""

import dis
import os
import re
import sys
import traceback
from pathlib import Path

from tools.own_script import user_code


def after_import(file):
    """Return the place after the line `import torch` of a file, "" without one."""
    for number, line in enumerate(Path(file).read_text().splitlines(), 1):
        if re.match(r"import torch\s*(#|$)", line):
            return f"after {os.path.basename(file)}:{number}"
    return ""


def after_model(module):
    """Return (expression of a module, place after the statement that makes it), ("", "") if none.

    The outermost function counts that assigns the module to a variable, or to an attribute of self.
    A module that none has is `self` at the end of its own __init__.
    """
    outermost = "", ""
    init = type(module).__init__.__code__
    if user_code.is_of_user(init.co_filename):
        last_line = max(end for _, end, *_ in init.co_positions() if end)
        outermost = "self", _after(init, last_line)

    for frame, line in traceback.walk_stack(sys._getframe(1)):
        if not user_code.is_of_user(frame.f_code.co_filename):
            continue
        for name, value in list(frame.f_locals.items()):
            stored = _last_store(frame.f_code, name, line) if value is module else 0
            if stored:
                outermost = name, _after(frame.f_code, stored)

        holder = frame.f_locals.get("self")
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            for function in vars(type(holder)).values() if value is module else ():
                code = getattr(function, "__code__", None)
                stored = _last_store(code, name) if code else 0
                if stored:
                    outermost = f"self.{name}", _after(code, stored)
    return outermost


def _last_store(code, name, before_line=sys.maxsize):
    """Return the last line of the last statement before a line that assigns a name, 0 if none."""
    last_line = 0
    instructions = list(dis.get_instructions(code))
    for index, store in enumerate(instructions):
        names = store.argval if isinstance(store.argval, tuple) else (store.argval,)
        if store.opname.startswith("STORE_") and name in names:
            distance = 2 if store.opname == "STORE_ATTR" else 1
            value = instructions[index - distance]
            if value.opname != "LOAD_CONST" and store.positions.lineno < before_line:
                last_line = max(store.positions.end_lineno, value.positions.end_lineno)
    return last_line


def _after(code, line):
    return f"after {os.path.basename(code.co_filename)}:{line}"
