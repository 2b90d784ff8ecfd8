import collections
import dataclasses
import importlib.util
import math
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from types import SimpleNamespace
from unittest import mock

import pandas as pd
import psutil
import pytest
import torch

from tests.helpers.stand_ins import FakeCuda, FakeNvml, full_disk
from tools.doctor import examination, gpu_driver, torch_side
from tools.doctor.examination import Finding, run_python
from tools.doctor.gpu_driver import KERNEL_MODULE
from Utils.base import paths
from Utils.base.command_line import OF_A_RUN, Parser
from Utils.corpus import token_cache
from Utils.device import cpu, device_choice
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.harness import settings


def states(findings):
    """{topic: {state: what}} of dicts or Findings."""
    found = collections.defaultdict(dict)
    for one in findings:
        one = one if isinstance(one, dict) else dataclasses.asdict(one)
        found[one["topic"]][one["state"]] = one["what"]
    return found


def asked(probe, args=None):
    return list(examination.ask(probe, args))


def arguments(*flags, **more):
    parser = Parser("", "", *OF_A_RUN)
    return SimpleNamespace(**vars(parser.parse_args(flags)) | more)


def gpu(nvml=None, **properties):
    device = CUDA(torch.device("cpu"), FakeCuda(**properties), nvml)
    device.torch_device = torch.device("cpu")  # where a first product can be computed
    return device


def on(device, *flags):
    """What the probes get for a run on that device."""
    args = arguments(*flags)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(device_choice, "choose", lambda wanted, *ranks: device)
        settings.settle(args)
    return args


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", ""),
        ("sys.exit('why\\nso')", "so"),
        ("os._exit(3)", "exit code 3"),
        ("os.abort()", "killed by SIGABRT"),
        ("subprocess.run(['sleep', '60'])", "did not answer within 1.5 s"),
    ],
)
def test_what_hangs_or_dies_apart_says_so(code, problem):
    started = time.monotonic()
    code = f"import os, subprocess, sys; print(7, flush=True); {code}"
    assert run_python("-c", code, seconds=1.5) == ("7\n", problem)
    assert time.monotonic() - started < 10


def test_one_probe_that_fails_takes_no_other_with_it():
    def broken_part(args):
        yield Finding("a", "first")
        raise RuntimeError("many\nlines")

    assert asked(broken_part) == [
        Finding("a", "first"),
        Finding("broken part", "check failed: RuntimeError: many", "note"),
    ]


@pytest.mark.parametrize(
    ("free_bytes", "faults"),
    [
        (3 * 2**30, {}),
        (2**30, {"cache": "1.0 GiB free"}),
        (4 * 2**20, {"cache": "0.0 GiB free", "memory": "/dev/shm has 4 MiB"}),
    ],
)
def test_little_disk_or_shared_memory_is_a_fault(free_bytes, faults, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free_bytes))
    said = asked(examination.disk, arguments())
    assert {finding.topic for finding in said if finding.state == "fault"} == faults.keys()
    for topic, words in faults.items():
        assert words in states(said)[topic]["fault"]


def test_a_place_where_nothing_can_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert examination.unwritable(tmp_path / "new" / "folder") == ""
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    problem = f"{tmp_path / 'file'}: Not a directory"
    assert examination.unwritable(tmp_path / "file" / "x") == problem
    with full_disk(4096):
        assert examination.unwritable(tmp_path) == f"{tmp_path}: File too large"


def test_a_path_that_no_compiler_takes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "my cache")
    assert not paths.needs_quotes(paths.kernels("triton"))
    monkeypatch.setattr(sys, "prefix", "/my environment")
    fault, _ = asked(examination.disk, arguments())
    assert fault.what == "/my environment: no compiler takes this path"
    assert fault.blocks == ("compile",)


@pytest.mark.parametrize("variable", ["TRITON_CACHE_DIR", "TMPDIR", "RESULTS_FILE"])
def test_a_folder_that_cannot_be_written_is_a_fault(variable, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    if variable == "TMPDIR":
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    if variable == "RESULTS_FILE":
        flags = ["--results-file", str(tmp_path / "file" / "results.csv")]
        (fault,) = asked(examination.results_file, arguments(*flags))
        assert fault.blocks == ("run",) and variable in fault.remedy
    else:
        fault, _ = asked(examination.disk, arguments())
        assert fault.blocks == ("compile", "triton")
        assert ("TMPDIR" in fault.remedy) == (variable == "TMPDIR")
    assert fault.state == "fault" and "Not a directory" in fault.what


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("#!/bin/sh\necho 'ld: cannot find -lgomp: error' >&2; exit 1\n", "cannot find -lgomp"),
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("not a program", "Exec format error"),
    ],
)
def test_a_compiler_that_cannot_compile_is_no_compiler(compiler, words, tmp_path, monkeypatch):
    fake = tmp_path / "g++"
    fake.write_text(compiler)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CXX", raising=False)
    (finding,) = asked(torch_side.compilers, on(CPU()))
    assert finding.state == "fault" and finding.blocks == ("compile",)
    assert str(fake) in finding.what and words in finding.what


