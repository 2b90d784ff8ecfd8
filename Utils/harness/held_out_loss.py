"""The loss of a run's weights on text that no run trains on.

All runs are evaluated in the same way: in float32, by the plain model, whatever precision and
kernels they trained with. So a difference in the loss is one in the weights. The text is the same
for all runs, so the noise of the batch cancels.
"""

from functools import partial

import numpy as np
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from Utils.base.gpt2_sizes import VOCABULARY
from Utils.corpus.token_cache import load_tokens, split
from Utils.harness.settings import Settings
from Utils.model import GPT

TOKENS = 2048


def loss(args: Settings, model: torch.nn.Module) -> float | None:
    """Return the held-out loss in nats per token. Every rank has to call it.

    None if it is not finite, the corpus is too short, or the model has other weights than GPT-2.

    model: the script's model, wrapped or not.
    """
    with torch.device("meta"):
        attention = partial(scaled_dot_product_attention, is_causal=True)
        plain = GPT(args.config, attention, VOCABULARY, loss=cross_entropy)
    weights = _weights_for(plain, model)
    _, text = split(load_tokens(args.dataset)[0])
    T = args.seq_len
    if weights is None or len(text) <= T:
        return None

    # Sequences of T + 1 tokens, evenly spaced.
    starts = np.linspace(0, len(text) - T - 1, max(1, TOKENS // T)).astype(int)
    windows = np.lib.stride_tricks.sliding_window_view(text, T + 1)
    sequences = torch.from_numpy(windows[starts].astype(np.int64)).to(args.device)

    losses = []
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(args.device.type, enabled=False):
            for row in sequences.split(1):
                batch = row[:, :-1], row[:, 1:]
                losses.append(functional_call(plain, weights, batch, tie_weights=False)[1].item())
    finally:
        torch.set_float32_matmul_precision(precision)
    mean = float(np.mean(losses))
    return mean if np.isfinite(mean) else None


def _weights_for(plain, model):
    """Return the model's weights by the plain model's names, float32; None if one is missing.

    Wrappers prefix names, a padded vocabulary has more rows, and shards have to be gathered.
    """
    trained = {}
    for name, tensor in model.state_dict().items():
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        trained[name.replace("_orig_mod.", "").removeprefix("module.")] = full.detach()

    weights = {}
    for name, expected in plain.state_dict().items():
        tensor = trained.get(name)
        if tensor is None or tensor.dim() != expected.dim() or len(tensor) < len(expected):
            return None
        weights[name] = tensor[: len(expected)].float()
    return weights
