"""A guard of the user's files while a training script of theirs runs in this process.

Python's audit hook sees what open, os and sqlite3 change. Not seen: what another program or C code
writes (h5py, pyarrow). Programs that get a path of the script's folder are named in the note.
"""

import functools
import importlib
import inspect
import mmap
import os
import shlex
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tools.own_script.user_code import LIBRARIES, Ended, call_site
from Utils.base import paths

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
# Actions on one path, whose last argument is the folder that it is relative to.
ACTIONS = {
    "os.remove": "deletes {}",
    "os.rmdir": "deletes {}",
    "os.chmod": "changes the mode of {}",
    "os.chown": "changes the owner of {}",
    "os.utime": "changes the time of {}",
}
EVENTS = {
    *ACTIONS,
    "open",
    "os.rename",
    "os.truncate",
    "os.mkdir",
    "os.symlink",
    "sqlite3.connect",
    "subprocess.Popen",
    "os.system",
}
HOME_CACHES = ["~/.cache", "~/.triton", "~/.config/matplotlib"]
CACHE_VARIABLES = [
    "XDG_CACHE_HOME",
    "HF_HOME",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "MPLCONFIGDIR",
]

# Functions that pass a path to C, make a folder, or move and delete what was saved, by modules:
# what each does with its path, and the name of that argument.
SAVE, LOAD, FIND, MOVE, COPY = "save", "load", "find", "move", "copy"
WRITE, MAP = "write", "map"
FROM_FILE = lambda filename, shared=None, size=0, **options: None  # noqa: E731, as torch has it
OF_TORCH = [("save", SAVE, "f"), ("load", LOAD, "f")]
# save_file and save_model call serialize_file; load_file and load_model call safe_open.
OF_SAFETENSORS = [("serialize_file", SAVE, "filename"), ("safe_open", LOAD, "filename")]
FUNCTIONS = dict.fromkeys(("torch", "torch.serialization", "torch.jit", "torch.export"), OF_TORCH)
FUNCTIONS["torch"] = [*OF_TORCH, ("from_file", MAP, "filename")]
for module in ("safetensors", "safetensors.torch", "safetensors.numpy"):
    FUNCTIONS[module] = OF_SAFETENSORS
