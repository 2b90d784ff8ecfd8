"""A guard of the user's files while a training script of theirs runs in this process.

Python's audit hook sees what open, os and sqlite3 change. Not seen: what another program or C code
writes (h5py, pyarrow). Programs that get a path of the script's folder are named in the note.
"""

import mmap
import os
import re
import shlex
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

from tools.own_script import user_code
from tools.own_script.replaced import replace, unwatched
from tools.own_script.saved_files import SavedFiles, inside, resolved
from tools.own_script.user_code import Ended, call_place
from Utils.base import paths

PATH_MAX = 4096  # bytes
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
CREATES = os.O_WRONLY | os.O_CREAT
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


def mode_of(path):
    """Return the mode of a resolved path, 0 if nothing is there."""
    return os.lstat(path).st_mode if os.path.lexists(path) else 0


class WriteGuard:
    """Refuse changes of files that existed before the command.

    What the script saves goes to a scratch folder of this run.

    spec: a dict with folder, of the script; runs, a folder with created.txt, the paths that runs of
    this command created; writes, to refuse nothing; scratch. wrote: called at each write. notes: a
    sentence for each program that the script started on a path of its folder, as keys.
    """

    def __init__(self, spec, wrote):
        self.folder = os.path.realpath(spec.folder)
        self.saved_files = SavedFiles(spec.scratch, wrote)
        runs = os.path.realpath(spec.runs)
        self.created_list = Path(runs, "created.txt")
        self.created_list.touch()
        self.allowed = spec.writes
        self.wrote = wrote

        self.notes = {}
        self.started = time.time()
        self.temporary = os.path.realpath(tempfile.gettempdir())  # here: it tries a file in it
        self.refusal = mmap.mmap(-1, 2 * PATH_MAX)  # forked workers share it
        cache = str(paths.CACHE)
        self.is_revision = inside(self.folder, [cache])  # `make pair` unpacks it in the cache
        self.exempt = [runs, cache, "/dev", "/proc", "/sys"]
        self.exempt += map(os.path.realpath, user_code.LIBRARIES)

        for name in [*sys.modules]:
            self.saved_files.imported(name)
        # Their C++ opens files.
        replace(torch, "from_file", _mapped)
        replace(torch.autograd.profiler.profile, "export_chrome_trace", _traced)
        sys.addaudithook(self._hook)

    @property
    def refused(self):
        """The first refusal in a process of this run, or None."""
        return os.fsdecode(self.refusal[:].rstrip(b"\0")) or None

    def _hook(self, event, args):
        with suppress(Exception):  # odd arguments: the call itself will complain
            if event == "import":
                self.saved_files.imported(args[0])
            if not unwatched.depth and not isinstance(args[0], int):  # a number is an open file
                self._check(event, args)

    def _check(self, event, args):
        """Refuse, record or note an event. A folder is that which a path is relative to."""
        match event, *args:
            case "open", path, _, flags if flags & (CHANGES | os.O_CREAT):
                target = resolved(path)
                if flags & CHANGES and not flags & (os.O_EXCL | os.O_DIRECTORY):
                    self._keep(target, "opens {} for writing")
                if flags & os.O_CREAT:
                    self._record(target)
                if not self._is_exempt(target):
                    self.wrote()

            case "os.rename", path, destination, folder, destination_folder:
                source = resolved(path, folder, follow=False)
                target = resolved(destination, destination_folder, follow=False)
                if mode_of(source):
                    self._keep(source, "renames {}")
                    self._keep(target, "replaces {}")
                    self._record(target)
            case ("os.mkdir", path, _, folder) | ("os.symlink", _, path, folder):
                self._record(resolved(path, folder, follow=False))
            case "os.remove" | "os.rmdir", path, folder:
                self._keep(resolved(path, folder, follow=False), "deletes {}")
            case "os.chmod" | "os.chown" | "os.utime", path, *_, folder:
                self._keep(resolved(path, folder), ACTIONS[event])
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

    def _keep(self, target, action):
        """Refuse an action on a file, a folder or a link that existed before.

        A new temporary file, of a compiler that the script started, did not.
        """
        is_kept = stat.S_IFMT(mode_of(target)) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
        if self.allowed or not is_kept or self._is_exempt(target) or self._is_created(target):
            return
        if inside(target, [self.temporary]) and os.lstat(target).st_mtime >= self.started:
            return

        action = action.format(target.removeprefix(self.folder + os.sep))
        problem = f"{call_place(self.folder) or 'the script'} {action}, which exists"
        refusal = f"{problem}; delete or move it, or allow it with WRITES=1"
        if not self.refused:
            self.refusal.write(os.fsencode(refusal))
        raise Ended(refusal)

    def _note(self, arguments, folder):
        """Note a program that starts in a folder with a path of the script's folder."""
        texts = [arguments] if isinstance(arguments, str | bytes) else arguments
        words = shlex.split(" ".join(map(os.fsdecode, texts)))
        for word in words:
            path = resolved(os.path.join(folder or "", word))
            is_of_folder = path.startswith(self.folder + os.sep) and mode_of(path)
            if is_of_folder and not self._is_exempt(path):
                program = os.path.basename(words[0])
                file = path.removeprefix(self.folder + os.sep)
                self.notes[f"{program} got {file}, and what it writes is not seen"] = None

    def _is_exempt(self, target):
        if "/__pycache__/" in target or target.endswith(".pyc"):
            return True
        if self.is_revision and inside(target, [self.folder]):
            return False
        # The script may set their variables.
        caches = map(os.path.expanduser, map(os.path.expandvars, CACHES))
        name = target.removeprefix(self.temporary + os.sep)  # an absolute path if it is elsewhere
        return TEMPORARY_CACHES.match(name) or inside(
            target, [*self.exempt, *map(os.path.realpath, caches)]
        )

    def _is_created(self, target):
        """Return whether the command created a file or a folder that it lies in."""
        created = os.fsdecode(self.created_list.read_bytes()).split("\n")
        return inside(target, filter(None, created))

    def _record(self, target):
        is_new = not mode_of(target) and os.path.isdir(os.path.dirname(target))
        is_new = is_new and "\n" not in target  # the list has one path a line
        if is_new and not self._is_exempt(target) and not self._is_created(target):
            with unwatched, self.created_list.open("ab") as file:
                file.write(os.fsencode(target) + b"\n")


def _mapped(usual, filename, shared=None, size=0, **options):
    """Let the hook see that torch.from_file opens a file for writing."""
    if shared:
        sys.audit("open", filename, "w", CREATES)
    return usual(filename, shared, size, **options)


def _traced(usual, profile, path, *args, **kwargs):
    """Let the hook see that torch.profiler opens a file for writing."""
    sys.audit("open", path, "w", CREATES)
    return usual(profile, path, *args, **kwargs)
