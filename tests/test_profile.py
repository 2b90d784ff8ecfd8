"""Where a step's time goes: the grouping on known names and constructed traces, a GPU's among them,
and a real run of a script that is slowed on purpose.
"""

import gzip
import json
import re
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.helpers.refusal import refused
from tests.helpers.stand_ins import gpu
from tools.forecast import kernel_kinds
from tools.own_script.profiled_steps import PROFILED, WAIT
from tools.profile import __main__ as profile_command
from tools.profile import profile_page, profiled_run
from tools.profile.step_breakdown import break_down
from Utils.data import TokenBatches
from Utils.device.cpu import CPU
from Utils.model import GPT
from Utils.results import rows_file
from Utils.scripts import ladder

TINY = [
    "--model=gpt2-tiny",
    "--dataset=synthetic",
    "--device=cpu",
    "--seq-len=64",
    "--steps=6",
    "--warmup=3",
]

IDS = count(1)


def event(name, start, us, thread=1, cat="cpu_op", **args):
    """An operator that takes `us` microseconds."""
    span = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": us, "tid": thread}
    return span | {"args": args}


def annotation(name, start, us, thread=1):
    return event(name, start, us, thread, "user_annotation")


def launched(name, host_us, device_us, us, thread=1):
    """A launch on the host, and the kernel, copy or fill that it launched."""
    cat = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name.split()[0], "kernel")
    both = {"correlation": next(IDS)}
    launch = event("cudaLaunchKernel", host_us, 3, thread, "cuda_runtime", **both)
    return [launch, event(name, device_us, us, 7, cat, **both)]


def steps(number, us):
    return [annotation(f"ProfilerStep#{step}", step * us, us) for step in range(number)]


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


def test_profile_kind_of_an_operator_or_kernel_is_told_by_its_name():
    for line in OPERATORS.splitlines()[1:]:
        kind, *names = line.split()
        assert {str(kernel_kinds.operator_kind(name)) for name in names} == {kind}, line
    for line in KERNELS.splitlines()[1:]:
        kind, name = line.split(" ", 1)
        assert kernel_kinds.kernel_kind(name) == kind, name


# Start and length in ms, name and shapes of operators in the first of two steps of 1000 ms.
ON_A_CPU = """
20   50   aten::clone
200  250  aten::linear  1024x1024 1024x1024 1024
210  10   aten::t
240  200  aten::addmm   1024 1024x1024 1024x1024 1024x1024
460  40   aten::copy_   1024x1024 1024x1024
500  50   autograd::engine::evaluate_function:AddmmBackward0
510  20   aten::add     1024x1024 1024x1024
530  10   aten::softmax 1024x1024
531  8    aten::_softmax  1024x1024
650  30   aten::mul_
680  20   aten::_local_scalar_dense
840  20   aten::scaled_dot_product_attention  1x2x1024x64 1x2x1024x64 1x2x1024x64
845  10   aten::_scaled_dot_product_flash_attention_for_cpu
850  5    aten::copy_
860  20   aten::scaled_dot_product_attention  1x2x1024x64 1x2x1024x64 1x2x1024x64
885  10   aten::native_layer_norm_backward  1024x1024 1024x1024
900  5    aten::embedding_dense_backward
902  2    aten::fill_
940  5    aten::_local_scalar_dense
950  45   aten::sum     1024x1024
995  1    aten::fft_r2c
1100 500  aten::mm
"""
# The wait for data, the optimizer, attention and the embedding count with all that is within.
PAGE = """
a: 1 steps under the profiler took 1,000.0 ms each, without it 90.0 ms (median)

| kind | ms a step | share |
| -- | -- | -- |
| matrix products | 250.00 | 25.0% |
| attention | 40.00 | 4.0% |
| normalizations, softmax, sums | 65.00 | 6.5% |
| - sums | 45.00 | 4.5% |
| - LayerNorm | 10.00 | 1.0% |
| - softmax | 10.00 | 1.0% |
| element-wise | 20.00 | 2.0% |
| optimizer | 200.00 | 20.0% |
| other | 1.00 | 0.1% |
| copies and transfers | 50.00 | 5.0% |
| - on the device | 45.00 | 4.5% |
| - rows of the embedding | 5.00 | 0.5% |
| idle | 374.00 | 37.4% |
| - Python and dispatch | 274.00 | 27.4% |
| - waiting for data | 100.00 | 10.0% |

| longest | kind | ms a step | calls a step |
| -- | -- | -- | -- |
| Optimizer.step#AdamW.step | optimizer | 200.00 | 1 |
| aten::addmm 1024 1024x1024 1024x1024 | matrix products | 200.00 | 1 |
| aten::linear 1024x1024 1024x1024 1024 | matrix products | 50.00 | 1 |
| aten::sum 1024x1024 | normalizations, softmax, sums | 45.00 | 1 |
| aten::copy_ 1024x1024 1024x1024 | copies and transfers | 40.00 | 1 |
| aten::scaled_dot_product_attention 1x2x1024x64 1x2 | attention | 40.00 | 2 |
| aten::add 1024x1024 1024x1024 | element-wise | 20.00 | 1 |

trace: profiles/a.trace.json.gz

Advice
- 27% of the step is Python and dispatch: torch_compile
- 20% of the step is the optimizer: fused_optimizer
"""


