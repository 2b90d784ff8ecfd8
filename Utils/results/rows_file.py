"""results.csv: its columns, appending to it, reading it.

One row per step, append-only, readable by `pandas.read_csv` without options. A run appends all its
rows in one write, under a lock, when it has ended: a killed run leaves no rows, and concurrent runs
never interleave. A damaged file is refused, never repaired or replaced.
"""

import csv
import fcntl
import hashlib
import io
import json
import os
import tempfile
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from Utils.base.errors import UserError

COLUMNS = (
    "run_id",  # sorts by time, unique
    "base",  # the script at the root of its ladder
    "round",  # runs of one round are compared with one another
    "seed",  # of the weights and the batches
    "technique",  # the script's stem
    "status",
    "step",  # from 0
    "phase",
    "step_ms",  # from one step boundary to the next, waiting for data included
    "data_ms",  # part of step_ms spent waiting for the batch
    "loss",  # nats per token
    "held_out_loss",  # on text that is not trained on
    "batch_size",  # sequences a step, over all processes
    "requested_batch_size",  # as requested; a technique may choose another
    "seq_len",  # tokens per sequence
    "unit",  # what a batch holds: tokens, samples, images
    "model",
    "dataset",
    "world_size",  # processes
    "device",
    "torch",
    "commit",  # with "-dirty" where the tree was not clean
    "grade",  # clean or tainted; empty for a run without timing
    "first_step_s",
    "peak_memory_mib",
    "reserved_memory_mib",  # what torch's allocator held of the device; empty on a CPU
    "note",  # why a run has no timing, or what limits its timing
)
STATUSES = ("ok", "unsupported", "out_of_memory", "failed")
PHASES = ("warmup", "timed")
GRADES = ("clean", "tainted")
INTEGERS = ("round", "seed", "batch_size", "requested_batch_size", "seq_len", "world_size")
MEASURED = ("step_ms", "data_ms", "first_step_s")  # of every run with timings
OPTIONAL = ("loss", "held_out_loss", "peak_memory_mib", "reserved_memory_mib")
HEADER = ",".join(COLUMNS)
csv.field_size_limit(2**31 - 1)  # a failed run's note can be long


def append(path, rows):
    """Append rows, dicts of COLUMNS, all of them or none. None is written as an empty field.

    Raises UserError where the file is damaged, cannot be written, or the disk is full.
    """
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\r\n").writerows(rows)  # so that it quotes \r
    lines = text.getvalue().replace("\r\n", "\n")
    with _locked(path) as file:
        size = os.fstat(file).st_size
        check(path)
        data = (lines if size else f"{HEADER}\n{lines}").encode(errors="backslashreplace")
        try:
            if os.write(file, data) != len(data):
                raise OSError("No space left on device")
            os.fsync(file)
        except OSError as error:
            os.ftruncate(file, size)
            raise UserError(f"{path}: {error.strerror or error}; nothing was appended") from None


def initialize(path):
    """Write the header to a missing or empty file. Return whether it was written."""
    with _locked(path) as file:
        empty = os.fstat(file).st_size == 0
    if empty:
        append(path, [])
    else:
        check(path)
    return empty


def reset(path):
    """Archive the file, damaged or not, and start a new one. Return the path of the archive."""
    path = Path(path)
    with _locked(path):
        stem = f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S}"
        archive = path.with_name(f"{stem}{path.suffix}")
        count = 1
        while archive.exists():
            count += 1
            archive = path.with_name(f"{stem}-{count}{path.suffix}")
        path.rename(archive)
    initialize(path)
    return archive


def check(path, writable=True):
    """Read and check the whole file. Return its rows as dicts of strings; none without a file.

    writable: check that a run may append to it. Raises UserError with file, line and remedy.
    """
    path = Path(path)
    try:
        if not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()  # raises where no file can be made
            return []
        if not path.is_file():
            raise UserError(f"{path}: not a file")
        mode = "r+b" if writable else "rb"  # os.access() knows less than open()
        with path.open(mode) as file:
            data = file.read()
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, data[: error.start].count(b"\n") + 1, "is not text") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not text:
        return []
    if text.split("\n", 1)[0] != HEADER:
        problem = f"{path}, line 1: unknown header"
        raise UserError(problem, f"archive the file with make reset RESULTS_FILE={path}")
    rows, line = [], 2
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    next(reader)
    try:
        for fields in reader:
            if len(fields) != len(COLUMNS):
                raise _damaged(path, line, f"has {len(fields)} fields instead of {len(COLUMNS)}")
            rows.append(dict(zip(COLUMNS, fields, strict=True)))
            if problem := _problem(rows[-1]):
                raise _damaged(path, line, problem)
            line = reader.line_num + 1
    except csv.Error as error:
        raise _damaged(path, line, f"cannot be read ({error})") from None
    if not text.endswith("\n"):
        raise _damaged(path, reader.line_num, "is cut off")
    return rows


