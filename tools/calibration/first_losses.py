"""Changes of an untrained model's loss by rounding and by a wrong mask, for docs/FINDINGS.md.

    python -m tools.calibration.first_losses [--model gpt2] [--dataset stdlib]

Runs on the CPU. Prints the difference from float32 in nats, by shape, as the root mean square over
SEEDS.
"""

import torch

import no_optimization
from Utils.base import paths
from Utils.data import TokenBatches
from Utils.harness.settings import parse_args
from Utils.model import GPT

SEEDS = 4
SHAPES = (1, 64), (4, 256), (1, 1024), (4, 1024)
E4M3_MAX = 448


def main(argv=None):
    args = parse_args(__doc__, argv, "first_losses")
    print(f"{'tokens':>8}{'bfloat16':>12}{'float8':>12}{'wrong mask':>12}")
    for args.batch_size, args.seq_len in SHAPES:
        differences = torch.zeros(SEEDS, 3)
        for args.seed in range(SEEDS):
            exact, *changed_losses = losses(args)
            differences[args.seed] = torch.tensor(changed_losses) - exact

        rms = differences.square().mean(dim=0).sqrt()
        shape = f"{args.batch_size}x{args.seq_len}"
        print(f"{shape:>8}" + "".join(f"{nats:12.4f}" for nats in rms), flush=True)


@torch.no_grad()
def losses(args):
    """Return the first batch's loss in float32, bfloat16, and float8, and with the wrong mask."""
    wrong_script = {"__name__": "wrong_mask"}
    source = (paths.ROOT / "no_optimization.py").read_text()
    exec(source.replace("diagonal=1", "diagonal=2"), wrong_script)
    batch = [tokens.split(1) for tokens in TokenBatches(args)[0]]  # a sequence at a time

    def loss(bfloat16=False, attention=no_optimization.explicit_attention, hook=None):
        torch.manual_seed(args.seed)
        model = GPT(args.config, attention, 50_257, torch.nn.functional.cross_entropy)

        # With a hook, weights and inputs of the products in blocks are rounded.
        for name, layer in model.named_modules():
            if hook and isinstance(layer, torch.nn.Linear) and name != "lm_head":
                layer.weight.copy_(rounded(layer.weight))
                layer.register_forward_pre_hook(hook)

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            sequences = [model(*pair)[1] for pair in zip(*batch, strict=True)]
        return torch.stack(sequences).mean().item()

    def round_input(layer, operands):
        return (rounded(operands[0]),)

    float8 = loss(bfloat16=True, hook=round_input)
    return loss(), loss(bfloat16=True), float8, loss(attention=wrong_script["explicit_attention"])


def rounded(tensor):
    """Return the tensor rounded to E4M3, with its largest element at the top of the range."""
    scale = E4M3_MAX / tensor.abs().max()
    return (tensor * scale).to(torch.float8_e4m3fn).to(tensor.dtype) / scale


if __name__ == "__main__":
    main()
