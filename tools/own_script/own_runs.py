"""The runs of a user's script, unchanged: an inspection, then those with switches.

A script runs in its own environment, in a measured process that appends its rows. The first run
returns an Inspection to the launcher.
"""

import json
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import psutil

from tools.own_script.descendants import adopt_orphans, end_descendants
from tools.own_script.inspection import Inspection, from_json
from tools.own_script.python_choice import python_of
from tools.own_script.rounding import NOTES
from tools.own_script.switch_names import name_of
from Utils.base import child, command_line, files, paths
from Utils.base.child import INTERRUPTED
from Utils.base.errors import UserError, naming
from Utils.base.text import printable
from Utils.scripts import ladder
from Utils.scripts.identity import Identity, identity_variable

FOLDER = paths.CACHE / "own_scripts"
HERE = Path(__file__).parent
INSPECTED = {"steps": 6, "warmup": 3, "min_seconds": 0}  # settings of the first run
OF_PROCESS = (  # fields of a record that all runs of a script have in common
    "device",
    "threads",
    "interop_threads",
    "versions",
    "platform",
    "variables",
    "collect_env",
)


@dataclass(frozen=True)
class Base:
    """A user's script.

    name: the technique in its rows. script: its path, or the name of a module. folder: where it
    starts. python: the interpreter of its environment. writes: it may change files. columns: values
    of its rows in place of those that a user's script has; with them its failure is a row. patched:
    texts by path that run in place of its files.
    """

    name: str
    script: str
    is_module: bool
    file: str
    folder: str
    arguments: list
    python: str
    writes: bool
    columns: dict
    patched: dict = field(default_factory=dict)


@dataclass(frozen=True)
class OwnScript:
    """A user's script with switches, as a suite runs it: a ladder.Script.

    switches: names of techniques. suite and change are columns of its rows. refusal: why it is not
    run, or "".
    """

    runs: "OwnRuns"
    switches: tuple = ()
    parent: str | None = None
    suite: str = "own"
    change: str = ""
    refusal: str = ""
    needs: tuple = ()
    is_emulated: bool = False

    doc = ""  # it states no needs

    @property
    def name(self):
        return name_of(self.runs.base.name, self.switches)

    @property
    def label(self):
        return self.change or self.name

    @property
    def identity(self):
        base = self.runs.base
        inspection = self.runs.inspection
        measured = inspection.record
        record = {name: measured[name] for name in OF_PROCESS if name in measured}
        record["command"] = [self.name, *base.arguments]
        training = self.runs.training.get(self.switches)
        if training:
            record["training"] = training

        return Identity(
            suite=self.suite,
            parent=self.parent or "",
            change=self.change,
            label=self.name,
            columns=inspection.row | base.columns,
            record=record,
        )

    @property
    def code(self):
        return self.runs.inspection.record["source"]

    @property
    def resume_key(self):
        """The same text in suites of which one may resume the other.

        It does not name switches, as a suite continues without those that failed.
        """
        base = self.runs.base
        modules = sorted(HERE.glob("*.*"))
        sources = [file.read_text() for file in filter(paths.is_script, modules)]
        version = self.runs.inspection.version
        torch = self.runs.inspection.row.get("torch", "")
        script = [base.name, version, torch, base.python, base.folder, *base.patched.values()]
        return "\0".join([*script, *sources])

    @property
    def technique(self):
        """The switch that it adds to its parent, "" for the script alone."""
        return "".join(self.switches[-1:])

    @property
    def python(self):
        return self.runs.base.python

    @property
    def command(self):
        return [
            str(HERE / "start.py"),
            f"--spec={self.runs.spec}",
            "--switches",
            *self.switches,
        ]

    def environment(self, **more):
        """Return the environment of the script: the user's, without the variables of make."""
        environment = {
            **os.environ,
            **paths.kernel_variables(),
            "PATH": f"{HERE}/programs{os.pathsep}{os.environ['PATH']}",
            "OWN_SITE_PACKAGES": str(Path(psutil.__file__).parents[1]),
            **identity_variable(self.runs.base.name, self.identity),
            **more,
        }
        for name in ("MAKEFLAGS", "MAKELEVEL"):
            environment.pop(name, None)
        return environment

    def record_end(self, status, reason, flags, suite_id):
        """Let a process append the row of a run that did not start, or ended without one."""
        command = [self.python, *self.command, f"--end={status} {reason}", *flags]
        done = child.run(command, self.environment(SUITE_ID=suite_id))
        print(done.errors, end="", file=sys.stderr)


