"""A user's own script, unchanged, as the base of a ladder: looked at once, and run with switches.

The measured process runs in the environment of the script and hands over what it saw as a file of
JSON; this side writes the rows."""

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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from Utils.analysis import attribution
from Utils.base import command_line, files, paths
from Utils.base.errors import UserError, naming
from Utils.launch.turn_taking import INTERRUPTED, why_ended
from Utils.results import rows_file
from Utils.scripts import own_names

FOLDER = paths.CACHE / "own_scripts"
ENTRY = paths.ROOT / "tools" / "own_script" / "start.py"
LOOK = {"steps": 6, "warmup": 3, "min_seconds": 0}
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3")
OF_A_TIMING = ("step", "phase", "step_ms", "data_ms", "loss", "held_out_loss", "grade")
OF_A_TIMING += ("first_step_s", "peak_memory_mib", "reserved_memory_mib")


@dataclass(frozen=True)
class Base:
    """A script of the user's. name: of its rows. script: its path, or a module's name. folder: in
    which it starts. arguments: its own. python: of its environment. writes: it may change files."""

    name: str
    script: str
    is_module: bool
    file: str
    folder: str
    arguments: list
    python: str
    writes: bool


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
        """Return the environment of the script: the user's, without what make adds."""
        environment = {n: x for n, x in os.environ.items() if n not in ("MAKEFLAGS", "MAKELEVEL")}
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.kernels("inductor")))
        environment.setdefault("TRITON_CACHE_DIR", str(paths.kernels("triton")))
        return {**environment, "OWN_SITE_PACKAGES": sysconfig.get_path("platlib"), **more}


def find(text, args):
    """Return the Base of a path, of "-m module", or of the name of one that was run before. args:
    with folder, args, base_python and writes. Raises UserError."""
    words = shlex.split(text)
    if words and Path(words[0]).name in LAUNCHERS:
        raise UserError(f"BASE={text}: is a command", "give the script alone; ranks are not run")
    folder = Path(args.folder).expanduser().resolve() if args.folder else None
    names = files.read_json(FOLDER / "names.json") or {}  # of scripts that were run before
    is_module = words[:1] == ["-m"] and len(words) == 2
    if is_module:
        script = words[1]
        folder = folder or Path.cwd()
        file = folder.joinpath(*script.split("."))
        file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
        stem = script.rpartition(".")[2]
    else:
        path = Path(text).expanduser()
        example = paths.ROOT / "examples" / f"{text}.py"
        candidates = [path, Path(f"{path}.py"), example, Path(names.get(text, text))]
        files_there = [candidate.resolve() for candidate in candidates if candidate.is_file()]
        if not files_there:
            raise UserError(f"BASE={text}: there is no such script", "give its path")
        file = files_there[0]
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
    if re.search(r"[+,\n]", stem):
        raise UserError(f"{file}: its name has a + or a comma", "rename the file")
    taken = Path(names.get(stem, file)) != file and Path(names[stem]).exists()
    is_ours = own_names.split(stem) is None
    name = f"{file.parent.name}/{stem}" if taken or is_ours else stem
    if names.get(name) != str(file):
        with suppress(UserError):  # then the next command needs the path again
            files.write_json(FOLDER / "names.json", names | {name: str(file)})
    arguments = shlex.split(args.args)
    writes = bool(args.writes)
    return Base(name, script, is_module, str(file), str(folder), arguments, python, writes)


