"""Whole training runs: interrupted, resumed, on two ranks, exported, and with bad input."""

import json
import math
import os
import shutil
import signal
import time
from functools import partial
from unittest import mock

import pytest
import torch

from flash_attention import flash_attention
from pretraining import checkpoints, history, options
from pretraining import start as pretraining
from pretraining.training_run import Run
from tests.helpers import forked
from tests.helpers.refusal import refused
from Utils.base.gpt2_sizes import CONFIGS
from Utils.corpus import token_cache
from Utils.model import GPT
from Utils.scripts import ladder

EXACT = (
    "step",
    "tokens",
    "epoch",
    "training_loss",
    "validation_loss",
    "learning_rate",
    "gradient_norm",
)
TEXT = "def main(args):\n    print(args)\n"
SHAPE = [
    "--tokens-per-step=128",
    "--seq-len=32",
    "--batch-size=2",
    "--with=flash_attention+fused_optimizer",
    "--steps=8",
    "--validate-every=4",
    "--checkpoint-every=3",
    "--validation-tokens=256",
]


def curve(folder):
    """What of a run's rows must not depend on when they were made."""
    return [tuple(row[name] for name in EXACT) for row in history.read(folder / "training.csv")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("training") / "whole"
    done = forked.python("pretraining.train", f"--out={folder}", *SHAPE)
    assert done.returncode == 0, done.stderr
    assert f"{folder}: 8 steps, lowest validation loss" in done.stdout
    return folder


def test_run_keeps_its_rows_checkpoints_and_files(whole):
    """PRETRAINING: "`training.csv` | a row a step", `checkpoints/`, `loss.png`, `sample.txt`,
    `loop.py`.
    """
    rows = curve(whole)
    assert "".join(row[0] for row in rows) == "12345678"
    assert [row[0] for row in rows if row[4]] == ["4", "8"]
    assert float(rows[0][3]) > float(rows[-1][3])
    assert [kept.step for kept in checkpoints.available(whole / "checkpoints")] == [6, 8]
    assert all((whole / name).stat().st_size for name in ("loss.png", "sample.txt"))
    assert "def flash_attention" in (whole / "loop.py").read_text()

    row = {
        name: float(text or 0) for name, text in history.read(whole / "training.csv")[-1].items()
    }
    assert row["training_perplexity"] == pytest.approx(math.exp(row["training_loss"]))
    assert row["tokens"] == 1024 and 0 < row["gradient_norm"] < 10 < row["tokens_per_second"]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_resume_after_a_signal_is_exact(ending, whole, tmp_path):
    """PRETRAINING: "on a CPU its losses and weights equal those of an uninterrupted run to the last
    bit"; "Ctrl-C and SIGTERM save the run after the current step and end it"; "A process killed at
    any moment leaves the previous checkpoint".
    """
    folder = tmp_path / "stopped"
    with (tmp_path / "errors").open("w+") as file:
        main = forked.of_script("pretraining.train", f"--out={folder}", *SHAPE)
        process = forked.start(main, file, file)
        while not (folder / "training.csv").exists() and process.is_alive():
            time.sleep(0.05)
        os.kill(process.pid, ending)
        process.join(timeout=300)
        errors = file.seek(0) or file.read()
    if ending == signal.SIGTERM:
        assert process.exitcode == 128 + ending, errors
        assert "stopped by SIGTERM after step" in errors and f"RESUME={folder} continues" in errors
        trained = len(curve(folder))
        assert trained < 8
        assert checkpoints.available(folder / "checkpoints")[-1].step == trained
    else:
        assert process.exitcode == -ending
    done = forked.python("pretraining.train", f"--resume={folder}")

    assert done.returncode == 0, done.stderr
    assert curve(whole) == curve(folder)
    for name in ("model/model.safetensors", "sample.txt"):
        assert (whole / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_run_without_bfloat16_is_in_float16_and_keeps_its_scale(tmp_path, no_bfloat16, monkeypatch):
    """PRETRAINING: "the run is in float16 and says so"; "a checkpoint has the scale"."""
    monkeypatch.setattr("torch.amp.GradScaler", partial(torch.amp.GradScaler, growth_interval=2))
    done = forked.python(
        "pretraining.train",
        f"--out={tmp_path / 'run'}",
        *SHAPE,
        "--with=brainFloat16+fused_optimizer",
        "--tokens-per-step=32",
        "--seq-len=8",
    )
    assert done.stderr.count(ladder.PRECISIONS["float16"].message) == 1
    *_, newest = checkpoints.available(tmp_path / "run" / "checkpoints")
    assert checkpoints.load(newest)["scaler"]["scale"] > 2.0**16


def test_export_is_loaded_by_transformers(whole):
    """PRETRAINING: "ends with weights that `transformers` loads"."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(whole / "model").eval()
    tokens = transformers.GPT2Tokenizer.from_pretrained(whole / "model")
    state = checkpoints.load(checkpoints.available(whole / "checkpoints")[-1])["model"]
    ours = GPT(CONFIGS["gpt2-tiny"], flash_attention, 50_257, torch.nn.functional.cross_entropy)
    ours.load_state_dict(state)
    words = tokens.encode(TEXT)
    assert words == token_cache.gpt2_encoding().encode_ordinary(TEXT)
    idx = torch.tensor([words])
    with torch.no_grad():
        difference = (theirs(idx).logits - ours(idx, idx)[0]).abs().max()
    assert difference < 1e-4


def plan(*flags):
    return pretraining.plan(options.parse("", flags))


def test_resume_keeps_its_settings_and_refuses_damaged_ones(whole, tmp_path):
    """PRETRAINING: "It keeps its settings"."""
    run = json.loads((whole / "run.json").read_text())
    for changed, problem in (
        ({"settings": run["settings"] | {"steps": "many"}}, "steps 'many' is not a whole number"),
        ({"techniques": None}, "techniques cannot be None"),
    ):
        (tmp_path / "run.json").write_text(json.dumps(run | changed))
        with refused(f"run.json: {problem}"):
            plan(f"--resume={tmp_path}")

    for flag, problem in (
        ("--with=none", "has flash_attention fused_optimizer, which a resumed run"),
        ("--out=elsewhere", "a resumed run stays where it is"),
    ):
        with refused(problem):
            plan(f"--resume={whole}", flag)


def test_resume_is_of_the_newest_run_and_of_one_that_goes_on(whole, tmp_path, monkeypatch, capsys):
    """PRETRAINING: "`make train RESUME=1` # resume the newest run"; "`STEPS`, `BATCH_SIZE`, the
    intervals and the device may be changed".
    """
    monkeypatch.setattr("pretraining.start.FOLDER", tmp_path)
    run = json.loads((whole / "run.json").read_text())
    del run["ended"]  # as if it had been killed
    for age, name in enumerate(("a", "c", "b")):
        shutil.copytree(whole, tmp_path / name)
        file = tmp_path / name / "run.json"
        file.write_text(json.dumps(run))
        os.utime(file, (0, 1000 - age))
    resumed = plan("--resume=1", "--steps=9", "--batch-size=1")
    assert (resumed["folder"], resumed["resumes"]) == (str(tmp_path / "a"), True)
    assert [resumed["settings"][name] for name in ("steps", "batch_size", "seed")] == [9, 1, 0]
    with refused("another process is training there"):
        plan("--resume=1")

    with pytest.raises(SystemExit) as ended:
        plan(f"--resume={whole}")
    assert ended.value.code == 0 and "has ended after 8 steps" in capsys.readouterr().out
    with refused("holds a run"):
        plan(f"--out={whole}", *SHAPE)


def test_run_ends_at_another_corpus_or_a_loss_that_is_not_finite(whole):
    """PRETRAINING: "A loss that is not finite ends the run before anything is saved"."""
    run = mock.Mock(folder=whole / "checkpoints", copied=None)
    with refused("was trained on .*: its text has changed since"):
        Run._load(run)
    run.figures = torch.tensor([math.nan, 1.0, 0.0])
    with refused("the loss is nan.*a smaller LEARNING_RATE"):
        Run._read_figures(run)
    run.history.log.assert_not_called()
