"""Head and loss computed chunk by chunk, so that the logits never exist as a whole.

The logits, 50,257 columns for each token, are the largest tensor of a step, and their gradient is a
second one. Inductor can take both in chunks: a chunk of logits gives its share of the loss and, in
the same pass, of the gradients of the head and its input; then its memory is used again. The logits
must not be an output of the graph, so the compiled function returns the loss alone.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  memory: all but an eighth of the logits; 9.2 to 3.1 GB for head and loss with 8 chunks
        (pytorch issue 124480)
Costs:  time: smaller products; 36.2 ms become 40.4 ms there
See:    pytorch pull request 136702; torch/_inductor/config.py on auto_chunker
"""

import torch

from Utils.base.errors import Unsupported
from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def check_chunks(loss, tokens):  # if Inductor takes none, it does not say so
    if any(x.shape == (tokens, 50_257) for x in getattr(loss.grad_fn, "saved_tensors", ())):
        raise Unsupported("loss in chunks: needs Inductor, and more tokens than channels")


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    chunks = {"auto_chunker.enable": True, "auto_chunker.amplify_ratio_threshold": 1}
    loss_alone = torch.compile(lambda idx, targets: model(idx, targets)[1], options=chunks)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                loss = loss_alone(idx, targets)
                check_chunks(loss, targets.numel())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
