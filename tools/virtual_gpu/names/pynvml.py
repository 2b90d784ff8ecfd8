"""Wrap the real pynvml, and print each requested name that it does not have on stderr.

Without this, a wrong name would look like a reading that the GPU does not support.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent


def missing(name):
    if not name.startswith("__"):
        print(f"pynvml has no {name}", file=sys.stderr)
    raise AttributeError(name)


folders = [folder for folder in sys.path if Path(folder).resolve() != HERE]
spec = importlib.machinery.PathFinder.find_spec("pynvml", folders)
if spec is None:
    raise ModuleNotFoundError("No module named 'pynvml'", name="pynvml")
module = sys.modules[__name__] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.__getattr__ = missing
