"""Other people's loops: what is made for each, what a failure leaves, what the table divides."""

import numpy as np
import pytest

from tests.helpers import sides
from tests.helpers.checkouts import TINY, state
from tests.helpers.own_scripts import fork_runs
from tests.helpers.refusal import refused
from tests.helpers.rows import WITH_IDEA, frame, rows_of
from tools.peers import __main__ as peers_command
from tools.peers import loop_runs, loop_table, loops
from Utils.analysis.summary import summarize
from Utils.corpus import token_cache
from Utils.results import rows_file, study

# It has the flags of nanoGPT, and a batch by them.
TRAIN = """
import sys
import numpy as np
import torch
flags = dict(word.removeprefix("--").split("=") for word in sys.argv[1:])
B, T = int(flags["batch_size"]), int(flags["block_size"])
tokens = np.fromfile(f"data/{flags['dataset']}/train.bin", np.uint16).astype(int)
open("checkpoint.txt", "w").write("mine")
model = torch.nn.Sequential(torch.nn.Embedding(50304, 8), torch.nn.Linear(8, 50304))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    batch = torch.from_numpy(tokens[: B * T].reshape(B, T))
    loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CLONED = loops.LOOPS[:3]
TOKENS = np.random.default_rng(0).integers(50_000, size=4000, dtype=np.uint16)
SETTINGS = *TINY, "WARMUP=3", "DEVICE=cpu", "DATASET=synthetic", "ROUNDS=2"


@pytest.fixture
def clones(tmp_path, monkeypatch):
    """A folder of clones with scripts of a few lines; llm.c's raises, the third has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tools.peers.loops.FOLDER", tmp_path / "cache")
    for loop, source in zip(CLONED, (TRAIN, "import no_such_module", ""), strict=True):
        path = tmp_path / "src" / loop.name / loop.file
        path.parent.mkdir(parents=True)
        path.write_text(source)
        sides.commit(tmp_path / "src" / loop.name)
    return tmp_path / "src"


def test_loops_get_tokens_in_their_formats_and_clones_stay_as_they_are(clones):
    """COMPARE: "Nothing is written to a clone"."""
    before = state(clones)
    train, held_out = token_cache.split(TOKENS)
    copies = []
    for loop in CLONED:
        script, folder = loop.copy(clones, loop.head(clones), (TOKENS, {"dataset": "a test"}))
        assert script.read_bytes() == (clones / loop.name / loop.file).read_bytes()
        copies.append(folder)
    assert state(clones) == before

    for name, part in (("train", train), ("val", held_out)):
        assert (copies[0] / f"data/corpus/{name}.bin").read_bytes() == part.tobytes()
    shard = (copies[1] / "corpus.bin").read_bytes()
    assert shard[:16] == np.array([20240520, 1, len(train), 0], np.int32).tobytes()
    assert shard[1024:] == train.tobytes()
    text = (copies[2] / "middlemarch.txt").read_text("utf-8")
    assert text == token_cache.gpt2_encoding().decode([*TOKENS])


def test_copy_of_a_loop_is_that_of_its_clone_and_is_refused_alone(clones):
    """COMMANDS: "Nothing is written to a clone"; a link would lead out of the copy."""
    nanogpt = CLONED[0]

    def copied():
        return nanogpt.copy(clones, nanogpt.head(clones), (TOKENS, {"dataset": "a test"}))

    script, folder = copied()
    script.write_text("edited")
    tokens = folder / "data/corpus/train.bin"
    tokens.write_text("")
    copied()
    assert script.read_text() == TRAIN and tokens.stat().st_size

    clone = clones / nanogpt.name
    (clone / "train.py").write_bytes("# \xe9".encode("latin-1"))
    sides.commit(clone)
    with refused("train.py is not UTF-8 at"):
        copied()
    (clone / "data").symlink_to(clones)
    sides.commit(clone)
    with refused("data is a link out of the clone at"):
        copied()


@pytest.mark.slow
def test_peers_records_failures_and_resumes(clones, tmp_path, monkeypatch, capfd):
    """COMPARE: "A loop that fails is a row with the reason, and the others continue"."""
    fork_runs(monkeypatch, tmp_path)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)  # as in the forks
    monkeypatch.setattr("tools.peers.loop_runs.OURS", {})
    monkeypatch.setattr("tools.peers.loop_runs.LOOPS", CLONED)
    monkeypatch.setitem(loop_runs.SIZES, "gpt2-tiny", "d12")
    for said in ("llm.c: failed: imports no_such_module", "resuming: 3 of 5 runs"):
        assert peers_command.main(f"PEERS={clones}", *SETTINGS) == 1
        output = capfd.readouterr()
        assert said in output.err
        assert "- llm.c: failed: imports no_such_module" in output.out

    rows = {row["technique"]: row for row in rows_file.read_as_texts("results.csv")}
    for loop, status in zip(CLONED, ("ok", "failed", "unsupported"), strict=True):
        columns = {"status": status, "suite": "peers", "base": "no_optimization", "seq_len": "16"}
        columns |= {"unit": "tokens", "batch_size": "2", "commit": loop.head(clones)}
        assert columns.items() <= rows[loop.name].items()
    assert abs(float(rows["nanoGPT"]["loss"]) - np.log(50_304)) < 1


@pytest.mark.slow
def test_peers_runs_our_examples_without_clones(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("Utils.launch.suite_runner.ladder_of_device", lambda args: WITH_IDEA)
    assert peers_command.main(*SETTINGS) == 0
    output = capfd.readouterr()
    assert "my_idea: left out, as git does not track it" in output.err
    said = "llm.c: is not there; git clone https://github.com/karpathy/llm.c PEERS/llm.c"
    assert said in output.err
    rows = rows_file.read("results.csv", with_pairs=True).query("status == 'ok'")
    assert {*rows.technique} == {"fused_optimizer", "trainer", "lightning"}
    assert {*rows.batch_size * rows.seq_len} == {32}
    # Trainer divides a sum over 15 targets by 16 labels.
    scale = np.where(rows.technique == "trainer", 15 / 16, 1)
    assert abs(rows.loss / scale - np.log(50_257))[rows.step == 0].max() < 0.2


def test_table_divides_times_a_token():
    runs = []
    for r in range(4):
        for name, parent, ms, B in (
            ("fused_optimizer", "", 100, 16),
            ("x", "fused_optimizer", 400, 32),
        ):
            place = {"suite": "peers", "parent": parent, "round": r, "batch_size": B}
            runs.append(rows_of(name, [900, 900, *[ms] * 5], **place))
    rows = frame(runs).assign(requested_batch_size=16)
    page = loop_table.page_of(summarize(study.choose(rows)))
    assert "x 200.0 ms 5,120 **0.50x" in " ".join(page.replace("|", "").split())
