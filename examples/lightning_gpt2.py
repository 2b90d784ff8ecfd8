"""Pretrain transformers' GPT-2 from scratch by Lightning."""

import argparse

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed", "float16": "16-mixed"}

parser = argparse.ArgumentParser()
parser.add_argument("--tokens", help="file of uint16 tokens; random ones by default")
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--seq_len", type=int, default=1024)
parser.add_argument("--n_layer", type=int, default=12)
parser.add_argument("--n_head", type=int, default=12)
parser.add_argument("--n_embd", type=int, default=768)
parser.add_argument("--dtype", default="bfloat16", choices=PRECISIONS)
parser.add_argument("--max_steps", type=int, default=100_000)
args = parser.parse_args()


class Chunks(Dataset):
    def __init__(self):
        if args.tokens:
            self.tokens = np.memmap(args.tokens, dtype=np.uint16, mode="r")
        else:
            self.tokens = np.random.randint(50_257, size=4_000_000, dtype=np.uint16)

    def __len__(self):
        return len(self.tokens) // args.seq_len

    def __getitem__(self, index):
        chunk = self.tokens[index * args.seq_len : (index + 1) * args.seq_len]
        return torch.from_numpy(chunk.astype(np.int64))


class GPT2(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        config = GPT2Config(
            n_positions=args.seq_len,
            n_layer=args.n_layer,
            n_head=args.n_head,
            n_embd=args.n_embd,
            use_cache=False,
        )
        self.model = torch.compile(GPT2LMHeadModel(config))

    def training_step(self, ids, batch_index):
        loss = self.model(input_ids=ids, labels=ids).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=6e-4, weight_decay=0.1, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(0)
    torch.set_float32_matmul_precision("high")
    trainer = lightning.Trainer(
        precision=PRECISIONS[args.dtype],
        max_steps=args.max_steps,
        devices=1,
        logger=False,
        enable_checkpointing=False,
    )
    loader = DataLoader(
        Chunks(), batch_size=args.batch_size, shuffle=True, num_workers=4, pin_memory=True
    )
    trainer.fit(GPT2(), loader)
