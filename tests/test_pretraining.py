"""Parts of a training run: its data, schedule, techniques, checkpoints, files."""

import ast
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pretraining import (
    checkpoints,
    corpus_files,
    export,
    history,
    learning_rate,
    loop_techniques,
    options,
)
from pretraining.token_windows import TokenBatches
from tests.helpers.rows import rows_of
from Utils.base import files
from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.results import rows_file
from Utils.scripts import ladder
from Utils.scripts.ladder import Ladder

REPOSITORY = ladder.Ladder(ladder.tracked())
TEXTS = [f"document {n}: " + "all work and no play " * (n % 7) for n in range(400)]


def prepared(folder, texts, **options):
    """The tokens of both sides of a corpus, prepared in small parts."""
    corpus_files.prepare(folder, "a corpus", iter(texts), part_bytes=3_000, **options)
    return {
        side: np.fromfile(folder / f"{side}.bin", np.uint16).tolist() for side in corpus_files.SIDES
    }


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(corpus_files, "CHUNK_CHARACTERS", 500)


def test_every_document_is_once_on_one_side(tmp_path, small_chunks):
    sides = prepared(tmp_path, TEXTS)
    encoding = token_cache.gpt2_encoding()
    for side in corpus_files.SIDES:
        texts = [text for text in TEXTS if corpus_files.is_held_out(text) == (side == "held_out")]
        assert sides[side] == [t for text in texts for t in [*encoding.encode(text), 50_256]]
    assert 0.005 < sum(map(corpus_files.is_held_out, TEXTS)) / len(TEXTS) < 0.05


def test_interrupted_preparation_goes_on_behind_the_last_part(tmp_path, small_chunks):
    def interrupted():
        yield from TEXTS[:250]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path / "a", interrupted())
    kept = files.read_json(tmp_path / "a" / "prepared.json")
    assert 0 < kept["documents"] < 250 and not kept["complete"]
    assert (tmp_path / "a" / "training.bin").stat().st_size > 2 * kept["training"]
    assert prepared(tmp_path / "a", TEXTS) == prepared(tmp_path / "b", TEXTS)


def test_a_cap_ends_the_corpus(tmp_path, small_chunks):
    sides = prepared(tmp_path, TEXTS, cap=1_500)
    assert 1_500 <= sum(map(len, sides.values())) < 3_500


def test_a_corpus_of_one_document_holds_out_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache.paths, "CACHE", tmp_path / "cache")
    (tmp_path / "one.txt").write_text(" ".join(map(str, range(3_000))))
    training, held_out, _ = corpus_files.load(str(tmp_path / "one.txt"))
    both = token_cache.gpt2_encoding().encode_ordinary((tmp_path / "one.txt").read_text())
    assert [*training, *held_out] == [*both, 50_256]
    assert len(held_out) == len(both) // corpus_files.HELD_OUT


def batches(monkeypatch, tokens=1_003, **values):
    """TokenBatches of a corpus whose tokens are their places."""
    corpus = np.arange(tokens, dtype=np.uint16)
    monkeypatch.setattr(corpus_files, "load", lambda *_, **__: (corpus, corpus, "a corpus"))
    defaults = {"dataset": "", "corpus_tokens": 0, "seq_len": 10, "batch_size": 2, "seed": 3}
    defaults |= {"accumulation": 4, "validation_tokens": 70, "local_rank": 0, "rank": 0}
    defaults |= {"world_size": 1, "device": torch.device("cpu")}
    hardware = SimpleNamespace(reset_peak_memory=lambda: None)
    return TokenBatches(SimpleNamespace(**defaults | values, hardware=hardware))


