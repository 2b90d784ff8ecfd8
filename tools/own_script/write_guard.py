"""A guard of the user's files while a training script of theirs runs in this process.

Python's audit hook sees what open, os and sqlite3 change. Not seen: what another program or C code
writes (h5py, pyarrow). Programs that get a path of the script's folder are named in the note.
"""

import functools
import inspect
import mmap
import os
import pkgutil
import re
import shlex
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tools.own_script.unwatched import unwatched
from tools.own_script.user_code import LIBRARIES, Ended, call_site
from Utils.base import paths

PATH_MAX = 4096  # bytes
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
ACTIONS = {
    "os.chmod": "changes the mode of {}",
    "os.chown": "changes the owner of {}",
    "os.utime": "changes the time of {}",
}
CACHES = [
    "~/.cache",
    "~/.triton",
    "~/.config/matplotlib",
    "$XDG_CACHE_HOME",
    "$HF_HOME",
    "$TORCH_HOME",
    "$TORCHINDUCTOR_CACHE_DIR",
    "$TORCH_EXTENSIONS_DIR",
    "$TRITON_CACHE_DIR",
    "$TRITON_HOME/.triton",
    "$CUTE_DSL_CACHE_DIR",
    "$MPLCONFIGDIR",
]
# Caches in the folder of temporary files: of Inductor (AOTAutograd's graphs are in it, and headers,
# wherever TORCHINDUCTOR_CACHE_DIR is), of CUTLASS, and of torch's kernels that are made with it.
TEMPORARY_CACHES = re.compile(
    r"(torchinductor_[^/]+|quack_generated_epilogues"
    r"|[^/]+/(cutlass_python|torch_vendor_quack)_cache)(/|$)"
)

