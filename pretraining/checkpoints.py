"""Checkpoints of a run: the last two and the one with the lowest validation loss.

A checkpoint is two files. step_00000250.pt has the state, as torch.save writes it.
step_00000250.json has facts for a person, and the state's checksum. It is written last and removed
first, so a state without one is not a checkpoint.
"""

import hashlib
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from Utils.base import files
from Utils.base.errors import UserError, naming

FACTS = {
    "step": int,
    "sha256": str,
    "validation_loss?": float,
    "best?": float,
    "corpus?": str,
    "model?": str,
    "seconds?": float,
}
KEPT = 2  # newest checkpoints


@dataclass(frozen=True)
class Checkpoint:
    step: int  # number of trained steps
    state: Path
    facts: dict  # step, validation_loss, sha256, and those that the run adds

    @property
    def described(self):
        return self.state.with_suffix(".json")


def save(folder, step, state, facts):
    """Write a checkpoint and remove those that are no longer kept.

    state: a value for torch.save. facts: a dict for JSON with validation_loss, which may be None.
    Raises UserError if it cannot be written; earlier checkpoints stay complete.
    """
    # Write the state, then its description with the checksum.
    path = folder / f"step_{step:08}.pt"
    with files.atomic_write(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # hides the OSError that stopped the write
            raise error.__context__ or error from None
        file.flush()
        digest = _sha256(file.name)
    facts = {"step": step, **facts, "sha256": digest}
    files.write_json(path.with_suffix(".json"), facts)

    # Remove descriptions first, then states without one.
    checkpoints = available(folder)
    kept = [c.step for c in [*checkpoints[-KEPT:], best(checkpoints)] if c]
    for checkpoint in checkpoints:
        if checkpoint.step not in kept:
            checkpoint.described.unlink()
    for state in set(folder.glob("step_*.pt")) - {c.state for c in available(folder)}:
        state.unlink()


def available(folder):
    """Return all checkpoints of a folder, the oldest first. Raises UserError."""
    checkpoints = []
    for described in sorted(folder.glob("step_*.json")):
        facts = files.read_json(described, FACTS, "remove it to continue from the one before")
        checkpoints.append(Checkpoint(facts["step"], described.with_suffix(".pt"), facts))
    return checkpoints


def best(checkpoints):
    """Return the checkpoint with the lowest validation loss, or None without one."""
    scored = [c for c in checkpoints if c.facts.get("validation_loss") is not None]
    return min(scored, key=lambda c: c.facts["validation_loss"], default=None)


def load(checkpoint):
    """Return the state of a checkpoint, on the CPU. Raises UserError if it is damaged."""
    remedy = f"remove {checkpoint.described} to continue from the one before"
    with naming(checkpoint.state, remedy):
        digest = _sha256(checkpoint.state)
    if digest != checkpoint.facts["sha256"]:
        raise UserError(f"{checkpoint.state}: damaged, its checksum differs", remedy)
    with of_this_program(checkpoint.state):
        return torch.load(checkpoint.state, map_location="cpu", weights_only=True)


@contextmanager
def of_this_program(source):
    """Raise a UserError for what a file raises that holds something else than a checkpoint."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch and pickle raise many types
        problem = f"is not a checkpoint of this program ({type(error).__name__})"
        raise UserError(f"{source}: {problem}", "give the folder that `make train` wrote") from None


def load_weights(model, weights, source):
    """Load a checkpoint's weights into a model. Raises UserError if the model differs."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        difference = textwrap.shorten(str(error).partition("\n")[2], 200)
        raise UserError(f"{source}: a checkpoint of another model: {difference}") from None


def _sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