def test_an_epoch_is_every_window_once_in_another_order(monkeypatch):
    data = batches(monkeypatch)
    windows = data.windows
    assert windows == 99
    starts = [start for step in range(3 * windows) for start in data.starts(step)]
    epochs = [starts[n * windows : (n + 1) * windows] for n in range(8)]
    for epoch in epochs:
        covered = sorted(place for start in epoch for place in range(start, start + 10))
        assert len({*covered}) == len(covered) == windows * 10
    assert epochs[0] != epochs[1]
    assert data.epoch(windows) == 8
    for idx, targets in data.of(1):
        assert torch.equal(idx[:, 1:], targets[:, :-1])
        assert torch.equal(idx + 1, targets)


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 2), (4, 1), (1, 8)])
def test_other_ranks_and_sizes_give_the_same_step(monkeypatch, world_size, batch_size):
    def step(n, world_size, batch_size):
        """The first tokens of its sequences."""
        accumulation = 8 // world_size // batch_size
        shape = {"world_size": world_size, "accumulation": accumulation, "batch_size": batch_size}
        own = [batches(monkeypatch, rank=rank, **shape).of(n) for rank in range(world_size)]
        return sorted(int(row[0]) for rank in own for idx, _ in rank for row in idx)

    for n in (0, 7, 40):
        assert step(n, world_size, batch_size) == step(n, 1, 2)


def test_validation_reads_the_same_windows_of_all_held_out_text(monkeypatch):
    data = batches(monkeypatch)
    first, second = ([idx.tolist() for idx, _ in data.held_out()] for _ in range(2))
    assert first == second
    assert sorted(row[0] for idx in first for row in idx) == [0, 140, 280, 420, 560, 700]


def test_a_corpus_too_short_for_a_sequence_is_told(monkeypatch):
    with pytest.raises(UserError, match="too few for sequences of 10"):
        batches(monkeypatch, tokens=12)


def test_learning_rate_warms_up_and_decays_to_a_tenth():
    args = SimpleNamespace(learning_rate=1.0, warmup=10, steps=110)
    rates = [learning_rate.learning_rate(step, args) for step in range(111)]
    assert rates[0] == 0.1 and rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55) and rates[110] == pytest.approx(0.1)
    assert all(later < earlier for earlier, later in zip(rates[10:], rates[11:], strict=False))


def test_only_matrices_decay():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    optimizer = torch.optim.AdamW(model.parameters())
    learning_rate.decay_matrices_only(optimizer, 0.1)
    groups = [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
    assert groups == [(0.1, 1), (0.0, 3)]
    assert all(group["betas"] == (0.9, 0.95) for group in optimizer.param_groups)


def test_the_best_line_merges_with_and_without_ranks():
    line = REPOSITORY.line(loop_techniques.FASTEST_SCRIPT)[1:]
    names = [name for name in line if name not in loop_techniques.EXCLUDED]
    assert "fused_cross_entropy" in names
    for more in ([], [loop_techniques.RANKS]):
        source = loop_techniques.merged(names + more, REPOSITORY)
        ast.parse(source)
        for words in ("torch.compile(model)", "fused=True", "torch.autocast", "vocab_size=50_304"):
            assert source.count(words) == 1
        assert ("DistributedDataParallel(" in source) == bool(more)


def test_only_scripts_that_exist_are_included_or_excluded():
    named = loop_techniques.INCLUDED.keys() | loop_techniques.EXCLUDED.keys()
    assert named <= ladder.tracked().keys()


@pytest.mark.parametrize("name", ["asynchronous_logging", "cuda_graphs"])
def test_without_a_reason_in_the_table_a_diff_that_does_not_fit_is_one_line(name, monkeypatch):
    for reasons in (loop_techniques.INCLUDED, loop_techniques.EXCLUDED):
        monkeypatch.delitem(reasons, name, raising=False)
    args = SimpleNamespace(hardware=SimpleNamespace(name=""), model="gpt2")
    with pytest.raises(UserError, match=f"^--with {name}: its diff .*the loop") as error:
        names, _ = loop_techniques.choose(name, args, None, REPOSITORY)
        loop_techniques.merged(names, REPOSITORY)
    assert "\n" not in str(error.value)


def test_a_diff_whose_words_the_loop_has_elsewhere_is_not_merged_there():
    """The end of a call matches that of the loop's next line, which is another call."""
    parent = REPOSITORY.get("fused_optimizer")
    code = parent.code.replace("fused=True)", "fused=True, eps=1e-7)")
    idea = replace(parent, name="my_idea", parent=parent.name, code=code)
    scripts = Ladder(REPOSITORY.scripts | {"my_idea": idea})
    with pytest.raises(UserError, match="--with my_idea: its diff does not apply to the loop"):
        loop_techniques.merged(["my_idea"], scripts)
    assert "fused=True, eps=1e-7)" in loop_techniques.merged([parent.name, "my_idea"], scripts)


def test_a_diff_that_the_loop_has_already_is_refused():
    with pytest.raises(UserError, match="--with tensorFloat32: its diff changes nothing"):
        loop_techniques.merged(["tensorFloat32", "tensorFloat32"], REPOSITORY)


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("name", [*REPOSITORY.scripts][1:])
def test_every_technique_merges_or_says_why_not(name, bfloat16):
    hardware = SimpleNamespace(name="no such device")
    args = SimpleNamespace(hardware=hardware, model="gpt2", device=torch.device("cpu"))
    scripts = ladder.repository(bfloat16)
    try:
        names, _ = loop_techniques.choose(name, args, None, scripts)
        source = loop_techniques.merged(names, scripts)
    except UserError as error:
        assert f"--with {name}: " in str(error)
        return
    ast.parse(source)
    assert source != loop_techniques.merged([], scripts) == loop_techniques.LOOP.read_text()
    in_float16 = "torch.float16" in source
    if names == ["float16_grad_scaler"]:
        assert in_float16
    for line in ("scaler)", "scaler.scale(", "scaler.unscale_", "scaler.step(", "scaler.update("):
        assert source.count(line) == in_float16
    assert "    decay_matrices_only(optimizer, args.weight_decay)\n" in source
    assert "set_learning_rate(optimizer, learning_rate(step, args))" in source


@pytest.mark.parametrize("name", ["fused_optimizer", "8bit_optimizer"])
def test_an_optimizer_of_a_technique_takes_the_place_of_the_loops_own(name):
    tree = ast.parse(loop_techniques.merged([name], REPOSITORY))
    made = next(node for node in ast.walk(tree) if ast.unparse(node).startswith("optimizer = "))
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in made.value.keywords}
    assert arguments["lr"] == "args.learning_rate"
    assert arguments.get("fused") == ("True" if name == "fused_optimizer" else None)
    assert ("AdamW8bit" in ast.unparse(made)) == (name == "8bit_optimizer")


