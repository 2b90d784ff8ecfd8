"""A user's own script, unchanged, as the base of a ladder: found, looked at once, and run with the
switches of `own_script`.

The measured process runs in the environment of the script and hands over what it saw as a file of
JSON; this side writes the rows.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from Utils.analysis import attribution
from Utils.base import command_line, files, git, paths
from Utils.base.errors import UserError, naming
from Utils.results import rows_file
from Utils.scripts import own_names
from Utils.scripts.own_names import LADDER, REPLACES

FOLDER = paths.CACHE / "own_scripts"
ENTRY = paths.ROOT / "Utils" / "own_script" / "start.py"
LOOK = {"steps": 6, "warmup": 3, "min_seconds": 0}
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3")


@dataclass(frozen=True)
class Base:
    """A script of the user's. name: of its rows. script: its path, or a module's name. folder: in
    which it starts. arguments: its own. python: of its environment."""

    name: str
    script: str
    file: Path
    folder: Path
    arguments: list
    python: str
    writes: bool = False

    @property
    def is_module(self):
        return not self.script.endswith(".py")


@dataclass(frozen=True)
class OwnScript:
    """A script with switches, as the suite runs it. refusal: why it is not run, or ""."""

    name: str
    runs: "OwnRuns"
    parent: str | None = None
    refusal: str = ""
    needs: tuple = ()
    code: str = ""

    @property
    def python(self):
        return self.runs.base.python

    @property
    def command(self):
        return [str(ENTRY), f"--spec={self.runs.spec}", f"--name={self.name}"]

    def environment(self, **more):
        return {**self.runs.environment(), **more}


def find(text, args):
    """Return the Base of a path, of "-m module", or of the name of one that was run before.

    args: with folder, args, base_python and writes. Raises UserError.
    """
    words = shlex.split(text)
    if words and Path(words[0]).name in LAUNCHERS:
        raise UserError(f"BASE={text}: is a command", "give the script alone; ranks are not run")
    folder = Path(args.folder).expanduser().resolve() if args.folder else None
    if words[:1] == ["-m"] and len(words) == 2:
        script = words[1]
        folder = folder or Path.cwd()
        file = folder.joinpath(*script.split("."))
        file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
        stem = script.rpartition(".")[2]
    else:
        file = _path(text)
        script = str(file)
        folder = folder or file.parent
        stem = file.stem
    if file.suffix == ".ipynb":
        remedy = f"jupyter nbconvert --to script {shlex.quote(str(file))} makes a script of it"
        raise UserError(f"{file}: is a notebook", remedy)
    with naming(file):
        file.read_bytes()
    if not folder.is_dir():
        raise UserError(f"FOLDER={folder}: there is no such folder")
    python = os.path.expanduser(args.base_python) or sys.executable
    if not shutil.which(python):
        raise UserError(f"BASE_PYTHON={python}: there is no such program")
    arguments = shlex.split(args.args)
    name = _remembered_name(stem, file)
    return Base(name, script, file, folder, arguments, python, bool(args.writes))


def _path(text):
    path = Path(text).expanduser()
    candidates = [path, path.with_name(f"{path.name}.py")]
    if path.name == text:
        candidates += [paths.ROOT / "examples" / f"{text}.py", *_remembered(text)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise UserError(f"BASE={text}: there is no such script", "give its path")


def _remembered(name):
    with suppress(OSError, ValueError, KeyError):
        return [Path(json.loads((FOLDER / "names.json").read_text())[name])]
    return []


def _remembered_name(stem, file):
    """Return the name of a script: its stem, with its folder where another script has that name."""
    if re.search(r"[+,\n]", stem):
        raise UserError(f"{file}: its name has a + or a comma", "rename the file")
    names = {}
    with suppress(OSError, ValueError):
        names = json.loads((FOLDER / "names.json").read_text())
    taken = Path(names.get(stem, file)) != file and Path(names[stem]).exists()
    ours = own_names.split(stem) is None
    name = f"{file.parent.name}/{stem}" if taken or ours else stem
    if names.get(name) != str(file):
        with suppress(UserError):  # then the next command needs the path again
            files.write_json(FOLDER / "names.json", names | {name: str(file)})
    return name


@dataclass
class OwnRuns:
    """The runs of one command. args: its settings. look: what a first run of the script saw."""

    base: Base
    args: object
    look: dict = field(default_factory=dict)

    def __post_init__(self):
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}"
        self.folder = FOLDER / "runs" / stamp
        self.spec = self.folder / "spec.json"
        (self.folder / "answers").mkdir(parents=True)

    def __enter__(self):
        self._write_spec()
        return self

    def __exit__(self, *error):
        created = self.created()
        if created:
            shown = ", ".join(created[:5]) + (f" and {len(created) - 5} more" * (len(created) > 5))
            print(f"new files of {self.base.name}: {shown}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)

    def created(self):
        """Return the paths of the files that the script has made."""
        with suppress(OSError):
            lines = (self.folder / "created.txt").read_text().splitlines()
            return sorted({path for path in lines if Path(path).is_file()})
        return []

    def _write_spec(self):
        base = self.base
        install = f"{base.python} -m pip install -c {paths.ROOT / 'requirements.txt'}"
        spec = {
            "base": base.name,
            "shown": base.script if base.is_module else base.file.name,
            "script": base.script,
            "file": str(base.file),
            "module": base.is_module,
            "argv": base.arguments,
            "folder": str(base.folder),
            "source": base.file.read_text(errors="replace"),
            "writes": base.writes,
            "commit": git.commit(),
            "cache": str(paths.CACHE),
            "answers": str(self.folder / "answers"),
            "scratch": str(self.folder / "scratch"),
            "created": str(self.folder / "created.txt"),
            "install": install,
            "flop": self.look.get("flop"),
            "lines": self.look.get("lines", {}),
            "random_samples": any(loader["random"] for loader in self.look.get("loaders", ())),
        }
        files.write_json(self.spec, spec)

    def environment(self):
        """Return the environment of the script: the user's, without what make adds."""
        environment = {n: x for n, x in os.environ.items() if n not in ("MAKEFLAGS", "MAKELEVEL")}
        kernels = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        for name, compiler in kernels.items():
            environment.setdefault(name, str(paths.kernels(compiler)))
        return environment | {"OWN_SITE_PACKAGES": sysconfig.get_path("platlib")}

    def look_at(self):
        """Run the script alone for a few steps, and keep what was seen. Raises UserError where it
        is refused or fails."""
        flags = command_line.round_flags(self.args, self.args.round, **LOOK)
        script = OwnScript(self.base.name, self)
        command = [script.python, *script.command, "--look", *flags]
        done = subprocess.run(
            command, env=script.environment(SUITE="look"), capture_output=True, text=True
        )
        if done.returncode < 0 or done.returncode == 130:
            raise KeyboardInterrupt
        answers = self._answers()
        if done.returncode or not answers or answers[0]["status"] != "ok":
            said = answers[0]["reason"] if answers else done.stderr.strip().rpartition("\n")[2]
            raise UserError(f"{self.base.script}: {said or 'ended without a word'}")
        (answer,) = answers
        self.look = answer["look"] | {"row": answer["rows"][0], "record": answer["record"]}
        self.look["version"] = answer["version"]
        self._write_spec()

    def identity(self):
        """Return what suites to be resumed have in common."""
        base = self.base
        return "\0".join([base.name, self.look["version"], base.python, str(base.folder)])

    def ladder(self, wanted=LADDER, left_out=(), without=()):
        """Return the scripts of a ladder: the base, and each switch on those before it that are not
        refused; then each of MORE on the end of it.

        wanted: names of techniques. left_out: those that the next ones go on without. without:
        those among them that are no scripts either.
        """
        base = self.base.name
        scripts = [OwnScript(base, self)]
        refusals = self.look["refusals"]
        no_bfloat16 = "compute capability" in refusals["brainFloat16"]
        effective = []
        for technique in own_names.ORDER:
            if technique not in wanted or technique in without:
                continue
            if technique == "float16" and not no_bfloat16:
                continue
            before = [t for t in effective if t not in REPLACES.get(technique, ())]
            name = own_names.name_of(base, [*before, technique])
            parent = own_names.name_of(base, before if technique in LADDER else effective)
            refusal = refusals[technique]
            needs = tuple(self.look["needs"][technique])
            scripts.append(OwnScript(name, self, parent, refusal, needs))
            goes_on = technique in LADDER and technique != "8bit_optimizer"
            if goes_on and not refusal and technique not in left_out:
                effective.append(technique)
        return scripts

    def ablation(self):
        """Return (whole, scripts): the name of the script with all switches of the ladder, and the
        scripts to run. Raises UserError where no switch can be thrown."""
        base = self.base.name
        rungs = [script for script in self.ladder(LADDER[:-1]) if not script.refusal]
        whole = rungs[-1].name
        if whole == base:
            raise UserError(f"no switch of the ladder has an effect on {base}", "see make adopt")
        scripts = {script.name: script for script in rungs}
        for name in attribution.plan(whole):
            several = name.count("+") > 1  # beside the whole, which it is left out of
            parent = whole if several else base
            scripts.setdefault(name, OwnScript(name, self, parent))
        return whole, list(scripts.values())

    def collect(self, suite):
        """Append the rows of the runs that have ended. Return the names with rows."""
        names = set()
        for answer in self._answers():
            if answer["status"] == "refused":
                continue
            if answer["status"] == "ok":
                rows_file.append(self.args.results_file, answer["rows"], answer["record"])
                names.add(answer["rows"][0]["technique"])
            else:
                self.write_end(answer, suite)
                names.add(answer["technique"])
        return names

    def write_end(self, answer, suite):
        """Append the row of a run without timing. answer: technique, status, reason, round, seed
        and run_id."""
        print(
            f"{answer['technique']}: {answer['status'].replace('_', ' ')}: {answer['reason']}",
            file=sys.stderr,
        )
        of_run = {name: answer[name] for name in ("technique", "status", "round", "run_id")}
        empty = dict.fromkeys(EMPTY)
        row = self.look["row"] | empty | of_run | {"note": answer["reason"], "seed": answer["seed"]}
        record = self.look["record"] | of_run | {"suite": suite, "notes": [answer["reason"]]}
        asked = {name: getattr(self.args, name) for name in ("steps", "warmup")}
        record["settings"] = record["settings"] | asked
        for name in ("memory", "quality", "compile", "limits", "own_script"):
            record.pop(name, None)
        rows_file.append(self.args.results_file, [row], record)

    def write_refusal(self, script, round_number, seed, suite):
        self._write(script.name, "unsupported", script.refusal, round_number, seed, suite)

    def write_failure(self, name, round_number, seed, suite, reason):
        self._write(name, "failed", reason, round_number, seed, suite)

    def _write(self, name, status, reason, round_number, seed, suite):
        run_id = rows_file.run_id(datetime.now(UTC))
        answer = {"technique": name, "status": status, "reason": reason, "round": round_number}
        self.write_end(answer | {"seed": seed, "run_id": run_id}, suite)

    def _answers(self):
        """Return the answers of ended runs, and remove them."""
        answers = []
        for path in sorted((self.folder / "answers").glob("*.json")):
            answers.append(json.loads(path.read_text()))
            path.unlink()
        return answers


@contextmanager
def looked_at(args):
    """Yield the OwnRuns of the script that a command's settings name, after a look at it.

    Raises UserError where it cannot be measured.
    """
    base = find(args.base, args)
    rows_file.check(args.results_file)
    print(f"{base.name}: runs alone for {LOOK['steps']} steps, to be looked at", file=sys.stderr)
    with OwnRuns(base, args) as runs:
        runs.look_at()
        yield runs


EMPTY = (
    "step",
    "phase",
    "step_ms",
    "data_ms",
    "loss",
    "held_out_loss",
    "grade",
    "first_step_s",
    "peak_memory_mib",
    "reserved_memory_mib",
)
