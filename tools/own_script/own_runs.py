"""The runs of a user's script, unchanged: a first one to look at it, then those with switches.

A script runs in its own environment, in a measured process that writes its answer as JSON. This
side writes the rows.
"""

import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tools.own_script.switch_names import name_of
from Utils.base import command_line, files, paths
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.base.errors import UserError, naming
from Utils.base.text import printable
from Utils.launch.turn_taking import INTERRUPTED, end_group, why_ended
from Utils.results import rows_file
from Utils.scripts import ladder
from Utils.scripts.identity import Identity, identity_variable

FOLDER = paths.CACHE / "own_scripts"
ENTRY = paths.ROOT / "tools" / "own_script" / "start.py"
LOOK = {"steps": 6, "warmup": 3, "min_seconds": 0}
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3")


def run_group(command, environment, timeout=None):
    """Run a command, and end what it leaves behind. Return its CompletedProcess.

    timeout: seconds after which it is ended. Then raises subprocess.TimeoutExpired.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, process_group=0
        )
        try:
            code = process.wait(timeout)
        finally:
            end_group(process)
        log.seek(0)
        return subprocess.CompletedProcess(command, code, stderr=log.read())


@dataclass(frozen=True)
class Base:
    """A user's script.

    name: the technique in its rows. script: its path, or the name of a module. folder: where it
    starts. python: the interpreter of its environment. writes: it may change files. columns: values
    of its rows in place of those that a user's script has; with them its failure is a row.
    """

    name: str
    script: str
    is_module: bool
    file: str
    folder: str
    arguments: list
    python: str
    writes: bool
    columns: dict = field(default_factory=dict)


@dataclass(frozen=True)
class OwnScript:
    """A user's script with switches, as a suite runs it.

    It has the attributes of a ladder.Technique that the launcher reads. switches: names of
    techniques. suite and change are columns of its rows. refusal: why it is not run, or "".
    """

    runs: "OwnRuns"
    switches: tuple = ()
    parent: str | None = None
    suite: str = "own"
    change: str = ""
    refusal: str = ""
    needs: tuple = ()
    is_emulated: bool = False

    code = ""  # it has none of the settings that depend on a script's code

    @property
    def name(self):
        return name_of(self.runs.base.name, self.switches)

    @property
    def label(self):
        return self.change or self.name

    @property
    def identity(self):
        return Identity(self.suite, self.parent or "", self.change)

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
            str(ENTRY),
            f"--spec={self.runs.spec}",
            f"--name={self.name}",
            "--switches",
            *self.switches,
        ]

    def environment(self, **more):
        """Return the environment of the script: the user's, without the variables of make."""
        environment = {
            **os.environ,
            **paths.kernel_variables(),
            "OWN_SITE_PACKAGES": sysconfig.get_path("platlib"),
            **identity_variable(self),
            **more,
        }
        return {k: v for k, v in environment.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}


def find(text, args):
    """Return the Base of a path, of "-m module", or of the name of one that was run before.

    Reads folder, args, base_python and writes from args. Raises UserError.
    """
    # Files of earlier scripts by name.
    names = files.read_cache(FOLDER / "names.json", {"*": str}) or {}
    path = Path(os.path.expanduser(text))
    is_file = text in names or os.path.exists(path)
    words = [text] if is_file else _words(text, "BASE")  # a path may have blanks
    if words and Path(words[0]).name in LAUNCHERS:
        raise UserError(f"BASE={text}: is a command", "give the script alone; ranks are not run")
    folder = Path(os.path.expanduser(args.folder)).resolve() if args.folder else None

    is_module = words[:1] == ["-m"] and len(words) == 2
    if is_module:
        script = words[1]
        folder = folder or Path.cwd()
        file = folder.joinpath(*script.split("."))
        file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
        stem = script.rpartition(".")[2]
    else:
        # A path, with or without .py, an example, or an earlier script.
        example = paths.ROOT / "examples" / f"{text}.py"
        candidates = (path, Path(f"{path}.py"), example, Path(names.get(text, text)))
        file = next((path.resolve() for path in candidates if path.is_file()), None)
        if file is None:
            raise UserError(f"BASE={text}: there is no such script", "give its path")
        script = str(file)
        folder = folder or file.parent
        stem = file.stem

    # What cannot be run.
    if file.suffix == ".ipynb":
        raise UserError(f"{file}: is a notebook", "export it from Jupyter as an executable script")
    with naming(file):
        file.read_bytes()
    if not folder.is_dir():
        raise UserError(f"FOLDER={folder}: there is no such folder")
    python = os.path.expanduser(args.base_python) or sys.executable
    if not shutil.which(python):
        raise UserError(f"BASE_PYTHON={python}: there is no such program")
    if re.search("[+,]", stem) or not stem.isprintable():
        raise UserError(f"{file}: its name has a +, a comma or a control character", "rename it")

    # A name that no other script has.
    taken = Path(names.get(stem, file)) != file and Path(names[stem]).exists()
    is_ours = stem in ladder.techniques()
    name = f"{file.parent.name}/{stem}" if taken or is_ours else stem
    if names.get(name) != str(file):
        with suppress(UserError):  # without it, the next command needs the path again
            files.write_json(FOLDER / "names.json", names | {name: str(file)})
    arguments, writes = _words(args.args, "ARGS"), bool(args.writes)
    return Base(name, script, is_module, str(file), str(folder), arguments, python, writes)


