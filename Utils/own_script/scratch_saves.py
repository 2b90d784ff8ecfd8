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

# What a function does with its path, and the name of that argument.
SAVE, LOAD, MOVE, COPY, WRITE = "save", "load", "move", "copy", "write"
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

    wrote: called in the main thread at each save. active: False leaves all paths as they are.
    """

    def __init__(self, scratch, wrote=None):
        self.scratch = os.path.realpath(scratch)
        self.wrote = wrote
        self.active = False
        self.saved = set()

    def install(self):
        os.makedirs(self.scratch, exist_ok=True)
        self.active = True
        for module in FUNCTIONS.keys() & sys.modules.keys():
            self._replace_functions(module)
        self._replace_stat()
        sys.meta_path.insert(0, self)

    def call_wrote(self):
        in_main_thread = threading.get_ident() == threading.main_thread().ident
        if self.wrote is not None and in_main_thread:
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
            owner = sys.modules[module]
            *class_names, name = function.split(".")
            for class_name in class_names:
                owner = getattr(owner, class_name)
            setattr(owner, name, self._redirected(getattr(owner, name), use, argument))

    def _redirected(self, function, use, argument):
        signature = inspect.signature(function)

        @functools.wraps(function, updated=())
        def call(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            arguments = bound.arguments
            is_path = isinstance(arguments.get(argument), str | bytes | os.PathLike)
            in_other_folder = arguments.keys() & {"dir_fd", "src_dir_fd", "dst_dir_fd"}
            if not self.active or not is_path or in_other_folder:
                return function(*args, **kwargs)
            path = arguments[argument]
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

    def _replace_stat(self):
        """Let os.path.exists, getsize and the like find a saved file."""
        original = os.stat

        @functools.wraps(original)
        def stat_or_copy(path, **kwargs):
            try:
                return original(path, **kwargs)
            except FileNotFoundError:
                in_other_folder = kwargs.get("dir_fd") is not None
                copy = None if in_other_folder or not self.active else self._saved_copy(path)
                if copy is None:
                    raise
            return original(copy, **kwargs)

        for functions in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            functions.add(stat_or_copy)
        os.stat = stat_or_copy

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
