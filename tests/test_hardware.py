import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.fakes import FakeCuda
from Utils import hardware
from Utils.errors import Unsupported, UserError
from Utils.model import CONFIGS

ROOT = Path(__file__).resolve().parent.parent


def gpu(**properties):
    return hardware.CUDA(torch.device("cuda", 0), cuda=FakeCuda(**properties))


def cpu_with(monkeypatch, **features):
    capabilities = {"avx2": True, "avx512_bf16": False, "amx_bf16": False, "amx_fp16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities | features, False)
    return hardware.CPU()


# The clock and the memory of a GPU --------------------------------------------------------------


def test_a_gpu_is_made_the_current_one():
    device = hardware.CUDA(torch.device("cuda", 3), cuda=(cuda := FakeCuda()))
    assert cuda.calls == ["set_device"]
    assert cuda.current == device.torch_device == torch.device("cuda", 3)


def test_a_mark_is_one_event_and_never_waits_for_the_gpu():
    device = gpu()
    device.cuda.calls.clear()
    device.mark()
    assert device.cuda.calls == ["Event", "record"]


def test_times_are_read_behind_the_one_and_only_synchronization():
    device = gpu()
    marks = [device.mark() for _ in range(5)]
    device.cuda.calls.clear()
    assert device.elapsed_ms(marks) == [10.0] * 4
    assert device.cuda.calls == ["synchronize"] + ["elapsed_time"] * 4


def test_a_gpus_peak_is_its_allocators_in_mib():
    device = gpu()
    device.cuda.calls.clear()
    assert device.peak_memory_mib() == 3.0
    assert device.cuda.calls == ["max_memory_allocated"]


def test_a_gpu_is_described_by_what_one_compares(monkeypatch):
    asked = []
    monkeypatch.setattr(hardware, "_nvidia_smi", lambda *query: asked.append(query) or "99")
    facts = gpu(name="NVIDIA A100", memory_bytes=40 * 2**30).describe()
    assert facts["name"] == "NVIDIA A100"
    assert facts["memory_mib"] == 40 * 1024
    assert facts["capability"] == "8.0"
    assert facts["peak_reserved_mib"] == 5
    assert facts["driver"] == facts["power_limit_w"] == facts["clocks_max_sm_mhz"] == "99"
    assert {uuid for uuid, _ in asked} == {"fake-uuid"}


def test_a_gpu_without_nvidia_smi_is_described_all_the_same(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert gpu(name="some GPU").describe()["driver"] is None


# The clock and the memory of a CPU --------------------------------------------------------------


def test_a_cpus_times_are_in_milliseconds():
    assert hardware.CPU().elapsed_ms([1.0, 1.5, 1.502]) == pytest.approx([500, 2])


def test_a_cpus_marks_are_seconds_apart_in_real_time():
    device = hardware.CPU()
    marks = [device.mark(), time.sleep(0.05) or device.mark()]
    assert 50 <= device.elapsed_ms(marks)[0] < 5000


def peak_of_process(code):
    code = f"from Utils import hardware; device = hardware.CPU()\n{code}"
    command = [sys.executable, "-c", f"{code}\nprint(device.peak_memory_mib())"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_a_cpus_peak_holds_what_was_freed_again():
    assert 195 < peak_of_process("block = b'x' * (200 * 2**20); del block") < 260


def test_a_cpus_peak_is_not_inherited_from_a_fat_parent():
    ballast = bytearray(b"x") * (400 * 2**20)
    assert peak_of_process("") < 100
    assert len(ballast) == 400 * 2**20


@pytest.mark.parametrize(("count", "threads"), [(1, "1 thread"), (8, "8 threads")])
def test_a_cpu_is_named_with_its_threads(monkeypatch, count, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    facts = hardware.CPU().describe()
    assert hardware.CPU().name == f"{facts['name']} ({threads})"
    assert facts["name"] and facts["type"] == "cpu" and facts["memory_mib"] > 500


# What a technique needs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        ("tf32", "TF32 needs compute capability 8.0; Tesla T4 has 7.5"),
        ("bfloat16", "native bfloat16 needs compute capability 8.0; Tesla T4 has 7.5"),
    ],
)
def test_an_older_gpu_is_refused_with_the_reason(need, reason):
    with pytest.raises(Unsupported) as caught:
        hardware.check(need, gpu(name="Tesla T4", capability=(7, 5)))
    assert str(caught.value) == reason


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 3)])
@pytest.mark.parametrize("need", ["tf32", "bfloat16"])
def test_a_newer_gpu_runs_as_meant(need, capability):
    assert hardware.check(need, gpu(capability=capability)) == ""


