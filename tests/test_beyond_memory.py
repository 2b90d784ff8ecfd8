"""Techniques of memory and of precision: what each saves, and whose losses it has."""

import contextlib
import math
import re
from argparse import Namespace
from collections import Counter
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from beyond.loss import padded_vocabulary
from tests.helpers.stand_ins import gpu
from tools.calibration.watched import STEPS
from tools.forecast.fake_run import Tracker
from Utils.analysis import summary
from Utils.base.errors import Unsupported
from Utils.base.gpt2_sizes import CONFIGS, GPTConfig
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.device.capabilities import CHECKS
from Utils.device.cpu import CPU, MPS
from Utils.harness import memory_kinds, run_record, step_work
from Utils.launch import suite_runner
from Utils.results import rows_file, study
from Utils.run import Run, execute
from Utils.scripts import ladder

MIB = 2**20


def state_mib(watch):
    device = SimpleNamespace(peak_memory_mib=lambda: 0, reserved_memory_mib=lambda: None)
    return memory_kinds.memory(device, watch.model, watch.optimizer, None)["optimizer_state_mib"]


@pytest.fixture
def in_float32(monkeypatch):
    """What tells scripts apart is then no rounding to bfloat16."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())


def test_compiled_a_block_keeps_its_input_and_nothing_else(train):
    B, T, layers, shapes = 2, 32, 3, []
    config = GPTConfig(n_layer=layers, n_head=2, n_embd=64)
    model = train("gradient_checkpointing", config=config).model
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(x):
        if x.untyped_storage().data_ptr() not in own:
            shapes.append(tuple(x.shape))
        return x

    model, idx = torch.compile(model, backend="aot_eager"), torch.zeros(B, T, dtype=torch.long)
    model(idx, idx)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(idx, idx)
    # AOTAutograd adds 5 kB of the generator's state, since attention may draw random numbers.
    shapes = [shape for shape in shapes if shape != torch.get_rng_state().shape]
    as_many_as_blocks = {shape for shape, n in Counter(shapes).items() if n >= layers}
    assert as_many_as_blocks == {(B, T, 64)} and shapes.count((B, T, 64)) <= layers + 1


def test_four_quarters_give_the_losses_of_the_whole(train, in_float32):
    flags = ["--batch-size", "8", "--seq-len", "32"]
    parent, child = train("fused_optimizer", *flags), train("gradient_accumulation", *flags)
    assert child.losses == pytest.approx(parent.losses, rel=1e-5)
    assert child.losses[0] == pytest.approx(parent.losses[0], rel=1e-6)
    assert {type(loss) for loss in child.logged} == {float}


def test_a_quarter_of_the_batch_is_there_at_once(train, in_float32):
    """At the tiny model nearly all of a step is logits: 98 MiB for the whole batch, four times."""
    peaks = []
    for name in ("fused_optimizer", "gradient_accumulation"):
        with Tracker(torch.device("cpu")) as tracker:  # of tensors: the process's peak varies
            train(name, "--batch-size", "8", "--seq-len", "64")
        peaks.append(max(total for *_, total in tracker.live) / MIB)
    assert peaks[1] < peaks[0] - 3 * 98


def test_a_batch_that_cannot_be_quartered_is_a_row_with_the_remedy(train):
    for size, better in (("1", 4), ("6", 8)):
        with pytest.raises(Unsupported, match=f"multiple of 4, not {size}; .* {better}$"):
            train("gradient_accumulation", "--batch-size", size)


def test_updating_on_the_way_gives_the_parents_losses_to_the_last_bit(train):
    """As recomputing does. One gradient is there at once."""
    parent, child = train("fused_optimizer"), train("optimizer_in_backward")
    assert len(parent.losses) == STEPS and parent.losses[0] != parent.losses[-1]
    assert child.losses == train("gradient_checkpointing").losses == parent.losses
    assert all(p.grad is None for p in child.model.parameters())
    facts = memory_kinds.training(child.model, child.optimizer)
    assert facts["updated_parameters"] == facts["parameters"] == parent.args.config.parameters()
    assert state_mib(child) == state_mib(parent) > 0
    assert parent.gradients.peak == 4 * parent.args.config.parameters()
    assert child.gradients.peak == child.model.wte.weight.nbytes


def test_each_block_is_a_graph_of_its_own(train):
    compiled = []
    keep = lambda what: compiled.append(what) or what  # noqa: E731
    model = train("optimizer_in_backward", compile=keep).model
    assert compiled[0] is torch.nn.functional.cross_entropy
    assert [what.__self__ for what in compiled[1:]] == list(model.h)


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_eight_bits_are_a_quarter_of_the_state_paged_or_not(train):
    pytest.importorskip("bitsandbytes")
    parent, child = train("8bit_optimizer"), train("paged_optimizer")
    assert type(child.optimizer).__name__ == "PagedAdamW8bit"
    assert child.losses == parent.losses
    in_float32 = 8 * child.args.config.parameters() / MIB
    assert state_mib(child) == state_mib(parent) == pytest.approx(in_float32 / 4, rel=0.03)
    assert "not paged on this device" in child.args.notes
    assert "not paged on this device" not in parent.args.notes


def test_state_that_lies_elsewhere_is_no_part_of_the_peak():
    model = torch.nn.Linear(256, 1024, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.state[model.weight] = {
        "here": torch.zeros(MIB // 4),
        "there": torch.zeros(MIB // 2, device="meta"),
    }
    device = SimpleNamespace(peak_memory_mib=lambda: 10.0, reserved_memory_mib=lambda: None)
    found = memory_kinds.memory(device, model, optimizer, 0)
    assert (found["optimizer_state_mib"], found["off_device_mib"]) == (1.0, 2.0)
    assert found["rest_mib"] == 10.0 - 1.0 - 1.0


def needs(name):
    return ladder.get(name).needs


NVIDIA = {"capability": (9, 0)}
T4 = {"capability": (7, 5), "name": "Tesla T4"}


@pytest.mark.parametrize(
    ("need", "device", "problem"),
    [
        ("tf32", gpu(architecture="gfx942:sramecc+"), ""),  # from the MI300 on
        *((need, gpu(capability=(8, 0)), "") for need in ("tf32", "bfloat16")),
        *((need, gpu(capability=(10, 3)), "") for need in ("tf32", "bfloat16")),
        ("bfloat16", gpu(**T4), "native bfloat16 needs compute capability 8.0; Tesla T4 has 7.5"),
        ("bfloat16", gpu(architecture="gfx90a", capability=(0, 0)), ""),
        ("compile", gpu(capability=(6, 1)), "torch.compile needs compute"),
        ("package torch", gpu(), ""),
        ("package no_such", gpu(), "needs no_such \\(pip install no_such\\)"),
        ("float16", gpu(**T4), ""),
        ("float16", gpu(capability=(6, 1)), "float16 on tensor cores needs compute capability 7.0"),
        ("float16", CPU(), "float16 needs a GPU"),
        ("float8", gpu(capability=(8, 9)), ""),
        ("float8", gpu(capability=(8, 6)), "float8 needs compute capability 8.9; Fake GPU has 8.6"),
        ("float8", CPU(), "float8 products need an NVIDIA or AMD GPU"),
        ("float8", gpu(architecture="gfx942:sramecc+"), ""),
        ("float8", gpu(architecture="gfx90a"), "float8 needs an MI300 or newer"),
        ("ocp_float8", gpu(architecture="gfx942"), "MI300 have another exponent bias"),
        ("ocp_float8", gpu(architecture="gfx950"), ""),
        ("cudnn_attention", gpu(**NVIDIA), ""),
        ("cudnn_attention", gpu(capability=(7, 5)), "needs compute capability 8.0"),
        ("cudnn_attention", CPU(), "needs an NVIDIA GPU"),
        ("cudnn_attention", MPS(torch.device("mps")), "needs an NVIDIA GPU"),
        ("cudnn_attention", gpu(architecture="gfx942"), "needs an NVIDIA GPU"),
        ("managed_memory", gpu(), ""),
        ("int8", gpu(capability=(8, 0)), ""),
        ("int8", gpu(capability=(7, 5)), "Triton's product of int8 needs compute capability 8.0"),
        ("int8", MPS(torch.device("mps")), "8-bit integers need"),
        ("flash_attention_4", gpu(capability=(9, 0)), "pip install --pre flash-attn-4"),
        ("flash_attention_4", gpu(capability=(12, 0)), "capability 9 and 10; .* has 12.0"),
        ("flash_attention_4", CPU(), "needs an NVIDIA GPU"),
        ("flex_attention", gpu(capability=(8, 0)), ""),
        ("flex_attention", gpu(capability=(7, 5)), "FlexAttention needs compute capability 8.0"),
        ("flex_attention", CPU(), "backward pass on GPUs alone"),
        ("mixed_moments", gpu(), ""),
        ("mixed_moments", CPU(), "kernel for GPUs alone"),
        ("torch 2.0", CPU(), ""),
        ("torch 99.1", CPU(), "needs torch 99.1 or newer"),
    ],
)
def test_a_technique_runs_where_the_device_has_what_it_needs(need, device, problem, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    if not problem:
        assert capabilities.check(need, device) == ""
        return
    with pytest.raises(Unsupported, match=problem):
        capabilities.check(need, device)


@pytest.mark.parametrize("version", [None, 8907])
def test_cudnn_attention_needs_cudnn_9_and_notes_an_older_gpu(version, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    assert "9.0 and newer" in capabilities.check("cudnn_attention", gpu(capability=(8, 9)))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    with pytest.raises(Unsupported, match="needs cuDNN 9"):
        capabilities.check("cudnn_attention", gpu(**NVIDIA))


def test_what_the_scripts_of_fewer_bits_need():
    assert "bfloat16" not in needs("float16_grad_scaler")
    assert step_work.precision_of(needs("float16_grad_scaler")) == "float16"
    assert needs("float8_linear")[-2:] == ("float8", "package torchao")
    assert needs("bfloat16_moments")[-2:] == ("mixed_moments", "torch 2.13")


FLOAT16_LINE = ["float16_grad_scaler", "float16_compile", "float16_attention"]
FLOAT16_LINE += ["float16_fused_optimizer", "float16_8bit_optimizer"]


def test_the_float16_line_trains_as_float32_does(train, monkeypatch):
    """On a CPU, which is slow at it but can. A product's operands lose 2**-11 each; sums and losses
    are float32, and few steps add up."""
    monkeypatch.setitem(CHECKS, "float16", lambda device: None)
    scales = []
    update = torch.amp.GradScaler.update
    monkeypatch.setattr(
        torch.amp.GradScaler, "update", lambda s: scales.append(s.get_scale()) or update(s)
    )
    parent = train("tensorFloat32")
    for name in FLOAT16_LINE:
        child = train(name)
        assert child.losses != parent.losses, name
        assert child.losses == pytest.approx(parent.losses, rel=2**-10), name
    # Nothing overflowed, so that no update was skipped.
    assert scales == [65536.0] * STEPS * len(FLOAT16_LINE)


@pytest.mark.parametrize("name", ["float16_grad_scaler", "float16_fused_optimizer"])
def test_an_overflow_skips_the_update_and_halves_the_scale(name, train, monkeypatch):
    monkeypatch.setitem(CHECKS, "float16", lambda device: None)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: scaler)
    watch = train(name, "--seq-len=16")
    assert scaler.get_scale() == 2.0 ** (100 - STEPS)
    for name, weight in watch.model.named_parameters():
        assert torch.equal(weight, watch.first[name])
    assert memory_kinds.updates(watch.optimizer) == 0


def test_without_bfloat16_a_script_runs_in_float16_under_its_name(tmp_path, monkeypatch):
    """Its losses are those of its diff on the float16 line; skipped updates are told."""
    no_bfloat16 = mock.Mock(side_effect=Unsupported("native bfloat16"))
    monkeypatch.setitem(CHECKS, "bfloat16", no_bfloat16)
    monkeypatch.setitem(CHECKS, "float16", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    monkeypatch.setattr(run_record, "compilation", lambda: None)  # of tests before, in this process
    path = tmp_path / "results.csv"
    flags = ["--model=gpt2-tiny", "--dataset=synthetic", "--device=cpu", "--steps=3", "--warmup=1"]
    flags += ["--batch-size=2", "--seq-len=16", "--min-seconds=0", f"--results-file={path}"]
    for name in ("padded_vocabulary", "no_sync", "fused_optimizer", "float16_fused_optimizer"):
        with contextlib.suppress(SystemExit):  # of no_sync, after its row
            execute(ladder.get(name), flags, Run, passes=lambda error: False)
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**100)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    execute(ladder.get("untied_weights"), flags, Run)
    rows = rows_file.read(path)
    notes = rows.groupby("technique", observed=True).note.first()
    assert notes["padded_vocabulary"] == notes["fused_optimizer"] == "in float16"
    assert notes["float16_fused_optimizer"] == ""
    assert notes["no_sync"].endswith("in float16 its diff has no place at 'loss.backward()'")
    assert notes["untied_weights"] == "in float16; 3 of 3 updates skipped: gradients overflowed"
    losses = {name: list(part.loss) for name, part in rows.groupby("technique", observed=True)}
    assert losses["fused_optimizer"] == losses["float16_fused_optimizer"]
    assert losses["padded_vocabulary"] == pytest.approx(losses["fused_optimizer"], rel=2**-10)
    measured = study.newest(rows)
    assert measured.ladder.replaced == ladder.FLOAT16
    assert measured.parent("padded_vocabulary") == "float16_fused_optimizer"
    assert measured.parent("fused_optimizer") == "float16_attention"
    assert measured.names("ladder") == {"fused_optimizer", "float16_fused_optimizer"}


def test_without_bfloat16_the_ladder_is_in_float16(monkeypatch, capsys):
    t4 = gpu(capability=(7, 5), name="Tesla T4")
    assert not capabilities.has("bfloat16", t4) and capabilities.has("bfloat16", gpu())
    names = list(ladder.repository(bfloat16=False).group("ladder").scripts)
    assert names == ["no_optimization", "tensorFloat32", *FLOAT16_LINE]
    assert all(capabilities.has(n, t4) for name in names for n in needs(name) if "float" in n)
    monkeypatch.setattr(device_choice, "choose", lambda name: t4)
    monkeypatch.setattr(suite_runner, "version", lambda package: "2.13.0")
    on_t4 = suite_runner.ladder_of_device(Namespace(device="auto"))
    assert list(on_t4.group("ladder").scripts) == names
    assert "float16" in capsys.readouterr().out


def test_it_is_all_in_bfloat16_but_the_loss_and_layer_norms_do_not_move(train):
    parent, child = train("fused_optimizer"), train("pure_bfloat16")
    assert {p.dtype for p in child.model.parameters()} == {torch.bfloat16}
    assert child.gradients.peak == parent.gradients.peak / 2
    assert state_mib(child) == pytest.approx(state_mib(parent) / 2, rel=0.01)
    rounded = torch.tensor(child.losses).bfloat16().float().tolist()
    assert all(loss != coarse for loss, coarse in zip(child.losses, rounded, strict=True))
    assert child.losses == pytest.approx(parent.losses, rel=2**-8)
    for watch, moves in ((parent, True), (child, False)):
        norms = [name for name in watch.first if re.search(r"ln_\w+\.weight", name)]
        now = dict(watch.model.named_parameters())
        assert {not torch.equal(now[norm], watch.first[norm]) for norm in norms} == {moves}
    assert not torch.equal(now["wte.weight"], watch.first["wte.weight"])


def test_products_of_several_precisions_have_no_ceiling_and_no_mfu(monkeypatch):
    ceilings = {"matmul_tflops": {"float32": 9.0, "bfloat16": 99.0}, "bandwidth_gb_s": 999.0}
    monkeypatch.setattr(measured_ceilings, "ceilings", lambda device: ceilings)
    here = SimpleNamespace(name="NVIDIA L4")
    shape = {"config": CONFIGS["gpt2"], "batch_size": 1, "seq_len": 64}
    args = SimpleNamespace(hardware=here, owns=(), **shape)
    args.needs = needs("padded_vocabulary")
    assert step_work.describe(args)["floor_ms"] and step_work.describe(args)["datasheet_tflops"]
    args.needs = needs("float8_linear")
    found = step_work.describe(args)
    assert found["precision"] is found["datasheet_tflops"] is found["floor_ms"] is None
    line = {"tokens_per_second": 1e3, "step_ms": 64.0}
    line = summary.from_records(line, [{"limits": found}], "gpt2")
    for figure in ("ceiling_share", "mfu", "floor_ms", "floor_speedup"):
        assert math.isnan(line[figure])
    assert line["tflops"] > 0 and line["precision"] is None


def test_an_untied_head_starts_as_a_copy_and_goes_its_own_way(train):
    parent, child = train("fused_optimizer"), train("untied_weights")
    more = 50_257 * child.args.config.n_embd
    facts = [memory_kinds.training(watch.model, watch.optimizer) for watch in (parent, child)]
    for figure in ("parameters", "updated_parameters"):
        assert facts[1][figure] == facts[0][figure] + more
    assert child.losses[0] == parent.losses[0]
    assert child.losses[1:] != parent.losses[1:]
    assert child.losses == pytest.approx(parent.losses, rel=2**-8)
    assert not torch.equal(child.model.lm_head.weight, child.model.wte.weight)
    assert state_mib(child) == pytest.approx(state_mib(parent) + 8 * more / MIB, abs=0.2)


def test_a_padded_vocabulary_changes_shapes_and_nothing_else(train, in_float32):
    flags = ("--batch-size=2", "--seq-len=32")
    parent, child = train("fused_optimizer", *flags), train("padded_vocabulary", *flags)
    assert parent.first.keys() == child.first.keys()
    for name, weight in child.first.items():
        assert torch.equal(weight[: len(parent.first[name])], parent.first[name]), name
    assert [len(w.first["wte.weight"]) for w in (parent, child)] == [50_257, 50_304]
    assert parent.losses[0] != parent.losses[-1]
    assert child.losses == pytest.approx(parent.losses, rel=1e-5)
    assert child.losses[0] == pytest.approx(parent.losses[0], rel=1e-6)
    child.model(*child.batch)[1].backward()
    gradient = child.model.wte.weight.grad
    assert gradient[:50_257].any(dim=1).all() and not gradient[50_257:].any()


def test_what_stands_in_a_padded_column_does_not_reach_the_loss():
    logits, targets = torch.randn(4, 50_304), torch.tensor([0, 1, 50_255, 50_256])
    logits[:, 50_257:] = 100
    sliced, masked = (logits.clone().requires_grad_() for _ in range(2))
    expected = torch.nn.functional.cross_entropy(sliced[:, :50_257], targets)
    expected.backward()
    loss = padded_vocabulary.cross_entropy(masked, targets)
    loss.backward()
    assert loss == expected and torch.equal(masked.grad, sliced.grad)
