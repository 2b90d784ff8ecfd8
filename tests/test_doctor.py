"""Faults are made for real where possible; the rest is what probes say of answers of a system."""

import doctest
import json
import os
import re
import sys
import venv
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import processes
from tests.helpers.stand_ins import (
    FakeNvml,
    answer,
    arguments,
    busy_nvml,
    full_disk,
    gpu,
)
from tools.doctor import __main__ as doctor_command
from tools.doctor import examination, gpu_driver, torch_side
from tools.doctor.examination import Finding, TechniqueStatus
from Utils.base import paths
from Utils.base.units import MIB
from Utils.device.cpu import CPU
from Utils.harness import settings


def call(*flags, code, **environment):
    """The doctor's answers as a user gets them."""
    done = processes.python("-m", "tools.doctor", "--json", "--device=cpu", *flags, **environment)
    assert (done.returncode, done.stderr) == (code, "")
    return SimpleNamespace(**json.loads(done.stdout))


def faults_by_topic(findings):
    return {each["topic"]: each for each in findings if each["state"] == "fault"}


def test_doctor_says_the_truth_of_this_machine(tmp_path):
    """docs/DIAGNOSE.md: "`JSON=1` prints `findings` (`topic`, `what`, `state`"."""
    here = call(f"--results-file={tmp_path / 'results.csv'}", code=0)
    assert not list(tmp_path.iterdir())  # it leaves no trace
    said = {each["topic"]: each["what"] for each in here.findings}
    assert CPU().name in said["device"]
    assert said["torch"].startswith(torch.__version__) and sys.executable in said["python"]
    assert here.can_run and not {*faults_by_topic(here.findings)} - {"torchao", "bitsandbytes"}

    page = (paths.ROOT / "docs" / "DIAGNOSE.md").read_text()
    assert all(f"`{key}`" in page for key in here.findings[0] | here.techniques[0])


# Topic, what is wrong, what to do.
BROKEN = """\
cache | cache: Not a directory | set CACHE_DIR to another folder
compiler | no C++ compiler on PATH | apt-get install g++
bitsandbytes | cannot be used: killed by SIGSEGV | --force-reinstall bitsandbytes
torchao | cannot be used: OSError: libcudart.so.11.0 | --force-reinstall torch
"""
STUBS = {
    "torchao": "raise OSError('libcudart.so.11.0: cannot open shared object file')",
    "bitsandbytes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
}


def test_doctor_names_broken_parts_with_their_remedies(tmp_path):
    """README: "`make doctor` says why something does not run". All at once, each for real: no
    compiler, a cache that is a file, packages that crash.
    """
    file = tmp_path / "cache"
    file.touch()

    for package, code in STUBS.items():
        (tmp_path / f"{package}.py").write_text(f"print('noise')\n{code}\n")
    answers = call(
        code=0,
        CACHE_DIR=str(file),
        PATH=os.path.dirname(sys.executable),
        PYTHONPATH=str(tmp_path),
    )
    faults = faults_by_topic(answers.findings)
    for line in BROKEN.splitlines():
        topic, problem, remedy = line.split(" | ")
        assert problem in faults[topic]["what"] and remedy in faults[topic]["remedy"]
    compiled = {row["technique"]: row["status"] for row in answers.techniques}["torch_compile"]
    assert compiled == "unsupported"


def test_doctor_of_an_older_python_says_so():
    code = "import runpy, sys; sys.version_info = (2, 7); runpy.run_module('tools.doctor')"
    said = processes.python("-c", code).stderr
    assert f"{sys.executable} is older than Python 3.11; set PYTHON to a newer one" in said


def test_doctor_answers_where_packages_are_missing(tmp_path):
    venv.create(tmp_path, with_pip=False)
    results_file = f"RESULTS_FILE={tmp_path / 'results.csv'}"
    python = f"PYTHON={tmp_path / 'bin/python'}"
    done = processes.run("make", "-s", "doctor", python, "JSON=1", results_file)
    answers = json.loads(done.stdout)
    fault = faults_by_topic(answers["findings"])["torch"]
    assert "No module named" in fault["what"] and fault["blocks"] == ["run"]
    assert re.search(r"not installed: .*\bnumpy\b", answers["findings"][0]["what"])
    assert all(row["reason"].startswith("torch: ") for row in answers["techniques"])


