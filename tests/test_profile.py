"""Where a step's time goes: the grouping on known names and constructed traces, a GPU's among them,
and real runs of scripts that are slowed on purpose."""

import dataclasses
import gzip
import json
import pickle
import pstats
import re
from itertools import chain
from types import SimpleNamespace

import pytest

from tests.helpers.profiler_events import allocation, annotation, event, launched, shaped, steps
from tests.helpers.rows import records_in
from tests.helpers.stand_ins import FakeCuda, full_disk, gpu
from tools.forecast import kernel_kinds
from tools.forecast.kernel_kinds import KINDS
from tools.own_script import own_runs
from tools.own_script.profiled_steps import PROFILED, WAIT
from tools.profile import __main__ as profile_command
from tools.profile import profile_page, profiled_run
from tools.profile.memory_history import memory_history
from tools.profile.step_breakdown import KindTime, break_down
from Utils.base import errors
from Utils.base.errors import UserError
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.launch import suite_runner
from Utils.results import rows_file
from Utils.scripts import ladder
from Utils.scripts.ladder import Ladder, Technique

TINY = ["--model", "gpt2-tiny", "--dataset", "synthetic", "--device", "cpu", "--seq-len", "64"]


OPERATORS = """
matmul aten::mm aten::baddbmm aten::linear aten::_scaled_mm mkldnn::_linear_pointwise
matmul triton_tem_fused_mm_3 graph_0_gemm_m64n192k64_kernel graph_0_cpp_CppMicroGemmFP32Vec_mm_5
attention aten::_scaled_dot_product_flash_attention_for_cpu aten::_flash_attention_forward
attention aten::scaled_dot_product_attention aten::_cudnn_attention_backward
normalization aten::native_layer_norm_backward aten::_log_softmax_backward_data
normalization aten::nll_loss_forward aten::cross_entropy_loss aten::_softmax aten::sum aten::mean
normalization graph_3_cpp_fused__softmax_masked_fill_2 cpp_fused__log_softmax_nll_loss_forward_9
normalization triton_red_fused_add_native_layer_norm_1 triton_per_fused_sum_7
elementwise aten::add_ aten::mul aten::gelu_backward aten::masked_fill_ aten::zero_ aten::triu
elementwise aten::_foreach_add_ triton_poi_fused_add_gelu_view_2 triton_poi_fused_addmm_gelu_1
optimizer aten::_fused_adamw_ bitsandbytes::optimizer_update_8bit_blockwise
optimizer aten::_amp_foreach_non_finite_check_and_unscale_
copies aten::copy_ aten::_to_copy aten::clone aten::contiguous aten::_local_scalar_dense aten::item
copies aten::embedding aten::embedding_dense_backward graph_0_cpp_fused__to_copy_0
copies graph_1_cpp_fused_add_embedding_dense_backward_sum_12
communication c10d::allreduce_ _c10d_functional::all_reduce gloo:all_reduce
None aten::view aten::t aten::empty_strided aten::detach aten::expand ProfilerStep#3 MmBackward0
None autograd::engine::evaluate_function: CompiledFunction cudaLaunchKernel
other aten::fft_r2c mine::unheard_of
"""
KERNELS = """
matmul nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT
matmul sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_kernel
matmul void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)
matmul void cublasLt::splitKreduce_kernel<32, 16, int, float>(...)
matmul Cijk_Ailk_Bljk_HHS_BH_MT128x128x16
attention void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>(p)
attention fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)
attention cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64
normalization void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>(...)
normalization void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(...)
normalization void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>(...)
normalization void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(...)
normalization triton_red_fused__log_softmax_nll_loss_forward_20
elementwise void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>
optimizer void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMath>(...)
copies void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda(...)>
copies void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(...)
communication ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)
other my_kernel
"""


def test_operators_and_kernels_have_their_kind_by_name():
    for line in OPERATORS.strip().splitlines():
        kind, *names = line.split()
        assert {str(kernel_kinds.operator_kind(name)) for name in names} == {kind}, line
    for line in KERNELS.strip().splitlines():
        kind, name = line.split(" ", 1)
        assert kernel_kinds.kernel_kind(name) == kind, name


