"""Devices: clock, memory, state, capabilities, choice and shape of the batch."""

import os
import sys
from collections import namedtuple

import pytest
import torch

from tests.helpers import processes
from tests.helpers.refusal import refused
from tests.helpers.stand_ins import FakeCuda, FakeNvml, answer, gpu, process
from Utils.base.errors import Unsupported
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import capabilities, cpu, cuda, device_choice
from Utils.device.cpu import CPU, processor_name
from Utils.device.mps import MPS

READINGS = {
    "sm_clock_mhz": 1710,
    "temperature_c": 61,
    "power_w": 345.678,
    "power_limit_w": 700.0,
    "used_memory_mib": 4096.0,
    "throttle_reasons": ["hw slowdown", "hw thermal slowdown"],
}
PROCESSES = "DeviceGetComputeRunningProcesses gpu"
COUNTERS = {
    "energy_j": 1e9,
    "thermal_violation_s": 2000.0,
    "hw_thermal_slowdown_s": 4000.0,  # the others are not supported
}


def counters(device):
    counted = device.counters()
    assert 0 <= counted.pop("beside_cpu_s") < counted.pop("own_cpu_s")
    del counted["clock_s"], counted["swapped_mib"]
    return counted


@pytest.fixture
def nvml():
    nvml = FakeNvml()
    nvml.answers["DeviceGetCurrentClocksEventReasons gpu"] = 0x849  # its ends are no reasons
    return nvml


def test_gpu_is_described_and_read_in_the_units_that_the_names_say(nvml):
    device = gpu(nvml, name="NVIDIA A100", memory_bytes=40 * 2**30)
    assert device.describe() == {
        "type": "cuda",
        "name": "NVIDIA A100",
        "memory_mib": 40 * 1024,
        "capability": "8.0",
        "toolkit": torch.version.cuda,
        "driver": "580.95.05",
        "power_limit_w": 700.0,
    }

    assert device.readings() == READINGS and counters(device) == COUNTERS
    assert (device.peak_memory_mib(), device.reserved_memory_mib()) == (3.0, 5.0)
    handle = nvml.answers.pop("DeviceGetHandleByUUID GPU-fake-uuid")
    assert gpu(nvml).readings() == {} and gpu(nvml).describe()["driver"] is None
    nvml.answers["DeviceGetHandleByUUID MIG-fake-uuid"] = handle
    assert gpu(nvml).readings() == READINGS


@pytest.mark.parametrize(
    "call, lacking",
    [
        ("Init", READINGS | COUNTERS),
        ("DeviceGetPowerUsage gpu", ["power_w"]),
    ],
)
def test_gpu_leaves_out_what_nvml_refuses_and_nothing_else(call, lacking, nvml):
    nvml.answers[PROCESSES].append(process(4711))
    del nvml.answers[call]
    device = gpu(nvml)
    facts = device.readings() | counters(device)
    assert facts == {key: x for key, x in (READINGS | COUNTERS).items() if key not in lacking}
    assert bool(device.describe()["driver"]) == bool(device.other_processes) == bool(facts)


def test_gpu_names_other_processes_but_partners_in_turns(nvml):
    """In a container NVML may give the host's pids, of which none exists here."""
    nvml.answers[PROCESSES] += [process(4711, 1234.4), process(4712), process(4713, 8)]
    nvml.answers["SystemGetProcessName 4711"] = "/usr/bin/python3 train.py"
    nvml.answers["SystemGetProcessName 4712"] = "blender"
    assert gpu(nvml).other_processes == [
        "python3 (pid 4711, 1,234 MiB)",
        "blender (pid 4712)",
        "pid 4713, 8 MiB",
    ]

    pids = (os.getppid(), 11_000_001, 12_000_001, 12_000_002)
    nvml.answers[PROCESSES] = [*map(process, pids)]
    strangers = [f"pid {os.getppid()}", "pid 12000002"]
    assert gpu(nvml, {11_000_001, 11_000_002}).other_processes == strangers


