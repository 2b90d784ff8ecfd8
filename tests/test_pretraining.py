"""Parts of a training run: its data, schedule, techniques, checkpoints, files."""

import ast
import hashlib
import itertools
import json
import re
from itertools import chain
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from pretraining import (
    checkpoints,
    corpus_files,
    curves,
    export,
    history,
    learning_rate,
    loop_techniques,
    options,
)
from pretraining.token_windows import TokenBatches
from tests.helpers.refusal import refused
from tests.helpers.rows import REPOSITORY, append_run
from Utils.base import files
from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.scripts import ladder

TEXTS = [f"document {n}: " + "all work and no play " * (n % 7) for n in range(400)]


def prepared(folder, texts, **options):
    """Return the tokens of both sides of a corpus, prepared in small parts."""
    corpus_files.prepare(folder, "a corpus", iter(texts), part_bytes=3_000, **options)
    return {
        side: np.fromfile(folder / f"{side}.bin", np.uint16).tolist() for side in corpus_files.SIDES
    }


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("pretraining.corpus_files.CHUNK_CHARACTERS", 500)


def test_corpus_has_every_document_once_on_one_side(tmp_path, small_chunks):
    """PRETRAINING: "One document in fifty is held out for validation. A checksum of its text
    decides".
    """
    sides = prepared(tmp_path / "all", TEXTS)
    encode = token_cache.gpt2_encoding().encode
    for side in corpus_files.SIDES:
        texts = [text for text in TEXTS if corpus_files.is_held_out(text) == (side == "held_out")]
        assert sides[side] == [token for text in texts for token in [*encode(text), 50_256]]
    assert 1_500 <= sum(map(len, prepared(tmp_path / "capped", TEXTS, cap=1_500).values())) < 3_500


def test_corpus_preparation_resumes_after_the_last_part(tmp_path, small_chunks):
    """PRETRAINING: "After an interruption, the same command continues"."""

    def interrupted():
        yield from TEXTS[:250]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path / "a", interrupted())
    kept = files.read_json(tmp_path / "a" / "prepared.json", corpus_files.PREPARED)
    assert (tmp_path / "a" / "training.bin").stat().st_size > 2 * kept["training"] > 0
    assert prepared(tmp_path / "a", TEXTS) == prepared(tmp_path / "b", TEXTS)


