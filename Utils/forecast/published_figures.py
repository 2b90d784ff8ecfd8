"""Figures that others have published, and what a forecast says of the same steps.

docs/published.csv holds them with their sources. The rule of which a forecast is held against is
`left_out`; what each of the others ran is `step_of`.
"""

import csv
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

from Utils.base import paths

FILE = paths.ROOT / "docs" / "published.csv"


@dataclass(frozen=True)
class Step:
    """A training step of others.

    model: gpt, bert or translation. precision: float32, tf32, bfloat16 or float16 for autocast,
    pure_bfloat16 for weights too. attention: see `others.Block.mix`. optimizer: None for forward
    and backward alone. evaluations: forward passes besides, a step.
    """

    model: str = "gpt"
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50_257
    batch: int = 8
    tokens: int = 1024
    precision: str = "float32"
    attention: str = "explicit"
    tied: bool = True
    separate: bool = False  # queries, keys and values are products of their own
    bias: bool = True  # of queries, keys and values
    composed: bool = False  # LayerNorm written out
    gelu: str = "tanh"  # exact, composed or relu
    dropout: float = 0.0
    attention_dropout: float = 0.0
    compile: bool = False
    loss_apart: bool = False  # and so not compiled
    optimizer: str | None = "foreach"
    clip: bool = False
    evaluations: float = 0.0


@dataclass(frozen=True)
class Figure:
    """A published time of a step. seconds: of one step. key: of the device in the table. widened:
    what the source does not say."""

    source: str
    key: str
    model: str
    technique: str
    step: Step
    seconds: float
    widened: str = ""


@cache
def rows():
    with open(FILE, newline="") as file:
        return list(csv.DictReader(file))


# Rules, in this order: the first that holds says why a row is left out.
_TIMES = {"step time", "median step time", "iteration", "throughput", "forward + backward"}


def left_out(row):
    """Return why a forecast is not held against a row, or None."""
    if row["metric"] not in _TIMES:
        return f"{row['metric']}: no time of a training step, or one beside the median"
    if re.match(r"\d+x ", row["device"]) or "a node" in row["device"]:
        return "several GPUs: communication is no part of the forecast"
    if device_of(row["device"]) is None:
        return "the device is not named, or has no published dense peaks"
    if not row["batch_size"].isdecimal() or not re.match(r"\d+", row["seq_len"]):
        return "the batch or the sequence length is not given"
    if step_of(row) is None:
        return "not a training step of a model whose code is known"
    return None


_DEVICES = (  # beginnings of names in the file, with keys of the table and what is not said
    ("NVIDIA RTX 3050 Ti 4GB", "rtx3050ti-laptop", "power limit of the laptop"),
    ("NVIDIA A100 80GB PCIe", "a100-pcie", ""),
    ("NVIDIA H100 80GB HBM3", "h100", ""),
    ("NVIDIA GeForce RTX 3090", "rtx3090", ""),
    ("NVIDIA GeForce RTX 3080", "rtx3080", ""),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper", ""),
    ("NVIDIA GeForce RTX 4090", "rtx4090", ""),
    ("NVIDIA A100 (not in the chapter", "a100", "variant of the A100"),
    ("NVIDIA A100 (variant", "a100-40", "variant of the A100"),
    ("NVIDIA A100 40GB", "a100-40", "variant of the A100"),
    ("NVIDIA A100", "a100", "variant of the A100"),
    ("NVIDIA A40", "a40", ""),
    ("NVIDIA H100", "h100", "variant of the H100"),
)


def device_of(name):
    """Return [key, what is not said] of a device by its name in the file, or None."""
    return next((known for start, *known in _DEVICES if name.startswith(start)), None)