MEMORY = """
import resource
from Utils.device.cpu import CPU

def faults(mib):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * (mib * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

device = CPU()
first = device.peak_memory_mib()
returned = [faults(200), faults(200)][1]
freed = device.peak_memory_mib()
device.reset_peak_memory()
block = b"x" * (40 * 2**20)
again = device.peak_memory_mib()
device.keep_freed_memory(grows=True)
kept = [faults(200), faults(190)][1]
grown = device.peak_memory_mib()
device.keep_freed_memory()
print(first, freed, again, grown, returned, kept, faults(300) and device.peak_memory_mib())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak cannot be reset")
def test_cpu_peak_is_its_process_growth_until_it_keeps_what_it_frees():
    """docs/METHOD.md: "On a CPU: the largest growth of the process since before the model was
    made", and "runs on a CPU keep freed memory [...]; their peak is that of the steps before".
    """
    ballast = bytearray(b"x") * (400 * 2**20)  # getrusage would give a child its parent's
    figures = map(float, processes.command("-c", MEMORY).stdout.split())
    first, freed, again, grown, returned, kept, last = figures
    del ballast
    assert first < 100 and 195 < freed < 260 and again == pytest.approx(40, abs=8)
    assert kept < returned / 20 and grown - again > 150 and last == grown


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells in /proc/cpuinfo")
@pytest.mark.parametrize(
    "told, flags, name",
    [
        ("AMD EPYC", "avx2", "AMD EPYC family 26 model 2 without AVX-512"),
        ("Intel(R) Xeon(R)", "avx512f amx_tile", "Intel Xeon family 26 model 2 with AMX"),
        ("AMD EPYC 9654  96-Core", "avx2", "AMD EPYC 9654 96-Core"),
    ],
)
def test_cpu_whose_number_is_hidden_is_named_with_its_family(tmp_path, told, flags, name):
    """CHANGELOG: "A processor whose number is hidden is named with its family and model"."""
    core = f"cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {told}\nflags\t\t: {flags}\n\n"
    (tmp_path / "cpuinfo").write_text(core + core.replace("26", "25"))
    assert processor_name(tmp_path / "cpuinfo") == name


LINUX = {"user": 64, "system": 16, "softirq": 4, "guest": 8, "idle": 2, "iowait": 1, "steal": 32}


def test_cpu_waiting_is_no_work_and_guests_are_counted_once(monkeypatch):
    answer(monkeypatch, {"psutil.cpu_times": namedtuple("scputimes", LINUX)(**LINUX)})
    assert counters(CPU()) == {"all_cpu_s": 119, "busy_cpu_s": 84, "steal_s": 32}


def test_cpu_limits_are_those_of_the_control_group_and_the_ones_above(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/user.slice/job\n")
    job = tmp_path / "user.slice" / "job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("8589934592\n")
    (job / "cpu.max").write_text("max 100000\n")
    (job.parent / "cpu.max").write_text("150000 100000\n")
    assert cpu.cgroup_limits(tmp_path, membership) == (1.5, 8_589_934_592)


DEVICES = {
    "host": CPU(),
    "Apple": MPS(torch.device("mps")),
    "Pascal": gpu(capability=(6, 1)),
    "T4": gpu(capability=(7, 5), name="Tesla T4"),
    "A100": gpu(),
    "Ampere": gpu(capability=(8, 6)),
    "Ada": gpu(capability=(8, 9)),
    "Hopper": gpu(capability=(9, 0)),
    "Blackwell": gpu(capability=(12, 0)),
    "MI200": gpu(architecture="gfx90a"),
    "MI300": gpu(architecture="gfx942:sramecc+"),
    "MI350": gpu(architecture="gfx950"),
}
# Need, device, and the beginning of its limit: nothing if it runs, "!" and a reason if it cannot.
CAPABILITIES = """\
tf32 | A100 |
tf32 | MI300 |
tf32 | T4 | TF32: no effect expected on this device
bfloat16 | A100 |
bfloat16 | MI200 |
bfloat16 | T4 | !native bfloat16 needs compute capability 8.0; Tesla T4
compile | Pascal | !torch.compile needs compute capability 7.0
float16 | T4 |
float16 | Pascal | !float16 on tensor cores needs
float16 | host | !float16 needs a GPU
float8 | Ada |
float8 | MI300 |
float8 | Ampere | !float8 needs compute capability 8.9; Fake GPU has 8.6
float8 | host | !float8 products need an NVIDIA or AMD GPU
float8 | MI200 | !float8 needs an MI300 or newer
ocp_float8 | Hopper |
ocp_float8 | MI350 |
ocp_float8 | MI300 | !8-bit floats of MI300 have another
cudnn_attention | MI300 | !cuDNN's attention needs an NVIDIA
cudnn_attention | T4 | !cuDNN's attention needs
int8 | A100 |
int8 | host |
int8 | T4 | !Triton's product of int8
int8 | Apple | !8-bit integers need
flash_attention_4 | Hopper | !needs the package flash-attn-4
flash_attention_4 | Blackwell | !torch calls FlashAttention-4 on compute capability 9 and 10; Fake
flex_attention | A100 |
flex_attention | T4 | !FlexAttention needs
flex_attention | host | !FlexAttention has a back
bitsandbytes | A100 |
bitsandbytes | Apple | !bitsandbytes has no 8-bit optimizer for Apple
torch 99.1 | host | !needs torch 99.1 or newer
"""


def has_limit(need, device, limit):
    """Return whether a device has a limit that begins so, or none if it is empty."""
    try:
        text = capabilities.check(need, DEVICES[device])
    except Unsupported as error:
        text = f"!{error}"
    return text.startswith(limit) and bool(text) == bool(limit)


@pytest.mark.parametrize("line", CAPABILITIES.splitlines())
def test_capability_of_a_device(line):
    assert has_limit(*map(str.strip, line.split("|")))


FIND, WHICH = "importlib.util.find_spec", "shutil.which"
CUDNN = "torch.backends.cudnn.version"


@pytest.mark.parametrize(
    "need, device, answers, limit",
    [
        ("tf32", "host", {"torch.cpu.get_capabilities": {"amx_fp16": True}}, ""),
        ("managed_memory", "A100", {"platform.platform": "Linux-5-microsoft-WSL2"}, "not paged on"),
        ("compile", "host", {WHICH: None}, "!torch.compile needs a C++ compiler on a CPU (g++ or"),
        ("compile", "A100", {FIND: 1, WHICH: None}, "!triton needs a C compiler (gcc or clang)"),
        ("compile", "A100", {FIND: None, WHICH: "gcc"}, "!needs the package triton"),
        ("cudnn_attention", "Ada", {CUDNN: 91900}, "cuDNN's attention: made for"),
        ("cudnn_attention", "Hopper", {CUDNN: 8907}, "!cuDNN's attention needs cuDNN 9"),
    ],
)
def test_capability_of_a_machine(need, device, answers, limit, monkeypatch):
    answer(monkeypatch, answers)
    assert has_limit(need, device, limit)


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch):
    answers = {
        "torch.cuda.is_available": True,
        "torch.cuda.device_count": 2,
        "torch.backends.mps.is_available": False,
    }
    answer(monkeypatch, answers)
    for name in ("get_device_properties", "set_device"):
        monkeypatch.setattr(cuda.TORCH_CUDA, name, getattr(FakeCuda(), name))


# A device, a number of ranks, and the message on it.
LACKING = """\
cuda:-1  1  ^--device cuda:-1: no such device; choose auto, cpu,
cuda:2   1  ^--device cuda:2: torch .* sees 2 CUDA devices; use auto
mps      1  ^--device mps: torch .* sees no Apple GPU
cuda     3  3 ranks, and torch sees 2 GPUs
cuda:1   2  a GPU of its own; use cuda
"""


@pytest.mark.parametrize("line", LACKING.splitlines())
def test_device_that_is_not_there_is_refused(line):
    name, ranks, message = line.split(maxsplit=2)
    with refused(message):
        device_choice.choose(name, 0, int(ranks))


def test_device_is_chosen_by_its_number_and_auto_is_the_best_there_is(monkeypatch):
    for name, chosen in (("auto", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")):
        assert device_choice.choose(name).torch_device == torch.device(chosen)
    assert device_choice.choose("auto", 1, 2).torch_device == torch.device("cuda", 1)
    answer(monkeypatch, {"torch.cuda.is_available": False})
    assert isinstance(device_choice.choose("auto"), CPU)


# Gigabytes, model, given batch, ranks, and the shape. gpt2-large takes 12.4 GB before the first
# token. A rank of the last one would take 8x512 by itself.
SHAPES = """\
4  gpt2       auto 1 1x512
16 gpt2-large auto 1 1x64
0  gpt2       auto 1 1x64
80 gpt2       auto 4 64x1024
16 gpt2       32   4 32x512
"""


@pytest.mark.parametrize("line", SHAPES.splitlines())
def test_device_shape_is_the_largest_at_which_the_baseline_fits(line):
    """docs/METHOD.md: "on a GPU the longest sequence, then the largest power of two up to 16 at
    which the baseline fits; on a CPU 1x64". DISTRIBUTED: "`auto` gives each rank the batch that it
    would take alone".
    """
    gigabytes, model, batch, ranks, shape = line.split()
    device = gpu(memory_bytes=int(gigabytes) * 1e9) if int(gigabytes) else CPU()
    batch = batch if batch == "auto" else int(batch)
    B, T = device_choice.auto_shape(device, CONFIGS[model], batch, ranks=int(ranks))
    assert f"{B}x{T}" == shape


def test_out_of_memory_is_told_from_other_errors():
    errors = [
        torch.OutOfMemoryError("in whatever words"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ]
    assert [*map(device_choice.is_out_of_memory, errors)] == [True, True, False]
