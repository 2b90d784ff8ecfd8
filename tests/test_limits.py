"""The ceilings of a device, and the modelled floor of a step."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from no_optimization import explicit_attention
from tools.forecast import gpus
from Utils.base import paths
from Utils.base.gpt2_sizes import CONFIGS
from Utils.commands import __main__ as commands
from Utils.device import capabilities, measured_ceilings
from Utils.device.cpu import CPU
from Utils.harness import step_work
from Utils.model import GPT

CEILINGS = {"matmul_tflops": {"float32": 10.0, "bfloat16": 100.0}, "bandwidth_gb_s": 1000.0}
CEILINGS["emulated_tflops"] = {}


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_are_those_that_torch_counts(name):
    config, T = CONFIGS[name], 64
    with torch.device("meta"):
        model = GPT(config, explicit_attention, 50_257, loss=torch.nn.functional.cross_entropy)
        idx = torch.zeros(1, T, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx)[1].backward()
    assert step_work.flops_per_token(config, T) * T == counter.get_total_flops()


def of_products():
    n = 1024
    a, b = torch.randn(n, n), torch.randn(n, n)
    timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=torch.get_num_threads())
    ours = measured_ceilings.matmul_tflops("float32", n, torch.device("cpu"), seconds=0.2)
    return ours, 2 * n**3 / min(timer.timeit(3).median for _ in range(5)) / 1e12


def of_memory():
    """It counts both ways."""
    x = torch.randn(64 * 2**20 // 4)
    y = torch.empty_like(x)
    timer = Timer("y.copy_(x)", globals={"x": x, "y": y}, num_threads=torch.get_num_threads())
    ours = measured_ceilings.bandwidth_gb_s(torch.device("cpu"), mib=64, seconds=0.1)
    return ours, 2 * x.nbytes / min(timer.timeit(1).median for _ in range(10)) / 1e9


@pytest.mark.timing
@pytest.mark.parametrize(("rates", "rel"), [(of_products, 0.1), (of_memory, 0.2)])
def test_ceilings_are_those_of_torchs_benchmark(rates, rel):
    """On a shared machine the highest rates come closer to what is true with every attempt."""
    best = [0.0, 0.0]
    for _ in range(40):
        best = np.maximum(best, rates())
        if best[0] == pytest.approx(best[1], rel=rel):
            break
    assert best[0] == pytest.approx(best[1], rel=rel)


@pytest.mark.parametrize(
    ("needs", "precision"),
    [
        ([], "float32"),
        (["tf32"], "tf32"),
        (["tf32", "bfloat16", "compile"], "bfloat16"),
        (["tf32", "float16"], "float16"),
    ],
)
def test_the_last_precision_that_a_script_declares_is_its_products(needs, precision):
    assert step_work.precision_of(needs) == precision


def test_the_parts_of_a_step_hold_its_arithmetic_less_the_masked_half_of_attention():
    config, B, T = CONFIGS["gpt2"], 3, 128
    products = {name: n * flop for name, n, flop, _ in step_work.parts(config, B, T, "float32")}
    attention = products.pop("attention")
    counted = step_work.flops_per_token(config, T) * B * T
    full = 12 * config.n_layer * config.n_embd * T * B * T
    assert sum(products.values()) == counted - full
    assert attention == pytest.approx(full / 2, rel=1 / T + 1e-9)
    parts = {name: size for name, _, _, size in step_work.parts(config, 1, 64, "bfloat16")}
    assert parts["optimizer"] == 7 * 4 * 124_439_808  # seven float32 a parameter


def test_each_part_takes_the_larger_of_its_two_times(monkeypatch):
    two = [("compute-bound", 2, 10e12, 1e9), ("memory-bound", 3, 1e9, 500e9)]
    monkeypatch.setattr(step_work, "parts", lambda *shape: two)
    assert step_work.floor_ms(None, 1, 1, "float32", CEILINGS) == pytest.approx(2 * 1000 + 3 * 500)
    assert step_work.floor_ms(None, 1, 1, "bfloat16", CEILINGS) == pytest.approx(2 * 100 + 3 * 500)
    assert step_work.floor_ms(None, 1, 1, "float16", CEILINGS) is None


@pytest.mark.slow
def test_measured_ceilings_are_kept_for_the_device(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    monkeypatch.setattr(measured_ceilings, "SECONDS", 0.01)
    device = CPU()
    assert measured_ceilings.ceilings(device) is None
    commands.main("ceilings", "--device", "cpu")
    found = measured_ceilings.ceilings(device)
    assert found["device"] == device.name and found["matmul_tflops"]["float32"] > 0.001
    assert "float16" not in found["matmul_tflops"]
    assert f"memory {found['bandwidth_gb_s']:,.0f} GB/s" in capsys.readouterr().out
    (kept,) = (tmp_path / "ceilings").iterdir()
    kept.write_text(json.dumps(found | {"bandwidth_gb_s": 7.0}))
    commands.main("ceilings", "--device", "cpu")
    assert "memory 7 GB/s" in capsys.readouterr().out
    commands.main("ceilings", "--device", "cpu", "--again")
    assert "memory 7 GB/s" not in capsys.readouterr().out
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert measured_ceilings.ceilings(CPU()) is None  # another device


def test_ceilings_of_a_busy_machine_are_marked_and_measured_again_after_an_hour(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    quiet = {"matmul_tflops": {"float32": 2.0}, "emulated_tflops": {}, "bandwidth_gb_s": 5.0}
    quiet |= {"other_cpu_share": 0.01, "measured_at": time.time()}
    busy = quiet | {"matmul_tflops": {"float32": 1.0}, "bandwidth_gb_s": 9.0}
    busy |= {"other_cpu_share": 0.3}
    results = [busy, busy, quiet]
    monkeypatch.setattr(measured_ceilings, "measure", lambda device: dict(results.pop(0)))
    device = CPU()
    for left in (2, 2):  # once, then from the file
        found = measured_ceilings.here(device)
        assert "other processes took 30% of the machine" in measured_ceilings.summary(found)
        assert len(results) == left
    file = measured_ceilings.file_of(device)
    for left, tflops, gb_s, share in ((1, 1.0, 9.0, 0.3), *((0, 2.0, 5.0, 0.01),) * 2):
        old = json.loads(file.read_text()) | {"measured_at": time.time() - 3601}
        file.write_text(json.dumps(old))
        found = measured_ceilings.here(device)
        assert (found["matmul_tflops"]["float32"], found["bandwidth_gb_s"]) == (tflops, gb_s)
        assert (found["other_cpu_share"], len(results)) == (share, left)
    assert "other processes" not in measured_ceilings.summary(found)


def test_an_emulated_precision_is_measured_small_and_is_no_ceiling(monkeypatch):
    sizes, natively = {}, False

    def rate(precision, n, *_):
        sizes.setdefault(precision, []).append(n)
        return n / 1e6

    monkeypatch.setattr(measured_ceilings, "matmul_tflops", rate)
    monkeypatch.setattr(measured_ceilings, "bandwidth_gb_s", lambda *_: 9.0)
    monkeypatch.setattr(capabilities, "_cpu_has", lambda feature: natively)
    found = measured_ceilings.measure(CPU())
    assert [*found["matmul_tflops"]] == ["float32", "tf32"] and sizes["bfloat16"] == [256]
    assert found["emulated_tflops"] == {"bfloat16": 0.000256}
    assert gpus.of_device(CPU(), found).bfloat16 == 0.000256
    natively = True
    found = measured_ceilings.measure(CPU())
    assert found["matmul_tflops"]["bfloat16"] == 0.002 and found["emulated_tflops"] == {}


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA L4", 121), ("NVIDIA L4 Laptop", None)])
def test_a_datasheet_peak_is_given_for_that_very_device_only(name, peak, monkeypatch):
    monkeypatch.setattr(measured_ceilings, "ceilings", lambda device: None)
    hardware = SimpleNamespace(name=name)
    shape = {"config": CONFIGS["gpt2-tiny"], "batch_size": 2, "seq_len": 64}
    args = SimpleNamespace(hardware=hardware, needs=["bfloat16"], owns=(), **shape)
    found = step_work.describe(args)
    assert found["datasheet_tflops"] == peak and found["precision"] == "bfloat16"
    assert found["ceilings"] is None and "floor_ms" not in found
