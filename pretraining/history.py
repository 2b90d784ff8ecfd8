"""training.csv: a row a step, from which curves are drawn.

Rows are appended as the run goes. A resumed run first drops those after its checkpoint, and
whatever a killed process left unfinished. So the file equals that of an uninterrupted run.
"""

import csv
import io
import os

from Utils.base import files
from Utils.base.errors import UserError, naming

COLUMNS = (
    "step",  # number of updates so far, from 1
    "tokens",
    "epoch",
    "training_loss",  # nats, the mean over the step's tokens
    "training_perplexity",
    "validation_loss",  # nats, on held-out documents; empty in steps without validation
    "validation_perplexity",
    "learning_rate",
    "gradient_norm",  # before clipping
    "tokens_per_second",
    "memory_share",  # peak memory over the device's memory
    "seconds",  # training time, over all sessions
    "hours_left",
)


OPTIONAL = ("validation_loss", "validation_perplexity")
RUN = {  # run.json
    "settings": dict,
    "techniques": [str],
    "techniques_from": str,
    "started": str,
    "sessions": [dict],
    "ended?": str,
}


class History:
    """The rows of a run. The last one may still change."""

    def __init__(self, path):
        self.path = path
        self.pending = None

    def cut(self, step):
        """Drop the rows after a step. Raises UserError if rows before it are missing."""
        rows = read(self.path) if self.path.exists() else []
        kept = [row for row in rows if int(row["step"]) <= step]
        if len(kept) < step:
            raise UserError(f"{self.path}: has rows of {len(kept)} steps, and {step} were trained")
        with files.atomic_write(self.path) as file:
            file.write(_lines(kept, header=True))

    def log(self, **values):
        self.flush()
        self.pending = values

    def amend(self, **values):
        """Add values to the last row."""
        self.pending |= values

    def flush(self, to_disk=False):
        """Write the last row, which then no longer changes. Raises UserError.

        to_disk: wait until all rows are on the disk and survive a power cut.
        """
        if self.pending is None:
            return
        with naming(self.path), open(self.path, "ab") as file:
            file.write(_lines([self.pending]))
            if to_disk:
                file.flush()
                os.fsync(file.fileno())
        self.pending = None


def read(path):
    """Return the complete rows of a training.csv, dicts of strings by column. Raises UserError."""
    with naming(path):
        text = path.read_text(errors="replace")
    lines = text[: text.rfind("\n") + 1].splitlines()
    if lines[:1] != [",".join(COLUMNS)]:
        raise UserError(f"{path}:1: not a training.csv of this version")

    rows = []
    for step, line in enumerate(lines[1:], 1):
        texts = line.split(",")
        row = dict(zip(COLUMNS, texts, strict=False))
        is_whole = len(texts) == len(COLUMNS) and row["step"] == str(step)
        try:
            for name, text in row.items():
                float(text or ("nan" if name in OPTIONAL else ""))
        except ValueError:
            is_whole = False
        if not is_whole:
            raise UserError(f"{path}:{step + 1}: is damaged, not the row of step {step}")
        rows.append(row)
    return rows


def read_run(folder):
    """Return the run.json of a folder. Raises UserError if there is no run, or a damaged one."""
    run = files.read_json(folder / "run.json", RUN)
    if run is None:
        raise UserError(f"{folder}: no run there to resume")
    return run


def _lines(rows, header=False):
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
