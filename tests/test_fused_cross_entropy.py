"""Our own kernel against PyTorch's cross-entropy, in Triton's interpreter, and compiled for GPUs
that are not here. Triton reads TRITON_INTERPRET when it is first imported, so what is interpreted
runs in processes of its own.
"""

import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from beyond.combined import all_together_float8
from beyond.loss import fused_cross_entropy as script
from tests.helpers import processes
from Utils.results import rows_file

close = torch.testing.assert_close
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SHAPES = [(7, 8), (4097, 4160), (50_257, 50_304)]
N = 3
INTERPRETED = """
import torch
from triton.runtime import interpreter
from beyond.combined import all_together_float8
from beyond.loss.fused_cross_entropy import FusedCrossEntropy

convert = interpreter._convert_float
def rounded(values, kind, to, mode):  # its own drops what rounding carries into the exponent
    if to.is_fp8():
        return torch.from_numpy(values).to(torch.float8_e5m2).view(torch.uint8).numpy()
    return convert(values, kind, to, mode)

interpreter._convert_float = rounded
LAUNCHES = {"BLOCK": 4096, "num_warps": 8}, {"BLOCK": 16384, "num_warps": 32}
cases = torch.load("cases.pt")
for number, case in enumerate(cases.values()):
    FusedCrossEntropy.launch = lambda logits: LAUNCHES[number % 2]  # as for either kind of GPU
    case["float8"] = torch.ops.beyond.cross_entropy_kernel(*case.values())
    for factor in (1, 8):
        leaf = case["logits"].clone().requires_grad_()
        logits = leaf.clone()
        loss = FusedCrossEntropy.apply(logits, case["targets"], case["V"])
        (loss * factor).backward(retain_graph=True)
        case[factor] = loss.detach(), leaf.grad
cases["again"] = "scaled twice"
try:
    loss.backward()
except RuntimeError as error:
    cases["again"] = str(error)
torch.save(cases, "cases.pt")
"""
COMPILED = """
from beyond.combined import all_together
from torch._dynamo.testing import CompileCounterWithBackend
from beyond.loss import fused_cross_entropy, padded_vocabulary
from Utils.base.gpt2_sizes import CONFIGS
from Utils.model import GPT

steps = {}
for script in (padded_vocabulary, fused_cross_entropy, all_together, all_together_float8):
    torch.manual_seed(0)
    config = CONFIGS["gpt2-tiny"]
    model = GPT(config, script.flash_attention, 50_304, getattr(script, "cross_entropy", None))
    factor = 1
    if model.loss is None:
        factor = 8
        kernel = getattr(script, "FusedCrossEntropy", None) or script.Float8CrossEntropy
        model.lm_head.forward = lambda x: x.bfloat16()
        model.loss = kernel.of(model.lm_head.weight, 50_257)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    idx = torch.randint(50_257, (2, 4))  # the interpreter takes 70 ms a token
    losses = []
    for step in range(2):
        model.zero_grad()
        loss = compiled(idx, idx.roll(-1))[1]
        (loss * factor).backward()
        losses.append(loss.detach())
    gradients = {name: p.grad / factor for name, p in model.named_parameters()}
    steps[script.__name__] = losses, gradients, counter.frame_count
torch.save(steps, "steps.pt")
"""
ALL_TOGETHER = """
from beyond.loss import padded_vocabulary
from tests.helpers.watched import NoSynchronization
from Utils import run
from Utils.harness.settings import parse_args

class Strict(run.Run):
    def steps(self, batches):
        assert self.model.lm_head.weight is self.model.wte.weight
        with NoSynchronization():
            yield from super().steps(batches)

torch.compile = lambda model, **options: model
torch.Tensor.pin_memory = lambda tensor: tensor
all_together.Run = all_together_float8.Run = Strict
flags = ["--model=gpt2-tiny", "--dataset=synthetic", "--device=cpu", "--seq-len=8", "--steps=4"]
for script in (padded_vocabulary, all_together, all_together_float8):
    name = script.__name__.rpartition(".")[2]
    script.main(parse_args("", [*flags, "--warmup=1", "--results-file=results.csv"], name))
"""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """The folder with what one process made of everything that is interpreted."""
    folder = tmp_path_factory.mktemp("interpreted")
    torch.save(made_up(), folder / "cases.pt")
    code = INTERPRETED + COMPILED + ALL_TOGETHER
    processes.command("-c", code, cwd=folder, TRITON_INTERPRET="1")
    return folder