# Functions that pass a path to C, make a folder, or move and delete what was saved, by modules:
# what each does with its path. One that has an argument dst moves there what it loads.
PATHS = {"f", "filename", "path", "checkpoint_id", "src"}  # the name of that argument
FROM_FILE = lambda filename, shared=None, size=0, **options: None  # noqa: E731, as torch has it
OF_TORCH = {"save": "save", "load": "load"}
# save_file and save_model call serialize_file; load_file and load_model call safe_open.
OF_SAFETENSORS = {"serialize_file": "save", "safe_open": "load"}
FUNCTIONS = {
    "torch": OF_TORCH | {"from_file": "map"},
    "torch.serialization": OF_TORCH,
    "torch.jit": OF_TORCH,
    "torch.export": OF_TORCH,
    "torch.autograd.profiler": {"profile.export_chrome_trace": "write"},
    "torch.distributed.checkpoint.filesystem": {
        "FileSystemWriter.__init__": "save",
        "FileSystemWriter.reset": "save",
        "FileSystemReader.__init__": "load",
        "FileSystemReader.reset": "load",
    },
    "safetensors": OF_SAFETENSORS,
    "safetensors.torch": OF_SAFETENSORS,
    "safetensors.numpy": OF_SAFETENSORS,
    "os": {
        "stat": "find",  # of os.path.exists, too
        "remove": "load",
        "unlink": "load",
        "rename": "load",
        "replace": "load",
    },
    "shutil": {"copyfile": "copy", "copy": "copy", "copy2": "copy"},
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
    """Return the mode of a resolved path, 0 if nothing is there."""
    return os.lstat(path).st_mode if os.path.lexists(path) else 0


class WriteGuard:
    """Refuse changes of files that existed before the command.

    What the script saves goes to a scratch folder of this run, each file at its absolute path, and
    is found again there.

    spec: a dict with folder, of the script; created, a text file with the paths that runs of this
    command created; writes, to refuse nothing; scratch. wrote: called at each write. notes: a
    sentence for each program that the script started on a path of its folder.
    """

    def __init__(self, spec, wrote):
        self.folder = os.path.realpath(spec["folder"])
        self.scratch = os.path.realpath(spec["scratch"])
        self.created_list = Path(os.path.realpath(spec["created"]))
        self.allowed = spec["writes"]
        self.wrote = wrote

        self.notes = []
        self.saved = set()
        self.created = set()
        self.started = time.time()
        self.temporary = os.path.realpath(tempfile.gettempdir())  # here: it tries a file in it
        self.refusal = mmap.mmap(-1, 2 * PATH_MAX)  # forked workers share it
        cache = str(paths.CACHE)
        self.is_revision = inside(self.folder, [cache])  # `make pair` unpacks it in the cache
        self.exempt = [self.scratch, str(self.created_list), cache, "/dev", "/proc", "/sys"]
        self.exempt += map(os.path.realpath, LIBRARIES)

    def install(self):
        os.makedirs(self.scratch, exist_ok=True)
        self.later = {*FUNCTIONS}  # replaced when the script imports them
        for name in FUNCTIONS.keys() & sys.modules.keys():
            self._replace_functions(name)
        sys.addaudithook(self._hook)

    @property
    def refused(self):
        """The first refusal in a process of this run, or None."""
        return os.fsdecode(self.refusal[:].rstrip(b"\0")) or None

    def _hook(self, event, args):
        with suppress(Exception):  # odd arguments: the call itself will complain
            if event == "import" and args[0] in self.later:
                self._replace_functions(args[0])
            if not unwatched.depth and not isinstance(args[0], int):  # a number is an open file
                self._check(event, args)

    def _check(self, event, args):
        """Refuse, record or note an event. A folder is that which a path is relative to."""
        match event, *args:
            case "open", path, _, flags if flags & (CHANGES | os.O_CREAT):
                target = resolved(path)
                if flags & CHANGES and not flags & os.O_EXCL:
                    self._keep(target, "opens {} for writing")
                if flags & os.O_CREAT:
                    self._record(target)
                if inside(target, [self.scratch]) or not self._is_exempt(target):
                    self.wrote()

            case "os.rename", path, destination, folder, destination_folder:
                source = resolved(path, folder, follow=False)
                target = resolved(destination, destination_folder, follow=False)
                if mode_of(source):
                    self._keep(source, "renames {}", folders=True)
                    self._keep(target, "replaces {}")
                    self._record(target)
            case ("os.mkdir", path, _, folder) | ("os.symlink", _, path, folder):
                self._record(resolved(path, folder, follow=False))
            case "os.remove" | "os.rmdir", path, folder:
                target = resolved(path, folder, follow=False)
                self._keep(target, "deletes {}", folders=event == "os.rmdir")
            case "os.chmod" | "os.chown" | "os.utime", path, *_, folder:
                self._keep(resolved(path, folder), ACTIONS[event], folders=True)
            case "os.truncate", path, _:
                self._keep(resolved(path), "truncates {}")

            case "os.system", command:
                self._note(command, None)
            case "subprocess.Popen", _, arguments, folder, _:
                self._note(arguments, folder)
            case "sqlite3.connect", database:
                path, _, options = os.fsdecode(database).removeprefix("file:").partition("?")
                in_memory = path in ("", ":memory:") or "mode=memory" in options
                if not in_memory and "mode=ro" not in options:
                    self._keep(resolved(path), "connects to {}")
                    self._record(resolved(path))

    def _keep(self, target, action, folders=False):
        """Refuse an action on a file that existed before.

        A new temporary file, of a compiler that the script started, did not.
        """
        mode = mode_of(target)
        is_kept = stat.S_ISREG(mode) or stat.S_ISLNK(mode) or (folders and stat.S_ISDIR(mode))
        if self.allowed or not is_kept or self._is_exempt(target) or self._is_created(target):
            return
        if inside(target, [self.temporary]) and os.lstat(target).st_mtime >= self.started:
            return

        action = action.format(target.removeprefix(self.folder + os.sep))
        problem = f"{call_site(self.folder) or 'the script'} {action}, which exists"
        refusal = f"{problem}; delete or move it, or allow it with WRITES=1"
        if not self.refused:
            self.refusal.write(os.fsencode(refusal))
        raise Ended(refusal)

    def _note(self, arguments, folder):
        """Note a program that starts in a folder with a path of the script's folder."""
        texts = [arguments] if isinstance(arguments, str | bytes) else arguments
        words = [word for text in texts for word in shlex.split(os.fsdecode(text))]
        for word in words:
            path = resolved(os.path.join(folder or "", word))
            is_of_folder = path.startswith(self.folder + os.sep) and mode_of(path)
            if is_of_folder and not self._is_exempt(path):
                program = os.path.basename(words[0])
                file = path.removeprefix(self.folder + os.sep)
                note = f"{program} got {file}, and what it writes is not seen"
                if note not in self.notes:
                    self.notes.append(note)

    def _is_exempt(self, target):
        if "/__pycache__/" in target or target.endswith(".pyc"):
            return True
        if self.is_revision and inside(target, [self.folder]):
            return False
        caches = [real_folder(os.path.expandvars(folder)) for folder in CACHES]
        name = target.removeprefix(self.temporary + os.sep)  # an absolute path if it is elsewhere
        return TEMPORARY_CACHES.match(name) or inside(target, self.exempt + caches)

    def _is_created(self, target):
        """Return whether the command created a file or a folder that it lies in."""
        path_and_parents = {target, *map(str, Path(target).parents)}
        if self.created.isdisjoint(path_and_parents):
            with suppress(OSError):  # other processes add to it
                lines = self.created_list.read_bytes().split(b"\n")
                self.created.update(map(os.fsdecode, lines))
        return not self.created.isdisjoint(path_and_parents)

    def _record(self, target):
        is_new = not mode_of(target) and os.path.isdir(os.path.dirname(target))
        is_new = is_new and "\n" not in target  # the list has one path a line
        if is_new and not self._is_exempt(target) and not self._is_created(target):
            self.created.add(target)
            with suppress(OSError), self.created_list.open("ab") as file:
                file.write(os.fsencode(target) + b"\n")

    def _replace_functions(self, module):
        """Import a module of FUNCTIONS and replace its functions."""
        self.later.discard(module)
        for function, use in FUNCTIONS[module].items():
            holder, _, name = function.rpartition(".")
            owner = pkgutil.resolve_name(f"{module}:{holder}")
            setattr(owner, name, self._redirected(getattr(owner, name), use))

    def _redirected(self, function, use):
        """Return a function that does the same with the path of what this run saved."""
        signature = inspect.signature(FROM_FILE if use == "map" else function)
        argument = next(name for name in signature.parameters if name in PATHS)

        @functools.wraps(function, updated=())
        def call(*args, **kwargs):
            if use == "find":
                with suppress(FileNotFoundError):
                    return function(*args, **kwargs)

            bound = signature.bind(*args, **kwargs)
            arguments = bound.arguments
            path = arguments.get(argument)
            in_other_folder = arguments.keys() & {"dir_fd", "src_dir_fd", "dst_dir_fd"}
            is_path = isinstance(path, str | bytes | os.PathLike) and not in_other_folder
            if unwatched.depth or not is_path:
                return function(*args, **kwargs)

            if use == "save":
                arguments[argument] = self._path_to_save(path)
            elif use == "write" or (use == "map" and arguments.get("shared")):
                # No save, but audit hooks are to see it.
                sys.audit("open", path, "w", os.O_WRONLY | os.O_CREAT)
            elif use != "map" and self._is_saved(path):
                arguments[argument] = self._scratch_path(path)
                if use == "copy" and os.path.isdir(arguments["dst"]):
                    arguments["dst"] = os.path.join(arguments["dst"], os.path.basename(path))
                if "dst" in arguments:
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
        self.wrote()
        return copy

    def _is_saved(self, path):
        """Return whether this run saved a path."""
        copy = self._scratch_path(path)
        mode = mode_of(copy)
        # A file may be another process's; a folder may be a mere parent of saved files.
        return stat.S_ISREG(mode) or (mode and copy in self.saved)


@functools.cache
def real_folder(text):
    return os.path.realpath(os.path.expanduser(text))


def inside(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
