"""Text that a model writes by itself."""

import torch
from torch.nn.functional import softmax

from Utils.base.gpt2_sizes import VOCABULARY
from Utils.corpus.token_cache import END_OF_TEXT, gpt2_encoding

TOKENS = 200  # of a text
TOP = 50  # of the most likely tokens one is drawn, as build-nanogpt does


@torch.no_grad()
def sample(model, seed):
    """Return a text that the model writes.

    model: a GPT, neither compiled nor wrapped. It is called part by part, as its loss may be one
    that overwrites the logits.
    """
    encoding, device = gpt2_encoding(), model.wte.weight.device
    random = torch.Generator().manual_seed(seed)
    idx = torch.tensor([[END_OF_TEXT]], device=device)
    for _ in range(TOKENS):
        seen = idx[:, -model.config.block_size :]  # (1, T)
        x = model.wte(seen) + model.wpe(torch.arange(seen.size(1), device=device))
        for block in model.h:
            x = block(x)
        logits = model.lm_head(model.ln_f(x[:, -1]))[:, :VOCABULARY]
        most, indices = logits.float().cpu().topk(TOP)
        choice = torch.multinomial(softmax(most, dim=-1), 1, generator=random)
        idx = torch.cat([idx, indices.gather(1, choice).to(device)], dim=1)
    return encoding.decode(idx[0, 1:].tolist())
