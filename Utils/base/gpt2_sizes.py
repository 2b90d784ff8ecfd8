"""The shapes of GPT-2 (Radford et al. 2019, table 2). This does not import torch."""

from dataclasses import dataclass

VOCABULARY = 50_257  # tokens of GPT-2's encoding


@dataclass(frozen=True)
class GPTConfig:
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int = 1024  # longest context, in tokens

    def parameters(self, vocab_size=VOCABULARY):
        """Return the number of parameters, counting the tied head once."""
        C = self.n_embd
        return self.n_layer * (12 * C * C + 13 * C) + (vocab_size + self.block_size + 2) * C


CONFIGS = {
    "gpt2-tiny": GPTConfig(n_layer=2, n_head=2, n_embd=64),  # 3.4M parameters: for tests
    "gpt2": GPTConfig(n_layer=12, n_head=12, n_embd=768),  # 124M
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),  # 355M
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),  # 774M
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),  # 1558M
}
