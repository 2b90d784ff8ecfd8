"""A causal language model of Hugging Face's transformers, made from a config without a download.

Unit:   tokens
"""

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from Utils.data import TokenBatches
from Utils.run import Run, run_script


def main(args):
    torch.manual_seed(args.seed)
    batches = TokenBatches(args)
    # transformers has its own default; "eager" is the attention that is written out
    model = AutoModelForCausalLM.from_config(
        GPT2Config(n_layer=2, n_head=2, n_embd=64, use_cache=False), attn_implementation="eager"
    ).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)

    with Run(args, model, optimizer) as run:
        for idx, _ in run.steps(batches):
            idx = idx.to(args.device)
            outputs = model(input_ids=idx, labels=idx)
            outputs.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            run.log(outputs.loss.item())


if __name__ == "__main__":
    run_script(main, __doc__)
