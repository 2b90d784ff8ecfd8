"""Our scripts beside those of others: the same shape, interleaved rounds, a process for each run.

    python -m tests.calibration.against_others steps --nanogpt FOLDER --llms-from-scratch FOLDER
    python -m tests.calibration.against_others pretraining --nanogpt FOLDER [flags of make train]

The folders are checkouts of https://github.com/karpathy/nanoGPT and of
https://github.com/rasbt/LLMs-from-scratch, whose files run as they are.

steps: bench.py of the one and 01_opt_single_gpu.py of the other. A step is the time between two
optimizer updates. bench.py pads the vocabulary and repeats one batch; LLMs-from-scratch keeps
weights and moments in bfloat16, and its head is not tied. Dropout is 0 everywhere.

pretraining: train.py on the same text, model, schedule and number of steps, scored on the same
held-out windows. Tokens a second are of the median step. nanoGPT draws places in the text with
replacement and has the exact GELU. --padded: its own vocabulary, of 50,304 tokens.
"""

import argparse
import json
import os
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
from torch.optim.optimizer import register_optimizer_step_post_hook

from pretraining import history, learning_rate, options
from pretraining.token_windows import TokenBatches
from Utils.base import paths
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.corpus import token_cache
from Utils.device import device_choice
from Utils.scripts import ladder

NANOGPT = "nanoGPT"
LLMS = "LLMs-from-scratch"
LLMS_SCRIPT = "ch05/10_llm-training-speed/01_opt_single_gpu.py"
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


def print_times_after(steps, device):
    """After so many optimizer updates print the milliseconds between them, and end this process."""
    marks = []

    def hook(*_):
        marks.append(device.mark())
        if len(marks) > steps:
            print(json.dumps(device.elapsed_ms(marks)), flush=True)
            os._exit(0)  # loaders' workers and samples that would still be drawn

    register_optimizer_step_post_hook(hook)


def run_ours(args, flags):
    with tempfile.TemporaryDirectory() as folder:
        path = str(ladder.get(args.child).path)
        shape = [f"--batch-size={args.batch_size}", f"--seq-len={args.seq_len}"]
        more = [f"--steps={args.steps + 5}", f"--results-file={folder}/results.csv"]
        sys.argv = [path, *shape, *more, f"--device={args.device}", *flags]
        runpy.run_path(path, run_name="__main__")


def run_nanogpt(args):
    os.chdir(args.nanogpt)
    sys.path.insert(0, "")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    flags = {"batch_size": args.batch_size, "block_size": args.seq_len, "bias": True}
    flags |= {"real_data": False, "device": kind, "dtype": "bfloat16"}
    sys.argv = ["bench.py", *(f"--{flag}={value}" for flag, value in flags.items())]
    if kind == "cpu":
        torch.cuda.synchronize = lambda: None
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cpu"):
        runpy.run_path("bench.py", run_name="__main__")


def run_llms_from_scratch(args):
    script = runpy.run_path(str(Path(args.llms_from_scratch) / LLMS_SCRIPT))
    encoding = token_cache.gpt2_encoding()
    script["tiktoken"].get_encoding = lambda name: encoding
    shape = {"vocab_size": 50_304, "context_length": args.seq_len, "emb_dim": 768, "n_heads": 12}
    shape |= {"n_layers": 12, "drop_rate": 0.0, "qkv_bias": True}
    training = {"learning_rate": 5e-4, "weight_decay": 0.1}
    training |= {"num_epochs": 1_000, "batch_size": args.batch_size}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it reads its text from where it is
        text = Path(ladder.__file__).read_text()
        tokens_needed = 2 * args.steps * args.batch_size * args.seq_len
        times = -(-tokens_needed // len(encoding.encode(text)))
        Path("middlemarch.txt").write_text(text * times)
        script["main"](shape, training)


def compare_steps(args, flags):
    if args.child:
        print_times_after(args.steps, device_choice.choose(args.device))
        theirs = {NANOGPT: run_nanogpt, LLMS: run_llms_from_scratch}
        return theirs[args.child](args) if args.child in theirs else run_ours(args, flags)
    folders = {NANOGPT: args.nanogpt, LLMS: args.llms_from_scratch}
    names = [*args.ours, *(name for name, folder in folders.items() if folder)]

    def median_ms(name, r):
        command = [sys.executable, "-m", "tests.calibration.against_others", *sys.argv[1:]]
        times = json.loads(output_of([*command, f"--child={name}"]).splitlines()[-1])
        return float(np.median(times[args.warmup :]))

    milliseconds = interleaved(names, args.rounds, median_ms)
    first = np.array(milliseconds[names[0]])
    for name in names:
        ratios = np.sort(milliseconds[name] / first)
        speed = args.batch_size * args.seq_len / np.median(milliseconds[name]) * 1e3
        print(
            f"{name:20} {np.median(milliseconds[name]):10,.1f} ms {speed:10,.0f} tokens/s   "
            f"{names[0]} is {np.median(ratios):.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f} over the "
            f"rounds) as fast"
        )


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
    kinds = parser.add_subparsers(required=True)
    steps, pretraining = (kinds.add_parser(name) for name in ("steps", "pretraining"))
    steps.set_defaults(compare=compare_steps)
    steps.add_argument("--llms-from-scratch")
    steps.add_argument("--ours", nargs="+", default=["all_together"])
    for flag, default in (("batch-size", 16), ("seq-len", 1024), ("steps", 28), ("warmup", 8)):
        steps.add_argument(f"--{flag}", type=int, default=default)
    steps.add_argument("--device", default="auto")
    steps.add_argument("--child", help=argparse.SUPPRESS)
    pretraining.set_defaults(compare=compare_pretraining)
    pretraining.add_argument("--steps", type=int, default=options.ON_A_CPU["steps"])
    pretraining.add_argument("--padded", action="store_true")
    pretraining.add_argument("--techniques", default="flash_attention fused_optimizer")
    for kind in (steps, pretraining):
        kind.add_argument("--nanogpt")
        kind.add_argument("--rounds", type=int, default=4)
    args, flags = parser.parse_known_args()
    args.compare(args, flags)


if __name__ == "__main__":
    main()
