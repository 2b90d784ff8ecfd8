"""Memory by kind, compilation, and the environment in the record of a run."""

from functools import partial
from types import SimpleNamespace

import torch

import no_optimization
from tests.helpers import forked
from Utils.base import paths
from Utils.harness import memory_kinds, run_record
from Utils.harness.memory_kinds import GradientWatch
from Utils.results import rows_file
from Utils.scripts.identity import Identity, identity_from_environment, identity_variable

MIB = 2**20
DEVICE = SimpleNamespace(peak_memory_mib=lambda: 40, reserved_memory_mib=lambda: None)


def test_memory_is_by_kind_and_shared_storage_counts_once():
    """METHOD: "Weights and buffers; optimizer state after the last step; gradients, the most that
    existed at once in a warm-up step. The rest is the peak minus these"; "State that a technique
    keeps off the device [...] no part of the peak".
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
        "parameters": 1_835_008,  # of 7 MiB, of which 6 are updated
        "updated_parameters": 1_572_864,
        "optimizer": "torch.optim.adamw.AdamW",
    }
    by_kind = partial(memory_kinds.memory_by_kind, DEVICE, model)
    for several in (optimizers, [*optimizers.values()]):
        assert by_kind(several, watch.peak) == memory
        updated = [memory_kinds.updated(model, several)]
        assert memory_kinds.training_facts(model, several, updated) == facts
    unwatched = {"gradients_mib": None, "rest_mib": None}
    assert by_kind(optimizers, None) == memory | unwatched
    untrained = {"updated_parameters": 0, "optimizer": ""}
    assert memory_kinds.training_facts(model, None, [[]]) == facts | untrained

    optimizers[model.p1].state[model.p1]["exp_avg"] = torch.zeros(MIB // 2, device="meta")
    elsewhere = {"optimizer_state_mib": 10.0, "off_device_mib": 2.0, "rest_mib": 16.0}
    assert by_kind(optimizers, watch.peak) == memory | elsewhere


def compile_product(backend, cache):
    """Compile for several shapes, in a process that has compiled nothing, and check the record."""
    forked.forget_compiled()
    assert run_record.compilation() is None
    torch._dynamo.config.automatic_dynamic_shapes = False
    product = torch.compile(lambda x: x @ x.T, backend=backend)  # which needs no C++
    for size in (3, 3, 4):
        product(torch.ones(size, 3))
    assert run_record.compilation() == {"graphs": 2, "recompilations": 1, "cache": cache}


def test_record_counts_recompilations_and_tells_a_warm_cache(tmp_path):
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for arguments in (("eager", None), ("inductor", "cold"), ("inductor", "warm")):
        done = forked.call(partial(compile_product, *arguments), variables=cache)
        assert done.returncode == 0, done.stderr


def test_rows_and_records_say_what_a_launcher_has_told(settle, monkeypatch):
    """A run knows its torch; of one without timings the launcher may know more."""
    columns = {"commit": "abc1234", "torch": "2.11.0"}
    told = Identity("pair", "x@A", "main", "x@B", columns, {"side": "B"})
    monkeypatch.setenv(*identity_variable("no_optimization", told).popitem())
    assert identity_from_environment("flash_attention") is None
    args = settle("--steps=2", "--warmup=1")
    no_optimization.main(args)
    run_record.record_end(args, "failed", "it crashed")

    _, timed, _, ended = args.results_file.read_text().splitlines()
    assert ",pair,no_optimization,x@A,main,0,0,x@B,ok," in timed
    assert f",{torch.__version__},abc1234," in timed
    assert ",x@B,failed," in ended and ",2.11.0,abc1234," in ended
    assert rows_file.records_path(args.results_file).read_text().count('"side": "B"') == 2


def test_record_has_the_environment_and_no_paths(monkeypatch, settle, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
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
