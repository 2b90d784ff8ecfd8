"""Models whose steps others have timed, with all that decides the kernels of a step.

Forecasts are compared with these published times. So the differences from our code are here: an
untied head, dropout, formulas written out, no optimizer.
"""

import math
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.nn as nn
import torch.nn.functional as F

from tools.forecast import fake_run
from tools.forecast.kernel_work import Operation, StepOperations, Tensor


class LayerNorm(nn.Module):
    """LayerNorm written out, as in the book of S. Raschka."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


def _activation(step, x):
    if step.gelu == "relu":
        return F.relu(x)
    if step.gelu == "composed":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))
    return F.gelu(x, approximate="tanh" if step.gelu == "tanh" else "none")


class OtherBlock(nn.Module):
    """A block of a Transformer, with the attention and the products that its Step names."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        C = step.width
        norm = LayerNorm if step.composed else nn.LayerNorm
        self.norms = nn.ModuleList([norm(C), norm(C)])

        # Products
        count = 3 if step.separate else 1
        self.qkv = nn.ModuleList(nn.Linear(C, 3 * C // count, bias=step.bias) for _ in range(count))
        self.out = nn.Linear(C, C, bias=step.bias or step.separate)
        self.up = nn.Linear(C, 4 * C)
        self.down = nn.Linear(4 * C, C)

        self.dropout = nn.Dropout(step.dropout)
        self.on_scores = nn.Dropout(step.attention_dropout)

    def mix(self, q, k, v, mask):
        """Return the attention's result, by the kind that the Step names."""
        kind = self.step.attention
        if kind == "sdpa":
            p = self.step.attention_dropout
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)

        # Written out, with the mask applied in one of five ways
        T, D = q.shape[-2:]
        mask = mask[:T, :T]
        scores = q @ k.transpose(-2, -1)
        if kind == "explicit":
            scores = (scores / D**0.5).masked_fill(mask, -torch.inf)
        elif kind == "late":  # in place, and scaled after it
            scores = scores.masked_fill_(mask, -torch.inf) / D**0.5
        elif kind == "where":
            scores = scores / torch.full([], D**0.5)
            scores = torch.where(mask, scores, torch.full([], -1e9))
        elif kind == "added":
            scores = scores / D**0.5 + mask.to(scores.dtype)
        elif kind == "lowest":
            scores = torch.max(scores + mask.to(scores.dtype), torch.tensor(-1e38))
        return self.on_scores(scores.softmax(-1)) @ v

    def forward(self, x, mask):
        B, T, C = x.shape
        y = self.norms[0](x)
        products = [layer(y) for layer in self.qkv]
        q, k, v = products if self.step.separate else products[0].split(C, 2)
        q, k, v = (t.view(B, T, self.step.heads, -1).transpose(1, 2) for t in (q, k, v))

        y = self.mix(q, k, v, mask).transpose(1, 2).reshape(B, T, C)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(_activation(self.step, self.up(self.norms[1](x)))))


