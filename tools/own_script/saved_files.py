"""Files that a script saves: they go to a scratch folder, and are found again there."""

import functools
import importlib
import inspect
import os
import shutil
from contextlib import suppress

from tools.own_script.replaced import unwatched

PATHS = {"f", "filename", "path", "checkpoint_id", "src"}  # names of the argument of a path


def redirect_python(files, module):
    """Redirect functions that find, delete, move and copy what was saved."""
    usual_stat = os.stat
    redirect(files.load, os, "stat", "remove", "unlink", "rename", "replace")
    redirect(files.load, shutil, "copyfile", "copy", "copy2")
    redirected_stat = os.stat

    @functools.wraps(usual_stat)
    def stat(*args, **kwargs):  # of os.path.exists, too
        with suppress(FileNotFoundError):  # most files are there, and found fast
            return usual_stat(*args, **kwargs)
        return redirected_stat(*args, **kwargs)

    os.stat = stat


def redirect_torch(files, module):
    """Redirect save and load, whose C++ opens files."""
    redirect(files.save, module, "save")
    redirect(files.load, module, "load")


def redirect_safetensors(files, module):
    """Redirect what save_file, save_model, load_file and load_model call."""
    redirect(files.save, module, "serialize_file")
    redirect(files.load, module, "safe_open")


def redirect_checkpoints(files, module):
    """Redirect the classes by which torch.distributed.checkpoint writes and reads a folder."""
    redirect(files.save, module.FileSystemWriter, "__init__", "reset")
    redirect(files.load, module.FileSystemReader, "__init__", "reset")


LIBRARIES = {  # by the modules whose functions are replaced once they are imported
    "os": redirect_python,
    "torch": redirect_torch,
    "torch.serialization": redirect_torch,
    "torch.jit": redirect_torch,
    "torch.export": redirect_torch,
    "safetensors": redirect_safetensors,
    "safetensors.torch": redirect_safetensors,
    "safetensors.numpy": redirect_safetensors,
    "torch.distributed.checkpoint.filesystem": redirect_checkpoints,
}


class SavedFiles:
    """Files that a run has saved, each at its absolute path in a scratch folder.

    wrote: called at each save.
    """

    def __init__(self, scratch, wrote):
        self.scratch = os.path.realpath(scratch)
        self.wrote = wrote
        self.saved = set()
        self.to_import = {*LIBRARIES}

    def imported(self, name):
        """Redirect a library's functions, if a module of that name has them."""
        if name in self.to_import:
            self.to_import.remove(name)
            LIBRARIES[name](self, importlib.import_module(name))

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


def redirect(change, owner, *names):
    """Let functions of a module or a class take another path, by save or load of SavedFiles."""
    for name in names:
        setattr(owner, name, _redirected(getattr(owner, name), change))


def _redirected(function, change):
    signature = inspect.signature(function)
    path = next(name for name in signature.parameters if name in PATHS)

    @functools.wraps(function, updated=())
    def redirected(*args, **kwargs):
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
    """Return an absolute path without links. follow: the link that its last part may be, too."""
    path = os.fsdecode(path)
    if dir_fd != -1:
        path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
    if follow:
        return os.path.realpath(path)
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def inside(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
