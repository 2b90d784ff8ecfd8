"""Our fastest script beside the finished scripts of others, with one stopwatch for all.

    python -m tests.against_others --nanogpt FOLDER --llms-from-scratch FOLDER [--ours NAME ...]

The folders are checkouts of https://github.com/karpathy/nanoGPT, whose bench.py runs, and of
https://github.com/rasbt/LLMs-from-scratch, of which ch05/10_llm-training-speed/01_opt_single_gpu.py
does: their files as they are, at the shape asked for. Each run is a process of its own, rounds are
interleaved, and a step is the time between two optimizer updates, taken by a hook that torch calls
after each: an event on a GPU, the clock on a CPU.

What differs in what they train: bench.py pads the vocabulary to 50,304 and repeats one batch; it
knows no autocast on a CPU, so one is put around it. LLMs-from-scratch keeps weights and moments in
bfloat16, and its head is not tied, which makes 38.6M parameters more. Dropout is 0 everywhere.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from Utils.analysis import intervals
from Utils.base import paths
from Utils.base.command_line import _Help
from Utils.corpus import token_cache
from Utils.device import device_choice
from Utils.scripts import ladder

LLMS_SCRIPT = "ch05/10_llm-training-speed/01_opt_single_gpu.py"


class Enough(Exception):
    """As many steps as were asked for."""


def stopwatch(device, steps):
    """Marks every optimizer update from here on, and raises Enough in the last. Returns the list
    of marks, to be handed to device.elapsed_ms."""
    marks = []

    def hook(*_):
        marks.append(device.mark())
        if len(marks) > steps:
            raise Enough

    register_optimizer_step_post_hook(hook)
    return marks


def run_ours(args, name):
    with tempfile.TemporaryDirectory() as folder:
        flags = {"steps": args.steps + 5, "batch-size": args.batch_size, "seq-len": args.seq_len}
        flags |= {"device": args.device, "results-file": Path(folder) / "results.csv"}
        path = str(ladder.get(name).path)
        sys.argv = [path, *(f"--{flag}={value}" for flag, value in flags.items())]
        runpy.run_path(path, run_name="__main__")


def run_nanogpt(args, folder):
    os.chdir(folder)
    sys.path.insert(0, "")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    flags = {"batch_size": args.batch_size, "block_size": args.seq_len, "bias": True}
    flags |= {"real_data": False, "device": kind, "dtype": "bfloat16"}
    sys.argv = ["bench.py", *(f"--{flag}={value}" for flag, value in flags.items())]
    if kind == "cpu":
        torch.cuda.synchronize = lambda: None
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cpu"):
        runpy.run_path("bench.py", run_name="__main__")


def run_llms_from_scratch(args, folder):
    spec = importlib.util.spec_from_file_location("llms_from_scratch", Path(folder) / LLMS_SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["llms_from_scratch"] = module
    spec.loader.exec_module(module)
    encoding = token_cache.gpt2_encoding()
    module.tiktoken.get_encoding = lambda name: encoding
    shape = {"vocab_size": 50_304, "context_length": args.seq_len, "emb_dim": 768, "n_heads": 12}
    shape |= {"n_layers": 12, "drop_rate": 0.0, "qkv_bias": True}
    training = {"learning_rate": 5e-4, "weight_decay": 0.1}
    training |= {"num_epochs": 1_000, "batch_size": args.batch_size}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # it reads its text from where it is
        words = Path(ladder.__file__).read_text()
        tokens = len(encoding.encode(words))
        times = -(-args.steps * args.batch_size * args.seq_len * 2 // tokens)
        Path("middlemarch.txt").write_text(words * times)
        module.main(shape, training)


def child(args):
    """One run, in this process: prints the milliseconds of its steps as JSON."""
    name, _, folder = args.child.partition("=")
    others = {"nanoGPT": run_nanogpt, "LLMs-from-scratch": run_llms_from_scratch}
    device = device_choice.choose(args.device)
    marks = stopwatch(device, args.steps)
    with contextlib.suppress(Enough):
        others[name](args, folder) if name in others else run_ours(args, name)
    print(json.dumps(device.elapsed_ms(marks)))
    sys.stdout.flush()
    os._exit(0)  # loaders' workers and samples that would still be drawn


def measure(args, name):
    """Median milliseconds of a step after the warm-up, of a fresh process, or None."""
    flags = ["batch_size", "seq_len", "steps", "device"]
    command = [sys.executable, "-m", "tests.against_others", "--child", name]
    command += [f"--{flag.replace('_', '-')}={getattr(args, flag)}" for flag in flags]
    done = subprocess.run(command, env=paths.environment(), capture_output=True, text=True)
    if done.returncode or not done.stdout:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    times = json.loads(done.stdout.splitlines()[-1])
    return float(np.median(times[args.warmup :])) if len(times) > args.warmup else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("--nanogpt")
    parser.add_argument("--llms-from-scratch")
    parser.add_argument("--ours", nargs="+", default=["all_together"])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    names = list(args.ours)
    names += [f"nanoGPT={args.nanogpt}"] if args.nanogpt else []
    names += [f"LLMs-from-scratch={args.llms_from_scratch}"] if args.llms_from_scratch else []
    medians = {name: [] for name in names}
    for r in range(args.rounds):
        for name in names if r % 2 == 0 else names[::-1]:
            start = time.monotonic()
            medians[name].append(measure(args, name))
            took = time.monotonic() - start
            if medians[name][-1] is None:
                sys.exit(f"{name} did not run")
            print(f"round {r}  {name.partition('=')[0]}: {medians[name][-1]} ms  ({took:.0f} s)")
    first = np.array(medians[names[0]], float)
    print(f"{args.batch_size}x{args.seq_len} tokens a step, medians of {args.rounds} rounds:")
    for name in names:
        own = np.array(medians[name], float)
        ratio = intervals.Ratio.of_logs(intervals.interval(pd.Series(np.log(own / first))))
        speed = args.batch_size * args.seq_len / np.median(own) * 1e3
        print(
            f"{name.partition('=')[0]:20} {np.median(own):10,.1f} ms {speed:10,.0f} tokens/s   "
            f"{names[0]} is {ratio} as fast"
        )


if __name__ == "__main__":
    main()