def test_corpus_of_one_document_holds_out_its_end(tmp_path, monkeypatch, capsys):
    """PRETRAINING: "If there are too few documents, the last fiftieth of the corpus is held
    out". A damaged one is rebuilt.
    """
    monkeypatch.setattr("Utils.corpus.token_cache.paths.CACHE", tmp_path / "cache")
    file = tmp_path / "a.txt"
    file.write_text(" ".join(map(str, range(3_000))))
    training, held_out, name = corpus_files.load(str(file))
    (tmp_path / "cache" / "tokens" / name / "training.bin").write_bytes(bytes(5000))
    assert corpus_files.load(str(file))[0].tolist() == training.tolist()
    assert "damaged; rebuilding it" in capsys.readouterr().err
    tokens = len(token_cache.gpt2_encoding().encode_ordinary(file.read_text())) + 1
    assert (len(training) + len(held_out), len(held_out)) == (tokens, tokens // 50)


@pytest.fixture
def batches(monkeypatch):
    """Function of arguments: TokenBatches of a corpus whose tokens are their places."""

    def batches(tokens=1_003, **values):
        corpus = np.arange(tokens, dtype=np.uint16)
        monkeypatch.setattr(
            "pretraining.corpus_files.load", lambda *_, **__: (corpus, corpus, "a corpus")
        )
        args = {
            "seq_len": 10,
            "batch_size": 2,
            "seed": 3,
            "accumulation": 4,
            "validation_tokens": 70,
            "local_rank": 0,
            "rank": 0,
            "world_size": 1,
            "device": torch.device("cpu"),
        }
        return TokenBatches(mock.Mock(**args | values))

    return batches


def test_epoch_is_every_window_once_in_another_order(batches):
    """PRETRAINING: "An epoch visits every window of `SEQ_LEN` tokens once. Each epoch has a new
    order and cuts the windows at new positions".
    """
    data = batches()
    assert data.epoch(99) == 8
    epochs = np.reshape([data.starts(step) for step in range(99)], (8, 99))
    firsts = epochs.min(axis=1)
    assert (np.sort(epochs) == firsts[:, None] + np.arange(0, 990, 10)).all()
    assert len({*firsts}) > 1 and len({epoch.argmin() for epoch in epochs}) > 1
    for idx, targets in data.of(1):
        assert torch.equal(idx[:, 1:], targets[:, :-1]) and torch.equal(idx + 1, targets)


@pytest.mark.parametrize("world_size, batch_size", [(2, 2), (1, 8)])
def test_step_is_the_same_on_other_ranks_and_in_other_batches(batches, world_size, batch_size):
    """PRETRAINING: "another number of ranks, or another `BATCH_SIZE`, gives the same steps"."""

    def step(n, **shape):
        """The first tokens of its sequences."""
        shape["accumulation"] = 8 // shape["world_size"] // shape["batch_size"]
        ranks = [batches(rank=rank, **shape).of(n) for rank in range(shape["world_size"])]
        return sorted(int(first) for idx, _ in chain(*ranks) for first in idx[:, 0])

    for n in (0, 7, 40):
        assert step(n, world_size=world_size, batch_size=batch_size) == step(
            n, world_size=1, batch_size=2
        )


def test_validation_reads_the_same_windows_of_all_held_out_text(batches):
    data = batches()
    for _ in range(2):
        starts = sorted(int(first) for idx, _ in data.held_out() for first in idx[:, 0])
        assert starts == [0, 140, 280, 420, 560, 700]
    with refused("too few for sequences of 10"):
        batches(tokens=12)


def test_learning_rate_warms_up_and_decays_to_a_tenth():
    """PRETRAINING: "peak; it decays to a tenth along half a cosine"."""
    args = SimpleNamespace(learning_rate=1.0, warmup=10, steps=110)
    rates = {step: learning_rate.learning_rate(step, args) for step in (0, 9, 10, 35, 60, 110)}
    expected = {0: 0.1, 9: 1, 10: 1, 35: 0.868198, 60: 0.55, 110: 0.1}  # 0.1 + 0.45 (1 + √½)
    assert rates == pytest.approx(expected)


def test_weight_decay_is_of_matrices_alone():
    """PRETRAINING: "of matrices; biases and LayerNorms do not decay"."""
    optimizer = torch.optim.AdamW([torch.ones(3, 3), torch.ones(3)])
    learning_rate.decay_matrices_only(optimizer, 0.1)
    groups = [(x["weight_decay"], x["params"][0].dim(), x["betas"]) for x in optimizer.param_groups]
    assert groups == [(0.1, 2, (0.9, 0.95)), (0.0, 1, (0.9, 0.95))]


def test_loop_merges_the_best_line_for_several_ranks():
    line = REPOSITORY.lineage(loop_techniques.FASTEST_SCRIPT)[1:]
    names = [name for name in line if name not in loop_techniques.EXCLUDED]
    source = loop_techniques.merged([*names, loop_techniques.RANKS], REPOSITORY)
    for words in (
        "torch.compile(model)",
        "fused=True",
        "torch.autocast",
        "DistributedDataParallel(",
    ):
        assert source.count(words) == 1


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("name", [*REPOSITORY.scripts][1:])
def test_loop_merges_every_technique_or_says_why_not(name, bfloat16):
    hardware = SimpleNamespace(name="no such device")
    args = SimpleNamespace(hardware=hardware, model="gpt2", device=torch.device("cpu"))
    scripts = ladder.repository("bfloat16" if bfloat16 else "float16")
    try:
        names, _ = loop_techniques.choose(name, args, None, scripts)
        source = loop_techniques.merged(names, scripts)
    except UserError as error:
        assert f"WITH={name}: " in str(error)
        return
    ast.parse(source)

    assert source != loop_techniques.LOOP.read_text()
    in_float16 = "torch.float16" in source
    for line in ("scaler)", "scaler.scale(", "scaler.unscale_", "scaler.step(", "scaler.update("):
        assert source.count(line) == in_float16
    made = re.search(r"optimizer = .*?\)\n", source, re.DOTALL)[0]
    assert "lr=args.learning_rate" in made and ("8bit" in made) == ("8bit" in name)


def test_pretraining_settings_default_by_device(tmp_path):
    """PRETRAINING: "the best script that runs here: [...] `fused_optimizer` elsewhere";
    warm-up: "at most a twentieth of all, unless given"; no "compilation on a CPU".
    """
    gpu, cpu = options.fill({}, "cuda"), options.fill({"steps": 20}, "cpu")
    assert (gpu["tokens_per_step"], gpu["warmup"], gpu["steps"]) == (524_288, 715, 19_073)
    assert (cpu["model"], cpu["steps"], cpu["warmup"]) == ("gpt2-tiny", 20, 1)
    no_rows = tmp_path / "none.csv"
    names, source = loop_techniques.choose("", options.resolve(cpu), no_rows, REPOSITORY)
    expected = ["flash_attention", "fused_optimizer"]
    assert [name for name in names if name != "brainFloat16"] == expected
    assert source.startswith("of fused_optimizer")


def test_loop_takes_the_recipe_of_this_device_and_model(path):
    """PRETRAINING: "the recipe for this device and model, if `results.csv` has rows for them"."""
    args = options.resolve(options.fill({}, "cpu"))
    here = {"device": args.hardware.name, "model": args.model}
    steps_ms = {"no_optimization": 8.0, "no_optimization+fused_optimizer": 2.0}
    for r, (name, ms) in itertools.product(range(4), steps_ms.items()):
        append_run(path, name, [ms, 1.01 * ms, 1.02 * ms], round=r, **here)
    source = f"the recipe for {args.model} on {args.hardware.name}"
    assert loop_techniques.choose("", args, path, REPOSITORY) == (["fused_optimizer"], source)


def newest(folder):
    return checkpoints.load(checkpoints.available(folder)[-1])


def saved(folder, step, loss):
    checkpoints.save(folder, step, {"model": torch.full((9,), step)}, {"validation_loss": loss})


def test_checkpoints_are_the_last_two_and_the_best(tmp_path):
    """PRETRAINING: "the last two and the best by validation loss"."""
    for step, loss in enumerate((9.0, 5.0, 6.0, 7.0, None, 8.0), 1):
        saved(tmp_path, step, loss)
    kept = checkpoints.available(tmp_path)
    assert [checkpoint.step for checkpoint in kept] == [2, 5, 6]
    assert checkpoints.best(kept).step == 2
    assert {*tmp_path.glob("*.pt")} == {checkpoint.state for checkpoint in kept}


def test_checkpoint_refuses_damaged_and_foreign_files(tmp_path):
    """PRETRAINING: "A damaged checkpoint, or one of another model, is a one-line error with its
    remedy".
    """
    saved(tmp_path, 1, 9.0)
    saved(tmp_path, 2, 8.0)
    state = tmp_path / "step_00000002.pt"
    state.write_bytes(state.read_bytes().replace(b"\x02", b"\x03"))

    with refused("damaged.*remove .*step_00000002.json"):
        newest(tmp_path)
    (tmp_path / "step_00000002.json").unlink()
    assert newest(tmp_path)["model"][0] == 1
    for content in (b"x", b"\x80\x04K\x01."):
        (tmp_path / "step_00000001.pt").write_bytes(content)
        described = tmp_path / "step_00000001.json"
        facts = json.loads(described.read_text())
        described.write_text(json.dumps(facts | {"sha256": hashlib.sha256(content).hexdigest()}))
        with refused("00001.pt: is not a checkpoint of this program"):
            newest(tmp_path)
    with refused("x.pt: a checkpoint of another model: size mismatch"):
        checkpoints.load_weights(torch.nn.Linear(3, 3), torch.nn.Linear(4, 3).state_dict(), "x.pt")


def test_history_is_cut_to_the_checkpoint_and_to_whole_lines(tmp_path):
    path = tmp_path / "training.csv"
    rows = history.History(path)
    rows.cut(0)

    for step in (1, 2, 3):
        rows.log(**dict.fromkeys(history.COLUMNS[2:], 0) | {"step": step, "validation_loss": ""})
        rows.amend(tokens=8 * step)
    rows.flush()
    with open(path, "a") as file:
        file.write("4,12")
    rows.cut(2)
    assert [row["tokens"] for row in history.read(path)] == ["8", "16"]
    with refused("2 steps, and 5 were trained"):
        rows.cut(5)
    path.write_text(path.read_text().replace("16", "x"))
    with refused("training.csv:3: is damaged, not the row of step 2"):
        rows.cut(1)


def test_export_cuts_padding_and_keeps_an_untied_head():
    head = torch.rand(50_304, 2)
    state = {"wte.weight": head, "lm_head.weight": head}
    assert [*export.gpt2_weights(state)] == ["transformer.wte.weight"]
    untied = export.gpt2_weights(state | {"lm_head.weight": head + 1})
    assert untied["lm_head.weight"].shape == (50_257, 2)


def test_curves_are_of_losses_over_tokens():
    row = {"tokens": "8", "training_loss": "5", "validation_loss": "4", "learning_rate": "1"}
    run = {"settings": dict.fromkeys(("model", "dataset", "seed"), "x"), "techniques": []}
    lines = [line for axes in curves.plot([row], run, "my run").axes for line in axes.lines]
    assert [line.get_xydata().tolist() for line in lines] == [[[8, 5]], [[8, 4]], [[8, 1]]]
