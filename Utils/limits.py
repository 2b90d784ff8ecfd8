"""How fast this device can be, and how long a step would take on it at best.

    python -m Utils.limits [--device cuda]

The ceilings are measured, not looked up: matrix products of each precision, and copying memory.
A step is then modelled as its products and its update, each at the larger of two times: its
arithmetic at the ceiling of its precision, and its unavoidable traffic at the ceiling of memory.
That is the roofline of Williams et al. 2009, summed over the parts of a step.
"""

import hashlib
import json

import torch
from torch.utils.flop_counter import FlopCounterMode

from Utils import hardware, settings
from Utils.config import VOCABULARY
from Utils.errors import Unsupported, UserError, one_line
from Utils.model import GPT
from Utils.settings import CACHE

# What a technique may declare that it needs, and the type that its matrix products then have.
PRECISIONS = {"tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MIXED = {"float8"}  # needs of scripts whose products are of several types: no one ceiling is theirs
SECONDS = 0.5  # for each measurement

# Dense peaks of matrix products, TFLOP/s, accumulating in float32, from NVIDIA's datasheets (A100,
# H100, H200, L4; where they count sparsity, half of it) and from the whitepapers of GA102 and Ada
# (GeForce). Names as torch gives them, matched whole: a longer name can be a slower card.
_COLUMNS = ("float32", "tf32", "bfloat16", "float16")
_PEAKS = {
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312),
    "NVIDIA A100-SXM4-80GB": (19.5, 156, 312, 312),
    "NVIDIA A100-PCIE-40GB": (19.5, 156, 312, 312),
    "NVIDIA A100 80GB PCIe": (19.5, 156, 312, 312),
    "NVIDIA H100 80GB HBM3": (67, 494.5, 989.5, 989.5),
    "NVIDIA H100 PCIe": (51, 378, 756.5, 756.5),
    "NVIDIA H200": (67, 494.5, 989.5, 989.5),
    "NVIDIA L4": (30.3, 60, 121, 121),
    "NVIDIA GeForce RTX 3090": (35.6, 35.6, 71, 71),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2),
}
DATASHEET = {name: dict(zip(_COLUMNS, peaks, strict=True)) for name, peaks in _PEAKS.items()}


def precision_of(needs):
    """The name of the precision of the matrix products, from what a script declared: the last
    counts, as autocast overrides TF32. None where they have several."""
    if MIXED.intersection(needs):
        return None
    return ["float32", *(need for need in needs if need in PRECISIONS)][-1]


# The ceilings -----------------------------------------------------------------------------------


def matmul_tflops(precision, n, device, seconds=SECONDS):
    """TFLOP/s of an n x n x n product of normal random numbers, the fastest of several.

    precision: a name of PRECISIONS or "float32". device: torch.device.
    """
    dtype = PRECISIONS.get(precision, torch.float32)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        fastest = _fastest("torch.mm(a, b, out=out)", seconds, a=a, b=b, out=torch.empty_like(a))
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * n**3 / fastest / 1e12


def bandwidth_gb_s(device, mib=256, seconds=SECONDS):
    """GB/s (10^9 bytes) of copying a tensor far larger than the caches, bytes read and bytes
    written both counted; the fastest of several."""
    source = torch.randn(mib * 2**20 // 4, device=device)
    fastest = _fastest("out.copy_(a)", seconds, a=source, out=torch.empty_like(source))
    return 2 * source.nbytes / fastest / 1e9


def _fastest(statement, seconds, **names):
    """Seconds of one call. The fastest: whatever slows a call is no limit of the device."""
    from torch.utils.benchmark import Timer  # here, as a training script has no need of it

    timer = Timer(statement, globals=names | {"torch": torch}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=seconds).times)


def measure(device, seconds=SECONDS):
    """The ceilings of a device of `hardware`: a dict of matmul_tflops by precision, the matmul_n at
    which each was reached, bandwidth_gb_s, and of what they were measured."""
    on_gpu = device.torch_device.type != "cpu"
    sizes = (2048, 4096, 8192) if on_gpu else (1024, 2048)
    sizes = [n for n in sizes if 3 * 4 * n**2 < device.memory_bytes / 4]
    best = {}
    for precision in ("float32", *PRECISIONS):
        if not _worth_measuring(precision, device):
            continue
        rates = {n: matmul_tflops(precision, n, device.torch_device, seconds) for n in sizes}
        best[precision] = max((rate, n) for n, rate in rates.items())
    return {
        "device": device.name,
        "torch": torch.__version__,
        "matmul_tflops": {precision: round(rate, 4) for precision, (rate, _) in best.items()},
        "matmul_n": {precision: n for precision, (_, n) in best.items()},
        "bandwidth_gb_s": round(bandwidth_gb_s(device.torch_device, seconds=seconds), 2),
    }