def words(page):
    return re.sub(":?-{2,}:?", " -- ", page).split()


def test_profile_page_of_a_cpus_steps(tmp_path):
    """COMMANDS: "at most five lines of advice"."""
    events = [*steps(2, 1e6), annotation(WAIT, 0, 1e5), event("aten::mm", 0, 1e6, thread=7)]
    events.append(annotation("Optimizer.step#AdamW.step", 6e5, 2e5))
    for line in ON_A_CPU.splitlines()[1:]:
        start, ms, name, *shapes = line.split()
        sizes = {"Input Dims": [[*map(int, shape.split("x"))] for shape in shapes]}
        events.append(event(name, 1e3 * float(start), 1e3 * float(ms), **sizes))

    trace = tmp_path / "trace.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    labels = {name: name for name in ("torch_compile", "fused_optimizer", "data_on_device")}
    summary = profiled_run.read(trace, ["tf32"], False, labels)

    summary |= {"technique": "a", "timed_median_ms": 90.0}
    assert words(profile_page.page(summary, Path("profiles"))) == words(PAGE)

    with refused("^torch.profiler saw no kernel on the GPU: CUPTI"):
        profiled_run.read(trace, [], True, labels)


# Of a step: category, thread, start on the host, start on the device, length in us, name. After
# 100 us of nothing comes an unknown kernel of a known operator, on autograd's thread.
ON_A_GPU = """
kernel           1  50   500   50   Memcpy HtoD (Pageable -> Device)
cpu_op           2  95   0     12   aten::linear
cpu_op           2  96   0     10   aten::addmm
kernel           2  100  650   300  mystery
user_annotation  1  145  0     12   Optimizer.step#ZeroRedundancyOptimizer.step
kernel           1  150  900   150  ncclDevKernel_AllReduce
kernel           1  200  1050  50   vectorized_elementwise
user_annotation  1  245  0     12   Optimizer.step#AdamW.step
cpu_op           1  246  0     10   aten::_foreach_add_
kernel           1  250  1100  200  vectorized_elementwise
kernel           1  300  1300  20   Memset (Device)
kernel           1  350  1320  30   my_kernel
"""


def gpu_steps(wait):
    """Two steps and the beginning of a third of a GPU that runs 500 us behind a host that never
    waits; in each 1000 us of kernels and pauses. wait: start and length of the wait for data.
    """
    events = steps(3, 1000)
    for start in (0, 1000, 2000):
        events.append(annotation(WAIT, start + wait[0], wait[1]))
        events.append(event("ProfilerStep#1", start + 500, 900, 7, "gpu_user_annotation"))
        for line in ON_A_GPU.splitlines()[1:]:
            cat, *numbers, name = line.split(maxsplit=5)
            thread, host_us, device_us, us = map(int, numbers)
            if cat == "kernel":
                events += launched(name, start + host_us, start + device_us, us, thread)
            else:
                events.append(event(name, start + host_us, us, thread, cat))
    return events


@pytest.mark.parametrize(
    "wait, idle",
    [
        ((10, 30), {"host": 0.25}),
        ((360, 110), {"data": 0.11, "host": 0.14}),
    ],
)
def test_profile_of_a_gpu_counts_each_moment_once_by_what_launched_it(wait, idle):
    """Steps begin on the device at 500 and 1500. It pauses from 550 to 650 and from 1350 to 1500.

    DIAGNOSE: "On a GPU kernels and copies are assigned by what launched them, and each moment
    counts once: overlapped communication counts as the work that hides it".
    """
    breakdown = break_down([*gpu_steps(wait), event("aten::view", 1400, 20, thread=2)])
    assert breakdown.mean_step_ms == 1
    kinds = breakdown.kinds

    assert {name: kind.ms for name, kind in kinds.items() if kind.ms} == pytest.approx(
        {"matmul": 0.3, "elementwise": 0.05, "optimizer": 0.2, "other": 0.03}
        | {"copies": 0.07, "communication": 0.1, "idle": 0.25}
    )
    assert kinds["copies"].parts == pytest.approx({"transfers": 0.05, "on the device": 0.02})
    assert kinds["idle"].parts == pytest.approx(idle)


