"""One question a folder, or one job of a maintainer: the module tools.NAME.

A tool imports Utils and, one way, another tool; nothing in Utils needs a tool.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"{sys.executable} is older than Python 3.11; set PYTHON to a newer one")
