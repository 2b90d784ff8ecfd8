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
from Utils.own_script.user_code import call_site

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
EVENTS = {"os.remove", "os.rename", "os.truncate", "os.mkdir", "os.symlink", "sqlite3.connect"}
HOME_CACHES = ["~/.cache", "~/.triton", "~/.config/matplotlib"]
CACHE_VARIABLES = ["XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR"]
CACHE_VARIABLES += ["TRITON_CACHE_DIR", "MPLCONFIGDIR"]
# Not sys.prefix: a user's folder may lie in /usr or in a conda environment.
INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
PACKAGES = {"site-packages", "dist-packages"}  # of any environment


class Refused(BaseException):
    """A change of a file that existed before. Scripts catch Exception, so it is none."""


def inside(path, folders):
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def database_file(name):
    """Return the file that sqlite3 may change, None for memory or a URI for reading."""
    path, _, options = name.removeprefix("file:").partition("?")
    unchanged = path in ("", ":memory:") or "mode=ro" in options or "mode=memory" in options
    return None if unchanged else path


@functools.cache
def cache_folders(*from_environment):
    folders = [*map(os.path.expanduser, HOME_CACHES), *filter(None, from_environment)]
    return [os.path.realpath(folder) for folder in folders]


class WriteGuard(ScratchSaves):
    """Refuse changes of files that existed before the command; redirect saves to scratch.

    folder: of the script. created_list: text file with the paths that runs of this command
    created. allowed: refuse nothing. The others are ScratchSaves'.
    """

    def __init__(self, folder, scratch, created_list, own_cache, allowed=False, wrote=None):
        super().__init__(scratch, wrote)
        self.folder = os.path.realpath(folder)
        self.created_list = Path(os.path.realpath(created_list))
        self.allowed = allowed
        self.created = set()
        self.started = time.time()
        self.refusal_file = Path(self.scratch, "refused.txt")  # a forked worker leaves it here
        self.exempt = [self.scratch, str(self.created_list), os.path.realpath(own_cache)]
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
        try:
            if event == "open":
                if not args[2] & (CHANGES | os.O_CREAT):  # most events end here
                    return
            elif event not in EVENTS:
                return
            if self.active and not isinstance(args[0], int):  # a number is an open file
                self._check(event, args)
        except Exception:  # odd arguments: the call itself will complain
            return

    def _check(self, event, args):
        path = args[0]
        if event == "open":
            self._check_open(path, args[2])
        elif event == "os.rename":
            self._check_rename(*args)
        elif event == "os.mkdir":
            self._record(resolved(path, args[2], follow=False))
        elif event == "os.symlink":
            self._record(resolved(args[1], args[2], follow=False))
        elif event == "os.remove":
            self._keep(resolved(path, args[1], follow=False), "deletes {}")
        elif event == "os.truncate":
            self._keep(resolved(path), "truncates {}")
        elif database := database_file(os.fsdecode(path)):
            self._keep(resolved(database), "connects to {}")
            self._record(resolved(database))

    def _check_open(self, path, flags):
        target = resolved(path)
        if flags & CHANGES and not flags & os.O_EXCL:
            self._keep(target, "opens {} for writing")
        if flags & os.O_CREAT:
            self._record(target)
        if inside(target, [self.scratch]) or not self._is_exempt(target):
            self.call_wrote()

    def _check_rename(self, old_path, new_path, old_dir_fd, new_dir_fd):
        source = resolved(old_path, old_dir_fd, follow=False)
        destination = resolved(new_path, new_dir_fd, follow=False)
        if mode_of(source) is not None:
            self._keep(source, "renames {}", folders=True)
            self._keep(destination, "replaces {}")
            self._record(destination)

    def _keep(self, target, action, folders=False):
        """Refuse an action on a file that existed before."""
        mode = mode_of(target)
        if self.allowed or mode is None or self._is_exempt(target) or self._is_created(target):
            return
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode) or (folders and stat.S_ISDIR(mode)):
            shown = target.removeprefix(self.folder + os.sep)
            problem = (
                f"{call_site(self.folder) or 'the script'} {action.format(shown)}, which exists"
            )
            refusal = f"{problem}; delete or move it, or allow it with WRITES=1"
            with suppress(OSError), self.refusal_file.open("x") as file:
                file.write(refusal)
            raise Refused(refusal)

    def _is_exempt(self, target):
        if "/__pycache__/" in target or target.endswith(".pyc"):
            return True
        caches = cache_folders(*map(os.environ.get, CACHE_VARIABLES))
        return target.startswith("/tmp/torchinductor_") or inside(target, self.exempt + caches)

    def _is_created(self, target):
        """Tell whether the command created a file or a folder that it lies in."""
        path_and_parents = {target, *map(str, Path(target).parents)}
        if self.created.isdisjoint(path_and_parents):
            with suppress(OSError):  # other processes add to it
                lines = self.created_list.read_bytes().split(b"\n")
                self.created.update(map(os.fsdecode, lines))
        return not self.created.isdisjoint(path_and_parents) or self._is_temporary(target)

    def _is_temporary(self, target):
        """Tell whether a temporary file is newer than this process: compilers that it started
        write some."""
        new = os.path.exists(target) and os.lstat(target).st_mtime >= self.started
        return new and inside(target, [os.path.realpath(tempfile.gettempdir())])

    def _record(self, target):
        is_new = mode_of(target) is None and os.path.isdir(os.path.dirname(target))
        is_new = is_new and "\n" not in target  # the list has one path a line
        if is_new and not self._is_exempt(target) and not self._is_created(target):
            self.created.add(target)
            with suppress(OSError), self.created_list.open("ab") as file:
                file.write(os.fsencode(target) + b"\n")