def _worth_measuring(precision, device):
    """float16 and bfloat16 on a processor that has neither take minutes, and are no ceiling."""
    if precision == "float32":
        return True
    if precision == "float16":
        return device.torch_device.type != "cpu"
    try:
        return precision == "tf32" or not hardware.check(precision, device)
    except Unsupported:
        return False


def _cache(device):
    key = f"{device.name}\0{torch.__version__}\0{device.torch_device.type}"
    return CACHE / "ceilings" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def ceilings(device):
    """What `measure` found for this device earlier, or None."""
    try:
        return json.loads(_cache(device).read_text())
    except (OSError, ValueError):
        return None


# The work of a step -----------------------------------------------------------------------------


def flops_per_token(config, seq_len):
    """Floating-point operations of forward and backward for one token, counted by torch on a model
    without storage (the meta device) with the scores of attention in full. Equals the closed form
    6 N + 12 n_layer n_embd T, N being the weights of all matrix products, the head's included.
    """

    def full(q, k, v):
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    with torch.device("meta"):
        model = GPT(config, full, VOCABULARY, loss=torch.nn.functional.cross_entropy)
        idx = torch.zeros(1, seq_len, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx)[1].backward()
    return counter.get_total_flops() // seq_len


def parts(config, batch_size, seq_len, precision):
    """The unavoidable work of a training step, as (name, count, FLOP, bytes) of each part.

    Each of the three products of a linear layer reads its operands and writes its result once.
    Attention reads q, k, v and writes its mix, the scores staying on the chip; the masked half of
    them is not computed. AdamW reads weights, gradients and two moments, and writes three of them
    back, in float32. All that is element by element is taken to be fused into its neighbours.
    """
    L, C, T = config.n_layer, config.n_embd, seq_len
    tokens = batch_size * T
    size = 2 if PRECISIONS.get(precision) in (torch.bfloat16, torch.float16) else 4

    def linear(name, count, inputs, outputs):
        operands = tokens * inputs + inputs * outputs + tokens * outputs
        return name, 3 * count, 2 * tokens * inputs * outputs, operands * size

    return [
        linear("c_attn", L, C, 3 * C),
        linear("attention's c_proj", L, C, C),
        linear("c_fc", L, C, 4 * C),
        linear("mlp's c_proj", L, 4 * C, C),
        linear("lm_head", 1, C, VOCABULARY),
        ("attention", L, 6 * C * (T + 1) * tokens, 12 * tokens * C * size),
        ("optimizer", 1, 0, 7 * 4 * config.parameters()),
    ]


def floor_ms(config, batch_size, seq_len, precision, ceilings):
    """Milliseconds that a step would take with every part at its ceiling, one after the other.
    None where the precision has no ceiling here."""
    if precision not in ceilings["matmul_tflops"]:
        return None
    rate, traffic = ceilings["matmul_tflops"][precision] * 1e12, ceilings["bandwidth_gb_s"] * 1e9
    work = parts(config, batch_size, seq_len, precision)
    return 1e3 * sum(n * max(flop / rate, size / traffic) for _, n, flop, size in work)


def describe(args):
    """What a run's record says of limits. args: its Settings, with the needs it declared.

    flops_per_token; precision of the matrix products or None; datasheet_tflops of it or None; and,
    where `ceilings` were measured, those and floor_ms, the modelled shortest step, or None.
    """
    precision, found = precision_of(args.needs), ceilings(args.hardware)
    peaks = DATASHEET.get(args.hardware.name, {})
    limits = {
        "flops_per_token": flops_per_token(args.config, args.seq_len),
        "precision": precision,
        "datasheet_tflops": peaks.get(precision),
        "ceilings": found,
    }
    if found:
        shape = args.config, args.batch_size, args.seq_len
        limits["floor_ms"] = floor_ms(*shape, precision, found)
    return limits


def main(argv=None):
    """Measures what this device can do at most, once: matrix products and memory bandwidth."""
    parser = settings.Parser("ceilings", main.__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--again", action="store_true", help="though they are known already")
    args = parser.parse_args(argv)
    device = hardware.choose(args.device)
    found = None if args.again else ceilings(device)
    if found is None:
        found, path = measure(device), _cache(device)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; CACHE_DIR names another place") from None
    rates = (f"{precision} {rate:,.2f}" for precision, rate in found["matmul_tflops"].items())
    print(
        f"{device.name} can do at most, in TFLOP/s of matrix products: {', '.join(rates)}; "
        f"memory {found['bandwidth_gb_s']:,.0f} GB/s"
    )


if __name__ == "__main__":
    with one_line("ceilings"):
        main()
