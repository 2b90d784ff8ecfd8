"""A guard of a user's files while their training script runs in this process.

Python's audit hook sees what open, os and sqlite3 change. docs/YOUR_SCRIPT.md lists what is not
seen. Programs that get a path of the script's folder are named in the note.
"""

import os
import re
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch

from tools.own_script.replaced import unwatched
from tools.own_script.saved_files import SavedFiles, inside, resolved
from tools.own_script.shared_lines import SharedLines
from tools.own_script.user_code import LIBRARIES, TABLES, Ended, call_place
from Utils.base import paths

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
WRITES = CHANGES | os.O_CREAT
ACTIONS = {  # actions that are refused
    "os.chmod": "changes the mode of {}",
    "os.chown": "changes the owner of {}",
    "os.utime": "changes the time of {}",
    "os.setxattr": "changes an attribute of {}",
    "os.removexattr": "changes an attribute of {}",
    "os.truncate": "truncates {}",
}
ATTACH = 24  # sqlite's code of that action
READ_ONLY = re.compile(r"file:[^?#]*\?([^#]*&)?mode=(ro|memory)([&#]|$)")  # a URI, or in memory
WORD = re.compile(r"""[^\s'"<>|&;()=:]+""")  # a word of a shell's command
# Caches in the folder of temporary files: of Inductor (AOTAutograd's graphs are in it, and headers,
# wherever TORCHINDUCTOR_CACHE_DIR is), of CUTLASS, and of torch's kernels that are made with it.
TEMPORARY_CACHES = re.compile(
    r"(torchinductor_[^/]+|quack_generated_epilogues"
    r"|[^/]+/(cutlass_python|torch_vendor_quack)_cache)(/|$)"
)


