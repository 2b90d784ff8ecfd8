"""Run a module as `-m` does, until the process that started it ends.

    .venv/bin/python -m tools.rented.until_parent_ends PROCESS_ID MODULE [ARGUMENT ...]

A killed launcher thus leaves nothing behind that holds the GPU or the lock of a results file.
"""

import runpy
import sys

from Utils.launch.lifetime import end_with

if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
