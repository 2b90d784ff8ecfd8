"""Wraps the real pynvml, and prints on stderr each requested name that it does not have.

The project would take a wrong name for a reading that this GPU does not support.
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


elsewhere = [folder for folder in sys.path if Path(folder).resolve() != HERE]
spec = importlib.machinery.PathFinder.find_spec("pynvml", elsewhere)
if spec is None:
    raise ModuleNotFoundError("No module named 'pynvml'", name="pynvml")
module = sys.modules[__name__] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.__getattr__ = missing
