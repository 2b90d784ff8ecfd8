"""Models that others have timed, as far as a step's kernels depend on them.

Their published figures are what a forecast is held against, so what sets their code apart from ours
is here: an untied head, dropout, formulas written out, no optimizer.
"""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.nn as nn
import torch.nn.functional as F

from tools.forecast import fake_run
from tools.forecast.kernel_work import Operation, StepOperations, Tensor


class LayerNorm(nn.Module):
    """LayerNorm as the book of S. Raschka writes it out."""

    def __init__(self, width):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


def _activation(step, x):
    if step.gelu == "relu":
        return F.relu(x)
    if step.gelu == "composed":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))
    return F.gelu(x, approximate="tanh" if step.gelu == "tanh" else "none")


class OtherBlock(nn.Module):
    def __init__(self, step):
        super().__init__()
        C, norm = step.width, LayerNorm if step.composed else nn.LayerNorm
        self.step, self.norms = step, nn.ModuleList([norm(C), norm(C)])
        parts = 3 if step.separate else 1
        self.qkv = nn.ModuleList(nn.Linear(C, 3 * C // parts, bias=step.bias) for _ in range(parts))
        self.out = nn.Linear(C, C, bias=step.bias or step.separate)
        self.up = nn.Linear(C, 4 * C)
        self.down = nn.Linear(4 * C, C)
        self.dropout, self.on_scores = nn.Dropout(step.dropout), nn.Dropout(step.attention_dropout)

    def mix(self, q, k, v, mask):
        step, T, D = self.step, q.shape[-2], q.shape[-1]
        if step.attention == "sdpa":
            p = step.attention_dropout
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        scores = q @ k.transpose(-2, -1)
        if step.attention == "explicit":
            scores = (scores / D**0.5).masked_fill(mask[:T, :T], -torch.inf)
        elif step.attention == "late":  # in place, and scaled after it
            scores = scores.masked_fill_(mask[:T, :T], -torch.inf) / D**0.5
        elif step.attention == "where":
            scores = scores / torch.full([], D**0.5)
            scores = torch.where(mask[:T, :T], scores, torch.full([], -1e9))
        elif step.attention == "added":
            scores = scores / D**0.5 + mask[:T, :T].to(scores.dtype)
        elif step.attention == "lowest":
            scores = torch.max(scores + mask[:T, :T].to(scores.dtype), torch.tensor(-1e38))
        return self.on_scores(scores.softmax(-1)) @ v

    def forward(self, x, mask):
        B, T, C = x.shape
        y = self.norms[0](x)
        parts = [part(y) for part in self.qkv]
        q, k, v = parts if self.step.separate else parts[0].split(C, 2)
        q, k, v = (t.view(B, T, self.step.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = self.mix(q, k, v, mask).transpose(1, 2).reshape(B, T, C)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(_activation(self.step, self.up(self.norms[1](x)))))


class Transformer(nn.Module):
    """A GPT or a BERT of a Step's shape; of BERT the order of norms differs, not what they cost."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.wte = nn.Embedding(step.vocabulary, step.width)
        self.wpe = nn.Embedding(step.tokens, step.width)
        self.dropout = nn.Dropout(step.dropout)
        self.h = nn.ModuleList(OtherBlock(step) for _ in range(step.layers))
        self.norm = (LayerNorm if step.composed else nn.LayerNorm)(step.width)
        if step.model == "bert":
            self.transform = nn.Linear(step.width, step.width)
        self.head = nn.Linear(step.width, step.vocabulary, bias=step.model == "bert")
        if step.tied:
            self.head.weight = self.wte.weight
        mask = torch.ones(step.tokens, step.tokens, dtype=torch.bool)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, idx):
        x = self.dropout(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        for block in self.h:
            x = block(x, self.mask)
        if self.step.model == "bert":
            x = F.gelu(self.transform(x))
        return self.head(self.norm(x))


class Translation(nn.Module):
    """Encoder and decoder of torch's own layers, 50 tokens in and 20 out."""

    def __init__(self, step):
        super().__init__()
        options = {"batch_first": True, "norm_first": True, "dropout": step.dropout}
        shape = step.width, step.heads, 4 * step.width
        self.wte = nn.Embedding(step.vocabulary, step.width)
        self.wpe = nn.Embedding(step.tokens, step.width)
        self.dropout = nn.Dropout(step.dropout)
        layers = range(step.layers)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(*shape, **options) for _ in layers)
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(*shape, **options) for _ in layers)
        self.head = nn.Linear(step.width, step.vocabulary)
        self.head.weight = self.wte.weight

    def forward(self, source):
        target = source[:, :20]
        memory = self.dropout(self.wte(source) + self.wpe(torch.arange(source.shape[1])))
        padding = torch.zeros(source.shape, dtype=torch.bool)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=padding)
        x = self.dropout(self.wte(target) + self.wpe(torch.arange(20)))
        causal = torch.ones(20, 20, dtype=torch.bool).triu(1)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=causal, tgt_key_padding_mask=padding[:, :20])
        return self.head(x)


def work(step, device):
    """Return the Work of a Step on fake tensors. device: of Utils.device, a GPU imagined."""
    tracker = fake_run.Tracker(device.torch_device)
    written_out = patch("torch.nn.functional.scaled_dot_product_attention", _written_out)
    with fake_run.fakes(SimpleNamespace(code="compile" if step.compile else ""), device, tracker):
        with nullcontext() if step.attention == "sdpa" else written_out:
            return _work(step, tracker)


def _written_out(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **others):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores + attn_mask
    return F.dropout(scores.softmax(-1), dropout_p) @ v


def _work(step, tracker):
    torch.set_float32_matmul_precision("highest" if step.precision == "float32" else "high")
    model = Translation(step) if step.model == "translation" else Transformer(step)
    dtype = getattr(torch, step.precision, None) if step.precision != "float32" else None
    if step.precision == "pure_bfloat16":
        model, dtype = model.to(torch.bfloat16), None
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
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    idx = torch.zeros(step.batch, step.tokens, dtype=torch.long)
    targets = idx[:, :20] if step.model == "translation" else idx
    tracker.watch(model)
    tracker.work = StepOperations(step.batch)
    with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
        loss = training(idx, targets)
    loss.backward()
    if step.clip:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if optimizer:
        optimizer.step()
    elif step.optimizer == "8bit":  # bitsandbytes' kernel
        for parameter in model.parameters():
            weight, moment = (Tensor(tuple(parameter.shape), name) for name in ("float32", "int8"))
            reads, writes = (weight, weight, moment, moment), (weight, moment, moment)
            tracker.note(Operation("optimizer_update_8bit_blockwise", reads, writes))
    if step.reads_loss:
        loss.item()
    return tracker.work
