"""Pretrain GPT-2 from scratch by transformers' Trainer."""

import argparse

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--tokens", help="file of uint16 tokens; random ones by default")
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--seq_len", type=int, default=1024)
parser.add_argument("--n_layer", type=int, default=12)
parser.add_argument("--n_head", type=int, default=12)
parser.add_argument("--n_embd", type=int, default=768)
parser.add_argument("--dtype", default="bfloat16", help="float32, bfloat16 or float16")
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
        ids = torch.from_numpy(chunk.astype(np.int64))
        return {"input_ids": ids, "labels": ids}


config = GPT2Config(
    n_positions=args.seq_len,
    n_layer=args.n_layer,
    n_head=args.n_head,
    n_embd=args.n_embd,
    use_cache=False,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir="trainer_output",
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=1,
        max_steps=args.max_steps,
        learning_rate=6e-4,
        weight_decay=0.1,
        optim="adamw_torch_fused",
        bf16=args.dtype == "bfloat16",
        fp16=args.dtype == "float16",
        torch_compile=True,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Chunks(),
)
trainer.train()
