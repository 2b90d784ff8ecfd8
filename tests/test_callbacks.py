"""Rows of runs that a Trainer makes."""

from types import SimpleNamespace

import pytest
import torch

from tests.rows import records_in
from Utils.analysis.summary import summarize
from Utils.callbacks import Recorder, for_trainer
from Utils.results import records_file, rows_file, selection

ROWS, WIDTH = 4, 8


def examples(n=64):
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(50, (n, WIDTH), generator=random)
    return [{"input_ids": row, "labels": row} for row in ids]


def train(path, name, steps=9, pause=None, **options):
    """Make a loop call the callback as transformers' Trainer does. Return the rows."""
    callback = for_trainer(name, unit="tokens", warmup=3, results_file=path, **options)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(examples(), batch_size=ROWS)
    args = SimpleNamespace(
        device=torch.device("cpu"), gradient_accumulation_steps=2, torch_compile=False, bf16=True
    )
    args.train_batch_size = ROWS
    state, control = SimpleNamespace(max_steps=steps), SimpleNamespace()
    before = torch.get_rng_state()
    callback.on_train_begin(
        args, state, control, model=model, optimizer=optimizer, train_dataloader=loader
    )
    assert torch.equal(before, torch.get_rng_state())
    for step in range(steps):
        callback.on_step_begin(args, state, control)
        loss = model(torch.ones(ROWS, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        control.should_evaluate, control.should_save = step == pause, False
        callback.on_step_end(args, state, control)
        if step % 2:
            callback.on_log(args, state, control, logs={"loss": loss.item()})
    callback.on_train_end(args, state, control)
    return rows_file.read(path)


def test_a_run_of_a_trainer_has_rows_like_those_of_a_script(tmp_path):
    rows = train(tmp_path / "results.csv", "plain")
    assert list(rows.step) == list(range(9))
    assert list(rows.phase) == ["warmup"] * 3 + ["timed"] * 6
    assert set(rows.base) == {"plain"} and set(rows.unit) == {"tokens"}
    # Two batches of four sequences make a step.
    assert set(rows.batch_size) == {2 * ROWS} and set(rows.seq_len) == {WIDTH}
    assert (rows.step_ms > 0).all() and (rows.data_ms >= 0).all()
    assert rows.loss.isna().tolist() == [True, False] * 4 + [True]
    (record,) = records_in(tmp_path)
    assert record["limits"]["precision"] == "bfloat16"
    assert record["optimizer"] == "torch.optim.adam.Adam"
    assert record["updated_parameters"] == 9


def test_what_follows_a_step_is_no_part_of_the_next(tmp_path):
    rows = train(tmp_path / "results.csv", "plain", pause=5)
    assert len(rows) == 9 and list(rows.phase) == ["warmup"] * 3 + ["timed"] * 6


def test_several_runs_are_compared_with_their_base(tmp_path):
    path = tmp_path / "results.csv"
    train(path, "plain")
    train(path, "plain", round=1)
    train(path, "bf16", base="plain")
    train(path, "bf16", base="plain", round=1)
    rows, left_out = selection.select(rows_file.read(path))
    lines = summarize(rows, records_file.read(path, rows.run_id.unique()))
    assert not left_out and list(lines.index) == ["plain", "bf16"]
    assert lines.speedup["plain"].value == 1 and lines.speedup["bf16"].value > 0
    assert lines.rounds.tolist() == [2, 2]


def test_a_run_that_ends_in_its_warm_up_leaves_no_rows(tmp_path):
    recorder = Recorder("short", warmup=5, results_file=tmp_path / "results.csv")
    model = torch.nn.Linear(2, 2)
    recorder.begin(model, torch.optim.SGD(model.parameters()), torch.device("cpu"), 3)
    for _ in range(3):
        recorder.loaded()
        recorder.step()
    with pytest.raises(Exception, match="no step after the warm-up"):
        recorder.end()
    assert not (tmp_path / "results.csv").exists()


def test_a_real_trainer(tmp_path):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    )
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=8,
        per_device_train_batch_size=ROWS,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    path = tmp_path / "results.csv"
    callback = for_trainer("plain", unit="tokens", warmup=2, results_file=path)
    Trainer(model, arguments, train_dataset=examples(), callbacks=[callback]).train()
    rows = rows_file.read(path)
    assert len(rows) == 8 and rows.loss.notna().all()
    assert set(rows.batch_size) == {ROWS} and set(rows.seq_len) == {WIDTH}
    (record,) = records_in(tmp_path)
    assert record["limits"]["flops_per_token"] > 0
    assert record["optimizer"].startswith("torch.optim")
