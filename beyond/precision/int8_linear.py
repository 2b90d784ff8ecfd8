"""The blocks' linear layers in 8-bit integers, forward and backward; the head in bfloat16.

GPUs from Turing on multiply 8-bit integers at twice the rate of 16-bit floats, GeForce cards of the
30 series at four times; 8-bit floats they have only from compute capability 8.9 on. torchao's
kernel is Triton's, which compiles it from 8.0 on. Weights stay in float32. For each product both
operands are divided by a scale a row, rounded to 127 levels either way and multiplied as integers.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, int8, package torchao
Gains:  time: 17,000 to 29,000 tokens/s for a 1B Llama on an RTX 4090 (torchao's page); at the width
        of GPT-2 none known
Costs:  all but 7 bits of the operands, gradients included; quantizing them reads each once more;
        float32 between the layers, since autocast does not reach inside; torch 2.13 breaks the
        graph at every layer of torchao 0.18, so little is fused: 2,734 kernel launches a step
        instead of 585
See:    torchao/prototype/quantized_training/README.md; Xi et al. 2024, Jetfire
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


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
    from torchao.prototype.quantized_training import int8_mixed_precision_training
    from torchao.quantization import quantize_  # here, so that --help does without the package

    quantize_(model.h, int8_mixed_precision_training(module_swap=True))
    for layer in model.h.modules():  # its kernel wants input, weight and result of one type
        layer.register_forward_pre_hook(lambda layer, inputs: inputs[0].float())
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