FUNCTIONS |= {
    "torch.autograd.profiler": [("profile.export_chrome_trace", WRITE, "path")],
    "torch.distributed.checkpoint.filesystem": [
        ("FileSystemWriter.__init__", SAVE, "path"),
        ("FileSystemWriter.reset", SAVE, "checkpoint_id"),
        ("FileSystemReader.__init__", LOAD, "path"),
        ("FileSystemReader.reset", LOAD, "checkpoint_id"),
    ],
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


class WriteGuard:
    """Refuse changes of files that existed before the command.

    What the script saves goes to a scratch folder of this run, each file at its absolute path, and
    is found again there.

    spec: a dict with folder, of the script; created, a text file with the paths that runs of this
    command created; writes, to refuse nothing; scratch. wrote: called at each write. active: False
    refuses nothing and leaves all paths as they are. notes: a sentence for each program that the
    script started on a path of its folder.
    """

    def __init__(self, spec, wrote):
        self.folder = os.path.realpath(spec["folder"])
        self.scratch = os.path.realpath(spec["scratch"])
        self.created_list = Path(os.path.realpath(spec["created"]))
        self.allowed = spec["writes"]
        self.wrote = wrote

        self.active = False
        self.notes = []
        self.saved = set()
        self.created = set()
        self.started = time.time()
        self.temporary = os.path.realpath(tempfile.gettempdir())  # here: it tries a file in it
        # Asked for in each step, and set by forked workers too, which leave a file as well.
        self.has_refused = mmap.mmap(-1, 1)
        self.refusal_file = Path(self.scratch, "refused.txt")
        self.exempt = [self.scratch, str(self.created_list)]
        if not inside(self.folder, [str(paths.CACHE)]):  # a revision's files are in the cache
            self.exempt.append(str(paths.CACHE))
        self.exempt += ["/dev", "/proc", "/sys", *map(os.path.realpath, LIBRARIES)]

    def install(self):
        os.makedirs(self.scratch, exist_ok=True)
        self.active = True
        self.later = {*FUNCTIONS} - sys.modules.keys()  # replaced when the script imports them
        for name in FUNCTIONS.keys() - self.later:
            self._replace_functions(name)
        sys.addaudithook(self._hook)

    @property
    def refused(self):
        """The first refusal in a process of this run, or None."""
        return self.refusal_file.read_text() if self.has_refused[0] else None

    def _hook(self, event, args):
        with suppress(Exception):  # odd arguments: the call itself will complain
            if event == "import" and args[0] in self.later:
                self._replace_functions(args[0])
            reads = event == "open" and not args[2] & (CHANGES | os.O_CREAT)
            # A number is an open file.
            if event in EVENTS and self.active and not reads and not isinstance(args[0], int):
                self._check(event, *args)

    def _check(self, event, path, *more):
        if event == "open":
            flags = more[1]
            target = resolved(path)
            if flags & CHANGES and not flags & os.O_EXCL:
                self._keep(target, "opens {} for writing")
            if flags & os.O_CREAT:
                self._record(target)
            if inside(target, [self.scratch]) or not self._is_exempt(target):
                self.wrote()

        elif event == "os.rename":
            destination, *folders = more
            source = resolved(path, folders[0], follow=False)
            target = resolved(destination, folders[1], follow=False)
            if mode_of(source) is not None:
                self._keep(source, "renames {}", folders=True)
                self._keep(target, "replaces {}")
                self._record(target)
        elif event == "os.mkdir":
            self._record(resolved(path, more[1], follow=False))
        elif event == "os.symlink":
            self._record(resolved(*more, follow=False))
        elif event in ACTIONS:
            is_deleted = event in ("os.remove", "os.rmdir")
            target = resolved(path, more[-1], follow=not is_deleted)
            self._keep(target, ACTIONS[event], folders=event != "os.remove")
        elif event == "os.system":
            self._note([path], None)
        elif event == "subprocess.Popen":
            self._note(*more[:2])
        elif event == "os.truncate":
            self._keep(resolved(path), "truncates {}")
        else:
            path, _, options = os.fsdecode(path).removeprefix("file:").partition("?")
            in_memory = path in ("", ":memory:") or "mode=memory" in options
            if not in_memory and "mode=ro" not in options:
                self._keep(resolved(path), "connects to {}")
                self._record(resolved(path))

    def _keep(self, target, action, folders=False):
        """Refuse an action on a file that existed before."""
        mode = mode_of(target)
        if self.allowed or mode is None or self._is_exempt(target) or self._is_created(target):
            return
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode) or (folders and stat.S_ISDIR(mode)):
            action = action.format(target.removeprefix(self.folder + os.sep))
            problem = f"{call_site(self.folder) or 'the script'} {action}, which exists"
            refusal = f"{problem}; delete or move it, or allow it with WRITES=1"
            with suppress(OSError), self.refusal_file.open("x") as file:
                file.write(refusal)
            self.has_refused[0] = 1
            raise Ended("refused", refusal)

    def _note(self, arguments, folder):
        """Note a program that starts in a folder with a path of the script's folder."""
        texts = [arguments] if isinstance(arguments, str | bytes) else arguments
        words = [word for text in texts for word in shlex.split(os.fsdecode(text))]
        for word in words:
            path = resolved(os.path.join(folder or "", word))
            if path.startswith(self.folder + os.sep) and mode_of(path) is not None:
                program = os.path.basename(words[0])
                file = path.removeprefix(self.folder + os.sep)
                note = f"{program} got {file}, and what it writes is not seen"
                self.notes += [note] if note not in self.notes else []

    def _is_exempt(self, target):
        if "/__pycache__/" in target or target.endswith(".pyc"):
            return True
        if inside(self.folder, [str(paths.CACHE)]) and inside(target, [self.folder]):
            return False  # `make pair` unpacks revisions in the cache
        caches = cache_folders(*map(os.environ.get, CACHE_VARIABLES))
        return target.startswith("/tmp/torchinductor_") or inside(target, self.exempt + caches)

    def _is_created(self, target):
        """Return whether the command created a file or a folder that it lies in.

        A new temporary file, of a compiler that it started, counts as well.
        """
        path_and_parents = {target, *map(str, Path(target).parents)}
        if self.created.isdisjoint(path_and_parents):
            with suppress(OSError):  # other processes add to it
                lines = self.created_list.read_bytes().split(b"\n")
                self.created.update(map(os.fsdecode, lines))
        temporary = inside(target, [self.temporary]) and mode_of(target) is not None
        new = temporary and os.lstat(target).st_mtime >= self.started
        return new or not self.created.isdisjoint(path_and_parents)

    def _record(self, target):
        is_new = mode_of(target) is None and os.path.isdir(os.path.dirname(target))
        is_new = is_new and "\n" not in target  # the list has one path a line
        if is_new and not self._is_exempt(target) and not self._is_created(target):
            self.created.add(target)
            with suppress(OSError), self.created_list.open("ab") as file:
                file.write(os.fsencode(target) + b"\n")

    def _replace_functions(self, name):
        """Import a module of FUNCTIONS and replace its functions."""
        self.later.discard(name)
        module = importlib.import_module(name)
        for function, use, argument in FUNCTIONS[name]:
            *classes, name = function.split(".")
            owner = functools.reduce(getattr, classes, module)
            setattr(owner, name, self._redirected(getattr(owner, name), use, argument))

    def _redirected(self, function, use, argument):
        signature = inspect.signature(FROM_FILE if use == MAP else function)

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
            elif use in (WRITE, MAP):  # no save, but audit hooks are to see it
                if use == WRITE or arguments.get("shared"):
                    sys.audit("open", path, "w", os.O_WRONLY | os.O_CREAT)
            else:
                self._redirect_saved(arguments, argument, use)
            return function(*bound.args, **bound.kwargs)

        return call

    def _redirect_saved(self, arguments, argument, use):
        """Replace the path of an argument by that of its saved copy, and where it moves to."""
        path = arguments[argument]
        copy = self._saved_copy(path)
        if not copy:
            return
        arguments[argument] = copy
        if use == COPY and os.path.isdir(arguments["dst"]):
            arguments["dst"] = os.path.join(arguments["dst"], os.path.basename(path))
        if use in (MOVE, COPY):
            arguments["dst"] = self._path_to_save(arguments["dst"])

    def _scratch_path(self, path):
        path = resolved(path)
        return path if path.startswith(self.scratch + os.sep) else self.scratch + path

    def _path_to_save(self, path):
        copy = self._scratch_path(path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        self.saved.add(copy)
        self.wrote()
        return copy

    def _saved_copy(self, path):
        """Return the scratch path that this run saved for a path, else None."""
        copy = self._scratch_path(path)
        mode = mode_of(copy)
        # A file may be another process's; a folder may be a mere parent of saved files.
        saved = mode is not None and (stat.S_ISREG(mode) or copy in self.saved)
        return copy if saved else None


@functools.cache
def cache_folders(*from_environment):
    folders = [*map(os.path.expanduser, HOME_CACHES), *filter(None, from_environment)]
    return [os.path.realpath(folder) for folder in folders]


def inside(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
