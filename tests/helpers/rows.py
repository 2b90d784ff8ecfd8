"""Rows of runs that never happened, for tests of what reads results."""

import json
import re
from dataclasses import replace
from functools import cache
from itertools import count

import pandas as pd

from Utils.results import rows_file, study
from Utils.results.rows_file import COLUMNS
from Utils.scripts import ladder, variants
from Utils.scripts.identity import Identity
from Utils.scripts.ladder import BASELINE, Ladder

# The scripts that git tracks, whatever else lies in the folder.
REPOSITORY = Ladder(ladder.tracked())
WITH_IDEA = Ladder(
    REPOSITORY.scripts | {"my_idea": replace(REPOSITORY.get("tensorFloat32"), name="my_idea")}
)
_number = count()


def identity_of(technique, base=BASELINE):
    """The columns suite, parent and change of a script, a variant or a user's script."""
    if base != BASELINE:
        parent, _, switch = technique.rpartition("+")
        return Identity("own", parent, f"+{switch}") if parent else Identity("own")
    if technique in REPOSITORY.scripts:
        return REPOSITORY.get(technique).identity
    variant = variants.parse(technique, REPOSITORY)
    if variant is None:
        return Identity("ladder")
    return Identity("ablation", variant.script, technique.removeprefix(variant.script))


def study_of(rows, records=None):
    """The Study of rows that are all shown."""
    chosen = study.of_group(rows, [], records or {})
    return replace(chosen, rows=chosen.all_rows)


def rows_of(technique, step_ms, warmup=2, loss=5.0, **columns):
    """The rows of one run whose steps took step_ms; with no steps, the one row without timings."""
    row = dict.fromkeys(COLUMNS) | {
        "run_id": f"20260101T000000.{next(_number):06}Z-{columns.get('round', 0)}",  # in turns
        "base": BASELINE,
        "round": 0,
        "seed": 0,
        "technique": technique,
        "status": "ok",
        "batch_size": 1,
        "requested_batch_size": columns.get("batch_size", 1),
        "seq_len": 64,
        "unit": "tokens",
        "model": "gpt2",
        "dataset": "stdlib",
        "world_size": 1,
        "device": "Test GPU",
        "torch": "2.13.0",
        "commit": "abc1234",
        "note": "",
    }
    row |= identity_of(technique, columns.get("base", BASELINE)).place
    if not step_ms:
        return [row | columns]
    row |= {"grade": "clean", "first_step_s": step_ms[0] / 1e3, "peak_memory_mib": 900, **columns}
    return [
        {
            **row,
            "step": step,
            "phase": "warmup" if step < warmup else "timed",
            "step_ms": ms,
            "data_ms": 0.1,
            "loss": loss,
        }
        for step, ms in enumerate(step_ms)
    ]


def append_run(path, technique, step_ms, record=None, **columns):
    """Append a run whose steps took step_ms to a results file."""
    rows_file.append(path, rows_of(technique, step_ms, **columns), record)


def frame(runs):
    """Runs, lists of rows, as a DataFrame."""
    return pd.DataFrame(sum(runs, [])).astype({"step_ms": float})


def ladder_runs(rounds=1, **columns):
    """Runs of three scripts, each twice as fast as the one before or more."""
    for r in range(rounds):
        for name, warmup, ms in (
            ("no_optimization", [500, 410], 400 + r),
            ("tensorFloat32", [500, 210], 200),
            ("brainFloat16", [9000, 101], 100 - r),
        ):
            yield rows_of(name, [*warmup, *[ms] * 8], round=r, **columns)


def without_checksums(path):
    """Let the records of a results file announce no rows, as older ones."""
    file = rows_file.records_path(path)
    file.write_bytes(re.sub(rb', ("start"|"check"): [^{}]*}', b"}", file.read_bytes()))


def records_in(folder):
    """The records of a folder, in the order in which their runs ended."""
    text = "".join(path.read_text() for path in folder.glob("results.jsonl"))
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"run_id"')]


@cache
def techniques_of(name):
    """The techniques of a script or variant of the repository, by its name."""
    return frozenset(study_of(frame([rows_of(name, [])])).techniques(name))