class WriteGuard:
    """Refuse changes of files that existed before the command.

    What the script saves goes to a scratch folder of this run.

    spec: has folder, of the script; runs, a folder of this program; created, a file with the paths
    that the script created; writes, to refuse nothing; scratch. wrote: called at each write.
    notes: a sentence for each program that the script started on a path of its folder.
    """

    def __init__(self, spec, wrote):
        self.folder = os.path.realpath(spec.folder) + os.sep
        self.saved_files = SavedFiles(spec.scratch, wrote)
        self.created = Path(spec.created)
        self.allowed = spec.writes
        self.wrote = wrote
        self.notes = SharedLines()
        self.refusals = SharedLines()
        self.started = time.time()
        self.temporary = os.path.realpath(tempfile.gettempdir())  # now: it writes a test file
        cache = str(paths.CACHE)
        self.is_revision = inside(self.folder, [cache])  # `make pair` unpacks it in the cache
        self.exempt = [spec.runs, cache, *TABLES["exempt"]["folders"], *LIBRARIES]

        for name in [*sys.modules]:
            self.saved_files.imported(name)
        # Their C++ opens files, and the event of os.open has no dir_fd.
        report(torch, "from_file", _mapped)
        report(torch.UntypedStorage, "from_file", _mapped)
        report(
            torch.autograd.profiler.profile,
            "export_chrome_trace",
            lambda profile, path, *_: (path, WRITES),
        )
        report(os, "open", _opened)
        with suppress(ImportError):  # some builds of Python lack it
            import sqlite3  # noqa: PLC0415

            usual = sqlite3.connect

            def connect(*args, **kwargs):
                connection = usual(*args, **kwargs)
                connection.set_authorizer(self._authorize)  # it checks statements
                return connection

            sqlite3.connect = sqlite3.dbapi2.connect = connect
        sys.addaudithook(self._hook)

    @property
    def refused(self):
        """The first refusal in a process of this run, or None."""
        return next(iter(self.refusals.read()), None)

    def _hook(self, event, args):
        with suppress(Exception):  # wrong arguments: the call itself raises an error
            if event == "import":
                self.saved_files.imported(args[0])
            if not unwatched.depth:
                self._check(event, args)

    def _check(self, event, args):
        """Refuse, record or note an event. folder: relative paths start there."""
        match event, *args:
            case "open", path, _, flags if flags & WRITES and not isinstance(path, int):
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
                if os.path.lexists(source):
                    self._keep(source, "renames {}")
                    self._keep(target, "replaces {}")
                    self._record(target)
            case ("os.mkdir", path, _, folder) | ("os.symlink", _, path, folder):
                self._record(resolved(path, folder, follow=False))
            case "os.remove" | "os.rmdir", path, folder:
                self._keep(resolved(path, folder, follow=False), "deletes {}")
            case "os.chmod" | "os.chown" | "os.utime", path, *_, folder:
                self._keep(resolved(path, folder), ACTIONS[event])
            case "os.setxattr" | "os.removexattr" | "os.truncate", path, *_:
                self._keep(resolved(path), ACTIONS[event])

            case "os.system", command:
                self._note("sh", [command])
            case "subprocess.Popen", program, words, folder, _:
                self._note(program, words, folder or "")
            case "os.posix_spawn" | "os.exec", program, words, _:
                self._note(program, words)

            case "sqlite3.connect", database:
                self._connect(database)

    def _connect(self, database):
        """Refuse or record a database that sqlite3 opens, by its path or its URI."""
        path = text = os.fsdecode(database)
        if text.startswith("file:"):
            path = unquote(urlsplit(text).path)
        if path not in ("", ":memory:") and not READ_ONLY.match(text):
            self._keep(resolved(path), "connects to {}")
            self._record(resolved(path))

    def _authorize(self, action, database, *_):
        """Check what a statement of SQL attaches. Return 0, which allows it."""
        if action == ATTACH and database is None:
            self._refuse("attaches a database that a parameter names, which may exist")
        elif action == ATTACH:
            self._connect(database)
        return 0

    def _keep(self, target, action):
        """Refuse an action on a file, a folder or a link that existed before.

        A compiler's new temporary file did not.
        """
        if not os.path.lexists(target) or self._is_exempt(target) or self._is_created(target):
            return

        status = os.lstat(target)
        is_new = inside(target, [self.temporary]) and status.st_mtime >= self.started
        if is_new or stat.S_IFMT(status.st_mode) in (stat.S_IFIFO, stat.S_IFSOCK):
            return
        self._refuse(action.format(target.removeprefix(self.folder)) + ", which exists")

    def _refuse(self, action):
        if self.allowed:
            return

        place = call_place(self.folder) or "the script"
        refusal = f"{place} {action}; delete or move it, or allow it with WRITES=1"
        if not self.refused:
            self.refusals.add(refusal)
        raise Ended(refusal)

    def _note(self, program, words, folder=""):
        """Note a program that gets a path of the script's folder, as a word of an argument.

        words: its arguments. folder: where it starts.
        """
        name = os.path.basename(os.fsdecode(program))
        for text in map(os.fsdecode, [program, *words]):
            for word in (text, *WORD.findall(text)):
                path = resolved(os.path.join(folder, word))
                is_of_folder = path.startswith(self.folder) and os.path.exists(path)
                if is_of_folder and not self._is_exempt(path):
                    got = f"{name} got {path.removeprefix(self.folder)}"
                    self.notes.add(f"{got}, but its writes are not monitored")

    def _is_exempt(self, target):
        if "/__pycache__/" in target or target.endswith(".pyc"):
            return True
        if self.is_revision and target.startswith(self.folder):
            return False
        name = target.removeprefix(self.temporary + os.sep)  # an absolute path if it is elsewhere
        # The script may set their variables.
        folders = map(os.path.expanduser, map(os.path.expandvars, self.exempt))
        return TEMPORARY_CACHES.match(name) or inside(target, map(os.path.realpath, folders))

    def _is_created(self, target):
        """Return whether the command created a file or a folder that it lies in."""
        created = os.fsdecode(self.created.read_bytes()).split("\n")
        return inside(target, filter(None, created))

    def _record(self, target):
        is_new = not os.path.lexists(target) and "\n" not in target  # the list has one path a line
        if is_new and not self._is_exempt(target) and not self._is_created(target):
            with unwatched, self.created.open("ab") as file:
                file.write(os.fsencode(target) + b"\n")


def report(owner, name, opened):
    """Let the hook see what a function opens. opened: returns its (path, flags), by arguments."""
    usual = getattr(owner, name)

    def reported(*args, **kwargs):
        path, flags = opened(*args, **kwargs)
        sys.audit("open", path, None, flags)
        return usual(*args, **kwargs)

    setattr(owner, name, reported)


def _mapped(filename, shared=False, *args, **kwargs):
    return filename, WRITES if shared else 0


def _opened(path, flags, mode=0, dir_fd=-1):
    return resolved(path, dir_fd), flags