@pytest.mark.parametrize("device", [CPU(), gpu()])
def test_missing_headers_are_named(device, monkeypatch, tmp_path):
    (compiled,) = asked(torch_side.compilers, on(device))
    assert compiled.state == "ok"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.delenv("CPATH", raising=False)
    (finding,) = asked(torch_side.compilers, on(device))
    assert "Python.h: No such file or directory" in finding.what


def test_the_quota_of_a_control_group_is_found(tmp_path):
    own = tmp_path / "cgroup"

    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert cpu.cgroup_limits(tmp_path, tmp_path / "none") == (math.inf, math.inf)
    two = tmp_path / "2"
    own.write_text("0::/user.slice/job\n")
    write(two / "user.slice" / "job" / "memory.max", "8589934592\n")
    write(two / "user.slice" / "job" / "cpu.max", "max 100000\n")
    write(two / "user.slice" / "cpu.max", "150000 100000\n")  # the group above allows less
    assert cpu.cgroup_limits(two, own) == (1.5, 8 * 2**30)
    write(two / "cpu.max", "50000 100000\n")  # in a container: the root is its own
    assert cpu.cgroup_limits(two, own)[0] == 0.5

    one = tmp_path / "1"
    own.write_text("9:name=systemd:/\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n")
    write(one / "cpu" / "docker" / "abc" / "cpu.cfs_quota_us", "400000\n")
    write(one / "cpu" / "docker" / "abc" / "cpu.cfs_period_us", "100000\n")
    write(one / "memory" / "docker" / "abc" / "memory.limit_in_bytes", "1073741824\n")
    assert cpu.cgroup_limits(one, own) == (4.0, 2**30)


