"""The record of a run: memory by kind, compilation, environment, and what disturbed it."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers import forked
from Utils.harness import memory_kinds, run_record
from Utils.harness.first_gradients import FirstGradients
from Utils.harness.memory_kinds import GradientWatch

MIB = 2**20


def test_memory_is_by_kind_and_shared_storage_counts_once():
    """METHOD: "Weights and buffers; optimizer state after the last step; gradients, the most that
    existed at once in a warm-up step. The rest is the peak minus these"; "State that a technique
    keeps off the device [...] not part of the peak".
    """
    # Parameters of 4, 2 and 1 MiB: one is tied, which counts once, one has no effect.
    model = torch.nn.ParameterDict(
        {"p0": torch.zeros(MIB), "p1": torch.zeros(MIB // 2), "unused": torch.zeros(MIB // 4)}
    )
    model.tied = model.p0
    model.register_buffer("buffer", torch.zeros(MIB // 4))
    model.register_buffer("view", model.p0.detach()[:10])
    optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}
    watch = GradientWatch(model)
    with watch:
        (model.p0.sum() + model.p1.sum()).backward()
    for optimizer in optimizers.values():
        optimizer.step()

    memory = {
        "peak_mib": 40,
        "reserved_mib": None,
        "weights_mib": 8.0,
        "gradients_mib": 6.0,
        "optimizer_state_mib": 12.0,
        "rest_mib": 14.0,
        "off_device_mib": 0.0,
    }
    facts = {
        "parameters": 1_835_008,  # 7 MiB, of which 6 are updated
        "updated_parameters": 1_572_864,
        "optimizer": "torch.optim.adamw.AdamW",
    }
    by_kind = partial(
        memory_kinds.memory_by_kind,
        SimpleNamespace(peak_memory_mib=lambda: 40, reserved_memory_mib=lambda: None),
        model,
    )
    for several in (optimizers, [*optimizers.values()]):
        assert by_kind(several, watch.peak) == memory
        updated = [memory_kinds.updated(model, several)]
        assert memory_kinds.training_facts(model, several, updated) == facts
    unwatched = {"gradients_mib": None, "rest_mib": None}
    assert by_kind(optimizers, None) == memory | unwatched

    optimizers[model.p1].state[model.p1]["exp_avg"] = torch.zeros(MIB // 2, device="meta")
    elsewhere = {"optimizer_state_mib": 10.0, "off_device_mib": 2.0, "rest_mib": 16.0}
    assert by_kind(optimizers, watch.peak) == memory | elsewhere


def test_first_gradients_have_a_norm_if_they_exist_at_once():
    """In the first step alone; GradScaler leaves the division by its scale to a fused optimizer."""
    model = torch.nn.ParameterDict({"a": torch.ones(2, 3), "b": torch.ones(4)})
    fused = torch.optim.AdamW(model.parameters(), fused=True)
    several = {p: torch.optim.AdamW([p]) for p in model.parameters()}

    def norm_of(optimizer):
        watch = FirstGradients(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        with watch:
            scaler.scale(3 * model.a.sum() + 4 * model.b.sum()).backward()
            for member in memory_kinds.optimizers(optimizer):
                scaler.step(member)
        model.zero_grad()
        return watch.norm

    expected = pytest.approx((6 * 3**2 + 4 * 4**2) ** 0.5)
    assert norm_of(fused) == expected == norm_of(several)

    def update(p):
        several[p].step()
        several[p].zero_grad()

    for p in several:
        p.register_post_accumulate_grad_hook(update)
    watch = FirstGradients(model, several)
    with watch:
        (model.a.sum() + model.b.sum()).backward()
    assert watch.norm is None


def compile_product(backend, cache):
    """Compile for several shapes, in a process that has compiled nothing, and check the record."""
    forked.forget_compiled()
    assert run_record.compilation() is None
    torch._dynamo.config.automatic_dynamic_shapes = False
    product = torch.compile(lambda x: x @ x.T, backend=backend)  # which needs no C++
    for size in (3, 3, 4):
        product(torch.ones(size, 3))
    assert run_record.compilation() == {"graphs": 2, "recompilations": 1, "cache": cache}


def test_record_counts_recompilations_and_tells_a_warm_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for arguments in (("eager", None), ("inductor", "cold"), ("inductor", "warm")):
        done = forked.call(partial(compile_product, *arguments))
        assert done.returncode == 0, done.stderr


def test_record_has_the_environment_and_no_paths(monkeypatch, settle, tmp_path):
    monkeypatch.setattr("Utils.base.paths.CACHE", tmp_path)
    texts = {"OMP_PROC_BIND": "close", "CUDA_HOME": "/home/somebody/cuda", "SECRET": "hidden"}
    for name, text in texts.items():
        monkeypatch.setenv(name, text)
    args = settle()
    columns = run_record.row(args, "ok")
    record = run_record.record(args, columns)
    assert record["variables"].keys() & texts == {"OMP_PROC_BIND"}
    assert f"PyTorch version: {torch.__version__}" in record["collect_env"]
    (cached,) = tmp_path.glob("collect_env-*.txt")
    cached.write_text("cached")
    assert run_record.record(args, columns)["collect_env"] == "cached"


STEADY = [100.0, 101.0, 99.0] * 15
COUNTERS = {
    "clock_s": 10.0,
    "all_cpu_s": 40.0,
    "busy_cpu_s": 30.0,
    "own_cpu_s": 29.0,
    "steal_s": 0.1,
    "energy_j": 3000.0,
    "thermal_violation_s": 0.05,
}
NORMAL = ["sw power cap", "applications clocks setting", "sync boost", "reliability"]


def grade(step_ms=STEADY, **counters):
    readings = {"temperature_c": 61, "throttle_reasons": NORMAL}
    counters = COUNTERS | counters
    rank = SimpleNamespace(other_processes=(), counters=counters, readings=readings, node=0)
    graded = run_record.run_quality([rank], step_ms)
    assert graded["grade"] == ("tainted" if graded["reasons"] else "clean")
    return graded


def steps(change=0.0, noise=0.01, seed=0):
    """Step times that change steadily by that much from the first third's middle to the last's."""
    trend = 1 + change * (np.linspace(0, 1.5, 45) - 0.25)
    return list(trend * (1 + noise * np.random.default_rng(seed).standard_normal(45)))


def test_quality_of_an_undisturbed_run_has_what_was_read():
    assert grade() == COUNTERS | {
        "grade": "clean",
        "reasons": [],
        "other_processes": [],
        "temperature_c": 61,
        "throttle_reasons": NORMAL,
        "mean_power_w": 300.0,
        "other_cpu_share": 0.024,
        "steal_share": 0.0025,
        "drift": 0.0,
    }


# A counter, a value that is clean and one that is not, and the reason.
LIMITS = """\
own_cpu_s                  28.1  27.9  other processes took 5%
steal_s                    0.79  0.81  the hypervisor took 2%
thermal_violation_s        0.09  0.11  thermal slowdown in 1%
sw_thermal_slowdown_s      0.09  1.2   thermal slowdown in 12%
hw_thermal_slowdown_s      0.09  0.11  thermal slowdown in 1%
hw_power_brake_slowdown_s  0.09  1.2   power brake in 12%
"""


@pytest.mark.parametrize("line", LIMITS.splitlines())
def test_quality_is_tainted_by_shares_over_a_limit(line):
    """METHOD: "other processes used more than 5% of the cores' time"; "the hypervisor took more
    than 2% of it"; "heat or a power fault limits clocks at the end, or did for more than 1% of the
    time".
    """
    counter, clean, disturbed, reason = line.split(maxsplit=3)
    assert grade(**{counter: float(clean)})["reasons"] == []
    (said,) = grade(**{counter: float(disturbed)})["reasons"]
    assert said.startswith(reason)


def test_quality_of_a_short_run_allows_for_ticks_alone():
    """The kernel counts in ticks of 10 ms, a fifth of 50 ms."""
    short = {"clock_s": 0.05, "all_cpu_s": 0.2, "steal_s": 0.0, "thermal_violation_s": 0.0}
    assert grade(**short, busy_cpu_s=0.1, own_cpu_s=0.06)["grade"] == "clean"
    shared = grade(**short, busy_cpu_s=0.2, own_cpu_s=0.1)
    assert shared["reasons"] == ["other processes took 30% of the cores"]


@pytest.mark.parametrize("change, words", [(0.08, "slowed by"), (-0.08, "sped up by")])
def test_quality_finds_a_drift_of_8_percent_in_noise_of_1(change, words):
    """METHOD: "the last third's median step differs from the first third's by more than 5%, and
    Kendall's rank correlation of time and step has p < 0.001".
    """
    for seed in range(20):
        graded = grade(steps(change, seed=seed))
        assert graded["drift"] == pytest.approx(change, abs=0.02)
        assert graded["reasons"][0].startswith(words)


def test_quality_takes_no_noise_and_no_small_trend_for_drift():
    assert grade(steps(noise=0.3))["reasons"] == []
    assert grade(steps(0.04, noise=0.001))["reasons"] == []  # certain, but small

    slower = [100 * 1.5**step for step in range(8)]
    assert grade(slower)["reasons"] == ["slowed by 1039% during the run"]
    assert grade(slower[:6])["reasons"] == [] and "drift" not in grade(slower[:2])
