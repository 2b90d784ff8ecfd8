import importlib.util
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch._functorch import config as functorch

from tests.helpers import processes
from tests.helpers.stand_ins import FakeCuda, FakeNvml, gpu
from tests.test_probes import arguments
from tools.doctor import gpu_driver
from Utils.base import paths
from Utils.base.errors import Unsupported, UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import capabilities, device_choice
from Utils.device.cpu import CPU, MPS, processor_name
from Utils.device.cuda import CUDA
from Utils.device.nvml import THROTTLE_REASONS
from Utils.harness import script_start, settings, turn_pipe
from Utils.scripts import ladder


def cpu_with(monkeypatch, **features):
    capabilities = {"avx2": True, "avx512_bf16": False, "amx_bf16": False, "amx_fp16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities | features, False)
    return CPU()


def test_a_mark_never_waits_and_times_are_read_behind_the_only_synchronization():
    device = gpu()
    device.cuda.calls.clear()
    marks = [device.mark() for _ in range(5)]
    assert device.cuda.calls == ["Event", "record"] * 5
    device.cuda.calls.clear()
    assert device.elapsed_ms(marks) == [10.0] * 4
    assert device.cuda.calls == ["synchronize"] + ["elapsed_time"] * 4


def test_a_gpu_is_described_and_its_peak_is_its_allocators():
    device = gpu(FakeNvml(), name="NVIDIA A100", memory_bytes=40 * 2**30)
    assert (device.peak_memory_mib(), device.reserved_memory_mib()) == (3.0, 5.0)
    facts = {"name": "NVIDIA A100", "memory_mib": 40 * 1024, "capability": "8.0"}
    facts |= {"driver": "580.95.05", "power_limit_w": 700.0}
    assert facts.items() <= device.describe().items()


READINGS = {
    "sm_clock_mhz": 1710,
    "temperature_c": 61,
    "power_w": 345.678,
    "power_limit_w": 700.0,
    "used_memory_mib": 4000.0,
    "throttle_reasons": [],
}
COUNTERS = {
    "energy_j": 1e9,
    "thermal_violation_s": 2000.0,
    "hw_thermal_slowdown_s": 4000.0,  # the others are not supported
}
NVML = [name for name in vars(FakeNvml) if name.startswith("nvml")]
DESCRIBED = ("driver", "power_limit_w")


def counters(device):
    counted = device.counters()
    assert counted.pop("clock_s") == pytest.approx(time.perf_counter(), abs=1)
    return counted


def process(pid, mib=None):
    return SimpleNamespace(pid=pid, usedGpuMemory=mib and mib * 2**20)


def test_the_fakes_functions_and_numbers_are_pynvmls():
    pynvml = pytest.importorskip("pynvml")
    assert len(NVML) > 12
    for name in NVML:
        own, real = (inspect.signature(getattr(m, name)) for m in (FakeNvml, pynvml))
        assert list(own.parameters)[1:] == list(real.parameters)
    for name in vars(FakeNvml):
        if name.startswith("NVML_"):
            assert getattr(FakeNvml, name) == getattr(pynvml, name), name
    for struct, fields in (
        ("c_nvmlProcessInfo_v3_t", {"pid", "usedGpuMemory"}),
        ("c_nvmlViolationTime_t", {"referenceTime", "violationTime"}),
        ("c_nvmlMemory_t", {"total", "free", "used"}),
        ("c_nvmlFieldValue_t", {"nvmlReturn", "value"}),
        ("c_nvmlValue_t", {"ullVal"}),
    ):
        assert fields <= {field[0] for field in getattr(pynvml, struct)._fields_}


def test_throttle_reasons_are_nvmls():
    pynvml = pytest.importorskip("pynvml")
    prefix, others = "nvmlClocksThrottleReason", ("All", "None", "GpuIdle", "UserDefinedClocks")
    names = [name.removeprefix(prefix) for name in vars(pynvml) if name.startswith(prefix)]
    theirs = {
        getattr(pynvml, prefix + name): re.sub("(?<!^)(?=[A-Z])", " ", name).lower()
        for name in names
        if name not in others
    }
    assert theirs == THROTTLE_REASONS


def test_a_gpu_is_read_in_the_units_that_the_names_say():
    device = gpu(FakeNvml())
    assert device.readings() == READINGS and counters(device) == COUNTERS


def test_a_gpu_is_found_by_its_uuid_and_so_is_a_slice_of_one():
    nvml = FakeNvml()
    nvml.uuid = "MIG-fake-uuid"
    assert gpu(nvml).readings() == READINGS
    nvml.uuid = "GPU-another"
    assert gpu(nvml).readings() == {} and gpu(nvml).describe()["driver"] is None


@pytest.mark.parametrize(
    ("bits", "words"), [(0x1, []), (0x48, ["hw slowdown", "hw thermal slowdown"]), (0x800, [])]
)
def test_throttle_reasons_are_words(bits, words):
    nvml = FakeNvml()
    nvml.reasons = bits
    assert gpu(nvml).readings()["throttle_reasons"] == words


def test_other_processes_are_named_as_far_as_they_can_be():
    nvml = FakeNvml()
    nvml.compute += [process(4711, 1234.4), process(4712), process(4713, 8)]
    nvml.names = {4711: "/usr/bin/python3 train.py", 4712: "blender", os.getpid(): "python3"}
    assert gpu(nvml).other_processes == [
        "python3 (pid 4711, 1,234 MiB)",
        "blender (pid 4712)",
        "pid 4713, 8 MiB",
    ]


@pytest.mark.parametrize("pids", ["own", "of the host"])
def test_runs_that_take_turns_with_this_one_are_no_others(pids):
    partners, stranger, more = {11_000_001, 11_000_002}, os.getppid(), 12_000_003
    seen = partners if pids == "own" else {12_000_001, 12_000_002}
    nvml = FakeNvml()
    nvml.compute += [process(pid, 8) for pid in (stranger, *sorted(seen), more)]
    assert gpu(nvml, partners).other_processes == [f"pid {pid}, 8 MiB" for pid in (stranger, more)]


def test_a_run_tells_its_device_who_takes_turns_with_it(monkeypatch):
    turn = SimpleNamespace(partners=lambda: {7})
    monkeypatch.setattr(turn_pipe, "taken", lambda: turn)
    monkeypatch.setattr(device_choice, "CUDA", lambda device, partners: partners)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    choose = device_choice.choose
    asked = []
    monkeypatch.setattr(device_choice, "choose", lambda *about: asked.append(about) or CPU())
    settings.settle(arguments())
    assert choose("cuda", *asked[0][1:]) == {7}


def test_they_are_read_before_this_process_has_a_context():
    cuda = FakeCuda()
    CUDA(torch.device("cuda", 3), cuda, FakeNvml(cuda.calls))
    assert cuda.calls[-1] == "set_device" and cuda.current == torch.device("cuda", 3)
    assert "nvmlDeviceGetComputeRunningProcesses" in cuda.calls


def test_without_nvml_a_gpu_says_nothing_of_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # so that importing it fails
    broken = FakeNvml()
    broken.errors["nvmlInit"] = broken.NVMLError(9)  # the driver is not loaded
    for device in (gpu(), gpu(broken)):
        assert device.readings() == counters(device) == {}
        assert device.other_processes == []
        assert [device.describe()[key] for key in DESCRIBED] == [None] * 2


EVERYTHING = {*READINGS, *COUNTERS, *DESCRIBED, "others"}
PERMISSION = FakeNvml.NVMLError(FakeNvml.NVML_ERROR_NO_PERMISSION)
VERSIONS = Exception("pynvml's NVMLLibraryMismatchError, which is no NVMLError")
TEXT = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.mark.parametrize("error", [PERMISSION, VERSIONS, TEXT])
@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("nvmlInit", EVERYTHING),
        ("nvmlDeviceGetPowerUsage", {"power_w"}),
        ("nvmlDeviceGetViolationStatus", {"thermal_violation_s"}),
    ],
)
def test_what_nvml_refuses_is_left_out_and_nothing_else(name, lacking, error):
    nvml = FakeNvml()
    nvml.compute.append(process(4711, 1))
    nvml.errors[name] = error
    device = gpu(nvml)
    described = {key for key in DESCRIBED if device.describe()[key] is not None}
    there = described | {*device.readings(), *counters(device)}
    there |= {"others"} if device.other_processes else set()
    assert there == EVERYTHING - lacking