class Embedded(nn.Module):
    """A model that begins with embeddings of tokens and positions."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.wte = nn.Embedding(step.vocabulary, step.width)
        self.wpe = nn.Embedding(step.tokens, step.width)
        self.dropout = nn.Dropout(step.dropout)

    def embedded(self, idx):
        return self.dropout(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))


class Transformer(Embedded):
    """A GPT or a BERT of a Step's shape.

    A real BERT has its norms in another order, at the same cost.
    """

    def __init__(self, step):
        super().__init__(step)
        self.h = nn.ModuleList(OtherBlock(step) for _ in range(step.layers))
        self.norm = (LayerNorm if step.composed else nn.LayerNorm)(step.width)

        # The head, of BERT with one more product
        if step.model == "bert":
            self.transform = nn.Linear(step.width, step.width)
        self.head = nn.Linear(step.width, step.vocabulary, bias=step.model == "bert")
        if step.tied:
            self.head.weight = self.wte.weight

        mask = torch.ones(step.tokens, step.tokens, dtype=torch.bool)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, idx):
        x = self.embedded(idx)
        for block in self.h:
            x = block(x, self.mask)
        if self.step.model == "bert":
            x = F.gelu(self.transform(x))
        return self.head(self.norm(x))


class Translation(Embedded):
    """An encoder and a decoder of torch's layers, 50 tokens in and 20 out."""

    def __init__(self, step):
        super().__init__(step)

        def layers(kind):
            layer = partial(kind, step.width, step.heads, 4 * step.width, step.dropout)
            return nn.ModuleList(
                layer(batch_first=True, norm_first=True) for _ in range(step.layers)
            )

        self.encoder = layers(nn.TransformerEncoderLayer)
        self.decoder = layers(nn.TransformerDecoderLayer)
        self.head = nn.Linear(step.width, step.vocabulary)
        self.head.weight = self.wte.weight

    def forward(self, source):
        # Encoder
        target = source[:, :20]
        memory = self.embedded(source)
        padding = torch.zeros(source.shape, dtype=torch.bool)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=padding)

        # Decoder
        x = self.embedded(target)
        causal = torch.ones(20, 20, dtype=torch.bool).triu(1)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=causal, tgt_key_padding_mask=padding[:, :20])
        return self.head(x)


def work(step, device):
    """Return the StepOperations of a Step on fake tensors.

    device: an ImaginedGPU.
    """
    tracker = fake_run.Tracker(device.torch_device)
    code = SimpleNamespace(code="compile" if step.compile else "")
    written_out = patch("torch.nn.functional.scaled_dot_product_attention", _written_out)
    with fake_run.fakes(code, device, tracker):
        with nullcontext() if step.attention == "sdpa" else written_out:
            return _work(step, tracker)


def _written_out(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **unused):
    """Replace scaled_dot_product_attention by operators without a fused kernel."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores + attn_mask
    return F.dropout(scores.softmax(-1), dropout_p) @ v


def _work(step, tracker):
    """Return the StepOperations of one step of training, with the fakes in place."""
    # Model, in the step's precision
    torch.set_float32_matmul_precision("highest" if step.precision == "float32" else "high")
    model = Translation(step) if step.model == "translation" else Transformer(step)
    if step.precision == "pure_bfloat16":
        model = model.to(torch.bfloat16)
    autocast = nullcontext()
    if step.precision in ("bfloat16", "float16"):
        autocast = torch.autocast("cpu", dtype=getattr(torch, step.precision))

    # Forward pass, compiled with or without the loss
    forward = torch.compile(model) if step.compile and step.loss_apart else model

    def training(idx, targets):
        logits = forward(idx)
        return F.cross_entropy(logits.reshape(-1, step.vocabulary), targets.reshape(-1))

    if step.compile and not step.loss_apart:
        training = torch.compile(training)

    optimizer = None
    if step.optimizer in ("foreach", "fused"):
        fused = step.optimizer == "fused"
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=not fused)
        fake_run.first_update(optimizer)

    # The recorded step
    idx = torch.zeros(step.batch, step.tokens, dtype=torch.long)
    targets = idx[:, :20] if step.model == "translation" else idx
    tracker.watch(model)
    tracker.work = StepOperations(step.batch)
    with autocast:
        loss = training(idx, targets)
    loss.backward()
    if step.clip:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if optimizer:
        optimizer.step()
    elif step.optimizer == "8bit":  # bitsandbytes' kernel
        for parameter in model.parameters():
            weight = Tensor(tuple(parameter.shape), "float32")
            moments = [Tensor(weight.shape, "int8")] * 2
            reads = (weight, weight, *moments)
            tracker.note(Operation("optimizer_update_8bit_blockwise", reads, (weight, *moments)))
    if step.reads_loss:
        loss.item()
    return tracker.work
