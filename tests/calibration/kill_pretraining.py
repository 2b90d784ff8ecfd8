"""Kill a training run with SIGKILL at random moments, and hold its curve against another's.

    python -m tests.calibration.kill_pretraining [--times 20] [flags of pretraining.train]

One run is left alone. Others, with the same settings, are killed wherever they are: as they start,
train, validate, save, or export. Each time they resume. Their rows, weights and samples have to be
those of the first, to the last bit.
"""

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from Utils.base import paths

EXACT = ("step", "tokens", "epoch", "training_loss", "validation_loss", "learning_rate")
EXACT += ("gradient_norm",)
SMALL = ["--steps=120", "--tokens-per-step=64", "--seq-len=32", "--batch-size=1", "--with=none"]
SMALL += ["--validate-every=10", "--checkpoint-every=7", "--validation-tokens=256"]


def start(folder, flags):
    resumes = (folder / "run.json").exists()
    where = [f"--resume={folder}"] if resumes else [f"--out={folder}", *flags]
    command = [sys.executable, "-m", "pretraining.train", *where]
    how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, env=paths.environment(OMP_NUM_THREADS="1"), cwd=paths.ROOT, **how
    )


def finish(process):
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"exit code {process.returncode}:\n{errors}")


def curve(folder):
    """What of a run's rows must not depend on when they were made."""
    with open(folder / "training.csv", newline="") as file:
        return [tuple(row[name] for name in EXACT) for row in csv.DictReader(file)]


def rows(folder):
    path = folder / "training.csv"
    return path.read_text().count("\n") - 1 if path.exists() else 0


def compare(one, other):
    """Raises AssertionError where two runs differ."""
    assert curve(one) == curve(other)
    name = "model/model.safetensors"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    assert (one / "sample.txt").read_bytes() == (other / "sample.txt").read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args, flags = parser.parse_known_args()
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        alone, killed = Path(scratch) / "alone", Path(scratch) / "killed"
        began = time.monotonic()
        finish(start(alone, SMALL + flags))
        whole_s = time.monotonic() - began
        print(f"undisturbed: {len(curve(alone))} steps in {whole_s:.1f} s", flush=True)
        kills = runs = 0
        while kills < args.times:
            try:
                process = start(killed, SMALL + flags)
                process.communicate(timeout=moments.uniform(0, whole_s))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
                print(f"kill {kills}: after {rows(killed)} steps", flush=True)
                continue
            finish(process)
            compare(alone, killed)
            runs += 1
            print("ended before it was killed: the same curve; another run", flush=True)
            killed = Path(scratch) / f"killed_{runs}"
        finish(start(killed, SMALL + flags))
        compare(alone, killed)
        print(f"after {kills} kills of {runs + 1} runs: the same curves, weights and samples")


if __name__ == "__main__":
    main()
