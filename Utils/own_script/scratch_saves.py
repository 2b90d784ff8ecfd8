"""What a script saves goes to a scratch folder, where the script finds it again.

The functions below pass a path to C, make a folder, or move and delete what was saved. They are
replaced, also in modules that are imported later.
"""

import functools
import importlib.machinery
import inspect
import os
import stat
import sys
import threading
from contextlib import suppress

# What a function does with its path, and the name of that argument.
SAVE, LOAD, FIND, MOVE, COPY, WRITE = "save", "load", "find", "move", "copy", "write"
TORCH = [("save", SAVE, "f"), ("load", LOAD, "f")]
# save_file and save_model call serialize_file; load_file and load_model call safe_open.
SAFETENSORS = [("serialize_file", SAVE, "filename"), ("safe_open", LOAD, "filename")]
FUNCTIONS = {
    "torch": TORCH,
    "torch.serialization": TORCH,
    "torch.jit": TORCH,
    "torch.export": TORCH,
    "torch.autograd.profiler": [("profile.export_chrome_trace", WRITE, "path")],
    "torch.distributed.checkpoint.filesystem": [
        ("FileSystemWriter.__init__", SAVE, "path"),
        ("FileSystemWriter.reset", SAVE, "checkpoint_id"),
        ("FileSystemReader.__init__", LOAD, "path"),
        ("FileSystemReader.reset", LOAD, "checkpoint_id"),
    ],
    "safetensors": SAFETENSORS,
    "safetensors.torch": SAFETENSORS,
    "safetensors.numpy": SAFETENSORS,
    "os": [
        ("stat", FIND, "path"),  # of os.path.exists, too
        ("remove", LOAD, "path"),
        ("unlink", LOAD, "path"),
        ("rename", MOVE, "src"),
        ("replace", MOVE, "src"),
    ],
    "shutil": [("copyfile", COPY, "src"), ("copy", COPY, "src"), ("copy2", COPY, "src")],
}


def resolved(path, dir_fd=-1, follow=True):
    """Return an absolute path without links. follow: the link that its last part may be, too."""
    path = os.fsdecode(path)
    if dir_fd != -1:
        path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
    if follow:
        return os.path.realpath(path)
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def mode_of(path):
    """Return the mode of a resolved path, None where nothing is there."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return None


class ScratchSaves:
    """The saves of one run, each at its absolute path under a scratch folder of this run.

    wrote: called at each save in the main thread. active: False leaves all paths as they are.
    """

    def __init__(self, scratch, wrote):
        self.scratch = os.path.realpath(scratch)
        self.wrote = wrote
        self.active = False
        self.saved = set()

    def install(self):
        os.makedirs(self.scratch, exist_ok=True)
        self.active = True
        for module in FUNCTIONS.keys() & sys.modules.keys():
            self._replace_functions(module)
        sys.meta_path.insert(0, self)

    def call_wrote(self):
        if threading.current_thread() is threading.main_thread():
            self.wrote()

    def find_spec(self, name, path=None, target=None):
        """Find a module of FUNCTIONS, as a finder of sys.meta_path, to replace them on import."""
        if name not in FUNCTIONS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module):
                execute(module)
                self._replace_functions(name)

            spec.loader.exec_module = execute_and_replace
        return spec

    def _replace_functions(self, module):
        for function, use, argument in FUNCTIONS[module]:
            *classes, name = function.split(".")
            owner = functools.reduce(getattr, classes, sys.modules[module])
            setattr(owner, name, self._redirected(getattr(owner, name), use, argument))

    def _redirected(self, function, use, argument):
        signature = inspect.signature(function)

        @functools.wraps(function, updated=())
        def call(*args, **kwargs):
            if use == FIND:
                with suppress(FileNotFoundError):
                    return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            arguments = bound.arguments
            path = arguments.get(argument)
            in_other_folder = arguments.keys() & {"dir_fd", "src_dir_fd", "dst_dir_fd"}
            is_path = isinstance(path, str | bytes | os.PathLike) and not in_other_folder
            if not self.active or not is_path:
                return function(*args, **kwargs)
            if use == SAVE:
                arguments[argument] = self._path_to_save(path)
            elif use == WRITE:  # no save, but audit hooks are to see it
                sys.audit("open", path, "w", os.O_WRONLY | os.O_CREAT)
            elif copy := self._saved_copy(path):
                arguments[argument] = copy
                if use == COPY and os.path.isdir(arguments["dst"]):
                    arguments["dst"] = os.path.join(arguments["dst"], os.path.basename(path))
                if use in (MOVE, COPY):
                    arguments["dst"] = self._path_to_save(arguments["dst"])
            return function(*bound.args, **bound.kwargs)

        return call

    def _scratch_path(self, path):
        path = resolved(path)
        return path if path.startswith(self.scratch + os.sep) else self.scratch + path

    def _path_to_save(self, path):
        copy = self._scratch_path(path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        self.saved.add(copy)
        self.call_wrote()
        return copy

    def _saved_copy(self, path):
        """Return the scratch path that this run saved for a path, else None."""
        copy = self._scratch_path(path)
        mode = mode_of(copy)
        # A file may be another process's; a folder may be a mere parent of saved files.
        saved = mode is not None and (stat.S_ISREG(mode) or copy in self.saved)
        return copy if saved else None
