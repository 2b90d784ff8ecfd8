"""The loops: where each comes from, its arguments, the files that it needs, and a copy with these.

None of their code is here, and nothing is written to a clone: a loop runs in a copy of its folder.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tools.pair.sides import complete, unpack
from Utils.base import paths
from Utils.base.errors import UserError, say
from Utils.corpus import token_cache
from Utils.scripts import ladder

FOLDER = paths.CACHE / "peers"
TEXT_TOKENS = 4_000_000  # 109 steps of 32x1024, as nine tenths are trained on
SIZES = {"gpt2": "d12", "gpt2-medium": "d24", "gpt2-large": "d36", "gpt2-xl": "d48"}
OURS = {  # scripts of the ladder: what differs from the first
    "fused_optimizer": "",
    "all_together": "vocabulary of 50,304, a loss kernel, losses read after the run",
}
OF_OURS = """
    --tokens=data/corpus/train.bin --batch_size={batch_size} --seq_len={seq_len}
    --n_layer={n_layer} --n_head={n_head} --n_embd={n_embd} --dtype={dtype}
"""


def write_tokens(folder, tokens):
    """Write data/corpus/train.bin and val.bin: uint16 tokens alone."""
    target = folder / "data/corpus"
    target.mkdir(parents=True)
    for name, part in zip(("train", "val"), token_cache.split(tokens), strict=True):
        (target / f"{name}.bin").write_bytes(part)


def write_shard(folder, tokens):
    """Write corpus.bin: 256 int32, of which three are set, and uint16 tokens."""
    train, _ = token_cache.split(tokens)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(train)  # magic number, version, tokens
    (folder / "corpus.bin").write_bytes(header.tobytes() + train.tobytes())


def write_text(folder, tokens):
    """Write middlemarch.txt, the name of a text that the script would otherwise download."""
    text = token_cache.gpt2_encoding().decode(tokens[:TEXT_TOKENS].tolist())
    (folder / "middlemarch.txt").write_text(text, "utf-8")


@dataclass(frozen=True)
class Loop:
    """A training loop.

    name: in its rows, and the folder of a clone.
    file: the script, from the top of its repository.
    arguments: a template of fields: batch_size, device and so on.
    differs: from fused_optimizer, in words.
    write: makes the files that it needs, in a folder, of tokens (N,).
    repository: on GitHub, "" for ours.
    allows: values of fields that its code can have. reason: why it has no others.
    """

    name: str
    file: str
    arguments: str
    differs: str
    write: Callable = write_tokens
    repository: str = ""
    allows: dict = field(default_factory=dict)
    reason: str = ""

    def clone(self, peers):
        """Return the top folder of its repository. peers: the folder with clones, or ""."""
        clone = Path(peers or "PEERS", self.name).expanduser()
        return clone if self.repository else paths.ROOT

    def is_there(self, peers):
        return not self.repository or (self.clone(peers) / ".git").exists()

    def head(self, peers):
        """Return the commit of its files, "" without any."""
        if not self.repository:
            return paths.commit(self.file)
        return paths.git("-C", str(self.clone(peers)), "rev-parse", "--short=7", "HEAD")

    def copy(self, peers, head, corpus):
        """Return (script, folder that has what it needs). Raises UserError.

        corpus: result of `token_cache.load_tokens`.
        """
        tokens, facts = corpus
        clone = self.clone(peers)
        name = paths.digest(f"{head if self.repository else ''} {facts}")
        folder = FOLDER / self.name / name
        with complete(folder) as copied:
            if self.repository:
                unpack(str(clone), f"{head}:{os.path.dirname(self.file)}", copied)
            for path in copied.rglob("*"):
                if not Path(os.path.realpath(path)).is_relative_to(copied.resolve()):
                    raise UserError(f"{path.name} is a link out of the clone at {head}")
            self.write(copied, tokens)

        script = clone / self.file
        if self.repository:
            script = folder / script.name
        if not script.exists():
            raise UserError(f"has no {self.file} at {head}")
        try:
            script.read_text("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{self.file} is not UTF-8 at {head}") from None
        return script, folder


LOOPS = (
    Loop(
        name="nanoGPT",
        file="train.py",
        arguments="""
            --dataset=corpus --batch_size={batch_size} --block_size={seq_len}
            --gradient_accumulation_steps=1 --eval_iters=1 --eval_interval=1000000
            --n_layer={n_layer} --n_head={n_head} --n_embd={n_embd}
            --device={device} --dtype={dtype}
        """,
        differs="vocabulary of 50,304, no biases, gradients clipped; float32 on a CPU",
        repository="karpathy/nanoGPT",
    ),
    Loop(
        name="llm.c",
        file="train_gpt2.py",
        arguments="""
            --input_bin=corpus.bin --model={size} --num_iterations=1000000
            --batch_size={batch_size} --sequence_length={seq_len} --total_batch_size={tokens}
            --overfit_single_batch=0 --write_tensors=0 --compile=1 --flash=1 --tensorcores=1
            --device={device} --dtype={dtype}
        """,
        differs="gradients clipped, waits for the device each step; float32 on a CPU",
        write=write_shard,
        repository="karpathy/llm.c",
        allows={"size": {*SIZES.values()}},
        reason=f"has no sizes but {', '.join(SIZES)}",
    ),
    Loop(
        name="LLMs-from-scratch",
        file="ch05/10_llm-training-speed/01_opt_single_gpu.py",
        arguments="",
        differs=(
            "all in bfloat16, weights too; 163M parameters: vocabulary of 50,304 and a head of its "
            "own; dropout 0.1, no biases of q, k, v"
        ),
        write=write_text,
        repository="rasbt/LLMs-from-scratch",
        allows={"device": {"cuda"}, "model": {"gpt2"}, "seq_len": {1024}},
        reason="32x1024 of gpt2 is in its code, for a GPU",
    ),
    Loop(
        name="trainer",
        file="examples/trainer.py",
        arguments=OF_OURS,
        differs=(
            "transformers' model and Trainer: dropout 0.1, gradients clipped; its loss of T - 1 "
            "targets is divided by T"
        ),
    ),
    Loop(
        name="lightning",
        file="examples/lightning_gpt2.py",
        arguments=OF_OURS,
        differs="transformers' model in Lightning: dropout 0.1",
    ),
)


def names(peers):
    """Return the names of all loops that `make peers` has, ours first. peers: folder of clones."""
    return [*OURS, *(loop.name for loop in LOOPS if loop.is_there(peers))]


def tracked_part(scripts):
    """Return the part of a Ladder of ours that git tracks. Other scripts are lines on stderr."""
    in_git = ladder.tracked()
    for script in scripts:
        if script.name not in in_git:
            say(f"{script.name}: left out, as git does not track it", sys.stderr)
    return scripts.part(in_git)