def test_tf32_on_a_cpu_is_held_against_its_timing(monkeypatch):
    note = "TF32: no effect expected on this device"
    assert hardware.check("tf32", cpu_with(monkeypatch)) == note
    assert hardware.check("tf32", cpu_with(monkeypatch, amx_fp16=True)) == ""


def test_bfloat16_on_a_cpu_without_it_is_called_emulated(monkeypatch):
    note = "bfloat16: emulated on this device"
    assert hardware.check("bfloat16", cpu_with(monkeypatch)) == note
    assert hardware.check("bfloat16", cpu_with(monkeypatch, avx512_bf16=True)) == ""
    assert hardware.check("bfloat16", cpu_with(monkeypatch, amx_bf16=True)) == ""


def test_compiling_on_a_cpu_needs_a_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match=r"C\+\+ compiler"):
        hardware.check("compile", hardware.CPU())
    (tmp_path / "g++").touch(mode=0o755)
    assert hardware.check("compile", hardware.CPU()) == ""


def test_compiling_on_a_gpu_needs_triton_and_capability_7(monkeypatch):
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="pip install triton"):
        hardware.check("compile", gpu())
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: name)
    assert hardware.check("compile", gpu()) == ""
    with pytest.raises(Unsupported, match="torch.compile needs compute capability 7.0"):
        hardware.check("compile", gpu(capability=(6, 1)))


def test_kernels_of_our_own_need_a_gpu_and_triton_and_a_c_compiler(monkeypatch, tmp_path):
    for device in (hardware.CPU(), hardware.MPS(torch.device("mps"))):
        with pytest.raises(Unsupported, match="^Triton kernels need an NVIDIA or AMD GPU$"):
            hardware.check("triton", device)
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"^needs triton \(pip install triton\)$"):
        hardware.check("triton", gpu())
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="C compiler"):
        hardware.check("triton", gpu())
    (tmp_path / "gcc").touch(mode=0o755)
    assert hardware.check("triton", gpu()) == ""


def test_a_missing_package_is_named_with_its_remedy():
    assert hardware.check("torch", hardware.CPU()) == ""
    with pytest.raises(Unsupported) as caught:
        hardware.check("bits_and_pieces", hardware.CPU())
    assert str(caught.value) == "needs bits_and_pieces (pip install bits_and_pieces)"


# Choosing ---------------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


@pytest.mark.parametrize(
    "name", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:1:2", "cuda:256", "0", "meta", "xpu"]
)
def test_a_name_of_no_device_is_refused_with_those_there_are(name, two_gpus):
    with pytest.raises(UserError) as caught:
        hardware.choose(name)
    assert str(caught.value) == f"--device {name}: choose auto, cpu, cuda, cuda:N or mps"


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps"])
def test_a_device_that_is_not_there_is_refused(name, no_gpu):
    with pytest.raises(UserError, match=rf"^--device {name}: torch .* sees (0 CUDA|no Apple)"):
        hardware.choose(name)


def test_a_gpu_beyond_the_last_is_refused(two_gpus):
    with pytest.raises(UserError, match="^--device cuda:2: torch .* sees 2 CUDA devices$"):
        hardware.choose("cuda:2")


def test_auto_is_the_best_there_is(no_gpu, request):
    assert isinstance(hardware.choose("auto"), hardware.CPU)
    request.getfixturevalue("two_gpus")
    assert isinstance(hardware.choose("auto"), hardware.CUDA)
    assert isinstance(hardware.choose("cpu"), hardware.CPU)


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_a_gpu_is_chosen_by_its_number(name, index, two_gpus):
    assert hardware.choose(name).torch_device == torch.device("cuda", index)


# A shape that fits ------------------------------------------------------------------------------


def shape(device, model="gpt2", **given):
    return hardware.auto_shape(device, CONFIGS[model], CONFIGS[model].parameters(), **given)


@pytest.mark.parametrize("gigabytes", [140, 80, 42.3, 40])
def test_a_big_gpu_gets_16_sequences_of_1024(gigabytes):
    assert shape(gpu(memory_bytes=gigabytes * 1e9)) == (16, 1024)


