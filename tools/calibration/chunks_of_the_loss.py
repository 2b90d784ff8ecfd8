"""Write docs/linear_cross_entropy.csv: errors of torch.nn.functional.linear_cross_entropy.

    python -m tools.calibration.chunks_of_the_loss

It computes the loss and the gradient of GPT-2's untrained head on the CPU, for random inputs and
the tokens of a text: under autocast, and with operands in bfloat16 by the number of chunks. Errors
are against the same in float32.
"""

import pandas as pd
import torch
from torch.nn.functional import linear_cross_entropy

from Utils.base import paths
from Utils.base.gpt2_sizes import CONFIGS, VOCABULARY
from Utils.corpus.token_cache import load_tokens

FILE = paths.ROOT / "docs" / "linear_cross_entropy.csv"
CHUNKS = 1, 8, 32, 128


def errors(tokens=2048, dataset="stdlib", vocabulary=VOCABULARY, chunk_numbers=CHUNKS):
    """Return the table of docs/linear_cross_entropy.csv.

    tokens, vocabulary: rows and columns of the logits. dataset: text of the targets.
    """
    # Inputs, and the result in float32
    torch.manual_seed(0)
    C = CONFIGS["gpt2"].n_embd
    x = torch.randn(tokens, C)
    weight = 0.02 * torch.randn(vocabulary, C)
    text, _ = load_tokens(dataset)
    targets = torch.from_numpy(text[:tokens].astype("int64")) % vocabulary
    exact_loss, exact_gradient = loss_and_gradient(x, weight, targets)

    # The same in bfloat16
    rows = []
    for chunks in ("autocast", *chunk_numbers):
        in_autocast = chunks == "autocast"
        with torch.autocast("cpu", torch.bfloat16, enabled=in_autocast):
            dtype = torch.float32 if in_autocast else torch.bfloat16
            number = 1 if in_autocast else chunks
            loss, gradient = loss_and_gradient(x.to(dtype), weight.to(dtype), targets, number)
        error = (gradient.float() - exact_gradient).norm() / exact_gradient.norm()
        rows.append(
            {
                "chunks": chunks,
                "loss": f"{loss:.6g}",
                "exact_loss": f"{exact_loss:.6g}",
                "gradient_error": f"{error:.3g}",
            }
        )

    return pd.DataFrame(rows).assign(tokens=tokens, torch=torch.__version__)


def loss_and_gradient(x, weight, targets, chunks=1):
    """Return the loss, and the gradient of the weight, in the type of the operands."""
    options = torch.nn.LinearCrossEntropyOptions(
        chunking_method=None,
        batch_chunk_size=-(-len(x) // chunks),
    )
    x.requires_grad_()
    weight.requires_grad_()
    loss = linear_cross_entropy(x, weight, targets, options=options)
    (gradient,) = torch.autograd.grad(loss, weight)
    return loss.item(), gradient


if __name__ == "__main__":
    table = errors()
    print(table.to_string(index=False))
    table.to_csv(FILE, index=False)