def ms_by_kind(breakdown):
    return {name: kind.ms for name, kind in breakdown.kinds.items() if kind.ms}


def test_on_a_cpu_each_operator_counts_for_itself_and_the_rest_is_idle():
    breakdown = break_down(
        [
            *steps(2, 1000),
            annotation(WAIT, 0, 100),
            event("aten::clone", 20, 50),  # in the wait: no work of the model
            event("aten::linear", 200, 300),
            event("aten::t", 210, 10),
            event("aten::addmm", 250, 200),
            event("aten::contiguous", 460, 20),
            event("autograd::engine::evaluate_function: AddmmBackward0", 500, 40),
            event("aten::add_", 510, 20),
            annotation("Optimizer.step#AdamW.step", 600, 200),
            event("aten::mul_", 650, 50),
            event("aten::scaled_dot_product_attention", 840, 40),
            event("aten::_scaled_dot_product_flash_attention_for_cpu", 845, 30),
            event("aten::copy_", 850, 10),  # attention counts as a whole
            event("aten::embedding_dense_backward", 900, 20),
            event("aten::fill_", 905, 10),  # and so does the embedding
            event("aten::fft_r2c", 999, 1),
            event("aten::mm", 1100, 500),  # in the second step, which only ends the first
            event("aten::mm", 0, 1000, thread=7),  # another thread's
        ]
    )
    assert breakdown.steps == breakdown.mean_step_ms == 1
    assert ms_by_kind(breakdown) == pytest.approx(
        {"matmul": 0.28, "copies": 0.04, "elementwise": 0.02, "optimizer": 0.2, "attention": 0.04}
        | {"other": 0.001, "idle": 0.419}
    )
    assert sum(kind.share for kind in breakdown.kinds.values()) == pytest.approx(1)
    assert breakdown.kinds["idle"].parts == pytest.approx(
        {"data": 0.1, "dispatch": 0.02, "python": 0.299}
    )
    assert breakdown.gap_ms == pytest.approx(0.1)
    assert breakdown.gap_between == f"{WAIT} and aten::linear"
    with pytest.raises(ValueError, match="no two steps"):
        break_down(steps(1, 1000))


def gpu_steps(wait=(10, 30)):
    """Two steps and the beginning of a third of a GPU that runs 500 us behind a host that never
    waits; in each 1000 us of kernels and pauses. wait: start and length of the wait for data."""
    events = steps(3, 1000)
    for start in (0, 1000, 2000):
        device = start + 500
        events += [
            annotation(WAIT, start + wait[0], wait[1]),
            *launched("Memcpy HtoD (Pageable -> Device)", start + 50, device, 50),
            # 100 us of nothing, then an unknown kernel of a known operator, on autograd's thread
            event("aten::linear", start + 95, 12, thread=2),
            event("aten::addmm", start + 96, 10, thread=2),
            *launched("mystery", start + 100, device + 150, 300, thread=2),
            annotation("Optimizer.step#ZeroRedundancyOptimizer.step", start + 145, 12),
            *launched("ncclDevKernel_AllReduce", start + 150, device + 400, 150),
            *launched("vectorized_elementwise", start + 200, device + 550, 50),
            annotation("Optimizer.step#AdamW.step", start + 245, 12),
            event("aten::_foreach_add_", start + 246, 10),
            *launched("vectorized_elementwise", start + 250, device + 600, 200),
            *launched("Memset (Device)", start + 300, device + 800, 20),
            *launched("my_kernel", start + 350, device + 820, 30),
            event("ProfilerStep#1", device, 900, 7, "gpu_user_annotation"),
        ]
    return events