def _words(text, setting):
    """Return the words of a setting, with a shell's quotes. Raises UserError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{setting}={text}: {str(error).lower()}") from None


def _state(path):
    """Return the size and the time of a file, a list, None without the file."""
    with suppress(OSError):
        status = os.lstat(path)
        return [status.st_size, status.st_mtime_ns]


class OwnRuns:
    """The runs of one command, and the recorder of their rows (see suite_runner.ScriptRecorder).

    args: the command's settings. look: the answer of the first run.
    """

    def __init__(self, base, args):
        self.base = base
        self.args = args
        self.look = {}

        runs = FOLDER / "runs"
        with naming(runs, "set CACHE_DIR to another folder"):
            runs.mkdir(parents=True, exist_ok=True)
            # Remove folders of killed processes.
            for folder in runs.glob("*-*-*"):
                node, pid, _ = folder.name.rsplit("-", 2)
                if node == platform.node() and not psutil.pid_exists(int(pid)):
                    shutil.rmtree(folder, ignore_errors=True)
            prefix = f"{platform.node()}-{os.getpid()}-"
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=runs))
            (self.folder / "answers").mkdir()

        # Files that earlier commands made for the script, and that are as they left them.
        digest = paths.digest(f"{base.file}\0{base.folder}")
        self.remembered = FOLDER / "created" / f"{digest}.json"
        earlier = files.read_cache(self.remembered, {"*": ([int], None)}) or {}
        self.earlier = [path for path, state in earlier.items() if state == _state(path)]
        self.created = self.folder / "created.txt"
        self.created.write_bytes(os.fsencode("".join(f"{path}\n" for path in self.earlier)))

        self.spec = self.folder / "spec.json"
        self.trace = self.folder / "trace.json.gz"
        self.write_spec()

    def close(self):
        """Remove the folder of these runs, and print the new files of the script.

        They are remembered, so that the next command may overwrite them.
        """
        paths_created = []
        with suppress(OSError):
            paths_created = os.fsdecode(self.created.read_bytes()).splitlines()
        shutil.rmtree(self.folder, ignore_errors=True)

        states = {}
        for path in paths_created:
            in_folder = map(str, Path(path).rglob("*"))
            states |= {file: _state(file) for file in (path, *in_folder) if os.path.isfile(file)}
        with suppress(UserError):  # without it, the next command needs WRITES=1
            files.write_json(self.remembered, states)

        new = sorted(states.keys() - self.earlier)
        if new:
            more = f" and {len(new) - 5} more" if len(new) > 5 else ""
            names = printable(", ".join(new[:5]))
            print(f"new files of {self.base.name}: {names}{more}", file=sys.stderr)

    def write_spec(self):
        """Write what each run of the script reads: after the first run, its answer too."""
        spec = {
            "settings": self.settings(),
            "commit": paths.commit(paths.ROOT / "tools"),
            "runs": str(self.folder),
        }
        files.write_json(self.spec, vars(self.base) | spec | self.look)

    def settings(self):
        """Return the settings that name the script, as words of a make command."""
        base = self.args.base if self.base.is_module else self.base.name
        values = vars(self.args) | {"base": base}
        names = ("base", "args", "folder", "base_python", "writes")
        return [f"{name.upper()}={shlex.quote(values[name])}" for name in names if values[name]]

    def look_at(self, profiles=False):
        """Run the script alone for a few steps, and keep its answer.

        profiles: trace further steps under the profiler. Raises UserError if the script is refused
        or fails.
        """
        flags = command_line.round_flags(self.args, self.args.round, **LOOK)
        script = OwnScript(self)
        timeout = f"--timeout={self.args.timeout}"
        command = [script.python, *script.command, "--look", timeout, *flags]
        if profiles:
            command.append(f"--trace={self.trace}")
        environment = script.environment(
            SUITE_ID="look",
            # Shows the kernels within C++ that Inductor has compiled.
            TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE="1" if profiles else "0",
        )
        done = run_group(command, environment)
        if done.returncode in (INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt

        answers = self._answers()
        if done.returncode or not answers or answers[0]["status"] != "ok":
            reason = answers[0]["reason"] if answers else done.stderr.strip().rpartition("\n")[2]
            if done.returncode < 0 or not reason:
                reason = why_ended(done.returncode)
            raise UserError(f"{self.base.script}: {reason}")

        self.look = answers[0]["look"]
        self.write_spec()

    def identity(self, ladder):
        """Return a text that is the same for all suites that may resume one another.

        It does not name the ladder's scripts, as a suite continues without switches that failed.
        """
        base = self.base
        modules = sorted(Path(__file__).parent.glob("*.py"))
        sources = [file.read_text() for file in filter(paths.is_script, modules)]
        return "\0".join([base.name, self.look["version"], base.python, base.folder, *sources])

    def collect(self, suite_id):
        """Append the rows of runs that have ended."""
        for answer in self._answers():
            if answer["status"] == "ok":
                rows_file.append(self.args.results_file, answer["rows"], answer["record"])
            elif answer["status"] != "refused":
                self._append_end(answer["columns"], answer["reason"], suite_id)

    def record_end(self, script, status, reason, flags, suite_id):
        """Append the row of a run that has ended without an answer."""
        settings = Parser("record_end", "", *RUN_SETTINGS).parse_args(flags)
        columns = {
            "run_id": rows_file.run_id(datetime.now(UTC)),
            "round": settings.round,
            "seed": settings.seed,
            "technique": script.name,
            "status": status,
        }
        self._append_end(columns | vars(script.identity), reason, suite_id)

    def _append_end(self, columns, reason, suite_id):
        """Append the row and the record of a run without timing.

        columns: those that differ between such runs.
        """
        technique = columns["technique"]
        reason = printable(reason)
        status = columns["status"].replace("_", " ")
        print(f"{columns['change'] or technique}: {status}: {reason}", file=sys.stderr)
        row = self.look["row"] | columns | {"note": reason}

        record = self.look["record_of_end"] | columns | {"suite_id": suite_id, "notes": [reason]}
        record["command"] = [technique, *self.base.arguments]
        record["settings"] |= {
            "steps": self.args.steps,
            "warmup": self.args.warmup,
            "seed": columns["seed"],
        }
        rows_file.append(self.args.results_file, [row], record)

    def _answers(self):
        """Return the answers of runs that have ended, and remove their files."""
        answers = []
        for path in sorted((self.folder / "answers").glob("*.json")):
            answers.append(json.loads(path.read_text()))
            path.unlink()
        return answers


@contextmanager
def script_look(args, profiles=False):
    """Yield the OwnRuns of the script that a command's settings name, after its first run.

    profiles: trace further steps in that run. Raises UserError if the script cannot be measured.
    """
    base = find(args.base, args)
    rows_file.check(args.results_file)
    print(f"{base.name}: runs alone for {LOOK['steps']} steps, to be looked at", file=sys.stderr)

    runs = OwnRuns(base, args)
    try:
        runs.look_at(profiles)
        yield runs
    finally:
        runs.close()
