"""Run a base, or a base with techniques: an exception outside of its main function is a row too.

python -m Utils.launch.run_base SCRIPT [flags of the script]
"""

import runpy
import sys
from pathlib import Path

from Utils.base.errors import one_line
from Utils.harness import exits

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as of a script that Python starts
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except (Exception, KeyboardInterrupt) as error:
        with one_line(Path(sys.argv[0]).stem):
            sys.exit(exits.outside(Path(sys.argv[0]), error))
