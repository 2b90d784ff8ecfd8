"""Train a small GPT-2 of transformers, made from a config, to count on from a random number."""

import argparse

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--width", type=int, default=64)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
tokens = (torch.randint(1000, (512, 1)) + torch.arange(64)) % 1000
loader = DataLoader(tokens, batch_size=8, shuffle=True)
config = GPT2Config(
    vocab_size=1000,
    n_positions=64,
    n_embd=args.width,
    n_layer=2,
    n_head=4,
    attn_implementation="eager",
)
model = GPT2LMHeadModel(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

for epoch in range(args.epochs):
    for batch in loader:
        batch = batch.to(device)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