def find(text, args):
    """Return the Base of a path, of "-m module", or of the name of one that was run before.

    Reads folder, args, base_python and writes from args. Raises UserError.
    """
    names = files.read_cache(FOLDER / "names.json", {"*": str}) or {}  # files by name
    first, _, script = text.partition(" ")
    folder = Path(os.path.expanduser(args.folder)).resolve() if args.folder else None
    is_module = first == "-m"
    if is_module:
        folder = folder or Path.cwd()
        stem = script.rpartition(".")[2]
        file = folder.joinpath(*script.split("."))
        file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
    else:
        file = _file_of(text, names)
        script = str(file)
        stem = file.stem
        folder = folder or file.parent
    _check(file, folder, stem)

    name = _name_of(file, stem, names)
    try:
        arguments = shlex.split(args.args)
    except ValueError as error:
        raise UserError(f"ARGS={args.args}: {str(error).lower()}") from None
    return Base(
        name, script, is_module, str(file), str(folder), arguments, python_of(args), args.writes, {}
    )


def _file_of(text, names):
    """Return the file of a path, with or without .py, of an example, or of an earlier script."""
    path = Path(os.path.expanduser(text))
    example = paths.ROOT / "examples" / f"{text}.py"
    for file in (path, Path(f"{path}.py"), example, Path(names.get(text, text))):
        if file.is_file():
            return file.resolve()
    raise UserError(f"BASE={text}: there is no such script", "give its path, and no command")


def _check(file, folder, stem):
    """Raise UserError for a script that cannot be run."""
    if file.suffix == ".ipynb":
        raise UserError(f"{file}: is a notebook", "export it from Jupyter as an executable script")
    with naming(file):
        file.read_bytes()
    if not folder.is_dir():
        raise UserError(f"FOLDER={folder}: there is no such folder")
    if re.search("[+,]", stem) or not stem.isprintable():
        raise UserError(f"{file}: its name has a +, a comma or a control character", "rename it")


def _name_of(file, stem, names):
    """Return a name that no other script has, and remember it."""
    taken = Path(names.get(stem, file)) != file and Path(names[stem]).exists()
    is_ours = stem in ladder.techniques()
    name = f"{file.parent.name}/{stem}" if taken or is_ours else stem
    if names.get(name) != str(file):
        with suppress(UserError):  # without it, the next command needs the path again
            files.write_json(FOLDER / "names.json", names | {name: str(file)})
    return name


def _files_in(created):
    """Return the files of a list of files and folders that runs have created."""
    lines = os.fsdecode(created.read_bytes()).splitlines()
    files_and_folders = chain.from_iterable((path, *path.rglob("*")) for path in map(Path, lines))
    return [*filter(Path.is_file, files_and_folders)]


