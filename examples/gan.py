"""Train a generator against a discriminator on points of a ring."""

import math
import sys

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
BATCH = 64

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
ones = torch.ones(BATCH, 1, device=device)
zeros = torch.zeros(BATCH, 1, device=device)

for step in range(STEPS):
    angle = 2 * math.pi * torch.rand(BATCH, device=device)
    real = torch.stack([angle.cos(), angle.sin()], dim=1)
    fake = generator(torch.randn(BATCH, 8, device=device))

    optimizer_d.zero_grad()
    loss_d = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = bce(discriminator(fake), ones)
    loss_g.backward()
    optimizer_g.step()

    if step % 500 == 0:
        print(f"step {step}: discriminator {loss_d.item():.3f}, generator {loss_g.item():.3f}")
