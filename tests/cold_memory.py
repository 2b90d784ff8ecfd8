"""What a page of memory costs, by how long it has been free.

    python -m tests.cold_memory [--mib 4096]

A virtual machine may report free pages to its host, which takes them back; the next touch then
waits for the host as well as for the kernel. Prints microseconds per page of 4 KiB, touched right
after it was freed and after pauses. For docs/LOG.md.
"""

import sys
import time

import numpy as np

from Utils.base import command_line
from Utils.base.command_line import Parser

PAUSES = (0, 1, 2, 5, 10, 30, 60)  # seconds
PAGE = 4096


def main(argv=None):
    parser = Parser("cold_memory", __doc__)
    parser.add_argument("--mib", type=command_line.at_least(64), default=4096)
    mib = parser.parse_args(argv).mib
    for pause in PAUSES:
        touch(mib)
        time.sleep(pause)
        print(f"free for {pause} s: {touch(mib):.2f} us a page", flush=True)


def touch(mib):
    """Allocate, write to every page, free. Return microseconds per page."""
    start = time.perf_counter()
    np.empty(mib * 2**20, np.uint8)[::PAGE] = 1
    return (time.perf_counter() - start) * 1e6 / (mib * 2**20 / PAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
