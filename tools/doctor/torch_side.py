"""Checks that import torch, run in a subprocess because they may crash or hang.

    .venv/bin/python -m tools.doctor.torch_side SETTINGS

Each answer is printed at once, as a line of JSON.
"""

import importlib.util
import itertools
import json
import os
import re
import sys
import sysconfig
import textwrap
from argparse import Namespace
from dataclasses import asdict, replace

import torch

import Utils.run  # noqa: F401  (imports everything that a script imports)
from tools.doctor import gpu_driver
from tools.doctor.examination import PIP, REQUIREMENTS, Finding, TechniqueStatus, ask, fault, ok
from Utils.base import child, paths
from Utils.base.errors import Unsupported, UserError, first_line
from Utils.base.units import GIB
from Utils.device import capabilities, cpu, cuda, mps
from Utils.harness import settings
from Utils.harness.run_record import SLOWDOWNS
from Utils.scripts import ladder

GET_STARTED = "see https://pytorch.org/get-started"
# The gain is from docs/published.csv.
CUDA_13 = "install torch from the cu130 index; a GB10 gained 2.9x by it after cu128 (autoresearch)"
# From the support matrices of torch 2.11 to 2.14.
CUDA_12 = "install torch 2.11 to 2.14 from the cu126 index: no other has code for GPUs below 7.5"