def test_on_a_gpu_kernels_count_once_by_what_launched_them_and_steps_begin_there():
    breakdown = break_down(gpu_steps())
    assert breakdown.mean_step_ms == 1
    expected = {"matmul": 0.3, "elementwise": 0.05, "optimizer": 0.2, "other": 0.03}
    expected |= {"copies": 0.07, "communication": 0.1, "idle": 0.25}
    assert ms_by_kind(breakdown) == pytest.approx(expected)
    moved = {"transfers": 0.05, "on the device": 0.02}
    assert breakdown.kinds["copies"].parts == pytest.approx(moved)
    # The device pauses from 550 to 650 and from 1350 to 1500, when the host launches once and is in
    # Python else.
    parts = {"dispatch": 0.003, "python": 0.247}
    assert breakdown.kinds["idle"].parts == pytest.approx(parts)


def test_a_gpu_that_waits_while_the_host_waits_for_data_waits_for_data():
    """Until 500 and 1500: before a step begins on the device."""
    other_thread = event("aten::view", 1400, 20, thread=2)
    parts = break_down([*gpu_steps(wait=(360, 110)), other_thread]).kinds["idle"].parts
    assert parts == pytest.approx({"data": 0.11, "dispatch": 0.003, "python": 0.137})


CEILINGS = {"matmul_tflops": {"float32": 1.0, "tf32": 4.0, "bfloat16": 8.0}, "bandwidth_gb_s": 100}


def limits(kind, *events, **options):
    breakdown = break_down([*steps(2, 10_000), *events], ceilings=CEILINGS, **options)
    return breakdown.kinds[kind].ceiling_share, breakdown.kinds[kind].bound


def test_bounds_and_shares_of_the_ceiling():
    n = 1024
    product_us = 2 * n**3 / 1e6
    added_us = 3 * 4 * n * n / 1e5  # of two matrices
    two = [(n, n)] * 2
    product = ("aten::mm", 10, 2 * product_us, *two)  # twice as long as it could be
    assert limits("matmul", shaped(*product)) == (pytest.approx(0.5), "compute")
    assert limits("matmul", shaped(*product), needs=["tf32"])[0] == pytest.approx(0.125)
    assert limits("matmul", shaped(*product, type="c10::BFloat16"))[0] == pytest.approx(1 / 16)
    thin = shaped("aten::mm", 10, 4 * (n * n + 2 * n) / 1e5 / 0.8, (1, n), (n, n))
    assert limits("matmul", thin) == (pytest.approx(0.8), "memory")
    bias = shaped("aten::addmm", 10, product_us, (n,), *two)
    around = shaped("aten::linear", 9, product_us + 2, *two, (n,))
    copied = event("aten::copy_", 15, 10)  # of the bias, which makes of a product no sum of parts
    assert limits("matmul", around, bias, copied)[0] == pytest.approx(1, rel=0.01)
    assert limits("matmul", event("aten::mm", 10, 50)) == (None, None)

    norm = shaped("aten::native_layer_norm_backward", 10, added_us, *two)
    sums = shaped("aten::sum", 100, 5, (n, n))
    assert limits("normalization", norm, sums)[0] == pytest.approx(4 / 3, rel=0.01)
    softmax = shaped("aten::softmax", 9, added_us + 2, (n, n))
    within = shaped("aten::_softmax", 10, added_us, (n, n))  # whose work is the only one
    assert limits("normalization", softmax, within)[0] == pytest.approx(2 / 3, rel=0.01)

    add = ("aten::add", 10, 2 * added_us, *two)
    assert limits("elementwise", shaped(*add)) == (pytest.approx(0.5), "memory")
    in_place = shaped("aten::copy_", 10, added_us, *two)
    assert limits("copies", in_place) == (pytest.approx(2 / 3), "memory")
    assert limits("elementwise", event("cpp_fused_add_0", 10, 50)) == (None, "memory")
    many = [event("aten::add", 10 + 8 * number, 4) for number in range(100)]
    assert limits("elementwise", *many) == (None, "launch")

    heads = [(2, 4, 128, 64)] * 3
    flop = 2 * 2 * 4 * 128 * 129 * 64  # of Q K^T and of the mix, half of each
    attention = shaped("aten::scaled_dot_product_attention", 10, flop / 1e6, *heads)
    assert limits("attention", attention) == (pytest.approx(1), "compute")
    update = [
        annotation("Optimizer.step#AdamW.step", 10, 1000),
        event("aten::_fused_adamw_", 20, 980),
    ]
    assert limits("optimizer", *update, update_bytes=5e7) == (pytest.approx(0.5), "memory")


