"""Commands of the project, run on the virtual GPU, and what they left behind.

An outcome is kept under a key of all that decides it: the command, the card, the environment, the
virtual GPU's sources and those of the project that the command runs. So a second run
takes only what has changed.
"""

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from Utils.base.paths import CACHE, ROOT
from Utils.results import rows_file

HERE = Path(__file__).parent
KEPT = CACHE / "virtual_gpu"
LIMIT_S = 1800  # of one process
NOT_OF_A_RUN = ("analysis", "commands", "draw")  # of Utils
COUNTED = ("stream_syncs", "device_syncs", "event_syncs", "blocking_copies")


@dataclass(frozen=True)
class Command:
    """What is run: arguments of Python, or of make where the first is "make".

    profile: of driver/profiles.h. variables: more of the environment, as (name, value) pairs.
    emulated: whether operators compute, on the CPU. kills: a rank that is ended by force.
    """

    arguments: tuple
    profile: str = "h100"
    variables: tuple = ()
    emulated: bool = False
    kills: int | None = None


@dataclass
class Outcome:
    """What a command left.

    That is its exit code, its seconds, the end of its output, and whether that has a traceback; the
    last row of the results file and the number of rows; the record; the counts of each step; for
    each run its technique, status, rows and quality, and for each process with such a run the
    counts of its steps; the summary of `make profile`; the signatures of kernels.
    """

    code: int
    seconds: float
    output: str
    traceback: bool
    row: dict = field(default_factory=dict)
    rows: int = 0
    record: dict = field(default_factory=dict)
    counts: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    processes: list = field(default_factory=list)
    profile: dict = field(default_factory=dict)
    signatures: dict = field(default_factory=dict)

    def per_step(self, warmup, counts=None):
        """Return (launches, synchronizations, pageable copies) of each timed step.

        counts: those of a process; by default those of the command itself.
        """
        return [
            (
                step["launches"] + step["graph_launches"],
                sum(step[name] for name in COUNTED),
                step["h2d_pageable"] + step["d2h_pageable"],
            )
            for step in (counts or self.counts)[warmup:]
        ]


