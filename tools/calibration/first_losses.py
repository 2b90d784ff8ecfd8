"""What rounding and a wrong mask change about the loss of an untrained model, by shape.

    python -m tools.calibration.first_losses [--seeds 4] [--model gpt2] [--dataset stdlib]

Runs on the CPU. Prints the root mean square over seeds of the difference from float32, in nats, for
docs/FINDINGS.md.
"""

import torch

import no_optimization
from tools.calibration.known import COPIES, changed
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.data import TokenBatches
from Utils.harness.settings import Settings, resolve
from Utils.model import GPT

SHAPES = (1, 64), (4, 256), (1, 1024), (4, 1024)
E4M3_MAX = 448


def main(argv=None):
    parser = Parser("first_losses", __doc__, *RUN_SETTINGS)
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds")
    args = parser.parse_args(argv, Settings())
    print(f"{'tokens':>8}{'bfloat16':>12}{'float8':>12}{'wrong mask':>12}")
    resolve(args)
    for args.batch_size, args.seq_len in SHAPES:
        off = torch.zeros(args.seeds, 3)
        for seed in range(args.seeds):
            args.seed = seed
            exact, *others = losses(args)
            off[seed] = torch.tensor(others) - exact
        rms = off.square().mean(dim=0).sqrt()
        shape = f"{args.batch_size}x{args.seq_len}"
        print(f"{shape:>8}" + "".join(f"{nats:12.4f}" for nats in rms), flush=True)


@torch.no_grad()
def losses(args):
    """Return the first batch's loss in float32, bfloat16, and float8, and with the wrong mask."""
    wrong = {"__name__": "wrong_mask"}
    exec(changed(*COPIES["wrong_mask"]), wrong)
    batch = [tokens.split(1) for tokens in TokenBatches(args)[0]]  # a sequence at a time

    def loss(bfloat16=False, attention=no_optimization.explicit_attention, hook=None):
        torch.manual_seed(args.seed)
        model = GPT(args.config, attention, 50_257, torch.nn.functional.cross_entropy)
        for name, layer in model.named_modules():
            if hook and isinstance(layer, torch.nn.Linear) and name != "lm_head":
                layer.weight.copy_(rounded(layer.weight))
                layer.register_forward_pre_hook(hook)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            sequences = [model(*pair)[1] for pair in zip(*batch, strict=True)]
        return torch.stack(sequences).mean().item()

    float8 = loss(bfloat16=True, hook=lambda layer, operands: (rounded(operands[0]),))
    return loss(), loss(bfloat16=True), float8, loss(attention=wrong["explicit_attention"])


def rounded(tensor):
    """Return the tensor rounded to E4M3, with its largest element at the top of the range."""
    scale = E4M3_MAX / tensor.abs().max()
    return (tensor * scale).to(torch.float8_e4m3fn).to(tensor.dtype) / scale


if __name__ == "__main__":
    main()