@pytest.mark.parametrize("kernel_us, idle, bound", [(2, 0.6, "launch"), (5, 0, "memory")])
def test_short_kernels_are_launch_bound_but_not_on_a_gpu_that_never_waits(kernel_us, idle, bound):
    launches = [launched("vectorized_elementwise", 5 * i, 5 * i + 5, kernel_us) for i in range(201)]
    kinds = break_down([*steps(2, 1000), *chain.from_iterable(launches)]).kinds
    assert kinds["elementwise"].bound == bound
    assert kinds["idle"].share == pytest.approx(idle)


@pytest.mark.parametrize(
    "sizes, growth", [((1e6, 2e6, 3e6), 1e6), ((1e6, -1e6, 1e6), -1e6), ((512,) * 3, 512)]
)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_memory_is_that_of_the_device_and_grows_by_the_least_growth_of_a_step(
    on_gpu, sizes, growth
):
    changes = [allocation(1000 * i + 500, size, on_gpu) for i, size in enumerate(sizes)]
    events, of_the_other = steps(4, 1000), gpu_steps()
    if on_gpu:
        events, of_the_other = of_the_other, events
    assert break_down([*events, *changes]).growth_mib == growth / 2**20
    assert break_down([*of_the_other, *changes]).growth_mib is None


def test_the_peak_of_a_step_is_that_of_the_first_above_its_beginning():
    sizes = {-500: 5e6, -400: -4e6, 100: 3e6, 200: -2e6, 1500: 9e6}
    changes = [allocation(at_us, size) for at_us, size in sizes.items()]
    assert break_down([*steps(3, 1000), *changes]).peak_mib == 3e6 / 2**20


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Profiles a copy of the baseline with lines replaced, or another technique by its name, in
    this process: its exit code, folder and summary."""

    def profiled(*replaced, name="no_optimization", flags=(), folder=None):
        folder = folder or tmp_path_factory.mktemp("beside") / "profiles"
        technique = ladder.get(name)
        text = technique.path.read_text()
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        path = folder.parent / f"{folder.name}-{name}.py" if replaced else technique.path
        path.write_text(text) if replaced else None
        doc, code = ladder.split(text)
        with pytest.MonkeyPatch.context() as patch:
            copy = Technique(name, path, doc, code, **ladder.facts(doc))
            scripts = Ladder(ladder.techniques() | {name: copy})
            patch.setattr(suite_runner, "ladder_of_device", lambda args: scripts)
            steps = ["--steps", "6", "--warmup", "3", "--output", str(folder)]
            code = profile_command.main(name, *TINY, *steps, *flags)
        summary = json.loads((folder / f"{name}.json").read_text())
        return SimpleNamespace(code=code, folder=folder, summary=summary)

    return profiled


@pytest.fixture(scope="module")
def baseline(profiled):
    return profiled(flags=("--cpu", "--memory"))


def share(summary, kind, part=None):
    facts = summary["profile"]["kinds"][kind]
    return facts["parts"][part] / facts["ms"] * facts["share"] if part else facts["share"]


def test_kinds_sum_to_the_steps_time_and_little_is_left_over(baseline):
    found = baseline.summary["profile"]
    sums = sum(facts["ms"] for facts in found["kinds"].values())
    clock_ms = baseline.summary["clock_ms"]
    assert len(clock_ms) == found["steps"] == PROFILED
    assert sums == pytest.approx(sum(clock_ms) / len(clock_ms), rel=0.05)
    assert list(found["kinds"]) == list(KINDS)
    assert share(baseline.summary, "other") < 0.05
    for kind in ("matmul", "normalization", "elementwise", "optimizer", "copies", "idle"):
        assert share(baseline.summary, kind) > 0.001, kind
    assert share(baseline.summary, "attention") == share(baseline.summary, "communication") == 0
    assert found["growth_mib"] < 1e-3 and found["reads"] == 1


def test_the_timed_run_is_a_run_like_others(baseline):
    rows = rows_file.read(baseline.folder / "results.csv")
    assert list(rows.phase) == ["warmup"] * 3 + ["timed"] * 3
    (record,) = records_in(baseline.folder)
    assert record["settings"]["steps"] == 6
    assert baseline.summary["run_id"] == rows.run_id[0]
    timed = rows.step_ms[rows.phase == "timed"]
    assert baseline.summary["timed_median_ms"] == pytest.approx(timed.median(), abs=1e-3)


def test_files_are_what_their_viewers_read(baseline):
    folder, name = baseline.folder, "no_optimization"
    kept = {"results.csv", "results.jsonl", f"{name}.json", *baseline.summary["files"]}
    assert {path.name for path in folder.iterdir() if ".lock" not in path.name} == kept
    with gzip.open(folder / f"{name}.trace.json.gz") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"]}
    assert {"aten::addmm", WAIT, "ProfilerStep#1"} <= names
    functions = pstats.Stats(str(folder / f"{name}.prof")).stats
    assert any(function == "explicit_attention" for _, _, function in functions)
    assert "tottime" in baseline.summary["python"]
    with open(folder / f"{name}.memory.pickle", "rb") as file:
        snapshot = pickle.load(file)
    actions = [entry["action"] for entry in snapshot["device_traces"][-1]]
    assert actions.count("alloc") > 100 and actions.count("free_completed") > 100
    assert snapshot["segments"]


LOOP = "            logits, loss = model(idx, targets)"


@pytest.mark.slow
def test_a_sleep_is_a_stretch_outside_of_torch_and_a_slow_dataset_a_wait(profiled):
    slow = "class Slow(TokenBatches):\n    def __getitem__(self, step):\n        import time\n\n"
    slow += "        time.sleep(0.2)\n        return super().__getitem__(step)\n\n\ndef main("
    ran = profiled(
        ("def main(", slow),
        ("batches = TokenBatches(args)", "batches = Slow(args)"),
        (LOOP, f"            import time\n\n            time.sleep(0.3)\n{LOOP}"),
    )
    breakdown = ran.summary["profile"]
    assert 200 < breakdown["kinds"]["idle"]["parts"]["data"] < 350
    assert 300 < breakdown["gap_ms"] < 500
    # The gap is the longest of a step, the part their mean.
    assert breakdown["gap_ms"] < 1.1 * breakdown["kinds"]["idle"]["parts"]["python"]


@pytest.mark.slow
def test_copies_reads_and_what_is_kept_are_found(profiled, capsys):
    ran = profiled(
        ("    with Run(", "    kept = []\n    with Run("),
        (LOOP, f"            [p.clone() for p in [*model.parameters()] * 20]\n{LOOP}"),
        (
            "run.log(loss.item())",
            "kept.append(logits)\n            loss.item()\n            run.log(loss.item())",
        ),
    )
    breakdown = ran.summary["profile"]
    copies = share(ran.summary, "copies", "on the device")
    assert copies > 0.25
    assert f"{copies:.0%} of the step copies tensors: torch_compile" in ran.summary["advice"]
    assert breakdown["reads"] == 2
    assert breakdown["growth_mib"] == pytest.approx(64 * 50257 * 4 / 2**20, rel=0.01)
    printed = capsys.readouterr().out
    hint = "tensor values read by the host: 2 a step; run.log needs one; on a GPU each waits"
    assert hint in printed
    assert "grows by 12.27 MiB a step: the loop keeps tensors" in printed
    below = printed.partition("\nAdvice\n")[2]
    assert all(f"- {line}" in below for line in ran.summary["advice"])


@pytest.mark.slow
def test_compiled_kernels_are_told_apart_by_what_they_were_fused_from(profiled):
    """In a script that compiles its loss only, which takes less time than the model."""
    ran = profiled(
        ("attention=explicit_attention", "attention=flash_attention"),
        ("def main(", "from flash_attention import flash_attention\n\n\ndef main("),
        ("loss=torch.nn.functional.cross", "loss=torch.compile(torch.nn.functional.cross"),
        ("_entropy,", "_entropy),"),
    )
    parts = ran.summary["profile"]["kinds"]["normalization"]["parts"]
    with gzip.open(ran.folder / "no_optimization.trace.json.gz") as file:
        names = " ".join(event["name"] for event in json.load(file)["traceEvents"])
    assert "_cpp_fused__log_softmax" in names and "aten::_log_softmax" not in names
    assert parts["loss"] > 0 and "softmax" not in parts
    assert share(ran.summary, "attention") > 0.001
    assert share(ran.summary, "other") < 0.05
    assert "flash_attention" not in " ".join(ran.summary["advice"])


def test_what_cannot_run_says_why_and_leaves_no_old_trace(profiled, tmp_path, capsys):
    (tmp_path / "fused_cross_entropy.trace.json.gz").write_text("old")
    ran = profiled(name="fused_cross_entropy", folder=tmp_path)
    assert ran.code == 0 and ran.summary["status"] == "unsupported"
    assert capsys.readouterr().err.strip().splitlines()[-1] == (
        "fused_cross_entropy: unsupported: Triton kernels need an NVIDIA or AMD GPU"
    )
    assert not list(tmp_path.glob("*.gz"))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("KeyboardInterrupt()", SystemExit, "130"),
        ("OSError(28, 'No space left')", SystemExit, "1"),
        ("", UserError, "^torch.profiler saw no kernel on the GPU: CUPTI"),
    ],
)
def test_what_ends_early_leaves_the_old_files(error, kind, words, profiled, tmp_path, monkeypatch):
    """After the eighth step, so under the profiler; or at the end, on what is taken for a GPU."""
    (tmp_path / "no_optimization.json").write_text('"old"')
    lines = [("    with Run(", "    batches.seen = []\n    with Run(")]
    raises = f"            if len(batches.seen) > 7:\n                raise {error}\n"
    lines.append((LOOP, f"            batches.seen.append(1)\n{raises}{LOOP}"))
    if not error:
        monkeypatch.setattr(profiled_run, "CUDA", CPU)
    with pytest.raises(kind, match=words):
        if error.startswith("Key"):
            with errors.one_line("profile"):
                profiled(*lines, folder=tmp_path)
        profiled(*lines * bool(error), folder=tmp_path)
    kept = {"no_optimization.json", "results.csv", "results.jsonl"}
    assert {path.name for path in tmp_path.iterdir() if ".lock" not in path.name} == kept
    assert (tmp_path / "no_optimization.json").read_text() == '"old"'


@pytest.mark.parametrize(
    "argv, words",
    [
        (["nonsense"], "no technique 'nonsense'"),
        (["no_optimization", "--steps", "5"], "leaves no step to time"),
        (["no_optimization", "--output", "{file}/new"], "Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_code_2(argv, words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended, errors.one_line("profile"):
        profile_command.main(*[word.format(file=tmp_path / "file") for word in argv])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("profile: error: ") and said.count("\n") == 1 and words in said


USERS_SCRIPT = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(64, 512)
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(torch.randn(512, 64), batch_size=8):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.slow
def test_a_script_of_the_users_is_profiled_unchanged(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(own_runs, "FOLDER", tmp_path / "own_scripts")
    (tmp_path / "train.py").write_text(USERS_SCRIPT)
    flags = ["--base", str(tmp_path / "train.py"), "--results-file", str(tmp_path / "results.csv")]
    assert profile_command.main(*flags) == 0
    printed = capsys.readouterr().out
    assert "matrix products" in printed and "forecast" not in printed and "run.log" not in printed
    assert "train.py:10: _local_scalar_dense, 1 time a step" in printed
    summary = json.loads((tmp_path / "profiles" / "train.json").read_text())
    kinds = summary["profile"]["kinds"].values()
    assert sum(kind["ms"] for kind in kinds) == pytest.approx(sum(summary["clock_ms"]) / 4, rel=0.1)
    assert share(summary, "idle", "data") > 0 and share(summary, "optimizer") > 0
    assert (tmp_path / "profiles" / "train.trace.json.gz").exists()
    assert not (tmp_path / "results.csv").exists()


def breakdown_with(gap_ms=0.1, **ms):
    """A Breakdown whose step of 100 ms has so many of each kind, or part of a kind:
    copies_transfers. The rest are matrix products."""
    ms_of = dict.fromkeys(KINDS, 0.0)
    parts_of = {kind: {} for kind in KINDS}
    for name, value in [*ms.items(), ("matmul", 100 - sum(ms.values()))]:
        kind, _, part = name.partition("_")
        ms_of[kind] += value
        if part:
            parts_of[kind][part.replace("_", " ")] = value
    kinds = {
        kind: KindTime(ms_of[kind], ms_of[kind] / 100, parts_of[kind], None, None) for kind in KINDS
    }
    idle = break_down(steps(2, 100_000))
    return dataclasses.replace(idle, kinds=kinds, gap_ms=gap_ms)


def test_a_forecast_stands_beside_each_kind(tmp_path):
    breakdown = breakdown_with(attention=20, idle_data=5)
    summary = {"technique": "a", "timed_median_ms": 90.0, "profile": breakdown, "python": ""}
    summary |= {"tensors_mib": 1.0, "files": [], "advice": []}

    def row(kind):
        lines = profile_page.page(summary, tmp_path).splitlines()
        line = next(line for line in lines if line.startswith(f"| {kind}"))
        return [cell.strip() for cell in line.split("|")[1:-1]]

    assert row("attention") == ["attention", "20.00", "20.0%", "", ""]
    for name, kind in breakdown.kinds.items():
        breakdown.kinds[name] = dataclasses.replace(kind, forecast_ms=kind.ms / 2)
    assert row("kind")[:4] == ["kind", "ms a step", "forecast ms", "share"]
    assert row("attention") == ["attention", "20.00", "10.00", "20.0%", "", ""]
    assert row("- waiting for data") == ["- waiting for data", "5.00", "", "5.0%", "", ""]


def advised(technique="no_optimization", needs=(), device=None, **facts):
    technique = ladder.get(technique) if isinstance(technique, str) else technique
    device = device or CPU()
    labels = profile_page.useful_techniques(technique, needs, device, ladder.repository())
    on_gpu = not isinstance(device, CPU)
    return profile_page.advise(breakdown_with(**facts), labels, on_gpu, needs)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"idle_data": 41}, "41% of the step waits for data: prefetching_loader or data_on_device"),
        ({"idle_dispatch": 30}, "30% of the step is Python and dispatch: torch_compile or "),
        ({"optimizer": 40}, "40% of the step is the optimizer: fused_optimizer"),
        ({"normalization_softmax": 30}, "30% of the step is attention's softmax: flash_attention"),
        ({"normalization_loss": 30}, "30% of the step is the loss: torch_compile"),
        (
            {"normalization_norms": 20, "normalization_sums": 10},
            "30% of the step is LayerNorm and sums: torch_compile",
        ),
        ({"elementwise": 30}, "30% of the step is element-wise: torch_compile"),
        ({"copies_transfers": 30}, "30% of the step copies between host and device: prefetching"),
        ({"copies_on_the_device": 30}, "30% of the step copies tensors: torch_compile"),
    ],
    ids=str,
)
def test_each_cost_that_a_technique_addresses_has_its_line(facts, line):
    device = CPU() if "Python" in line else gpu()
    assert sum(each.startswith(line) for each in advised(device=device, **facts)) == 1
    assert not any(line in each for each in advised(device=device))


def test_advice_names_nothing_that_is_there_already_nor_what_cannot_run():
    products = "100% of the step is matrix products"
    on_a100 = advised(device=gpu())
    assert on_a100 == [f"{products}: tensorFloat32 or brainFloat16 or float16_grad_scaler"]
    turing = advised(device=gpu(capability=(7, 5)))
    assert turing == [f"{products}: float16_grad_scaler"]
    assert "tensorFloat32" not in advised()[0]  # no effect on a CPU
    assert "tensorFloat32" not in advised(needs=["tf32"], device=gpu())[0]
    needs = ["tf32", "bfloat16", "compile"]
    assert advised("torch_compile", needs, gpu()) == [f"{products}: max_autotune or larger_batch"]
    on_top = advised("flash_attention", needs, gpu(), optimizer=50, elementwise=50)
    assert on_top == ["50% of the step is the optimizer: fused_optimizer"]
    nothing = ["no technique is left for a dominant cost"]
    assert advised("fused_optimizer", needs, gpu(), optimizer=100) == nothing
    # all_together is no descendant of prefetching_loader, and has no workers
    waiting = advised("all_together", needs, gpu(), idle_data=100)
    assert waiting[0].endswith(": prefetching_loader or data_on_device")
    waits = advised("all_together", needs, gpu(), idle_python=100)
    assert waits[0] == "100% of the step is waiting for the host: cuda_graphs or larger_batch"


def test_a_stretch_outside_of_torch_is_not_blamed_on_dispatch_as_well():
    assert not any("dispatch" in line for line in advised(gap_ms=40, idle_python=50))
    assert any("dispatch" in line for line in advised(gap_ms=5, idle_python=50))


def test_at_most_five_lines_the_largest_cost_first():
    many = {"idle_data": 12, "optimizer": 30, "normalization_loss": 14, "elementwise": 16}
    lines = advised(device=gpu(), **many, copies_transfers=8, copies_on_the_device=20)
    assert [int(line[:2]) for line in lines] == [30, 20, 16, 14, 12]


def test_several_techniques_are_stacked_in_one_chart(baseline, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = baseline.folder
    kinds = {"optimizer": {"ms": 1000.0}, "idle": {"ms": 234.4}}
    slow = baseline.summary | {"profile": {"kinds": kinds, "steps": PROFILED}}
    larger = slow | {"technique": "larger_batch", "batch_size": 4}
    texts = {
        "no_optimization": slow,
        "larger_batch": larger,
        "float16_grad_scaler": {"status": "unsupported", "note": "needs a GPU"},
        "fused_optimizer": {"status": "ok", "note": "old"},
    }
    for name, summary in texts.items():
        (folder / f"{name}.json").write_text(json.dumps(summary | {"technique": name}))

    def python(command, suite):
        assert command[:2] == ["-m", "tools.profile"]
        assert "--cpu=1" in command and f"--output={folder}" in command
        return 1 if command[2] == "fused_optimizer" else 0

    monkeypatch.setattr(profile_command, "_in_subprocess", python)
    monkeypatch.setattr(Ladder, "group", lambda scripts, word: scripts.part(texts))
    beside = f"--results-file={folder.parent / 'results.csv'}"
    assert profile_command.main("all", *TINY, "--cpu", beside) == 1
    assert capsys.readouterr().out.split() == ["plots/profile.png", "plots/profile.svg"]
    svg = (tmp_path / "plots" / "profile.svg").read_text()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"no_optimization", "larger_batch (batch 4)", "needs a GPU", "failed"} <= {*words}
    assert {"1,234", "309", "optimizer", "idle"} <= {*words}
    assert slow["device"] in svg and slow["commit"] in svg


def test_the_allocators_history_is_recorded_and_switched_off_again():
    cuda = FakeCuda()
    device = CUDA(0, cuda)
    cuda.calls.clear()
    with memory_history(device) as snapshot:
        assert not snapshot
    assert snapshot == cuda.SNAPSHOT
    assert cuda.calls == ["_record_memory_history all", "_snapshot", "_record_memory_history None"]
    with pytest.raises(UserError), memory_history(device):
        raise UserError("x")
    assert cuda.calls[-1] == "_record_memory_history None"


def test_a_profile_that_cannot_be_written_leaves_the_one_before(tmp_path):
    def keep(text):
        with profiled_run.new_files(tmp_path, {"technique": "mine"}) as folder:
            (folder / "mine.memory.pickle").write_text(text)

    keep("a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"mine.json", "mine.memory.pickle"}
    with full_disk(4096), pytest.raises(UserError, match=re.escape(str(tmp_path))):
        keep("a" * 100_000)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with profiled_run.new_files(tmp_path, {"technique": "mine"}):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]
