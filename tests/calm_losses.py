"""How far rounding drives losses apart, by learning rate: the baseline in float32 and in bfloat16.

    python -m tests.calm_losses [--rates 4e-5 1e-4] [--seeds 8] [flags of the scripts]

Prints for each seed the largest difference of a step's loss, the difference of the held-out losses,
and how far the loss falls, for docs/LOG.md.
"""

import torch

import no_optimization
from Utils.base import command_line
from Utils.base.command_line import Parser
from Utils.data import TokenBatches
from Utils.harness import held_out_loss
from Utils.harness.settings import Settings, settle
from Utils.model import GPT


def main(argv=None):
    parser = Parser("calm_losses", __doc__)
    command_line.add_settings(parser)
    parser.add_argument("--rates", type=float, nargs="+", default=[4e-5], help="learning rates")
    parser.add_argument("--seeds", type=int, default=8, help="number of seeds")
    args = parser.parse_args(argv, Settings())
    settle(args)
    for rate in args.rates:
        for seed in range(args.seeds):
            args.seed = seed
            exact, rounded = (train(args, rate, bfloat16) for bfloat16 in (False, True))
            apart = max(abs(a - b) for a, b in zip(exact[0], rounded[0], strict=True))
            print(
                f"{rate:g}, seed {seed}: losses {apart:.4f} apart at most, held-out "
                f"{rounded[1] - exact[1]:+.4f}; from {exact[0][0]:.2f} to {exact[1]:.2f}",
                flush=True,
            )


def train(args, rate, bfloat16):
    """Return the losses of all steps and the held-out loss of the trained weights."""
    torch.manual_seed(args.seed)
    batches, loss = TokenBatches(args), torch.nn.functional.cross_entropy
    model = GPT(args.config, no_optimization.explicit_attention, 50_257, loss).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    losses = []
    for step in range(args.steps):
        idx, targets = (tokens.to(args.device) for tokens in batches[step])
        with torch.autocast(args.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            _, loss = model(idx, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses, held_out_loss.loss(args, model)


if __name__ == "__main__":
    main()