def read(path):
    """Read the file into a pandas DataFrame of COLUMNS, one row per step.

    Raises UserError where there is no file, no row, or a damaged line.
    """
    import pandas  # here, because a training script does not need it

    if not Path(path).exists():
        raise UserError(f"{path}: no such file", "make baseline writes it")
    rows = check(path, writable=False)
    if not rows:
        raise UserError(f"{path}: no results yet", "make baseline writes some")
    frame = pandas.DataFrame(rows, columns=COLUMNS)
    for name in ("step", *MEASURED, *OPTIONAL):
        frame[name] = [float(value or "nan") for value in frame[name]]
    return frame.astype(dict.fromkeys(INTEGERS, int))


def records(path, run_ids):
    """Read the records runs/<run_id>.json beside the results file: a dict by run_id.

    Missing and unreadable records are left out.
    """
    folder, records = Path(path).parent / "runs", {}
    for run_id in run_ids:
        with suppress(OSError, ValueError, RecursionError):
            # Only the name: a run_id with a path must not leave the folder.
            record = json.loads((folder / f"{Path(run_id).name}.json").read_text())
            if isinstance(record, dict):
                records[run_id] = record
    return records


def write_record(path, record):
    """Write a run's record, a dict, beside the results file. Return its path.

    Its report of collect_env, the same for many runs, goes to a separate file.
    """
    file = Path(path).parent / "runs" / f"{record['run_id']}.json"
    file.parent.mkdir(exist_ok=True)
    if report := record.get("collect_env"):
        name = f"collect_env-{hashlib.sha256(report.encode()).hexdigest()[:16]}.txt"
        record = record | {"collect_env": name}
        if not (file.parent / name).exists():
            (file.parent / name).write_text(report)
    file.write_text(json.dumps(record, indent=1, default=str) + "\n")
    return file


def collect_env(path, record):
    """Return the report of collect_env that a record names, or "" where it is missing."""
    with suppress(OSError, ValueError, TypeError):
        return (Path(path).parent / "runs" / Path(record["collect_env"]).name).read_text()
    return ""


def _problem(row):
    """Return the problem of a row whose fields are strings, or None."""
    if row["status"] not in STATUSES:
        return f"has the unknown status {row['status']!r}"
    if row["status"] == "ok" and row["phase"] not in PHASES:
        return f"has the unknown phase {row['phase']!r}"
    timed = row["status"] == "ok"
    if row["grade"] not in (GRADES if timed else ("",)):
        return f"has the unknown grade {row['grade']!r}"
    for name, kind, needed in (
        *((name, int, True) for name in INTEGERS),
        ("step", int, timed),
        *((name, float, timed) for name in MEASURED),
        *((name, float, False) for name in OPTIONAL),
    ):
        if not row[name] and not needed:
            continue
        try:
            value = kind(row[name])
        except ValueError:
            return f"has {name} {row[name]!r}, which is not a number"
        if kind is int and abs(value) >= 2**63:
            return f"has a {name} of {len(row[name])} digits, which is too large"
    for name in MEASURED:
        if timed and not 0 <= float(row[name]) < float("inf"):
            return f"has {name} {row[name]}, which is not a duration"
    return None


def _damaged(path, line, problem):
    remedy = f"fix that line, or archive the file with make reset RESULTS_FILE={path}"
    return UserError(f"{path}, line {line}: {problem}", remedy)


@contextmanager
def _locked(path):
    """Open the file for appending, creating it if needed, and lock out other runs."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:  # some network file systems have no locks
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from None
            # `make reset` may have moved the file meanwhile: then lock the new one.
            if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                yield file
                return
        finally:
            os.close(file)