@pytest.mark.parametrize("gigabytes", [1, 2, 3, 4])
def test_a_small_gpu_gets_a_short_sequence(gigabytes):
    B, T = shape(gpu(memory_bytes=gigabytes * 1e9))
    assert B == 1 and 64 <= T <= 256


def test_a_cpu_gets_one_sequence_of_64():
    assert shape(hardware.CPU()) == (1, 64)


@pytest.mark.parametrize("model", CONFIGS)
def test_more_memory_never_gives_a_smaller_step(model):
    tokens = [B * T for B, T in (shape(gpu(memory_bytes=m * 1e9), model) for m in range(1, 200))]
    assert tokens == sorted(tokens)
    assert tokens[0] < tokens[-1] or model == "gpt2-tiny"


@pytest.mark.parametrize("gigabytes", [24, 40, 80, 140])
def test_a_bigger_model_gets_a_smaller_step(gigabytes):
    models = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]
    device = gpu(memory_bytes=gigabytes * 1e9)
    tokens = [B * T for B, T in (shape(device, model) for model in models)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[-1] < tokens[0]


def test_the_weights_and_the_optimizers_state_take_their_room():
    B, T = shape(gpu(memory_bytes=16e9), "gpt2-large")  # 12.4 GB before the first token
    assert B * T <= 128


def test_what_is_given_is_kept():
    for device in (gpu(), gpu(memory_bytes=8e9), gpu(memory_bytes=1e9), hardware.CPU()):
        assert shape(device, batch_size=7)[0] == 7
        assert shape(device, seq_len=100)[1] == 100
        assert shape(device, batch_size=7, seq_len=100) == (7, 100)


def test_what_is_not_given_makes_up_for_it():
    device = gpu(memory_bytes=24e9)
    assert shape(device, batch_size=1)[1] > shape(device, batch_size=32)[1]
    assert shape(device, seq_len=128)[0] > shape(device, seq_len=1024)[0]


# Out of memory ----------------------------------------------------------------------------------


def test_running_out_of_memory_is_told_on_every_device():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    for error in (
        caught.value,
        MemoryError(),
        torch.OutOfMemoryError("in whatever words"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("MPS backend out of memory"),
    ):
        assert hardware.is_out_of_memory(error)


def test_no_other_error_is_taken_for_it():
    for error in (
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("out of memory"),
        OSError(12, "Cannot allocate memory"),
        KeyboardInterrupt(),
    ):
        assert not hardware.is_out_of_memory(error)


# One place --------------------------------------------------------------------------------------


def test_no_other_file_names_torch_cuda():
    files = [p for pattern in ("*.py", "Utils/*.py", "beyond/*.py") for p in ROOT.glob(pattern)]
    word = re.compile(r"torch\.cuda|from torch import.*\bcuda\b")
    assert [p.name for p in files if word.search(p.read_text())] == ["hardware.py"]


def test_an_apple_gpu_is_timed_by_events_behind_one_synchronization(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch.mps, "Event", fake.Event)
    monkeypatch.setattr(torch.mps, "synchronize", fake.synchronize)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 300 * 2**20)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 16e9)
    device = hardware.MPS(torch.device("mps"))
    marks = [device.mark() for _ in range(3)]
    assert fake.calls == ["Event", "record"] * 3
    assert device.elapsed_ms(marks) == [10, 10]
    assert fake.calls.count("synchronize") == 1
    assert device.peak_memory_mib() == 300 and device.describe()["type"] == "mps"
    with pytest.raises(Unsupported, match="Apple"):
        hardware.check("bitsandbytes", device)


def test_tf32_on_amd_is_there_from_the_mi300_on(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for architecture, note in (("gfx90a", "TF32: no effect"), ("gfx942:sramecc+", "")):
        fake = FakeCuda(architecture=architecture)
        device = hardware.CUDA(torch.device("cpu"), cuda=fake)
        assert (
            hardware.check("tf32", device).startswith(note) and device.describe()["type"] == "rocm"
        )
        assert bool(hardware.check("tf32", device)) == bool(note)


def test_triton_without_a_c_compiler_is_unsupported(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)
    device = hardware.CUDA(torch.device("cpu"), cuda=FakeCuda())
    with pytest.raises(Unsupported, match="C compiler"):
        hardware.check("compile", device)