class OwnRuns:
    """The runs of one command. args: its settings. look: what a first run of the script saw."""

    def __init__(self, base, args):
        self.base = base
        self.args = args
        self.look = {}
        runs = FOLDER / "runs"
        with naming(runs, "set CACHE_DIR to another folder"):
            runs.mkdir(parents=True, exist_ok=True)
            for left_over in runs.glob("*-*-*"):
                node, pid, _ = left_over.name.rsplit("-", 2)
                if node == platform.node() and not psutil.pid_exists(int(pid)):  # it was killed
                    shutil.rmtree(left_over, ignore_errors=True)
            prefix = f"{platform.node()}-{os.getpid()}-"
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=runs))
            (self.folder / "answers").mkdir()
        self.spec = self.folder / "spec.json"
        self.trace = self.folder / "trace.json.gz"
        self.write_spec()

    def close(self):
        """Remove the folder of these runs. Return the new files of the script, sorted."""
        lines = []
        with suppress(OSError):
            lines = (self.folder / "created.txt").read_text().splitlines()
        shutil.rmtree(self.folder, ignore_errors=True)
        return sorted({path for path in lines if Path(path).is_file()})

    def write_spec(self):
        switches = self.look.get("switches", {})
        models = self.look["record"]["own_script"]["models"] if self.look else []
        spec = vars(self.base) | {
            "commit": paths.commit(),
            "runs": str(self.folder),
            "flop": self.look.get("flop") or None,
            "lines": {name: switch["lines"] for name, switch in switches.items()},
            "methods": [name.split(".") for name, _ in models if "." in name],
            "random_samples": any(loader["random"] for loader in self.look.get("loaders", ())),
        }
        files.write_json(self.spec, spec)

    def look_at(self, trace=None):
        """Run the script alone for a few steps, and keep what was seen. trace: a file for that of
        further steps under the profiler. Raises UserError where it is refused or fails."""
        flags = command_line.round_flags(self.args, self.args.round, **LOOK)
        script = OwnScript(self.base.name, self)
        command = [script.python, *script.command, "--look", *flags]
        command += [f"--trace={trace}"] if trace else []
        # Else C++ that Inductor has compiled is one dark stretch of the trace.
        kernels = str(int(bool(trace)))
        more = {"SUITE_ID": "look", "TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": kernels}
        environment = script.environment(**more)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode in (INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        answers = self._answers()
        if done.returncode or not answers or answers[0]["status"] != "ok":
            said = answers[0]["reason"] if answers else done.stderr.strip().rpartition("\n")[2]
            if done.returncode < 0 or not said:
                said = why_ended(done.returncode)
            raise UserError(f"{self.base.script}: {said}")
        (answer,) = answers
        self.look = answer["look"] | {"row": answer["rows"][0], "record": answer["record"]}
        self.look["version"] = answer["version"]
        self.write_spec()

    def identity(self):
        """Return what suites to be resumed have in common."""
        return "\0".join([self.base.name, self.look["version"], self.base.python, self.base.folder])

    def ladder(self, wanted=own_names.LADDER, left_out=(), without=()):
        """Return the scripts of a ladder: the base, and each switch on those before it that are not
        refused; then each of MORE on the end of it.
        wanted: names of techniques. left_out: those that the next ones go on without. without:
        those among them that are no scripts either."""
        base = self.base.name
        scripts = [OwnScript(base, self)]
        effective = []
        for technique in own_names.ORDER:
            if technique not in wanted or technique in without:
                continue
            if technique == "float16" and self.look["bfloat16"]:
                continue
            before = [t for t in effective if t not in own_names.REPLACES.get(technique, ())]
            name = own_names.name_of(base, [*before, technique])
            parent = own_names.name_of(base, before if technique in own_names.LADDER else effective)
            switch = self.look["switches"][technique]
            refusal = switch["refusal"]
            scripts.append(OwnScript(name, self, parent, refusal, tuple(switch["needs"])))
            goes_on = technique in own_names.LADDER and technique != "8bit_optimizer"
            if goes_on and not refusal and technique not in left_out:
                effective.append(technique)
        return scripts

    def ablation(self):
        """Return (name, scripts): the name of the script with all switches of the ladder, and the
        scripts to run. Raises UserError where no switch can be thrown."""
        base = self.base.name
        rungs = [script for script in self.ladder(own_names.LADDER[:-1]) if not script.refusal]
        last_rung = rungs[-1].name
        if last_rung == base:
            raise UserError(f"no switch of the ladder has an effect on {base}", "see make adopt")
        scripts = {script.name: script for script in rungs}
        for name in attribution.plan(last_rung):
            several = name.count("+") > 1  # beside the whole, which it is left out of
            parent = last_rung if several else base
            scripts.setdefault(name, OwnScript(name, self, parent))
        return last_rung, list(scripts.values())

    def collect(self, suite):
        """Append the rows of the runs that have ended."""
        for answer in self._answers():
            if answer["status"] == "ok":
                rows_file.append(self.args.results_file, answer["rows"], answer["record"])
            elif answer["status"] != "refused":
                self.write_end(suite, **answer)

    def write_end(self, suite, technique, status, reason, round, seed=None, run_id=None):
        """Append the row of a run without timing. seed, run_id: of one that has started."""
        print(f"{technique}: {status.replace('_', ' ')}: {reason}", file=sys.stderr)
        run_id = run_id or rows_file.run_id(datetime.now(UTC))
        of_run = {"technique": technique, "status": status, "round": round, "run_id": run_id}
        seed = self.args.seed + round if seed is None else seed
        no_timing = dict.fromkeys(OF_A_TIMING) | {"note": reason, "seed": seed}
        row = self.look["row"] | no_timing | of_run
        record = self.look["record"] | of_run | {"suite": suite, "notes": [reason]}
        asked = {name: getattr(self.args, name) for name in ("steps", "warmup")}
        record["settings"] = record["settings"] | asked
        for name in ("memory", "quality", "compile", "limits", "own_script"):
            record.pop(name, None)
        rows_file.append(self.args.results_file, [row], record)

    def _answers(self):
        """Return the answers of ended runs, and remove them."""
        answers = []
        for path in sorted((self.folder / "answers").glob("*.json")):
            answers.append(json.loads(path.read_text()))
            path.unlink()
        return answers


@contextmanager
def looked_at(args, profiles=False):
    """Yield the OwnRuns of the script that a command's settings name, after a look at it. profiles:
    with a trace of further steps. Raises UserError where it cannot be measured."""
    base = find(args.base, args)
    rows_file.check(args.results_file)
    print(f"{base.name}: runs alone for {LOOK['steps']} steps, to be looked at", file=sys.stderr)
    runs = OwnRuns(base, args)
    try:
        runs.look_at(runs.trace if profiles else None)
        yield runs
    finally:
        if created := runs.close():
            more = f" and {len(created) - 5} more" if len(created) > 5 else ""
            print(f"new files of {base.name}: {', '.join(created[:5])}{more}", file=sys.stderr)