def test_defaults_are_those_of_the_device_and_given_values_stay(tmp_path):
    """Without a recipe the techniques are those of the best script that runs here."""
    gpu, cpu = options.fill({}, "cuda"), options.fill({"steps": 20}, "cpu")
    assert (gpu["tokens_per_step"], gpu["warmup"], gpu["steps"]) == (524_288, 715, 19_073)
    assert (cpu["model"], cpu["steps"], cpu["warmup"]) == ("gpt2-tiny", 20, 1)
    no_rows = tmp_path / "none.csv"
    names, source = loop_techniques.choose("", options.settle(cpu), no_rows, REPOSITORY)
    line = REPOSITORY.line("fused_optimizer")
    assert {"flash_attention", "fused_optimizer"} <= {*names} <= {*line}
    assert source.startswith("of fused_optimizer")


def test_recipe_of_this_device_and_model_chooses_the_techniques(tmp_path):
    args = options.settle(options.fill({}, "cpu"))
    path = tmp_path / "results.csv"
    here = {"device": args.hardware.name, "model": args.model}
    steps_ms = {
        "no_optimization": 8.0,
        "tensorFloat32": 8.0,
        "no_optimization+fused_optimizer": 2.0,
    }
    for r, (name, ms) in itertools.product(range(4), steps_ms.items()):
        steps = [ms * (1 + 0.01 * n) for n in range(5)]
        rows_file.append(path, rows_of(name, steps, round=r, **here))
    names, source = loop_techniques.choose("", args, path, REPOSITORY)
    assert names == ["fused_optimizer"]
    assert source == f"the recipe for {args.model} on {args.hardware.name}"

    args.model = "gpt2-medium"
    assert loop_techniques.choose("", args, path, REPOSITORY)[1].startswith("of fused_optimizer")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"seq_len": 2048}, "takes 1024 tokens at most"),
        ({"tokens_per_step": 500}, "try 512"),
        ({"tokens_per_step": 512, "batch_size": 3}, "try 2"),
        ({"model": "gpt5"}, "choose gpt2-tiny"),
    ],
)
def test_settings_that_cannot_be_are_told(values, words):
    with pytest.raises(UserError, match=words):
        options.settle(options.fill(values, "cpu"))