@pytest.mark.parametrize("cpus", [1, 1.5])
def test_more_threads_than_cpus_is_worth_a_note(cpus, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(cpu, "cgroup_limits", lambda: (cpus, math.inf))
    (finding,) = asked(torch_side.processor)
    assert (finding.state, finding.remedy) == ("note", "set OMP_NUM_THREADS=1")
    assert f"8 threads for {cpus} CPUs" in finding.what


def test_the_host_runs_out_of_memory_by_its_groups_limit(monkeypatch):
    monkeypatch.setattr(cpu, "cgroup_limits", lambda: (math.inf, 2**30))
    (step,) = asked(torch_side.step, on(CPU()))
    assert "at least 2.3 GiB in float32, 1.0 are free" in step.what and step.state == "fault"


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for finding in asked(torch_side.native_packages, on(CPU())):
        assert (finding.state, finding.what) == ("fault", "not installed")
        assert [*finding.blocks] == [finding.topic]
        assert finding.remedy == f"pip install {finding.topic}"


class Library:
    """As bitsandbytes' stand-in for a library that could not be loaded."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __getattr__(self, name):
        return print


@pytest.mark.parametrize(
    ("library", "backend", "problem"),
    [
        (Library(error_msg="no CUDA 13.0\nmore"), "CUDA", "its native library: no CUDA 13.0"),
        (Library(error_msg="no CUDA 13.0\nmore"), "CPU", ""),  # which needs none
        (Library(), "CUDA", ""),
        (None, "CUDA", "TypeError"),
    ],
)
def test_a_package_is_announced_before_it_is_tried(library, backend, problem, monkeypatch):
    package = SimpleNamespace(lib=library, BNB_BACKEND=backend)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    monkeypatch.setattr(importlib, "import_module", lambda name: package)
    _, torchao, announced, bitsandbytes = asked(torch_side.native_packages, on(CPU()))
    assert torchao == Finding("torchao", "can be used")
    assert announced.state == "asking" and announced.blocks == ["bitsandbytes"]
    assert bitsandbytes.state == ("fault" if problem else "ok")
    assert bitsandbytes.what.startswith(announced.what if problem else "")
    assert problem in bitsandbytes.what


def test_a_triton_without_a_gpu_is_a_fault(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.runtime", SimpleNamespace())  # it has no driver
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "triton" or None)
    announced, triton, *_ = asked(torch_side.native_packages, on(gpu()))
    assert triton.state == "fault" and triton.blocks == ["compile", "triton"]
    assert triton.what.startswith(announced.what)


def test_a_gpu_is_told_with_its_capability_and_memory(monkeypatch):
    device = gpu(name="NVIDIA A100", memory_bytes=40 * 2**30)
    monkeypatch.setattr(device_choice, "choose", lambda wanted, *ranks: device)
    (finding,) = asked(torch_side.device, arguments())
    assert finding == Finding("device", "NVIDIA A100, 40.0 GiB, compute capability 8.0")


BUSY = "CUDA error: all CUDA-capable devices are busy"
NO_CODE = "CUDA error: no kernel image is"


@pytest.mark.parametrize(
    ("problem", "chooses", "remedy"),
    [(BUSY, True, "nvidia-smi"), (NO_CODE, True, "the cu126 index"), (BUSY, False, "nvidia-smi")],
)
def test_a_device_that_cannot_be_had_or_computes_nothing_stops_everything(
    problem, chooses, remedy, monkeypatch
):
    device = mock.Mock(side_effect=None if chooses else RuntimeError(f"{problem}\nmore"))
    device.return_value = gpu(name="Tesla V100", capability=(7, 0))
    monkeypatch.setattr(device_choice, "choose", device)
    monkeypatch.setattr(gpu_driver, "try_out", lambda device: problem)
    *_, finding = asked(torch_side.device, arguments())
    assert finding.state == "fault" and finding.blocks == ("run",)
    assert finding.what.endswith(problem) and remedy in finding.remedy


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--device", "mps"], "sees no Apple GPU"),
        (["--seq-len", "2000"], "takes 1024 tokens at most"),
    ],
)
def test_settings_that_a_run_would_refuse_are_refused_in_its_words(flags, words):
    (finding,) = asked(torch_side.device, arguments(*flags))
    assert finding.topic == "settings" and finding.state == "fault" and words in finding.what
    assert finding.blocks == ("run",) and finding.remedy


@pytest.mark.parametrize(
    ("reasons", "state", "words"),
    [
        (0x40, "note", "clocks limited by hw thermal slowdown"),
        (0x4, "ok", "clocks limited by sw power cap"),
        (0, "ok", "clocks not limited"),
    ],
)
def test_who_else_is_on_the_gpu_and_what_holds_it_down(reasons, state, words):
    nvml = FakeNvml()
    nvml.compute.append(SimpleNamespace(pid=4711, usedGpuMemory=9000 * 2**20))
    nvml.names = {4711: "/usr/bin/python3"}
    nvml.reasons = reasons
    process, clocks = asked(torch_side.gpu, on(gpu(nvml)))
    assert process.what == "python3 (pid 4711, 9,000 MiB) also uses this GPU"
    assert process.state == "note" and (clocks.state, clocks.what) == (state, words)
    assert ("cooling" in clocks.remedy) == (state == "note")


@pytest.mark.parametrize(
    ("capability", "toolkit", "remedy"),
    [
        *(((12, 1), toolkit, "the cu130 index") for toolkit in ("", "CUDA 12.8")),
        ((12, 1), "CUDA 13.0", "a newer wheel"),
        ((13, 0), "CUDA 13.0", "a newer wheel"),  # by PTX
        *((older, "CUDA 13.0", "the cu126 index") for older in ((6, 0), (7, 0))),
        *((same, "CUDA 13.0", "") for same in ((8, 9), (9, 0))),
    ],
)
def test_a_wheel_without_machine_code_for_just_this_gpu_is_a_note(
    capability, toolkit, remedy, monkeypatch
):
    monkeypatch.setattr(device_choice, "toolkit", lambda: toolkit)
    *notes, _ = asked(torch_side.gpu, on(gpu(capability=capability)))
    assert len(notes) == bool(remedy)
    for note in notes:
        assert "torch has no sm_{}{} code".format(*capability) in note.what
        assert note.state == "note" and remedy in note.remedy


def test_a_laptop_on_its_battery_or_a_missing_nvml_is_a_note(monkeypatch):
    battery = SimpleNamespace(power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    _, power = asked(torch_side.processor, on(CPU()))
    (nvml,) = asked(torch_side.gpu, on(gpu()))
    assert power.state == nvml.state == "note"
    assert "battery" in power.what and nvml.remedy == "pip install nvidia-ml-py"
    assert asked(torch_side.gpu, on(CPU())) == []


def test_memory_that_others_hold_is_missed():
    device = gpu(memory_bytes=80e9)
    (step,) = asked(torch_side.step, on(device))
    assert step.state == "ok" and "gpt2 at 16x1024 tokens" in step.what
    device.cuda.free_bytes = 20e9
    (step,) = asked(torch_side.step, on(device))
    assert step.state == "fault" and "BATCH_SIZE" in step.remedy
    assert "31.7 GiB in float32, 18.6 are free" in step.what
    (step,) = asked(torch_side.step, on(device, "--batch-size", "8"))
    assert step.state == "ok"  # 2 GB and 1.9 for each of 8 x 1024 tokens


NVML = "NVIDIA A100", "550.54", (12, 4)
KERNEL = None, KERNEL_MODULE, None
BUILT = "is not built for CUDA"


@pytest.mark.parametrize(
    ("toolkit", "seen", "error", "words", "remedy"),
    [
        ("", NVML, "not compiled", BUILT, "torch for CUDA 12.4 or older"),
        ("ROCm 7.0", NVML, "none", BUILT, "pytorch.org/get-started"),
        ("CUDA 13.0", NVML, "too old", "torch is built for CUDA 13.0", "newer driver, or"),
        ("CUDA 12.6", NVML, "unknown error", "unknown error", "reboot"),
        ("CUDA 12.6", KERNEL, "no driver", "cannot reach it: no driver", "--gpus all"),
        ("CUDA 12.4", NVML, "No CUDA GPUs are", "CUDA_VISIBLE_DEVICES='0' hides it", "unset CUDA"),
        ("CUDA 13.0", NVML, "", "550.54; torch sees 1 GPUs", ""),  # torch sees it
    ],
)
def test_a_gpu_that_torch_does_not_take_is_explained(
    toolkit, seen, error, words, remedy, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # as schedulers set it, always
    monkeypatch.setattr(device_choice, "toolkit", lambda: toolkit)
    monkeypatch.setattr(gpu_driver, "visible_gpus", lambda: (0 if error else 1, error))
    monkeypatch.setattr(gpu_driver, "gpus_of_driver", lambda: seen)
    (finding,) = asked(torch_side.driver)
    assert finding.state == ("fault" if error else "ok") and not finding.blocks  # the CPU can train
    assert words in finding.what and remedy in finding.remedy
    assert ("CUDA_VISIBLE_DEVICES" in finding.what) == ("hides" in words)


def test_torch_older_than_tested_is_worth_a_note_with_what_an_upgrade_gained(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    (finding,) = asked(torch_side.torch_build)
    assert finding.state == "note" and finding.what.startswith("2.9.1+cu128")
    published = pd.read_csv(paths.ROOT / "docs" / "published.csv").set_index("technique").value
    for upgrade in ("torch 2.4 -> 2.5", "earlier torch -> 2.10 ('Torch 2.10')"):
        gain = published[f"{upgrade}: before"] / published[f"{upgrade}: after"]
        assert f"{gain:.2f}x" in finding.remedy
    wheels = published["flex_attention, cu130 wheel"]
    gain = wheels / published["flex_attention, wheel without code for sm_121"]
    assert f"a GB10 gained {gain:.1f}x" in torch_side.CUDA_13


@pytest.mark.parametrize(
    ("dataset", "state", "words"),
    [
        ("synthetic", "ok", "needs nothing"),
        ("stdlib", "ok", "will be tokenized once, from "),
        ("owner/name", "ok", "from the Hub, over the network"),
        ("/no/such/file.txt", "fault", "no such file"),
    ],
)
def test_the_corpus_is_there_or_will_be_made(dataset, state, words, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    (finding,) = asked(torch_side.corpus, arguments("--dataset", dataset))
    assert finding.state == state and words in finding.what
    assert finding.blocks == (("run",) if state == "fault" else ())
    if dataset == "stdlib":
        path = token_cache.cached("stdlib", *token_cache.find("stdlib")[0])
        path.parent.mkdir(parents=True)
        path.touch()
        (finding,) = asked(torch_side.corpus, arguments("--dataset", dataset))
        assert "tokens in" in finding.what


def test_a_package_that_the_corpus_needs_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    (tmp_path / "a.txt").write_text("words")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (fault,) = asked(torch_side.corpus, arguments("--dataset", str(tmp_path / "a.txt")))
    assert fault.what.endswith("needs tiktoken and datasets")
    assert fault.remedy == "pip install tiktoken datasets"