def made_up():
    """Return logits and targets of every case, by type, number of columns and way of drawing.

    exp() of any large logit overflows, and the highest come last. Of the infinite ones nothing is
    left in the first blocks, as where a mask has been added.
    """
    torch.manual_seed(0)
    cases = {}

    for V, columns in SHAPES:
        logits = torch.randn(N, columns)
        masked = logits.clone()
        masked[:, : V // 2] = float("-inf")
        large = torch.linspace(100, 300, columns) + logits
        for draw, drawn in enumerate((logits * 3, large, masked)):
            for name, dtype in DTYPES.items():
                cast = drawn.to(dtype).clone()
                cast[:, V:] = 400  # padding would change the loss if it were looked at
                targets = torch.randint(V // 2, V, (N,))
                targets[:2] = torch.tensor([V // 2, V - 1])
                cases[name, columns, draw] = {"logits": cast, "targets": targets, "V": V}
    return cases


@pytest.mark.slow
def test_fused_loss_and_gradient_are_those_of_torch(interpreted):
    """One unit in the last place: the interpreter cuts bfloat16 off where a GPU rounds. Scaled
    afterwards, a gradient has been rounded twice; 6e-8 is float16's smallest number.
    """
    cases = torch.load(interpreted / "cases.pt")
    assert "modified by an inplace operation" in cases.pop("again")
    for (dtype, *_), case in cases.items():
        V, targets = case["V"], case["targets"]
        for factor in (1, 8):
            loss, gradient = case[factor]
            logits = case["logits"].double().requires_grad_()
            expected = F.cross_entropy(logits[:, :V], targets)
            (expected * factor).backward()
            assert loss.dtype == torch.float32 and gradient.dtype == DTYPES[dtype]
            close(loss.double(), expected.detach(), rtol=1e-6, atol=1e-6)
            units = 1 if factor == 1 else 2
            rtol = 1e-5 if dtype == "fp32" else units * torch.finfo(gradient.dtype).eps
            atol = 6e-8 * factor if dtype == "fp16" else 1e-9
            close(gradient.double(), logits.grad, rtol=rtol, atol=atol)
            assert not gradient[:, V:].any()

        losses, gradient = case["float8"]
        close(losses.mean(), case[1][0])  # as by the parent's kernel
        exact = case["logits"][:, :V].double().softmax(1) - F.one_hot(targets, V)
        # 2 bits of mantissa; below 2^-29 fewer, down to the half of 2^-31, the smallest number.
        scaled = gradient.double() / 2**15
        close(scaled[:, :V], exact, rtol=2**-3, atol=2**-32)
        assert gradient.dtype == torch.float8_e5m2 and not scaled[:, V:].any()


@pytest.mark.slow
def test_fused_compiled_models_learn_what_they_learn_from_the_parents(interpreted):
    """The errors of a head in float8, independent of each other, add up to less than 2^-4, half a
    unit of E4M3's 3 bits. Backward's factor, a power of two, adds none.
    """
    steps = torch.load(interpreted / "steps.pt").values()
    (losses, gradients, graphs), fused, together, float8 = steps
    close(fused[0], losses)
    close(fused[1], gradients, rtol=1e-4, atol=1e-6)

    assert graphs == 1  # the tied weight is in it
    assert {fused[2], together[2], float8[2]} <= {1, 2}  # a second one detaches the logits
    close(together[0], losses, rtol=2**-8, atol=0)  # the head's operands are in bfloat16
    for name, exact in gradients.items():
        assert (together[1][name] - exact).norm() < 2**-7 * exact.norm(), name
    close(float8[0], losses, rtol=2**-8, atol=0)
    assert not float8[1]["wte.weight"][50_257:].any()
    for name, exact in gradients.items():
        assert (float8[1][name] - exact).norm() < 2**-4 * exact.norm(), name


@pytest.mark.slow
def test_fused_all_together_learns_what_the_padded_vocabulary_does_and_reads_no_tensor(interpreted):
    rows = rows_file.read(interpreted / "results.csv")
    padded, *together = (list(run.loss) for _, run in rows.groupby("run_id", sort=False))
    assert len(padded) == 4 and len(together) == 2
    for losses in together:
        assert losses == pytest.approx(padded, rel=2**-8)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """compiled(kernel, dtype, capability): the stages of compilation, by name."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def compiled(kernel, dtype, capability, BLOCK=4096, num_warps=8):
        types = {"targets": "*i64", "losses": "*fp32", "factor": "*fp32", "scale": "fp32"}
        types["gradients"] = "*fp8e5"
        constants = {"V": 50_257, "columns": 50_304, "BLOCK": BLOCK}
        types |= dict.fromkeys(constants, "constexpr")
        signature = {name: types.get(name, f"*{dtype}") for name in kernel.arg_names}
        constants = {name: value for name, value in constants.items() if name in signature}
        # A launch finds out that addresses are multiples of 16.
        pointers = [i for i, kind in enumerate(signature.values()) if kind[0] == "*"]
        attrs = {(i,): [["tt.divisibility", 16]] for i in pointers}
        source = ASTSource(kernel, signature, constants, attrs)
        target = GPUTarget("cuda", capability, 32)
        return compile(source, target=target, options={"num_warps": num_warps}).asm

    return compiled


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["cross_entropy_kernel", "scale_kernel"])
def test_fused_kernel_compiles(target, dtype, kernel, compiled):
    stages = compiled(getattr(script, kernel), dtype, int(re.search(r"\d+", target)[0]))
    assert stages["cubin"].startswith(b"\x7fELF")
    assert f".target {target}\n" in stages["ptx"] and f".entry {kernel}(" in stages["ptx"]
    assert re.findall(r"arith\.muli .* : (\w+)", stages["ttir"]) == ["i64"]  # row * columns
    assert "ld.global.v4.b32" in stages["ptx"] and "st.global.v4.b32" in stages["ptx"]
    assert dtype != "bf16" or "cvt.rn.bf16" in stages["ptx"]  # rounds to nearest


@pytest.mark.parametrize("capability", [89, 90, 100])
def test_fused_gradient_in_float8_is_rounded_and_stored_in_vectors(capability, compiled):
    kernel = all_together_float8.cross_entropy_kernel
    ptx = compiled(kernel, "bf16", capability, BLOCK=16_384, num_warps=32)["ptx"]
    assert "cvt.rn.satfinite.e5m2x2" in ptx and "st.global.v4.b32" in ptx


def test_fused_programs_are_fewer_and_larger_if_rows_overflow_the_cache(monkeypatch):
    """An H100's 132 SMs have 660 rows of 0.1 MB in flight; its L2 cache holds 50 MB."""
    logits = MagicMock(is_cuda=True)
    logits[0].nbytes = 2 * 50_304
    for sms, mib, block in ((132, 50, 16_384), (128, 72, 4096)):  # the other is an RTX 4090
        gpu = SimpleNamespace(multi_processor_count=sms, L2_cache_size=mib * 2**20)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda device, gpu=gpu: gpu)
        assert script.FusedCrossEntropy.launch(logits)["BLOCK"] == block
