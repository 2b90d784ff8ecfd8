"""Shared by all layers: errors, texts, paths, files, flags, sizes of GPT-2.

Imports nothing of the project, and no torch.
"""

import os
import sys

if sys.stderr is None:  # it was closed: nothing else may get its number, to which libraries write
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, as long as the process

if sys.flags.optimize > 1:
    sys.exit("docstrings are read here; unset PYTHONOPTIMIZE, and omit -OO")
