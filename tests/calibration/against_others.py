"""Our pretraining beside nanoGPT's: the same shape, interleaved rounds, a process for each run.

    python -m tests.calibration.against_others pretraining --nanogpt FOLDER [flags of make train]

The folder is a checkout of https://github.com/karpathy/nanoGPT, whose train.py runs as it is on the
same text, model, schedule and number of steps, and is scored on the same held-out windows. Tokens a
second are of the median step. nanoGPT draws places in the text with replacement and has the exact
GELU. --padded: its own vocabulary, of 50,304 tokens.
"""

import argparse
import pickle
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from pretraining import history, learning_rate, options
from pretraining.token_windows import TokenBatches
from Utils.base import paths
from Utils.base.gpt2_sizes import VOCABULARY

NANOGPT = "nanoGPT"
WARM = 10  # steps at the start of a training run whose time does not count


def output_of(command, cwd=paths.ROOT):
    """Return what a command prints. Where it fails, this program ends."""
    done = subprocess.run(command, cwd=cwd, env=paths.environment(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stderr[-2000:]}")
    return done.stdout


def interleaved(names, rounds, run):
    """Return the results of run(name, round) by name. Every other round goes backwards."""
    results = {name: [] for name in names}
    for r in range(rounds):
        for name in names if r % 2 == 0 else reversed(names):
            results[name].append(run(name, r))
            print(f"round {r}  {name}: {results[name][-1]}", flush=True)
    return results


def train_ours(args, flags, folder, seed):
    """Return the validation loss and the tokens a second of a run."""
    command = [sys.executable, "-m", "pretraining.train", f"--out={folder}", f"--seed={seed}"]
    output_of([*command, f"--steps={args.steps}", f"--with={args.techniques}", *flags])
    rows = history.read(folder / "training.csv")
    speeds = [float(row["tokens_per_second"]) for row in rows[WARM:]]
    return float(rows[-1]["validation_loss"]), float(np.median(speeds))


def train_nanogpt(args, run, batches, folder, seed):
    """Return the same of nanoGPT's model. run: our settings."""
    corpus = folder / "data" / "corpus"
    corpus.mkdir(parents=True)
    if not args.padded:
        (corpus / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": VOCABULARY}))
    for name, tokens in (("train", batches.training), ("val", batches.validation)):
        tokens.tofile(corpus / f"{name}.bin")
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(Path(args.nanogpt) / name, folder)
    source = (folder / "train.py").read_text()
    assert "torch.manual_seed(1337 + seed_offset)" in source
    (folder / "train.py").write_text(source.replace("1337", str(seed), 1))
    settings = {"device": run.device.type, "dtype": "float32", "compile": False, "bias": True}
    settings |= {name: getattr(run.config, name) for name in ("n_layer", "n_head", "n_embd")}
    settings |= {"dataset": "corpus", "block_size": run.seq_len, "batch_size": run.batch_size}
    settings |= {"gradient_accumulation_steps": run.accumulation, "max_iters": run.steps}
    settings |= {"lr_decay_iters": run.steps, "warmup_iters": run.warmup}
    settings |= {"learning_rate": run.learning_rate, "eval_interval": run.steps, "eval_iters": 1}
    settings["min_lr"] = run.learning_rate * learning_rate.LOWEST
    command = [sys.executable, "train.py", *(f"--{k}={v}" for k, v in settings.items())]
    times = re.findall(r"time ([\d.]+)ms", output_of(command, folder))
    median_ms = np.median([float(ms) for ms in times[WARM:]])
    return score(folder, batches), float(run.tokens_per_step / median_ms * 1e3)


def score(folder, batches):
    """Return the loss of nanoGPT's checkpoint on the held-out windows of ours."""
    code = runpy.run_path(str(folder / "model.py"))
    saved = torch.load(folder / "out" / "ckpt.pt", map_location="cpu", weights_only=False)
    model = code["GPT"](code["GPTConfig"](**saved["model_args"])).eval()
    model.load_state_dict(saved["model"])
    with torch.no_grad():
        losses = [model(idx, targets)[1].item() for idx, targets in batches.held_out()]
    return sum(losses) / len(losses)


def compare_pretraining(args, flags):
    values = vars(options.parse("", [f"--steps={args.steps}", *flags]))
    values = {name: values[name] for name in options.ON_A_GPU if values[name] is not None}
    kind = "cuda" if torch.cuda.is_available() and values.get("device") != "cpu" else "cpu"
    run = options.settle(options.fill(values, kind))
    batches = TokenBatches(run)
    with tempfile.TemporaryDirectory() as scratch:

        def trained(name, r):
            folder = Path(scratch) / f"{name}_{r}"
            if name == NANOGPT:
                return train_nanogpt(args, run, batches, folder, r)
            return train_ours(args, flags, folder, r)

        results = interleaved(["ours", NANOGPT], args.rounds, trained)
    for name, runs in results.items():
        losses, speeds = np.array(runs).T
        spread = losses.std(ddof=1) if len(losses) > 1 else np.nan
        print(
            f"{name:8} validation loss {losses.mean():.4f} (spread over seeds {spread:.4f}), "
            f"{np.median(speeds):,.0f} tokens/s"
        )


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("what", choices=["pretraining"])
    parser.add_argument("--steps", type=int, default=options.ON_A_CPU["steps"])
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--techniques", default="flash_attention fused_optimizer")
    parser.add_argument("--nanogpt", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    compare_pretraining(*parser.parse_known_args())


if __name__ == "__main__":
    main()
