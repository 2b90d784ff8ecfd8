"""The whole corpus on the device, with batches gathered there.

At 4 bytes each, 15 million tokens take 60 MB, little beside a model's activations. With tokens and
the start positions of all sequences on the device, a batch is one gather kernel: no worker, no
copy, no wait. The host can run steps ahead of the device.

Parent: asynchronous_logging
Needs:  tf32, bfloat16, compile, device_queue, device_memory; a corpus that fits into device memory
Gains:  time: the copies of each step, and with them the last wait in the loop
Costs:  4 bytes per token of the corpus; a copy of all of it before the first step
See:    github.com/KellerJordan/cifar10-loader, which keeps all images on the GPU
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(logits, targets):  # (B * T, 50_304), (B * T,)
    padding = torch.arange(50_304, device=logits.device) >= 50_257  # a slice's gradient is copied
    return torch.nn.functional.cross_entropy(logits.masked_fill(padding, -torch.inf), targets)


class BatchesOnDevice(TokenBatches):
    def __init__(self, args):
        super().__init__(args)
        self.there = torch.tensor([[*self.starts(s)] for s in range(args.steps)]).to(args.device)
        tokens = torch.from_numpy(self.tokens.astype("int32"))  # CUDA cannot index uint16
        self.rows = tokens.to(args.device).unfold(0, args.seq_len + 1, 1)  # (N - T, T + 1), views

    def __getitem__(self, step):
        rows = self.rows[self.there[step % len(self.there)]].long()  # (B, T + 1)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = BatchesOnDevice(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_304,
        loss=cross_entropy,
    ).to(args.device)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
