"""Functions that are replaced while a script runs, for its calls but not for this program's."""

import functools
import threading
from contextlib import ContextDecorator

import torch


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


def replace(owner, name, function):
    """Replace an attribute by a function whose first argument is the usual one.

    Other threads still call the usual one, and so do compiled functions and this program.
    """
    usual = getattr(owner, name)
    # torch.compile can read a function without globals that is in none of the files it skips.
    is_compiling = torch.compiler.is_compiling
    get_ident = threading.get_ident
    thread = get_ident()
    ours = unwatched

    @functools.wraps(usual)
    def replaced(*args, **kwargs):
        if is_compiling() or get_ident() != thread or ours.depth:
            return usual(*args, **kwargs)
        return function(usual, *args, **kwargs)

    replaced.__code__ = replaced.__code__.replace(co_filename="<replaced>")
    setattr(owner, name, replaced)


class InPlace:
    """A callable that replaces a method of one module; copies and pickles have the usual method."""

    def __init__(self, module, name, function):
        functools.update_wrapper(self, getattr(module, name))
        self.module = module
        self.name = name
        self.function = function
        setattr(module, name, self)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __reduce__(self):
        return getattr, (self.module, self.name)  # a copy of the module has its class's method