def test_a_first_product_is_computed():
    assert gpu_driver.try_out(CPU()) == ""
    nowhere = gpu_driver.try_out(SimpleNamespace(torch_device=torch.device("cuda", 99)))
    assert nowhere and "\n" not in nowhere


def test_the_drivers_gpus_are_seen_without_torch(tmp_path):
    version = tmp_path / "version"
    assert gpu_driver.gpus_of_driver(FakeNvml(), version) == ("NVIDIA Fake", "580.95.05", (13, 0))
    broken = FakeNvml()
    broken.errors["nvmlInit"] = broken.NVMLError(9)
    assert gpu_driver.gpus_of_driver(broken, version) == (None, None, None)
    version.touch()
    assert gpu_driver.gpus_of_driver(broken, version) == (None, gpu_driver.KERNEL_MODULE, None)


def test_a_cpus_marks_are_seconds_apart_in_real_time():
    device = CPU()
    assert device.elapsed_ms([1.0, 1.5, 1.502]) == pytest.approx([500, 2])
    marks = [device.mark(), time.sleep(0.05) or device.mark()]
    assert 50 <= device.elapsed_ms(marks)[0] < 5000


PEAKS = """
from Utils.device.cpu import CPU
device = CPU()
print(device.peak_memory_mib())
block = b"x" * (200 * 2**20); del block
print(device.peak_memory_mib())
device.reset_peak_memory(); small = b"x" * (40 * 2**20)
print(device.peak_memory_mib())
"""


