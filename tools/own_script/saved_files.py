"""Files that a script saves: they go to a scratch folder, and are found again there."""

import functools
import inspect
import os
import pkgutil
from contextlib import suppress

from tools.own_script.replaced import unwatched
from tools.own_script.user_code import TABLES

PATHS = {"f", "filename", "path", "checkpoint_id", "src"}  # names of the argument of a path


class SavedFiles:
    """Files that a run has saved, each at its absolute path in a scratch folder.

    wrote: called at each save.
    """

    def __init__(self, scratch, wrote):
        self.scratch = os.path.realpath(scratch)
        self.wrote = wrote
        self.saved = set()

    def imported(self, name):
        """Redirect a library's functions, if a module of that name has them."""
        for change, functions in ((self.save, "saves"), (self.load, "finds")):
            for path in TABLES[functions].pop(name, ()):  # once
                kind, _, function = path.rpartition(".")
                owner = pkgutil.resolve_name(f"{name}:{kind}")
                setattr(owner, function, _redirected(getattr(owner, function), change))

    def save(self, arguments, name):
        """Let a function write in the scratch folder."""
        copy = self._copy_of(arguments[name])
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        self.saved.add(copy)
        self.wrote()
        arguments[name] = copy

    def load(self, arguments, name):
        """Let a function find, delete or move what this run saved. Its dst is saved, too."""
        path = arguments[name]
        copy = self._copy_of(path)
        # A file may be another process's; a folder may be a mere parent of saved files.
        if not os.path.isfile(copy) and not (copy in self.saved and os.path.lexists(copy)):
            return

        arguments[name] = copy
        if "dst" in arguments:
            if os.path.isdir(arguments["dst"]):
                arguments["dst"] = os.path.join(arguments["dst"], os.path.basename(path))
            self.save(arguments, "dst")

    def _copy_of(self, path):
        path = resolved(path)
        return path if inside(path, [self.scratch]) else self.scratch + path


def _redirected(function, change):
    signature = inspect.signature(function)
    path = next(name for name in signature.parameters if name in PATHS)

    @functools.wraps(function, updated=())
    def redirected(*args, **kwargs):
        if function.__name__ == "stat":  # os.path.exists calls it, too: most files exist
            with suppress(FileNotFoundError):
                return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        in_folder = arguments.keys() & {"dir_fd", "src_dir_fd", "dst_dir_fd"}
        is_path = isinstance(arguments.get(path), str | bytes | os.PathLike)
        if is_path and not in_folder and not unwatched.depth:
            with unwatched:
                change(arguments, path)
        return function(*bound.args, **bound.kwargs)

    return redirected


def resolved(path, dir_fd=-1, follow=True):
    """Return the absolute path without links of a path or an open file.

    dir_fd: an open folder that it is relative to. follow: the link that its last part may be, too.
    """
    if isinstance(path, int):
        path = f"/proc/self/fd/{path}"
    path = os.fsdecode(path)
    if dir_fd != -1:
        path = os.path.join(f"/proc/self/fd/{dir_fd}", path)
    if follow:
        return os.path.realpath(path)
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def inside(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