class OwnRuns:
    """What the runs of one command share: their files, and the Inspection of the first run.

    args: the command's settings.
    """

    inspection = Inspection()

    def __init__(self, base, args):
        self.base = base
        self.args = args
        self.training = {}  # verdicts on the script with switches, as records have them

        runs = FOLDER / "runs"
        self.created = FOLDER / "created" / paths.digest(base.name)  # for both sides of a pair
        with naming(runs, "set CACHE_DIR to another folder"):
            runs.mkdir(parents=True, exist_ok=True)
            # Remove folders of killed processes.
            for folder in runs.glob("*-*-*"):
                node, pid, _ = folder.name.rsplit("-", 2)
                if node == platform.node() and not psutil.pid_exists(int(pid)):
                    shutil.rmtree(folder, ignore_errors=True)
            prefix = f"{platform.node()}-{os.getpid()}-"
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=runs))

            # Files that earlier commands made for the script, and that were not changed later.
            self.created.parent.mkdir(exist_ok=True)
            self.created.open("ab").close()
            end_s = self.created.stat().st_mtime + 2  # a sign of life came each second
            made = _files_in(self.created)
            self.earlier = [path for path in made if path.stat().st_ctime < end_s]
            self.created.write_bytes(b"".join(os.fsencode(f"{path}\n") for path in self.earlier))

        adopt_orphans()
        self.spec = self.folder / "spec.json"
        self.answer = self.folder / "inspection.json"
        self.trace = self.folder / "trace.json.gz"
        self.patched = self.folder / "patched.json"
        if base.patched:
            files.write_json(self.patched, base.patched)
        self.write_spec()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGALRM, self._is_alive)
        self._is_alive()

    def _is_alive(self, *_):
        """Give a sign of life each second: the time of the list of created files."""
        with suppress(OSError):
            os.utime(self.created)
        signal.alarm(1)

    def close(self):
        """Remove the folder of these runs, and print the new files of a user's script.

        The next command may overwrite them.
        """
        end_descendants()
        signal.alarm(0)
        shutil.rmtree(self.folder, ignore_errors=True)
        end_s = time.time() - 2
        with suppress(OSError):
            os.utime(self.created, (end_s, end_s))
            new = sorted({*_files_in(self.created)} - {*self.earlier})
            if new and not self.base.columns:
                more = f" and {len(new) - 5} more" if len(new) > 5 else ""
                line = f"new files of {self.base.name}: {', '.join(map(str, new[:5]))}{more}"
                print(printable(line), file=sys.stderr)

    def write_spec(self, inspects=False, profiles=False, perturbation=(), seconds=0):
        """Write what the next runs read. perturbation: of noted runs. seconds: their limit."""
        spec = {
            "inspects": inspects,
            "perturbation": perturbation,
            "seconds": seconds,
            "timeout": self.args.timeout,  # of an inspection, in minutes
            "trace": str(self.trace) if profiles else "",
            "settings": self.settings(),
            "commit": paths.commit(paths.ROOT / "tools"),
            "runs": str(self.folder),
            "patched": str(self.patched) if self.base.patched else "",
            "created": str(self.created),
            "inspection": vars(self.inspection),
        }
        files.write_json(self.spec, vars(self.base) | spec)

    def take_inspection(self, runs):
        """Take the Inspection of other OwnRuns."""
        self.inspection = runs.inspection
        self.write_spec()

    def settings(self):
        """Return the settings that name a user's script, as words of a make command."""
        if self.base.columns:
            return []
        base = self.args.base if self.base.is_module else self.base.name
        values = vars(self.args) | {"base": base}
        names = ("base", "args", "folder", "base_python", "writes")
        return [f"{name.upper()}={shlex.quote(values[name])}" for name in names if values[name]]

    def inspect(self, profiles=False):
        """Run the script alone for a few steps, and keep its Inspection.

        profiles: trace further steps under the profiler. Raises UserError if the script is refused
        or fails.
        """
        self.write_spec(inspects=True, profiles=profiles)
        # Shows the kernels within C++ that Inductor has compiled.
        variables = {"TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": "1" if profiles else "0"}
        self._run(OwnScript(self), INSPECTED, "inspection", self.answer, **variables)
        self.inspection = from_json(json.loads(self.answer.read_text()))
        self.write_spec()

    def note(self, script, steps, perturbation, seconds):
        """Run the script with switches for some steps. Return the file with notes on its training.

        perturbation: kind and number. Raises UserError if there is none.
        """
        self.write_spec(perturbation=perturbation, seconds=seconds)
        file = self.folder / NOTES
        file.unlink(missing_ok=True)
        self._run(script, INSPECTED | {"steps": steps}, "training", file)
        self.write_spec()
        return file

    def _run(self, script, settings, suite_id, answer, **variables):
        """Run a script that leaves a file. Raises UserError if it does not."""
        flags = command_line.round_flags(self.args, self.args.round, **settings)
        environment = script.environment(SUITE_ID=suite_id, **variables)
        timeout_s = 60 * self.args.timeout + 10  # it may say why it has not ended
        done = child.run([script.python, *script.command, *flags], environment, timeout_s)
        if done.code == INTERRUPTED:
            raise KeyboardInterrupt
        if not answer.exists():
            cause = "it is stopped, or in a call of C" if done.code is None else ""
            raise UserError(f"{self.base.script}: {done.reason}", cause)


@contextmanager
def inspected(args, profiles=False):
    """Yield the OwnRuns of the script that a command's settings name, after its first run.

    profiles: trace further steps in that run. Raises UserError if the script cannot be measured.
    """
    base = find(args.base, args)
    print(f"{base.name}: inspecting it for {INSPECTED['steps']} steps", file=sys.stderr)

    runs = OwnRuns(base, args)
    try:
        runs.inspect(profiles)
        yield runs
    finally:
        runs.close()