def test_a_cpus_peak_is_its_processs_own_holds_what_was_freed_and_can_start_again():
    ballast = bytearray(b"x") * (400 * 2**20)  # getrusage would give a child its parent's
    done = processes.command("-c", PEAKS)
    first, freed, again = map(float, done.stdout.split())
    assert first < 100 and 195 < freed < 260 and again == pytest.approx(40, abs=8)
    assert len(ballast) == 400 * 2**20


FAULTS = """
import resource
import torch
from Utils.device.cpu import CPU

def faults(floats):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(floats)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

device = CPU()
faults(50_000_000)
returned = faults(49_000_000)
device.keep_freed_memory(grows=GROWS)
before = device.peak_memory_mib()
faults(50_000_000)
print(returned, faults(49_000_000), faults(80_000_000) and device.peak_memory_mib() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc has no mallopt")
@pytest.mark.parametrize("grows", [False, True])
def test_freed_blocks_stay_with_the_process_and_its_peak_is_that_of_before(grows):
    """The kernel clears no pages for a block of 196 MB that follows one of 200 MB; one of 320 MB
    adds at least what it is larger, unless the peak is known."""
    done = processes.command("-c", FAULTS.replace("GROWS", str(grows)), THP_MEM_ALLOC_ENABLE="0")
    returned, kept, grown = map(float, done.stdout.split())
    assert returned > 40_000 and kept < 100
    assert grown > 100 if grows else grown == 0


@pytest.mark.parametrize(("count", "threads"), [(1, "1 thread"), (8, "8 threads")])
def test_a_cpu_is_named_with_its_threads(monkeypatch, count, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    facts = CPU().describe()
    assert CPU().name == f"{facts['name']} ({threads})"
    assert facts["name"] and facts["type"] == "cpu" and facts["memory_mib"] > 500


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells in /proc/cpuinfo")
@pytest.mark.parametrize(
    ("told", "flags", "name"),
    [
        ("AMD EPYC", "avx2 avx512f", "AMD EPYC family 26 model 2"),
        ("AMD EPYC", "avx2", "AMD EPYC family 26 model 2 without AVX-512"),
        ("Intel Xeon CPU @ 2.20GHz", "avx512f", "Intel Xeon CPU @ 2.20GHz family 26 model 2"),
        ("Intel(R) Xeon(R)", "avx512f amx_tile", "Intel Xeon family 26 model 2 with AMX"),
        ("AMD EPYC 9654  96-Core", "avx2", "AMD EPYC 9654 96-Core"),
    ],
)
def test_a_cpu_whose_number_is_hidden_is_named_with_its_family(tmp_path, told, flags, name):
    """Two generations under one name differed by 1.4x in what bfloat16 gains."""
    core = f"cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {told}\nflags\t\t: {flags}\n\n"
    (tmp_path / "cpuinfo").write_text(core + core.replace("26", "25"))
    assert processor_name(tmp_path / "cpuinfo") == name


BUSY = "import time\nend = time.perf_counter() + 1.5\nwhile time.perf_counter() < end: pass"


@pytest.mark.slow
@pytest.mark.timing
def test_other_processes_are_told_from_this_one_and_its_children():
    """Beside a busy process of ours, which is none of its own: it works, or its child does."""
    code = f"""
