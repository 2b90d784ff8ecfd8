"""A training step of another project, as a row of figures describes it, and its forecast.

Forecasts are compared with times that others have published. So what their code has and ours lacks
is here: an untied head, dropout, clipped gradients, accumulated batches, no optimizer.
"""

import tomllib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from tools.forecast import fake_run, step_time
from tools.forecast.forecast_plan import import_compiler
from tools.forecast.forks import in_processes
from tools.forecast.imagined_gpu import ImaginedGPU
from tools.forecast.kernel_work import StepOperations, kernels_at
from Utils.base.units import GIB

TRACED_LAYERS = 1, 2  # further layers cost as much as the second
PRIME = 97  # sequences in a trace, from which the kernels of any batch follow


@dataclass(frozen=True)
class Step:
    """A training step of GPT, with all that decides its kernels."""

    batch: int
    tokens: int
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocabulary: int = 50_257
    precision: str = "float32"  # or tf32; bfloat16, float16: autocast; pure_bfloat16: weights too
    attention: str = "explicit"  # or sdpa
    tied: bool = True
    bias: bool = True  # in the products of queries, keys and values, and after attention
    gelu: str = "tanh"  # or exact
    dropout: float = 0.0
    attention_dropout: float = 0.0
    compile: bool = False
    optimizer: str = "foreach"  # or fused; none: forward and backward alone
    clip: bool = False
    evaluations: float = 0.0  # more forward passes a step
    microbatches: int = 1  # batches before the optimizer's step
    reads_loss: bool = False  # each step, so that the host waits for the device


def step_of(batch, tokens, text):
    """Return the Step that a row describes by fields in TOML. Raises ValueError or TypeError."""
    return Step(batch, tokens, **tomllib.loads(f"step = {{{text}}}")["step"])


def seconds(step, entry):
    """Return the forecast seconds of a Step on the device of a Datasheet.

    Evaluations repeat the forward pass of one batch, further batches its forward and backward pass.
    """
    import_compiler()
    traced = [(replace(step, batch=PRIME, layers=layers),) for layers in TRACED_LAYERS]
    totals = []
    for work in in_processes(operations, traced):
        kernels = kernels_at(work, step.batch)
        phase = kernels.kernels.phase[kernels.order]  # 0 is forward, 1 backward
        total = step_time.step_time(kernels, entry).seconds
        for last_phase, times in enumerate((step.evaluations, step.microbatches - 1)):
            if times:
                part = replace(kernels, order=kernels.order[phase <= last_phase])
                total += times * step_time.step_time(part, entry).seconds
        totals.append(total)

    few, more = totals
    return few + (step.layers - TRACED_LAYERS[0]) * (more - few)


class Block(nn.Module):
    """A block of a Transformer."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        C = step.width
        self.norms = nn.ModuleList([nn.LayerNorm(C), nn.LayerNorm(C)])
        self.qkv = nn.Linear(C, 3 * C, bias=step.bias)
        self.out = nn.Linear(C, C, bias=step.bias)
        self.up = nn.Linear(C, 4 * C)
        self.down = nn.Linear(4 * C, C)
        self.dropout = nn.Dropout(step.dropout)
        self.on_scores = nn.Dropout(step.attention_dropout)

    def mix(self, q, k, v, mask):
        if self.step.attention == "sdpa":
            p = self.step.attention_dropout
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return self.on_scores(scores.masked_fill(mask, -torch.inf).softmax(-1)) @ v

    def forward(self, x, mask):
        B, T, C = x.shape
        parts = self.qkv(self.norms[0](x)).split(C, 2)
        q, k, v = (part.view(B, T, self.step.heads, -1).transpose(1, 2) for part in parts)
        y = self.mix(q, k, v, mask).transpose(1, 2).reshape(B, T, C)
        x = x + self.dropout(self.out(y))
        approximate = "tanh" if self.step.gelu == "tanh" else "none"
        hidden = F.gelu(self.up(self.norms[1](x)), approximate=approximate)
        return x + self.dropout(self.down(hidden))


class Transformer(nn.Module):
    """A GPT of a Step's shape."""

    def __init__(self, step):
        super().__init__()
        self.wte = nn.Embedding(step.vocabulary, step.width)
        self.wpe = nn.Embedding(step.tokens, step.width)
        self.dropout = nn.Dropout(step.dropout)
        self.h = nn.ModuleList(Block(step) for _ in range(step.layers))
        self.norm = nn.LayerNorm(step.width)
        self.head = nn.Linear(step.width, step.vocabulary, bias=False)
        if step.tied:
            self.head.weight = self.wte.weight
        mask = torch.ones(step.tokens, step.tokens, dtype=torch.bool)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, idx, targets):
        x = self.dropout(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        for block in self.h:
            x = block(x, self.mask)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def operations(step):
    """Return the StepOperations of a Step on fake tensors."""
    device = ImaginedGPU("published", 80 * GIB)
    tracker = fake_run.Tracker(device.torch_device)
    code = SimpleNamespace(code="compile" if step.compile else "")
    with fake_run.fakes(code, device, tracker):
        # Model, in the step's precision
        torch.set_float32_matmul_precision("highest" if step.precision == "float32" else "high")
        model = Transformer(step)
        if step.precision == "pure_bfloat16":
            model = model.to(torch.bfloat16)
        autocast = nullcontext()
        if step.precision in ("bfloat16", "float16"):
            autocast = torch.autocast("cpu", dtype=getattr(torch, step.precision))
        training = torch.compile(model) if step.compile else model

        optimizer = None
        if step.optimizer != "none":
            fused = step.optimizer == "fused"
            optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=not fused)
            fake_run.first_update(optimizer)

        # The recorded step
        idx = torch.zeros(step.batch, step.tokens, dtype=torch.long)
        tracker.watch(model)
        tracker.work = StepOperations(step.batch)
        with autocast:
            loss = training(idx, idx)
        loss.backward()
        if step.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if optimizer:
            optimizer.step()
        if step.reads_loss:
            loss.item()
    return tracker.work
