"""Calls of this program in the process of a script that it watches."""

import threading
from contextlib import ContextDecorator


class Unwatched(threading.local, ContextDecorator):
    """A `with` block, or a decorator of a function, in which a thread's calls are not the script's.

    Replaced functions of torch do what they usually do, operators are not counted, and every file
    may be changed.
    """

    depth = 0

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *error):
        self.depth -= 1


unwatched = Unwatched()