import json, subprocess, sys, time
from Utils.device.cpu import CPU

def grown(work):
    before = device.counters()
    work()
    after = device.counters()
    return {{name: after[name] - before[name] for name in after}}

device = CPU()
child = [sys.executable, "-c", {BUSY!r}]
waited = grown(lambda: subprocess.run(child))
process = subprocess.Popen(child)
alive = grown(lambda: time.sleep(1))
process.wait()
print(json.dumps([waited, alive, grown(lambda: time.sleep(1))]))
"""
    endless = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        done = processes.command("-c", code)
    finally:
        endless.kill()
        endless.wait()
    waited, alive, idle = json.loads(done.stdout)
    assert 0.3 < waited["own_cpu_s"] < 1.8  # a busy machine gives it less than its 1.5 seconds
    assert 0.2 < alive["own_cpu_s"] < 1.2
    assert idle["own_cpu_s"] < 0.15
    for grown in (waited, alive, idle):
        others = grown["busy_cpu_s"] - grown["own_cpu_s"]
        assert others > 0.2 * grown["clock_s"]  # of the endless one, on a busy machine too
        busy, every = (round(100 * grown[name]) for name in ("busy_cpu_s", "all_cpu_s"))
        assert busy <= every  # in the ticks that the kernel counts; as floats they differ by 1e-11


LINUX = {"user": 64, "system": 16, "softirq": 4, "guest": 8, "idle": 2, "iowait": 1, "steal": 32}
MACOS = {"user": 64, "nice": 1, "system": 16, "idle": 2}


@pytest.mark.parametrize(
    ("kernel", "counted"),
    [
        (LINUX, {"all_cpu_s": 119, "busy_cpu_s": 84, "steal_s": 32}),
        (MACOS, {"all_cpu_s": 83, "busy_cpu_s": 81}),
    ],
)
def test_waiting_is_no_work_and_what_a_guest_did_is_counted_once(kernel, counted, monkeypatch):
    times = namedtuple("scputimes", kernel)(**kernel)
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    grown = CPU().counters()
    assert grown.pop("own_cpu_s") > 0 and grown.pop("clock_s") > 0
    assert grown == counted


TF32 = "TF32: no effect expected on this device"


def limit(need, device):
    """Return the note on a need, or the reason for which a device does not support it."""
    try:
        return capabilities.check(need, device)
    except Unsupported as error:
        return f"unsupported: {error}"


@pytest.mark.parametrize("properties", [{"capability": (7, 5)}, {"architecture": "gfx90a"}])
def test_tf32_has_no_effect_on_an_older_gpu(properties):
    text = limit("tf32", gpu(**properties))
    assert text == TF32 and isinstance(text, capabilities.WithoutEffect)


def test_a_gpu_of_few_multiprocessors_gets_no_tuned_products():
    """The number is Inductor's own, which says nothing but in its log."""
    from torch._inductor.utils import is_big_gpu  # here: seconds, for one test

    assert f"else {capabilities.INDUCTOR_SMS} " in inspect.getsource(is_big_gpu)
    device = gpu()
    for sms, note in ((58, "max-autotune tunes no matrix products on 58 SMs"), (68, ""), (132, "")):
        device.multiprocessors = sms
        assert limit("autotuning", device).partition(" (")[0] == note
    assert limit("autotuning", CPU()) == ""


