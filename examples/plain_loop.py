"""A plain training loop of someone who never heard of this project, as it is after adoption.

Before it, the loop was a `for` over two epochs of `loader`, and printed the loss. The lines that
had to change are marked; the others are as they were.

Unit:   samples
"""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from Utils.run import Run, run_script  # changed: 1


def make_data(n=2048, features=64):
    torch.manual_seed(1)
    x = torch.randn(n, features)
    y = (x[:, :8].sum(1, keepdim=True) + 0.1 * torch.randn(n, 1)).tanh()
    return TensorDataset(x, y)


class Regressor(nn.Module):
    def __init__(self, features=64, hidden=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.layers(x)


def main(args):  # changed: 2
    device = args.device  # changed: 3
    torch.manual_seed(args.seed)  # changed: 4
    loader = DataLoader(make_data(), batch_size=128, shuffle=True)
    model = Regressor().to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    with Run(args, model, optimizer) as run:  # changed: 5
        for x, y in run.steps(loader):  # changed: 6
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            prediction = model(x)
            loss = nn.functional.mse_loss(prediction, y)
            loss.backward()
            optimizer.step()
            run.log(loss.item())  # changed: 7


if __name__ == "__main__":
    run_script(main, __doc__)  # changed: 8
