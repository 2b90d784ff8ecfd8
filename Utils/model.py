"""GPT-2 (Radford et al. 2019): the skeleton that every script trains.

The script passes in what a technique may change: attention, vocabulary size, loss. Parameters have
the names of OpenAI's checkpoint (https://github.com/openai/gpt-2, src/model.py); `nn.Linear` stores
weights as (out, in), so those of c_attn, c_fc and c_proj are transposed.
"""

import torch
import torch.nn as nn


class Attention(nn.Module):
    """Causal multi-head self-attention, with the mixing passed in as a function."""

    def __init__(self, config, attention):
        super().__init__()
        self.n_head = config.n_head
        self.attention = attention
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)  # each (B, T, C)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = self.attention(q, k, v)  # (B, n_head, T, C / n_head)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config, attention)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A decoder-only transformer whose output head shares the token embedding's weight.

    attention: function of q, k, v, each (B, n_head, T, n_embd / n_head), that returns the causal
        mix of v in the same shape.
    vocab_size: rows of the embedding, and logits per token. With the same seed a larger one adds
        rows and leaves all other weights unchanged.
    loss: function of logits, (B * T, vocab_size), and targets, (B * T,), that returns a scalar.
    """

    def __init__(self, config, attention, vocab_size, loss):
        super().__init__()
        self.config = config
        self.loss = loss

        random = torch.get_rng_state()
        self.wte = nn.Embedding(vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, attention) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

        torch.set_rng_state(random)  # the default initialization depends on vocab_size
        self.apply(self._init_weights)

    def _init_weights(self, module):
        """Draw normal weights of deviation 0.02 (positions 0.01), and zero biases.

        src/model.py of openai/gpt-2 does the same. Projections into the residual stream are divided
        by the square root of their number (section 2.3 of the paper). The embedding is drawn last,
        as lm_head's weight.
        """
        if isinstance(module, nn.Linear | nn.Embedding) and module is not self.wte:
            nn.init.normal_(module.weight, std=0.01 if module is self.wpe else 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Attention | MLP):
            nn.init.normal_(module.c_proj.weight, std=0.02 / (2 * self.config.n_layer) ** 0.5)

    def forward(self, idx, targets):
        """Return the logits (B, T, vocab_size), detached, and the loss, a scalar.

        idx, targets: int64 (B, T).
        """
        T = idx.size(1)
        x = self.wte(idx) + self.wpe(torch.arange(T, device=idx.device))  # (B, T, C)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))

        loss = self.loss(logits.view(-1, logits.size(-1)), targets.view(-1))

        # Detached: otherwise a compiled backward fills and adds zeros of the same size. A loss that
        # ends the compiled graph would get no gradient if this stood before it (torch 2.13).
        return logits.detach(), loss