_BOOK = Step(
    attention="late", composed=True, gelu="composed", separate=True, bias=False, tied=False,
    dropout=0.1, attention_dropout=0.1, loss_apart=True,
)  # fmt: skip
_TF32 = {"precision": "tf32"}
_BF16 = {"precision": "bfloat16"}
_NATIVE = {"precision": "pure_bfloat16", "composed": False, "gelu": "tanh", "optimizer": "fused"}
_SDPA = {"attention": "sdpa", "separate": False}
_RASBT = {  # 15 steps and an evaluation of two batches are timed together
    "baseline fp32, own attention/LayerNorm/GELU": {},
    "+mask on the fly": {},
    "+TF32 tensor cores": _TF32,
    "+fused AdamW": _TF32 | {"optimizer": "fused"},
    "+pinned memory": _TF32 | {"optimizer": "fused"},
    "+bf16 (model cast)": {"precision": "pure_bfloat16", "optimizer": "fused"},
    "+nn.LayerNorm and nn.GELU": _NATIVE,
    "+FlashAttention": _NATIVE | _SDPA,
    "+torch.compile": _NATIVE | _SDPA | {"compile": True},
    "+vocab 50304": _NATIVE | _SDPA | {"compile": True, "vocabulary": 50_304},
}
_COMPILED = _BF16 | {"compile": True}
_LAST = _COMPILED | {"attention": "sdpa", "vocabulary": 50_304}
_KARPATHY = {
    "fp32": {},
    "+TF32": _TF32,
    "+bf16 autocast": _BF16,
    "+torch.compile": _COMPILED,
    "+flash attention (SDPA)": _COMPILED | {"attention": "sdpa"},
    "+vocab 50304": _LAST,
    "+grad clip, lr schedule, fused AdamW": _LAST | {"clip": True, "optimizer": "fused"},
}
_GILES = {
    "fp32": {},
    "TF32": _TF32,
    "AMP fp16 + GradScaler": {"precision": "float16"},
    "TF32 + AMP fp16": {"precision": "float16"},
}
_TRANSLATION = Step("translation", 3, 8, 512, 5000, tokens=50, dropout=0.1)
_ABDO = {
    "no_optimization": {},
    "TF32": _TF32,
    "BF16": _BF16,
    "BF16+TC": _COMPILED,
    "BF16+TC+FA": _COMPILED | {"attention": "sdpa"},
    "BF16+TC+FA+FuOp": _COMPILED | {"attention": "sdpa", "optimizer": "fused"},
    "BF16+TC+FA+8bOp": _COMPILED | {"attention": "sdpa", "optimizer": "8bit"},
}
_BABY = Step(
    "gpt", 6, 6, 384, 65, dropout=0.2, attention_dropout=0.2, attention="sdpa", bias=False,
    gelu="exact", precision="bfloat16", optimizer="fused", clip=True,
)  # fmt: skip
_PR376 = {"compile + SDPA flash": {"compile": True}, "no compile, SDPA flash": {}}
_HF = {"gelu": "composed", "attention": "where", "dropout": 0.1, "attention_dropout": 0.1}
_NEUSIGHT = {  # by its models; shapes of its DLmodel_configs
    "gpt2_large": _HF | {"layers": 36, "heads": 20, "width": 1280},
    "gpt3_xl": _HF | {"layers": 24, "heads": 24, "width": 3072},
    "gpt3_27": _HF | {"layers": 32, "heads": 32, "width": 2560},
    "opt_13": _HF | {
        "layers": 24, "heads": 32, "width": 2048, "vocabulary": 50_272, "attention": "lowest",
        "gelu": "relu", "attention_dropout": 0.0, "separate": True,
    },
    "bert_large": _HF | {
        "model": "bert", "layers": 24, "heads": 16, "width": 1024, "vocabulary": 30_522,
        "attention": "added", "gelu": "exact", "separate": True,
    },
}  # fmt: skip
_SOURCES = {  # by how they begin: the step of the first technique, and what the others change
    "abdo-ashraf": (_TRANSLATION, _ABDO),
    "build-nanogpt": (Step(), _KARPATHY),
    "rasbt": (replace(_BOOK, evaluations=2 / 15), _RASBT),
    "gilesthomas": (_BOOK, _GILES),
    "karpathy/nanoGPT PR": (_BABY, _PR376),
    "sitar-lab/NeuSight ASPLOS": (Step(optimizer=None), _NEUSIGHT),  # forward and backward alone
}


def step_of(row):
    """Return the Step whose time a row gives, or None."""
    starts = (known for start, known in _SOURCES.items() if row["source"].startswith(start))
    base, changes = next(starts, (None, {}))
    name = row["model"] if changes is _NEUSIGHT else row["technique"]
    if name not in changes:
        return None
    tokens = int(re.match(r"\d+", row["seq_len"])[0])
    return replace(base, **changes[name], batch=int(row["batch_size"]), tokens=tokens)


def figures():
    """Return the Figures that a forecast is checked against, each step of a source once."""
    found = {}
    for row in rows():
        if left_out(row):
            continue
        step = step_of(row)
        key, widened = device_of(row["device"])
        value, source, technique = float(row["value"]), row["source"], row["technique"]
        seconds = step.batch * step.tokens / value if row["unit"] == "tokens/s" else value / 1e3
        figure = Figure(source, key, row["model"], technique, step, seconds, widened)
        found.setdefault((source, key, step, technique, row["url"]), figure)
    return list(found.values())


def reasons():
    """Count the rows that are left out, by reason."""
    return Counter(filter(None, map(left_out, rows())))
