"""Our pretraining beside nanoGPT's train.py: the same text, model, schedule and number of steps.

    python -m tests.pretraining_against_nanogpt FOLDER [--rounds 3] [--steps 600] [--padded] [flags]

FOLDER is a checkout of https://github.com/karpathy/nanoGPT, whose train.py runs as it is. Runs are
interleaved, each a process of its own with its own seed. Both models are scored on the same
held-out windows. Tokens a second are those of the median step, so neither side's validations count.

What differs: nanoGPT draws places in the text with replacement and has the exact GELU. Both run in
float32, uncompiled, where no technique is named. With --padded nanoGPT's vocabulary has 50,304
tokens, its default, whose products are faster; else it has ours, 50,257.
"""

import argparse
import math
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from pretraining import history, learning_rate, options
from pretraining.token_windows import TokenBatches
from Utils.base import paths
from Utils.base.gpt2_sizes import VOCABULARY

WARM = 10  # steps at the start whose time does not count


def train_ours(args, flags, folder, seed):
    """(validation loss, tokens a second, seconds in all) of a run of ours."""
    command = [sys.executable, "-m", "pretraining.train", f"--out={folder}", f"--seed={seed}"]
    command += [f"--steps={args.steps}", f"--with={args.techniques}", *flags]
    seconds = timed(command, paths.ROOT)
    rows = history.read(folder / "training.csv")
    speed = np.median([float(row["tokens_per_second"]) for row in rows[WARM:]])
    return float(rows[-1]["validation_loss"]), speed, seconds


def train_nanogpt(args, folder, chosen, data, seed):
    """The same of nanoGPT's train.py, in a folder that holds its files and the tokens."""
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(Path(args.nanogpt) / name, folder)
    source = (folder / "train.py").read_text()
    assert "torch.manual_seed(1337 + seed_offset)" in source
    (folder / "train.py").write_text(source.replace("1337", str(seed), 1))
    config, rate = chosen.config, chosen.learning_rate
    settings = {
        "device": "cpu" if chosen.device.type == "cpu" else "cuda",
        "dtype": "float32",
        "compile": False,
        "dataset": "corpus",
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "bias": True,
        "block_size": chosen.seq_len,
        "batch_size": chosen.batch_size,
        "gradient_accumulation_steps": chosen.accumulation,
        "max_iters": chosen.steps,
        "lr_decay_iters": chosen.steps,
        "warmup_iters": chosen.warmup,
        "learning_rate": rate,
        "min_lr": rate * learning_rate.LOWEST,
        "eval_interval": chosen.steps,
        "eval_iters": 1,
    }
    command = [sys.executable, "train.py", *(f"--{k}={v}" for k, v in settings.items())]
    log = folder / "log.txt"
    seconds = timed(command, folder, log)
    times = [float(ms) for ms in re.findall(r"time ([\d.]+)ms", log.read_text())]
    speed = chosen.tokens_per_step / np.median(times[WARM:]) * 1e3
    return score(folder, data), speed, seconds


def score(folder, data):
    """The loss of nanoGPT's checkpoint on the held-out windows of ours."""
    sys.path.insert(0, str(folder))
    from model import GPT, GPTConfig  # nanoGPT's

    saved = torch.load(folder / "out" / "ckpt.pt", map_location="cpu", weights_only=False)
    model = GPT(GPTConfig(**saved["model_args"])).eval()
    model.load_state_dict(saved["model"])
    with torch.no_grad():
        losses = [model(idx, targets)[1].item() for idx, targets in data.held_out()]
    return sum(losses) / len(losses)


def timed(command, cwd, log=None):
    """Seconds that a command takes. Its end is this one's where it fails."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=cwd, env=paths.environment(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    if log:
        log.write_text(done.stdout)
    return time.monotonic() - began


def settings(args, flags):
    """The settings of our run, and its batches."""
    given = vars(options.parse("", [f"--steps={args.steps}", *flags]))
    explicit = {name: given[name] for name in options.SETTINGS if given[name] is not None}
    kind = "cuda" if torch.cuda.is_available() and explicit.get("device") != "cpu" else "cpu"
    chosen = options.settle(options.fill(explicit, kind))
    return chosen, TokenBatches(chosen)


def write_tokens(data, folder, vocab_size=None):
    """The tokens of both sides, as nanoGPT reads them, and of how many kinds they are."""
    folder.mkdir(parents=True)
    if vocab_size:
        (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocab_size}))
    for name, tokens in (("train", data.training), ("val", data.validation)):
        with open(folder / f"{name}.bin", "wb") as file:
            for array in tokens.arrays:
                np.asarray(array).tofile(file)


def report(results):
    """Print means with their spread over the seeds, and whether ours is within it."""
    means = {}
    for name, rows in results.items():
        losses, speeds, seconds = (np.array(column) for column in zip(*rows, strict=True))
        spread = losses.std(ddof=1) if len(losses) > 1 else math.nan
        means[name] = SimpleNamespace(loss=losses.mean(), spread=spread, speeds=speeds)
        print(
            f"{name:8} validation loss {losses.mean():.4f} (spread over seeds {spread:.4f}), "
            f"{np.median(speeds):,.0f} tokens/s, {np.median(seconds):.0f} s in all"
        )
    ours, theirs = means["ours"], means["nanoGPT"]
    ratios = np.sort(ours.speeds / theirs.speeds)
    print(
        f"ours - nanoGPT: {ours.loss - theirs.loss:+.4f} nats; "
        f"tokens/s {np.median(ratios):.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f} over the rounds)"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nanogpt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=options.ON_A_CPU["steps"])
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--techniques", default="flash_attention fused_optimizer")
    args, flags = parser.parse_known_args()
    chosen, data = settings(args, flags)
    results = {"ours": [], "nanoGPT": []}
    with tempfile.TemporaryDirectory() as scratch:
        for r in range(args.rounds):
            theirs, ours = Path(scratch) / f"nanoGPT_{r}", Path(scratch) / f"ours_{r}"
            vocab_size = None if args.padded else VOCABULARY
            write_tokens(data, theirs / "data" / "corpus", vocab_size)
            runs = {
                "ours": lambda ours=ours, r=r: train_ours(args, flags, ours, r),
                "nanoGPT": lambda theirs=theirs, r=r: train_nanogpt(args, theirs, chosen, data, r),
            }
            for name in runs if r % 2 == 0 else reversed(runs):
                results[name].append(runs[name]())
                loss, speed, seconds = results[name][-1]
                figures = f"loss {loss:.4f}  {speed:,.0f} tokens/s  {seconds:.0f} s"
                print(f"round {r}  {name:8} {figures}", flush=True)
            shutil.rmtree(theirs)
    report(results)


if __name__ == "__main__":
    main()
