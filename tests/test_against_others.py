"""The comparison with others' training scripts, on a checkout that stands in for theirs."""

import math
import re
import subprocess
import sys

from Utils.base import paths
from Utils.base.gpt2_sizes import VOCABULARY

MODEL = """
import torch
class GPTConfig:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size
class GPT(torch.nn.Module):  # all tokens are equally likely
    def __init__(self, config):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(config.vocab_size))
    def forward(self, idx, targets):
        logits = self.logits.expand(targets.numel(), -1)
        return logits, torch.nn.functional.cross_entropy(logits, targets.flatten())
"""
TRAIN = """
import os, pickle, sys, numpy, torch
from model import GPT, GPTConfig
seed_offset = 0
torch.manual_seed(1337 + seed_offset)
flags = dict(flag[2:].split("=") for flag in sys.argv[1:])
assert len(numpy.fromfile("data/corpus/train.bin", numpy.uint16)) > int(flags["block_size"])
for step in range(int(flags["max_iters"])):
    print(f"iter {step}: time 2.00ms")
settings = pickle.load(open("data/corpus/meta.pkl", "rb"))
os.mkdir("out")
saved = {"model_args": settings, "model": GPT(GPTConfig(**settings)).state_dict()}
torch.save(saved, "out/ckpt.pt")
"""


def compare(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tests.calibration.against_others", *map(str, arguments)],
        env=paths.environment(OMP_NUM_THREADS="1"),
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pretraining_is_scored_on_the_same_held_out_windows(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "configurator.py").touch()
    said = compare(
        *("pretraining", f"--nanogpt={tmp_path}", "--rounds=1", "--steps=12", "--techniques=none"),
        *("--tokens-per-step=64", "--seq-len=32", "--batch-size=1", "--validation-tokens=256"),
        *("--dataset=synthetic", "--device=cpu"),
    )
    equally_likely = math.log(VOCABULARY)
    assert f"nanoGPT  validation loss {equally_likely:.4f}" in said and " 32,000 tokens/s" in said
    ours = re.search(r"^ours +validation loss ([\d.]+) .* ([\d,]+) tokens/s", said, re.MULTILINE)
    assert float(ours[1]) < equally_likely + 1 and float(ours[2].replace(",", "")) > 0
