"""Text streamed, tokenized and cut into batches by the workers during training.

Nothing is prepared: no download of a corpus, no tokens on disk. As long as the workers make a batch
in less time than a step takes, the device does not wait. The column data_ms holds the wait for
data; a run whose wait exceeds a tenth of its time has a note.

Parent: prefetching_loader
Needs:  tf32, bfloat16, compile, device_queue, copy_engine, text, package datasets, package tiktoken
Gains:  nothing: no step gets faster; training starts at once on a corpus of any size, without disk
Costs:  the workers' cores; batches differ from those of other scripts, so losses cannot be
        compared; a corpus of one file keeps only one worker busy
See:    Hugging Face, Datasets, on streaming and on torch's DataLoader
"""

import torch

from Utils.data import END_OF_TEXT, StreamedBatches, gpt2_encoding
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(logits, targets):  # (B * T, 50_304), (B * T,)
    padding = torch.arange(50_304, device=logits.device) >= 50_257  # a slice's gradient is copied
    return torch.nn.functional.cross_entropy(logits.masked_fill(padding, -torch.inf), targets)


def tokenized(texts):  # runs in the workers
    encoding = gpt2_encoding()
    for text in texts:
        yield [*encoding.encode_ordinary(text), END_OF_TEXT]


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = StreamedBatches(args, tokenized)
    batches = torch.utils.data.DataLoader(
        batches,
        batch_size=None,  # each item is a batch already
        num_workers=2,
        pin_memory=args.device.type == "cuda",  # pageable memory cannot be copied without waiting
        **batches.worker_options,
    )
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
            idx = idx.to(args.device, non_blocking=True)  # (B, T)
            targets = targets.to(args.device, non_blocking=True)  # (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