class Machine:
    """One environment's Python with its libraries."""

    def __init__(self, python, libraries):
        self.python, self.libraries = python, libraries
        self.packages = (python.parents[1] / "installed").read_text()

    def run(self, command):
        """Return the Outcome of a command, from an earlier run if one was kept.

        A check that finds a problem calls `forget`, so that it is not kept.
        """
        file = self._file(command)
        if file.exists():
            return Outcome(**json.loads(file.read_text()))
        outcome = self._run(command)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(outcome)))
        return outcome

    def forget(self, command):
        self._file(command).unlink(missing_ok=True)

    def _file(self, command):
        ours = [Path(__file__), *(HERE / "driver").iterdir()]
        ours += [*(HERE / "emulation").glob("*.*"), *(HERE / "names").glob("*.py")]
        files = [*sorted(ours), *sources(command.arguments)]
        digest = hashlib.sha256(repr((command, self.packages)).encode())
        for file in files:
            digest.update(file.read_bytes())
        return KEPT / "kept" / f"{digest.hexdigest()[:24]}.json"

    def environment(self, command, folder):
        """Variables under which a command finds the virtual GPU in place of a driver."""
        caches = KEPT / self.python.parents[1].name
        variables = os.environ | {
            "LD_PRELOAD": str(self.libraries / "libcuda.so.1"),
            "LD_LIBRARY_PATH": str(self.libraries),
            "TRITON_LIBCUDA_PATH": str(self.libraries),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str((folder if self._has_kernels(command) else caches) / "triton"),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "VIRTUAL_GPU_PROFILE": command.profile,
            "VIRTUAL_GPU_MACHINE": str(folder / "machine"),
            "VIRTUAL_GPU_TRACE": str(folder / "trace"),
            **dict(command.variables),
        }
        for name in ("CUDA_VISIBLE_DEVICES", "SUITE_ID", "RANK", "WORLD_SIZE"):
            variables.pop(name, None)
        folders = [HERE / "names"]
        if command.emulated:
            folders.append(HERE / "emulation")
            variables["VIRTUAL_GPU_EMULATION"] = str(self.libraries / "libemulation.so")
        variables["PYTHONPATH"] = os.pathsep.join(map(str, folders))
        return variables

    def _has_kernels(self, command):
        """Whether a script has kernels of its own: they are compiled anew, to see of what types."""
        return "@triton.jit" in _script(command.arguments).read_text()

    def _run(self, command):
        with tempfile.TemporaryDirectory(prefix="virtual-gpu-") as name:
            folder = Path(name)
            first, *rest = command.arguments
            results = folder / "results.csv"
            if first == "make":
                line = ["make", "-s", *rest, f"PYTHON={self.python}", f"RESULTS_FILE={results}"]
            else:
                line = [str(self.python), first, *rest, "--results-file", str(results)]
            start = time.monotonic()
            with open(folder / "output", "w+") as output:
                process = subprocess.Popen(
                    line,
                    cwd=ROOT,
                    env=self.environment(command, folder),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                if command.kills is not None:
                    _kill_rank(process, command.kills, folder)
                try:
                    code = process.wait(LIMIT_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    code = process.wait()
            seconds = time.monotonic() - start
            return _outcome(folder, code, seconds, process.pid)


def _kill_rank(process, rank, folder):
    """Ends a rank of a run under way with SIGKILL, once it has recorded steps on its device."""
    import psutil  # noqa: PLC0415  (nothing else needs it)

    while process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                own = child.environ().get("RANK") == str(rank)
                if own and "step 1/" in (folder / "output").read_text():
                    return child.kill()
            except psutil.Error:
                continue
        time.sleep(0.2)


def _outcome(folder, code, seconds, pid):
    text = (folder / "output").read_text(errors="replace")
    outcome = Outcome(code, round(seconds, 1), text[-20_000:], "Traceback (most recent" in text)
    results = folder / "results.csv"
    if results.exists():
        rows = rows_file.read_as_texts(results)
        outcome.rows = len(rows)
        outcome.row = rows[-1] if rows else {}
        rows_of = {}
        for row in rows:
            rows_of.setdefault(row["run_id"], []).append(row)
        records = rows_file.read_records(results, rows_of)
        for run_id, of_run in rows_of.items():
            outcome.record = records.get(run_id, {})
            columns = ("technique", "status", "note", "peak_memory_mib")
            facts = {name: of_run[-1][name] for name in columns}
            quality = outcome.record.get("quality") or {}
            outcome.runs.append(facts | {"rows": len(of_run), "quality": quality})
        outcome.record.pop("source", None)
    trace = folder / f"trace.{pid}"
    if trace.exists() and outcome.rows:  # the harness asks for its steps last
        lines = trace.read_text().splitlines()[-outcome.rows :]
        outcome.counts = [json.loads(line) for line in lines]
    if len(outcome.runs) > 1:
        steps = max(run["rows"] for run in outcome.runs)
        texts = [file.read_text().splitlines() for file in folder.glob("trace.*")]
        outcome.processes = [[json.loads(line) for line in text[-steps:]] for text in texts]
    for file in folder.glob("profiles/*.json"):
        outcome.profile = json.loads(file.read_text()).get("profile", {})
    for file in folder.glob("triton/*/*_kernel.source"):
        outcome.signatures[file.stem] = _signature(file.read_text())
    return outcome


def _signature(source):
    """The types of a kernel's arguments, as Triton has compiled it: ["*bf16", "*i64", ...]."""
    arguments = source.partition("tt.func public")[2].partition(") attributes")[0]
    types = [part.partition(": ")[2].split()[0].rstrip(",") for part in arguments.split("%")[1:]]
    return [kind.replace("!tt.ptr<", "*").rstrip(">") for kind in types]


# What a command can import -----------------------------------------------------------------------


@cache
def sources(arguments):
    """Return the project's files that decide what a command does, sorted.

    For a script these are its own file and the rooms of Utils that a run imports; for a command of
    make all of them.
    """
    utils = [file for file in (ROOT / "Utils").rglob("*.*") if file.suffix in (".py", ".toml")]
    tools = [file for file in (ROOT / "tools").rglob("*.*") if file.suffix in (".py", ".toml")]
    scripts = {*ROOT.glob("*.py"), *(ROOT / "beyond").glob("**/*.py")}
    if arguments[0] == "make" or arguments[1] == "Utils.commands":
        files = {ROOT / "Makefile", *scripts, *utils, *tools}
        files |= {*(ROOT / "tests").glob("*.py")} if "gpu-check" in arguments else set()
        return sorted(files)
    script = _script(arguments)
    files = {file for file in utils if file.parts[len(ROOT.parts) + 1] not in NOT_OF_A_RUN}
    if "trials" in script.read_text():  # it runs another technique's script
        files |= scripts
    return sorted({script, *files})


def _script(arguments):
    """The file that a command runs; make's own where make is run."""
    if arguments[0] != "-m":
        return ROOT / ("Makefile" if arguments[0] == "make" else arguments[0])
    module = ROOT.joinpath(*arguments[1].split("."))
    return module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