def settled(device):
    return settings.resolve(arguments(), device)


def as_text(findings):
    """Findings as lines: state topic: what -> remedy; blocks."""
    line = "{0.state} {0.topic}: {0.what} -> {0.remedy}; {1}\n"
    return "".join(line.format(each, " ".join(each.blocks)) for each in findings)


def code_for(capability, toolkit, line):
    device = gpu(capability=capability)
    return "gpu", device, {TOOLKIT: toolkit}, f"{line}note gpu: NVML... -> ...; "


def driver(toolkit, gpus, error, line):
    seen = {"visible_gpus": (0, error), "gpus_of_driver": gpus}
    answers = {f"tools.doctor.gpu_driver.{name}": value for name, value in seen.items()}
    return "driver", "", answers | {TOOLKIT: toolkit}, line


FIND = "importlib.util.find_spec"
TOOLKIT = "tools.doctor.torch_side.toolkit"
A100 = "NVIDIA A100", "550.54", (12, 4)
LIBRARY = SimpleNamespace(error_msg="no CUDA 13.0\nmore")
BITSANDBYTES = SimpleNamespace(BNB_BACKEND="CUDA", lib=LIBRARY)

PROBES = [  # name, device or flags of the run, answers of the system, findings
    (
        "disk",
        "",
        {"shutil.disk_usage": SimpleNamespace(free=4 * MIB)},
        "fault cache: ...0.0 GiB... -> ...CACHE_DIR...; ",
    ),
    (
        "processor",
        "",
        {"torch.get_num_threads": 4, "Utils.device.cpu.usable_cpus": 4, "os.getloadavg": [2.5]},
        "note processor: ...2.5 -> ...; ",
    ),
    (
        "device",
        "",
        {
            "Utils.device.device_choice.choose": gpu(name="Tesla V100", capability=(7, 0)),
            "tools.doctor.gpu_driver.try_out": "no kernel image is available",
        },
        "ok device: Tesla V100, 74.5 GiB,... 7.0 -> ; \n"
        "fault device: ...no kernel image is available -> ...cu126...; run",
    ),
    (
        "gpu",
        gpu(busy_nvml()),
        {},
        "note gpu: pid 4711, 1,234 MiB... -> ...; \nnote gpu: ...hw thermal slowdown -> ...; ",
    ),
    code_for((7, 0), "CUDA 13.0", "note gpu: ...sm_70... -> ...cu126...; \n"),
    code_for((8, 9), "CUDA 12.8", ""),
    driver("CUDA 12.6", A100, "e", "fault ...CUDA 12.4, for NVIDIA A100; e -> ...driver...; "),
    driver(
        "CUDA 12.6",
        (None, gpu_driver.KERNEL_MODULE, None),
        "none",
        "fault ...: none -> ... --gpus all;...; ",
    ),
    (
        "compilers",
        CPU(),
        {"sysconfig.get_path": "/nowhere"},
        "fault compiler: ...Python.h:... -> ...g++ python3-dev...; compile",
    ),
    (
        "native_packages",
        gpu(),
        {FIND: 1, "importlib.import_module": BITSANDBYTES},
        "asking triton...\nfault triton: ...AttributeError... -> ...; compile triton\n"
        "asking torchao: ...\nok torchao: ...\nasking bitsandbytes: ...\n"
        "fault bitsandbytes: ...no CUDA 13.0 -> ...; bitsandbytes",
    ),
]