def saved(folder, step, loss):
    checkpoints.save(folder, step, {"model": torch.full((9,), step)}, {"validation_loss": loss})


def test_the_last_two_checkpoints_and_the_best_are_kept(tmp_path):
    for step, loss in enumerate((9.0, 5.0, 6.0, 7.0, None, 8.0), 1):
        saved(tmp_path, step, loss)
    kept = checkpoints.available(tmp_path)
    assert [checkpoint.step for checkpoint in kept] == [2, 5, 6]
    assert checkpoints.best(kept).step == 2
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        f"step_{n:08}.pt" for n in (2, 5, 6)
    ]
    assert checkpoints.load(kept[0])["model"].tolist() == [2] * 9


def test_a_damaged_or_foreign_checkpoint_is_told_and_the_remedy_works(tmp_path):
    saved(tmp_path, 1, 9.0)
    saved(tmp_path, 2, 8.0)
    state = tmp_path / "step_00000002.pt"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    with pytest.raises(UserError, match="damaged.*remove .*step_00000002.json"):
        checkpoints.load(checkpoints.available(tmp_path)[-1])
    (tmp_path / "step_00000002.json").unlink()
    assert checkpoints.load(checkpoints.available(tmp_path)[-1])["model"][0] == 1
    model, larger = torch.nn.Linear(3, 3), torch.nn.Linear(4, 3)
    with pytest.raises(UserError, match="another model: size mismatch for weight"):
        checkpoints.load_weights(model, larger.state_dict(), "x.pt")


def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch):
    saved(tmp_path, 1, 9.0)
    usual = files.tempfile.NamedTemporaryFile

    def on_a_full_disk(**options):
        file = usual(**options)
        file.file.close()
        file.file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115, the wrapper closes it
        file.write, file.flush, file.fileno = file.file.write, file.file.flush, file.file.fileno
        return file

    monkeypatch.setattr(files.tempfile, "NamedTemporaryFile", on_a_full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        saved(tmp_path, 2, 8.0)
    monkeypatch.undo()
    assert [checkpoint.step for checkpoint in checkpoints.available(tmp_path)] == [1]
    assert checkpoints.load(checkpoints.available(tmp_path)[0])["model"][0] == 1
    assert not [*tmp_path.glob(".tmp*")]


def test_history_is_cut_to_the_checkpoint_and_to_whole_lines(tmp_path):
    path = tmp_path / "training.csv"
    rows = history.History(path)
    rows.cut(0)
    for step in (1, 2, 3):
        rows.log(step=step, training_loss=0.1 + step)
        rows.amend(validation_loss=step / 3)
    rows.flush()
    with open(path, "a") as file:
        file.write("4,12")
    assert [row["step"] for row in history.read(path)] == ["1", "2", "3"]
    history.History(path).cut(2)
    assert [float(row["validation_loss"]) for row in history.read(path)] == [1 / 3, 2 / 3]
    with pytest.raises(UserError, match="2 steps, and 5 were trained"):
        history.History(path).cut(5)


def test_export_cuts_padding_and_keeps_an_untied_head():
    state = {
        "wte.weight": torch.rand(50_304, 2),
        "h.0.attn.c_attn.weight": torch.rand(6, 2),
        "h.0.attn.c_attn.bias": torch.rand(6),
    }
    tied = export.gpt2_weights(state | {"lm_head.weight": state["wte.weight"]})
    assert {name: tuple(tensor.shape) for name, tensor in tied.items()} == {
        "transformer.wte.weight": (50_257, 2),
        "transformer.h.0.attn.c_attn.weight": (2, 6),
        "transformer.h.0.attn.c_attn.bias": (6,),
    }
    untied = export.gpt2_weights(state | {"lm_head.weight": torch.rand(50_304, 2)})
    assert untied["lm_head.weight"].shape == (50_257, 2)