def test_profile_of_a_run_sums_to_its_clock_and_tells_delays_apart(tmp_path, monkeypatch, capsys):
    """The model sleeps, and so does the data set.

    DIAGNOSE: "One step is discarded, then four are profiled [...] The kinds sum to the clock
    within 5%"; other: "unknown names; under 5% in every script here"; "The rows of a profiled run
    stay in that folder".
    """
    for owner, name, seconds in ((GPT, "forward", 0.1), (TokenBatches, "__getitem__", 0.05)):
        method = getattr(owner, name)
        late = lambda *args, s=seconds, method=method: time.sleep(s) or method(*args)  # noqa: E731
        monkeypatch.setattr(owner, name, late)
    flags = [*TINY, f"--results-file={tmp_path / 'results.csv'}"]
    profile_command.main("T=no_optimization", *flags)
    file = tmp_path / "profiles" / "no_optimization.json"
    summary = json.loads(file.read_text())

    profile = summary["profile"]
    ms = pd.DataFrame(profile["kinds"]).loc["ms"]
    assert len(summary["clock_ms"]) == profile["steps"] == PROFILED
    assert ms.sum() == pytest.approx(sum(summary["clock_ms"]) / PROFILED, rel=0.05)
    assert ms.other < 0.05 * (ms.sum() - ms.idle)

    idle = profile["kinds"]["idle"]["parts"]
    assert idle["data"] > 50 and idle["host"] > 100
    assert summary["advice"][-1] in capsys.readouterr().out

    rows = rows_file.read(file.with_name("results.csv"))
    assert list(rows.phase) == ["warmup"] * 3 + ["timed"] * 3
    assert summary["timed_median_ms"] == pytest.approx(rows.step_ms[3:].median(), abs=1e-3)


def advised(technique="no_optimization", needs=(), device=gpu(), **ms):  # noqa: B008
    """Return the advice for a step of 100 ms, with `ms` of a kind or part: copies_transfers."""
    kinds = {kind: SimpleNamespace(ms=0, parts={}) for kind in kernel_kinds.KINDS}
    for name, value in ms.items():
        kind, _, part = name.partition("_")
        kinds[kind].ms += value
        kinds[kind].parts[part.replace("_", " ")] = value

    breakdown = SimpleNamespace(kinds=kinds, mean_step_ms=100)
    technique = ladder.get(technique)
    labels = profile_page.useful_techniques(technique, needs, device, ladder.repository())
    return profile_page.advise(breakdown, labels, not isinstance(device, CPU), needs)


MANY = {
    "idle_data": 12,
    "optimizer": 30,
    "normalization_loss": 14,
    "elementwise": 16,
    "copies_transfers": 8,
    "copies_on_the_device": 20,
}


@pytest.mark.parametrize(
    "step, advice",
    [
        (
            MANY,
            [
                "30% of the step is the optimizer: fused_optimizer",
                "20% of the step copies tensors: torch_compile",
                "16% of the step is element-wise: torch_compile",
                "14% of the step is the loss: torch_compile or fused_cross_entropy",
                "12% of the step waits for data: prefetching_loader or data_on_device",
            ],
        ),
        (
            {"matmul": 26, "device": gpu(capability=(7, 5))},
            ["26% of the step is matrix products: float16_grad_scaler"],
        ),
        (
            {"idle_host": 30, "device": CPU()},
            ["30% of the step is Python and dispatch: torch_compile or larger_batch"],
        ),
        # Without what the script has already, by its line of parents or by the same added lines.
        (
            {"idle_host": 90, "technique": "all_together", "needs": ["compile"]},
            ["90% of the step is waiting for the host: cuda_graphs or larger_batch"],
        ),
    ],
)
def test_profile_advice_is_at_most_five_lines_the_largest_cost_first(step, advice):
    """DIAGNOSE: "Then come at most five lines of advice"; "Advice names a technique only if the
    script lacks it and it has an effect on this device".
    """
    assert advised(**step) == advice
