"""The ceilings of a device, and the modelled floor of a step."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from no_optimization import explicit_attention
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import measured_ceilings
from Utils.device.cpu import CPU
from Utils.harness import step_work
from Utils.model import GPT

CEILINGS = {"matmul_tflops": {"float32": 10.0, "bfloat16": 100.0}, "bandwidth_gb_s": 1000.0}


def test_flops_are_those_that_torch_counts():
    """METHOD: "the same for every script: 6 N + 12 n_layer n_embd T per token"."""
    config, T = CONFIGS["gpt2"], 64
    with torch.device("meta"):
        model = GPT(config, explicit_attention, 50_257, loss=torch.nn.functional.cross_entropy)
        idx = torch.zeros(1, T, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx)[1].backward()

    assert step_work.flops_per_token(config, T) * T == counter.get_total_flops()


def test_floor_parts_are_linear_layers_masked_attention_and_adamw():
    """METHOD: "Parts are linear layers, attention without the masked half, and AdamW"."""
    config, T = CONFIGS["gpt2"], 128
    flop, size = {}, {}
    for name, count, part_flop, part_size in step_work.step_parts(config, 3, T, "bfloat16"):
        flop[name], size[name] = count * part_flop, part_size
    full_attention = 5_435_817_984  # 12 layers x 12 x 768 x 128 x 384 tokens

    assert flop.pop("attention") == full_attention * 129 / 256
    assert size["attention"] == 7_077_888  # 12 x 384 x 768 in bfloat16
    assert size["optimizer"] == 3_484_314_624  # seven float32 of 124,439,808 parameters
    assert size["c_fc"] == 7_667_712  # 768 x 384, 768 x 3072 and 3072 x 384 in bfloat16
    assert sum(flop.values()) == step_work.flops_per_token(config, T) * 384 - full_attention


def test_floor_takes_the_larger_time_of_each_part(monkeypatch):
    """METHOD: "Each part takes the larger of its arithmetic and its unavoidable traffic"."""
    parts = [("compute-bound", 2, 10e12, 1e9), ("memory-bound", 3, 1e9, 500e9)]
    monkeypatch.setattr("Utils.harness.step_work.step_parts", lambda *shape: parts)
    floors = [
        step_work.floor_ms(None, 1, 1, precision, CEILINGS)
        for precision in ("float32", "bfloat16", "float16")
    ]
    # 2 x 1000 or 2 x 100 of the first, 3 x 500 of the other
    assert floors == [pytest.approx(3500), pytest.approx(1700), None]


@pytest.mark.parametrize(
    "name, needs, precision, peak",
    [
        ("NVIDIA L4", ["tf32", "bfloat16", "compile"], "bfloat16", 121),
        ("NVIDIA L4", ["bfloat16", "float8"], None, None),
    ],
)
def test_limits_name_the_last_precision_and_the_peak_of_a_listed_device(
    name, needs, precision, peak, monkeypatch
):
    """METHOD: "MFU uses the datasheet's dense peak, for listed devices only"."""
    monkeypatch.setattr("Utils.device.measured_ceilings.ceilings", lambda device: None)
    run = SimpleNamespace(
        hardware=SimpleNamespace(name=name),
        needs=needs,
        batch_size=2,
        config=CONFIGS["gpt2-tiny"],
        seq_len=64,
    )

    assert step_work.limits(run) == {
        "flops_per_token": step_work.flops_per_token(run.config, 64),
        "precision": precision,
        "datasheet_tflops": peak,
        "ceilings": None,
    }


def test_ceilings_are_the_fastest_of_several_calls(monkeypatch):
    """METHOD: "`make ceilings` measures [...] and keeps the fastest"."""
    precisions = []

    class Timer:
        def __init__(self, statement, globals, num_threads):
            exec(statement, globals)
            precisions.append(torch.get_float32_matmul_precision())

        def blocked_autorange(self, min_run_time):
            return SimpleNamespace(times=[2e-3, 1e-3, 4e-3])

    monkeypatch.setattr("torch.utils.benchmark.Timer", Timer)
    device = torch.device("cpu")
    for precision in ("float32", "tf32"):
        # 2 x 100^3 in 1 ms
        assert measured_ceilings.matmul_tflops(precision, 100, device) == pytest.approx(0.002)
    assert precisions == ["highest", "high"]
    assert measured_ceilings.bandwidth_gb_s(device, mib=8) == pytest.approx(16.777216)  # 16 MiB


def test_ceilings_of_an_emulated_precision_are_measured_small(monkeypatch):
    monkeypatch.setattr(
        "Utils.device.measured_ceilings.matmul_tflops", lambda precision, n, *_: n / 1e6
    )
    monkeypatch.setattr("Utils.device.measured_ceilings.bandwidth_gb_s", lambda *_: 9.0)
    monkeypatch.setattr("Utils.device.capabilities._cpu_has", lambda feature: False)
    monkeypatch.setattr("Utils.device.capabilities._has_bfloat16_kernels", lambda: False)
    emulated = measured_ceilings.measure(CPU())
    assert emulated["matmul_tflops"] == {"float32": 0.002, "tf32": 0.002}
    assert emulated["emulated_tflops"] == {"bfloat16": 0.000256}


def test_ceilings_are_kept_and_those_of_a_busy_machine_measured_again(tmp_path, monkeypatch):
    stored = {
        "matmul_tflops": {"float32": 1.0},
        "emulated_tflops": {"bfloat16": 0.01},
        "bandwidth_gb_s": 1234.0,
    }
    results = [stored | {"other_cpu_share": share} for share in (0.3, 0, 0)]
    monkeypatch.setattr("Utils.base.paths.CACHE", tmp_path)
    monkeypatch.setattr("Utils.device.measured_ceilings.measure", lambda device: results.pop(0))

    def summary():
        ceilings = measured_ceilings.stored_or_measured(CPU())
        return measured_ceilings.summary(ceilings).partition("float32 ")[2], len(results)

    quiet = "1.00, bfloat16 0.01 (emulated); memory 1,234 GB/s"
    busy = f"{quiet}; too low, as other processes took 30% of the machine meanwhile"
    assert summary() == (busy, 2)
    assert summary() == summary() == (quiet, 1)  # then from the file
    file = measured_ceilings.file_of(CPU())
    file.write_text(file.read_text().replace("1.0", "0"))
    assert summary() == (quiet, 0)  # of zero, they would divide to no number