def toolkit():
    """Return the toolkit of torch's build: "CUDA 13.0", "ROCm 7.0", or "" if it has none."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else ""


def torch_build(args):
    """Name the version of torch, and what it is built for."""
    yield ok("torch", f"{torch.__version__}, built for {toolkit() or 'CPUs only'}")


def machine_code(gpu):
    """Return (a sentence on machine code for a GPU that torch lacks, remedy), or ("", "")."""
    names = gpu.cuda.get_arch_list()
    code = "sm_{}{}".format(*gpu.capability)
    is_amd = "sm_80" not in names
    runs_sm_86_code = code == "sm_89" and "sm_86" in names  # as fast as its own
    if is_amd or code in names or runs_sm_86_code:
        return "", ""

    remedy = f"a newer wheel may have it: {GET_STARTED}"
    if gpu.capability < (7, 5):
        remedy = CUDA_12
    elif toolkit() < "CUDA 13":
        remedy = CUDA_13
    return f"torch has no {code} code, but {', '.join(names)}", remedy


def driver(args):
    """Check that torch sees the NVIDIA GPUs of this machine, or find out why not."""
    count, error = gpu_driver.visible_gpus()
    gpu_name, version, newest_cuda = gpu_driver.gpus_of_driver()
    text = version or "none of NVIDIA"
    if count or not version:
        yield ok("driver", f"{text}; torch sees {count} GPUs")
        return

    newest = ""
    if newest_cuda:
        newest = "{}.{}".format(*newest_cuda)
        text += f", up to CUDA {newest}"

    # The first of these reasons that applies, with its remedy.
    built_for = toolkit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    reason = error
    remedy = "run nvidia-smi; install a newer driver, or reboot after an update of it"
    if not built_for.startswith("CUDA"):
        reason = f"torch {torch.__version__} is not built for CUDA"
        suitable = f"CUDA {newest} or older" if newest else "CUDA"
        remedy = f"install torch for {suitable}: {GET_STARTED}"
    elif visible is not None and "No CUDA GPUs" in error:
        reason = f"CUDA_VISIBLE_DEVICES={visible!r} hides it"
        remedy = "unset CUDA_VISIBLE_DEVICES"
    elif version == gpu_driver.KERNEL_MODULE:
        reason = f"this environment cannot reach it: {error}"
        remedy = "start the container with --gpus all; otherwise run nvidia-smi"

    yield fault("driver", f"{text}, for {gpu_name or 'an NVIDIA GPU'}; {reason}", remedy)


def device(args):
    """Check that the device of the run can compute, and leave it in args.hardware."""
    try:
        vars(args).update(vars(settings.resolve(args)))
    except UserError as error:
        remedy = error.remedy or f"run {paths.COMMAND} to list valid values"
        yield fault("settings", error.message, remedy, "run")
        return
    except Exception as error:  # from the driver
        yield fault("device", first_line(error), "run nvidia-smi", "run")
        return

    chosen = args.hardware
    on_cuda = isinstance(chosen, cuda.CUDA)
    text = f"{chosen.name}, {chosen.memory_bytes / GIB:.1f} GiB"
    capability = chosen.describe().get("capability")
    if capability:
        text += f", {'compute capability ' if on_cuda else ''}{capability}"
    yield ok("device", text)

    problem = gpu_driver.try_out(chosen)
    if problem:
        remedy = "run nvidia-smi" if on_cuda else REQUIREMENTS
        if re.search("no kernel image|invalid device function", problem):  # CUDA's, ROCm's words
            _, remedy = machine_code(chosen)
            remedy = remedy or f"install a build of torch with code for this GPU: {GET_STARTED}"
        yield fault("device", f"first product failed: {problem}", remedy, "run")


def gpu(args):
    """Check other processes on the GPU, its machine code, and what limits its clocks."""
    if not isinstance(args.hardware, cuda.CUDA):
        return
    remedy = "end it before measuring: it shares memory and time"
    for process in args.hardware.other_processes:
        yield ok("gpu", f"{process} also uses this GPU", remedy)

    text, remedy = machine_code(args.hardware)
    if text:
        yield ok("gpu", text, remedy)

    readings = args.hardware.readings()
    if not readings:
        text = "NVML does not answer: power, temperature and other processes are unknown"
        yield ok("gpu", text, f"{PIP} nvidia-ml-py")
        return
    limits = readings.get("throttle_reasons") or []
    text = f"clocks limited by {', '.join(limits)}" if limits else "clocks not limited"
    is_slowed = not set(limits).isdisjoint(SLOWDOWNS)
    yield ok("gpu", text, "improve cooling or the power supply" if is_slowed else "")


def compilers(args):
    """Check that the compiler that torch.compile needs can compile a small source."""
    if isinstance(args.hardware, mps.MPS):
        return  # macOS includes Metal's compiler

    # Inductor needs C++ for a CPU; Triton needs C.
    on_cpu = isinstance(args.hardware, cpu.CPU)
    language = "C++" if on_cpu else "C"
    package = "g++" if on_cpu else "gcc"
    blocks = ["compile"] if on_cpu else ["compile", "triton"]
    remedy = f"apt-get install {package} python3-dev, or the equivalent"
    compiler = capabilities.compiler(language)
    if not compiler:
        yield fault("compiler", f"no {language} compiler on PATH", remedy, *blocks)
        return

    flags = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-include", "Python.h"]
    if on_cpu and sys.platform != "darwin":  # Apple's compiler has another flag for it
        flags += ["-include", "omp.h", "-fopenmp"]
    command = [compiler, *flags, "-x", language.lower(), os.devnull, "-o", os.devnull]

    done = child.run(command, timeout=20)
    if done.code != 0:
        errors = re.findall(".*error.*", done.errors, re.I)
        problem = errors[0].strip() if errors else done.reason
        yield fault("compiler", f"{compiler} cannot compile: {problem}", remedy, *blocks)
    else:
        yield ok("compiler", f"{compiler} compiles {language} with Python's headers")


def native_packages(args):
    """Check packages with native code. Each is announced, as importing it may end the process."""
    modules = {"torchao": "torchao.float8", "bitsandbytes": "bitsandbytes.cextension"}
    if isinstance(getattr(args, "hardware", None), cuda.CUDA) and capabilities.compiler("C"):
        # Otherwise it is not used, or cannot be tried.
        modules = {"triton": "triton.runtime"} | modules

    for name, module_name in modules.items():
        blocks = ["compile", "triton"] if name == "triton" else [name]
        if importlib.util.find_spec(name) is None:
            yield fault(name, "not installed", f"{PIP} {name}", *blocks)
            continue

        remedy = f"{PIP} --force-reinstall {name}, in a version for this torch"
        announced = Finding(name, "cannot be used", "asking", remedy, blocks)
        yield announced
        try:
            module = importlib.import_module(module_name)
            if name == "triton":
                module.driver.active.get_current_target()
            if name == "bitsandbytes" and module.BNB_BACKEND not in ("CPU", "XPU"):
                # A native library that could not be loaded raises at its first call only.
                text = vars(module.lib).get("error_msg")
                if text:
                    raise ImportError(f"its native library: {text}")
        except BaseException as error:
            problem = textwrap.shorten(f"{type(error).__name__}: {first_line(error)}", 200)
            yield replace(announced, state="fault", what=f"{announced.what}: {problem}")
        else:
            yield ok(name, "can be used")


def processor(args):
    """Check the load of the usable cores, and that torch has no more threads than cores."""
    count = torch.get_num_threads()
    cpus = cpu.usable_cpus()
    load = os.getloadavg()[0]
    remedy = ""
    if count > cpus:
        remedy = f"set OMP_NUM_THREADS={max(1, int(cpus))}"
    elif load > cpus / 2:
        remedy = "stop other programs before measuring: they share the CPU"
    text = f"torch uses {count} threads for {cpus:g} CPUs, whose 1-minute load is {load:.1f}"
    yield ok("processor", text, remedy)


def techniques(args):
    """Return the TechniqueStatus of each script."""
    scripts = ladder.repository(capabilities.precision(args.hardware))
    return [judge(script, scripts.scripts.get(script.parent), args) for script in scripts]


def judge(technique, parent, args):
    """Return the TechniqueStatus of a technique, by the checks that a run of it makes.

    A need without effect here is reported for the technique that adds it to its parent, which may
    be None; an emulated need for all that have it. args: Settings with device and shape.
    """
    status = "runs"
    reason = technique.misfit
    notes = [technique.note]
    for need in technique.needs:
        try:
            note = settings.check_need(need, args)
        except (Unsupported, UserError) as error:  # it would end the run
            reason = str(error)
            break
        notes.append(str(note))
        inherited = parent is not None and need in parent.needs
        if isinstance(note, capabilities.Emulated):
            status = "emulated"
        elif isinstance(note, capabilities.WithoutEffect) and status == "runs" and not inherited:
            status = "runs without effect"

    needs = [need.removeprefix("package ") for need in technique.needs]
    if reason:
        return TechniqueStatus(technique.name, "unsupported", reason, needs)
    notes = [*filter(None, dict.fromkeys(notes))]
    return TechniqueStatus(technique.name, status, needs=needs, notes=notes)


def main():
    """Print the answers of all checks, and exit without cleaning up."""
    args = Namespace(**json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    remedy = "run nvidia-smi, or use DEVICE=cpu"
    need_device = (gpu, compilers, techniques)

    # Native packages are last, as they crash more often.
    for probe in (torch_build, processor, driver, device, *need_device, native_packages):
        if probe in need_device and not hasattr(args, "hardware"):
            continue
        topic = probe.__name__.replace("_", " ")
        announced = Finding(topic, "the check crashed", "asking", remedy, ("run",))
        for answer in itertools.chain([announced], ask(probe, args)):
            print(json.dumps(asdict(answer)), file=answers, flush=True)

    os._exit(0)  # libraries may crash when they are unloaded


if __name__ == "__main__":
    main()