@pytest.mark.parametrize("probe, run, answers, text", PROBES)
def test_doctor_probe(probe, run, answers, text, monkeypatch):
    """docs/DIAGNOSE.md: "Each line is `ok`, a `note`, or a `FAULT` with its remedy". `...` stands
    for any text.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # as schedulers set it, always
    args = arguments(*run.split()) if isinstance(run, str) else settled(run)
    answer(monkeypatch, answers)
    probes = vars(examination) | vars(torch_side)
    said = as_text(examination.ask(probes[probe], args))
    assert doctest.OutputChecker().check_output(f"{text}\n", said, doctest.ELLIPSIS)


def test_doctor_probe_that_raises_is_a_note():
    def broken_part(args):
        yield Finding("a", "first")
        raise RuntimeError("many\nlines")

    said = as_text(examination.ask(broken_part, None))
    assert said == "ok a: first -> ; \nnote broken part: check failed: RuntimeError: many -> ; \n"


def test_doctor_asks_a_full_disk_and_leaves_nothing(tmp_path):
    assert examination.unwritable(tmp_path / "new" / "folder") == ""
    with full_disk(4096):
        assert examination.unwritable(tmp_path) == f"{tmp_path}: File too large"
    assert not list(tmp_path.iterdir())


def test_doctor_sees_the_drivers_gpus_without_torch():
    nvml = FakeNvml()
    assert gpu_driver.gpus_of_driver(nvml) == ("NVIDIA Fake", "580.95.05", (12, 4))
    del nvml.answers["DeviceGetHandleByIndex 0"]
    assert gpu_driver.gpus_of_driver(nvml, __file__)[1] == gpu_driver.KERNEL_MODULE
    assert gpu_driver.gpus_of_driver(nvml, "/nowhere") == (None, None, None)


T4 = gpu(name="Tesla T4", capability=(7, 5), memory_bytes=16e9)
TF32 = "TF32: no effect expected on this device"
NATIVE_BFLOAT16 = {"Utils.device.capabilities._has_bfloat16_kernels": True}
INSTALLED = {"shutil.which": "gcc", FIND: 1, "torch.backends.cudnn.version": 91_000}


@pytest.mark.parametrize(
    "name, device, answers, line",
    [
        ("brainFloat16", T4, INSTALLED, "runs in float16"),
        ("no_sync", T4, INSTALLED, "unsupported needs bfloat16: its diff has no place"),
        ("brainFloat16", CPU(), NATIVE_BFLOAT16, f"runs {TF32}"),
        ("cuda_graphs", CPU(), NATIVE_BFLOAT16, f"runs without effect {TF32}; asynchronous"),
        (
            "brainFloat16",
            CPU(),
            {"Utils.device.capabilities._has_bfloat16_kernels": False},
            f"emulated {TF32}; bfloat16: emulated",
        ),
    ],
)
def test_doctor_status_of_a_technique(name, device, answers, line, monkeypatch):
    """DIAGNOSE: "says whether the script runs, runs without effect, is emulated or is unsupported,
    and why". A need without effect counts against the script that adds it.
    """
    args = settled(device)
    answer(monkeypatch, answers)
    (row,) = (row for row in torch_side.techniques(args) if row.technique == name)
    said = f"{row.status} {'; '.join([row.reason, *row.notes][not row.reason :])}"
    assert said.startswith(line)


SHOWN = """\
FAULT  cache         word word word word word word word word
                     word word word word
                     -> make room
ok     torch         2.13

a_technique  unsupported
b            runs

- a_technique: why
- a_technique, b: TF32: no effect

1 of 2 scripts run here; more.
next: make smoke
"""


def test_doctor_shows_the_seven_and_beyond_on_request(capsys, monkeypatch):
    """DIAGNOSE: "each of the seven [...] has a row, with `ALL=1` those of beyond/ too"."""
    rows = [TechniqueStatus(name, "runs") for name in ("cuda_graphs", "no_optimization")]
    monkeypatch.setattr("tools.doctor.__main__.examine", lambda args: ([], [*rows]))
    doctor_command.main()
    assert capsys.readouterr().out.split()[0] == "no_optimization"
    doctor_command.main("ALL=1")
    assert "\ncuda_graphs " in capsys.readouterr().out


def test_doctor_text_fits_a_narrow_terminal(capsys, monkeypatch):
    """DESIGN: "A result fits the terminal"."""
    monkeypatch.setenv("COLUMNS", "20")  # 60 at least
    findings = [Finding("cache", "word " * 12, "fault", "make room"), Finding("torch", "2.13")]
    rows = [
        TechniqueStatus("a_technique", "unsupported", "why", notes=["TF32: no effect"]),
        TechniqueStatus("b", "runs", notes=["TF32: no effect"]),
    ]
    doctor_command.show(findings, rows, hidden="; more")
    assert capsys.readouterr().out == SHOWN