@pytest.mark.parametrize(
    ("need", "note", "features"),
    [
        ("tf32", TF32, ["amx_fp16"]),
        ("bfloat16", "bfloat16: emulated on this device", ["avx512_bf16", "amx_bf16"]),
    ],
)
def test_what_a_cpu_lacks_is_held_against_the_timing(need, note, features, monkeypatch):
    assert limit(need, cpu_with(monkeypatch)) == note
    for feature in features:
        assert limit(need, cpu_with(monkeypatch, **{feature: True})) == ""


@pytest.mark.parametrize(
    ("system", "note"),
    [
        ("Linux-6.8.0-x86_64-with-glibc2.39", ""),
        ("Linux-5.15.167.4-microsoft-standard-WSL2-x86_64-with-glibc2.35", "not paged on this dev"),
        ("Windows-11-10.0.26100-SP0", "not paged on this device"),
    ],
)
def test_managed_memory_is_paged_but_on_windows(system, note, monkeypatch):
    monkeypatch.setattr(platform, "platform", lambda: system)
    text = limit("managed_memory", gpu())
    assert text.startswith(note) and bool(text) == bool(note)


@pytest.mark.parametrize(
    ("need", "device", "compiler", "reason"),
    [
        ("compile", CPU(), "g++", "torch.compile needs a C++ compiler on a CPU"),
        ("compile", gpu(), "gcc", "triton needs a C compiler"),
        ("triton", gpu(), "gcc", "triton needs a C compiler"),
    ],
)
def test_compiling_needs_triton_on_a_gpu_and_a_compiler(
    need, device, compiler, reason, monkeypatch, tmp_path
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert limit(need, device).startswith(f"unsupported: {reason}")
    assert limit("triton", CPU()).startswith(
        "unsupported: Triton kernels need an NVIDIA or AMD GPU"
    )
    (tmp_path / compiler).touch(mode=0o755)
    assert limit(need, device) == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = "unsupported: needs triton (pip install triton)"
    assert limit(need, device) == ("" if compiler == "g++" else missing)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", FakeCuda().get_device_properties)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


NO_SUCH = "no such device; choose auto, cpu, cuda, cuda:N or mps"
NAMES = ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:1:2", "cuda:256", "0", "meta", "xpu"]


@pytest.mark.parametrize(
    ("gpus", "name", "message"),
    [
        *(("two_gpus", name, NO_SUCH) for name in NAMES),
        ("two_gpus", "cuda:2", "torch .* sees 2 CUDA devices; use auto"),
        *(("no_gpu", name, "torch .* sees 0 CUDA devices") for name in ("cuda", "cuda:0")),
        ("no_gpu", "mps", "torch .* sees no Apple GPU"),
    ],
)
def test_a_device_that_is_not_there_is_refused(gpus, name, message, request):
    request.getfixturevalue(gpus)
    with pytest.raises(UserError, match=f"^--device {name}: {message}"):
        device_choice.choose(name)


def test_a_gpu_is_chosen_by_its_number_and_auto_is_the_best_there_is(no_gpu, request):
    assert isinstance(device_choice.choose("auto"), CPU)
    request.getfixturevalue("two_gpus")
    assert isinstance(device_choice.choose("cpu"), CPU)
    for name, index in (("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)):
        assert device_choice.choose(name).torch_device == torch.device("cuda", index)


def shape(device, model="gpt2", **given):
    return device_choice.auto_shape(device, CONFIGS[model], **given)


def test_a_big_gpu_gets_16_sequences_of_1024_and_a_small_one_or_a_cpu_one_short_one():
    for gigabytes in (140, 80, 42.3, 40):
        assert shape(gpu(memory_bytes=gigabytes * 1e9)) == (16, 1024)
    for gigabytes in (1, 2, 3, 4):
        B, T = shape(gpu(memory_bytes=gigabytes * 1e9))
        assert B == 1 and 64 <= T <= 512
    assert shape(CPU()) == (1, 64)
    B, T = shape(gpu(memory_bytes=16e9), "gpt2-large")  # 12.4 GB before the first token
    assert B * T <= 128


@pytest.mark.parametrize("model", ["gpt2", "gpt2-xl"])
def test_more_memory_or_a_smaller_model_never_gives_a_smaller_step(model):
    shapes = [shape(gpu(memory_bytes=m * 1e9), model) for m in range(1, 200)]
    tokens = [B * T for B, T in shapes]
    assert tokens == sorted(tokens) and tokens[0] < tokens[-1]
    smaller = [B * T for B, T in (shape(gpu(memory_bytes=m * 1e9)) for m in range(1, 200))]
    assert all(mine <= gpt2 for mine, gpt2 in zip(tokens, smaller, strict=True))


def test_what_is_given_is_kept_and_what_is_not_makes_up_for_it():
    for device in (gpu(), gpu(memory_bytes=8e9), gpu(memory_bytes=1e9), CPU()):
        assert shape(device, batch_size=7)[0] == 7
        assert shape(device, seq_len=100)[1] == 100
        assert shape(device, batch_size=7, seq_len=100) == (7, 100)
        assert shape(device, batch_size=7, ranks=2)[0] == 7  # which is refused, not rounded
    device = gpu(memory_bytes=24e9)
    assert shape(device, batch_size=1)[1] > shape(device, batch_size=32)[1]
    assert shape(device, seq_len=128)[0] > shape(device, seq_len=1024)[0]


def test_running_out_of_memory_is_told_on_every_device_and_from_other_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    for error in (
        *(caught.value, MemoryError(), torch.OutOfMemoryError("in whatever words")),
        *(RuntimeError("CUDA error: out of memory"), RuntimeError("MPS backend out of memory")),
    ):
        assert device_choice.is_out_of_memory(error)
    for error in (
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        *(ValueError("out of memory"), OSError(12, "Cannot allocate memory"), KeyboardInterrupt()),
    ):
        assert not device_choice.is_out_of_memory(error)


def test_no_other_file_names_torch_cuda():
    files = [*paths.ROOT.glob("Utils/**/*.py"), paths.ROOT / "plot_results.py"]
    files += [technique.path for technique in ladder.tracked().values()]
    # A kernel may ask for the GPU's size.
    word = re.compile(r"torch\.cuda(?!\.get_device_properties)|from torch import.*\bcuda\b")
    folders = {path.parent.name for path in files if word.search(path.read_text())}
    assert folders == {"device"}


def test_an_apple_gpu_is_timed_by_events_behind_one_synchronization(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch.mps, "Event", fake.Event)
    monkeypatch.setattr(torch.mps, "synchronize", fake.synchronize)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 300 * 2**20)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 16e9)
    device = MPS(torch.device("mps"))
    marks = [device.mark() for _ in range(3)]
    assert fake.calls == ["Event", "record"] * 3
    assert device.elapsed_ms(marks) == [10, 10]
    assert fake.calls.count("synchronize") == 1
    assert device.peak_memory_mib() == 300 and device.describe()["type"] == "mps"
    with pytest.raises(Unsupported, match="Apple"):
        capabilities.check("bitsandbytes", device)


OUTSIDE = "@torch.compiler.disable\ndef cross_entropy(logits, targets):\n    pass\n"


@pytest.mark.parametrize(("function", "cached"), [("", True), (OUTSIDE, False)])
def test_a_script_that_leaves_its_graph_has_no_cache_of_autograd(function, cached):
    """Else fused_cross_entropy fails in its second run."""
    script = {}
    exec(f"import torch\n{function}def main(args):\n    pass\n", script)
    with functorch.patch(enable_autograd_cache=True):
        script_start.prepare(script["main"])
        assert functorch.enable_autograd_cache == cached
