"""A guard of the user's files while a training script of theirs runs in this process.

Python's audit hook sees what open, os and sqlite3 change. Not seen: programs that the script
starts, and libraries other than torch and safetensors that write in C (h5py, pyarrow).
"""

import functools
import os
import stat
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from Utils.own_script.scratch_saves import ScratchSaves, mode_of, resolved
from Utils.own_script.user_code import Ended, call_site

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
EVENTS = {"os.remove", "os.rename", "os.truncate", "os.mkdir", "os.symlink", "sqlite3.connect"}
HOME_CACHES = ["~/.cache", "~/.triton", "~/.config/matplotlib"]
CACHE_VARIABLES = ["XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR"]
CACHE_VARIABLES += ["TRITON_CACHE_DIR", "MPLCONFIGDIR"]
# Not sys.prefix: a user's folder may lie in /usr or in a conda environment.
INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


@functools.cache
def cache_folders(*from_environment):
    folders = [*map(os.path.expanduser, HOME_CACHES), *filter(None, from_environment)]
    return [os.path.realpath(folder) for folder in folders]


class WriteGuard(ScratchSaves):
    """Refuse changes of files that existed before the command; redirect saves to scratch.

    spec: a dict with folder, of the script; created, a text file with the paths that runs of this
    command created; cache, of ours; writes, to refuse nothing; scratch. wrote: as of ScratchSaves.
    """

    def __init__(self, spec, wrote):
        super().__init__(spec["scratch"], wrote)
        self.folder = os.path.realpath(spec["folder"])
        self.created_list = Path(os.path.realpath(spec["created"]))
        self.allowed = spec["writes"]
        self.created = set()
        self.started = time.time()
        self.temporary = os.path.realpath(tempfile.gettempdir())  # here: it tries a file in it
        self.refusal_file = Path(self.scratch, "refused.txt")  # a forked worker leaves it here
        self.exempt = [self.scratch, str(self.created_list), os.path.realpath(spec["cache"])]
        self.exempt += ["/dev", "/proc", "/sys", *map(os.path.realpath, INSTALLED)]

    def install(self):
        os.makedirs(self.created_list.parent, exist_ok=True)
        super().install()
        sys.addaudithook(self._hook)

    @property
    def refused(self):
        """The first refusal in a process of this run, or None."""
        with suppress(FileNotFoundError):
            return self.refusal_file.read_text()

    def _hook(self, event, args):
        with suppress(Exception):  # odd arguments: the call itself will complain
            if event == "open":
                if not args[2] & (CHANGES | os.O_CREAT):  # most events end here
                    return
            elif event not in EVENTS:
                return
            if self.active and not isinstance(args[0], int):  # a number is an open file
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
                self.call_wrote()
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
        elif event == "os.remove":
            self._keep(resolved(path, more[0], follow=False), "deletes {}")
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
            raise Ended("refused", refusal)

    def _is_exempt(self, target):
        if "/__pycache__/" in target or target.endswith(".pyc"):
            return True
        caches = cache_folders(*map(os.environ.get, CACHE_VARIABLES))
        return target.startswith("/tmp/torchinductor_") or inside(target, self.exempt + caches)

    def _is_created(self, target):
        """Return whether the command created a file or a folder that it lies in, or a compiler that
        it started a temporary file."""
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


def inside(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
