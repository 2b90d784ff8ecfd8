"""results.csv: its columns, appending to it, reading it.

A run appends all its rows in one write, under a lock, when it has ended: a killed run leaves none,
and concurrent runs never interleave. A damaged file is refused, never repaired or replaced.
"""

import csv
import fcntl
import io
import os
import re
import secrets
import tempfile
from contextlib import contextmanager, nullcontext
from datetime import datetime
from itertools import islice
from pathlib import Path

from Utils.base import files
from Utils.base.errors import UserError, naming
from Utils.results import records_file

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
NUMBERS = (*INTEGERS, "step", *MEASURED, *OPTIONAL)
TEXTS = tuple(name for name in COLUMNS if name not in NUMBERS)
HEADER = ",".join(COLUMNS)
# Patterns of the fields of columns: of all rows, and more of those with and without timings.
WHOLE = r"-?\d{1,18}(\.0*)?"
DURATION = r"\d+(\.\d*)?(e[+-]?\d+)?"
FLOAT = rf"(nan|-?inf|-?{DURATION})?"
OF_ALL = {"status": "|".join(STATUSES), **dict.fromkeys(INTEGERS, WHOLE)}
OF_ALL |= dict.fromkeys(OPTIONAL, FLOAT)
WITH_TIMINGS = {"phase": "|".join(PHASES), "grade": "|".join(GRADES), "step": WHOLE}
WITH_TIMINGS |= dict.fromkeys(MEASURED, DURATION)
WITHOUT_TIMINGS = {"grade": "", "step": FLOAT, **dict.fromkeys(MEASURED, FLOAT)}
CHUNK = 100_000  # rows read at once, so that their texts take little memory
csv.field_size_limit(2**31 - 1)  # a failed run's note can be long


def run_id(started, group=None):
    """Return the id of a run. group: of those that take turns; by default the run has its own."""
    return f"{started:%Y%m%dT%H%M%S.%fZ}-{group or secrets.token_hex(4)}"


def append(path, rows, record=None):
    """Append rows, dicts of COLUMNS, and the record of their run: all of it or nothing.

    None is written as an empty field. It takes the same time whatever the file's size. Raises
    UserError where the file is damaged, cannot be written, or the disk is full.
    """
    lines = io.StringIO()
    csv.DictWriter(lines, COLUMNS, lineterminator="\r\n").writerows(rows)  # so that it quotes \r
    text = lines.getvalue().replace("\r\n", "\n")
    with locked(path) as file:
        check(path)
        if os.fstat(file).st_size == 0:
            text = f"{HEADER}\n{text}"
        # The rows are last: a record without rows is no run.
        recorded = records_file.appended(path, record) if record else nullcontext()
        with recorded, naming(path, "nothing was appended"):
            files.append_whole(file, text)


def initialize(path):
    """Write the header to a missing or empty file. Return whether it was written."""
    is_new = not os.path.exists(path) or os.path.getsize(path) == 0
    append(path, [])
    return is_new


def reset(path):
    """Archive the file, damaged or not, with its records. Start a new one. Return the archive."""
    path = Path(path)
    with locked(path):
        archive = path.with_stem(f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S-%f}")
        path.rename(archive)
        records = records_file.path_of(path)
        if records.exists():
            records.rename(records_file.path_of(archive))
    initialize(path)
    return archive


def check(path):
    """Check that a run may append to a file: its header and its end.

    Raises UserError with file, line and remedy.
    """
    path = Path(path)
    with naming(path):
        if not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()  # raises where no file can be made
            return
        if not path.is_file():
            raise UserError(f"{path}: not a file")
        with path.open("r+b") as file:  # os.access() knows less than open()
            complete = _is_complete(file)
    if not complete:
        raise _damage(path)


def _is_complete(file):
    """Return whether a binary file is empty, or has our header and ends with a line."""
    header = file.readline()
    if header != f"{HEADER}\n".encode():
        return not header
    file.seek(-1, os.SEEK_END)
    return file.read() == b"\n"


def has_rows(path):
    """Return whether a file exists and holds something beside its header."""
    return os.path.exists(path) and os.path.getsize(path) not in (0, len(HEADER) + 1)


def text_rows(path, start=0):
    """Return the rows behind the byte `start` as dicts of strings, unchecked; none without a file.

    For the few rows of a new run; `read` is for files of any size.
    """
    if not Path(path).exists():
        return []
    start = start if start <= os.path.getsize(path) else 0  # reset meanwhile
    with open(path, newline="") as file:
        file.seek(start)
        return [*islice(csv.DictReader(file, COLUMNS), 0 if start else 1, None)]


def read(path):
    """Read a file into a DataFrame of COLUMNS, one row per step. Texts are ordered categories, so
    that the newest run is the largest run_id.

    Raises UserError where there is no row, or a damaged line.
    """
    import pandas  # here, because a training script does not need it

    if not has_rows(path):
        problem = "no results yet" if os.path.exists(path) else "no such file"
        raise UserError(f"{path}: {problem}", "make baseline writes some")
    with naming(path), open(path, "rb") as file:
        complete = _is_complete(file)
        file.seek(0)
        commas = sum(block.count(b",") for block in iter(lambda: file.read(2**20), b""))
    try:
        chunks = _chunks(path) if complete else []
    except ValueError:  # as pandas raises it: without a line, or with the wrong one
        chunks = []
    if not chunks:
        raise _damage(path)
    rows = pandas.concat([chunk[[*NUMBERS]] for chunk in chunks], ignore_index=True)
    for name in TEXTS:
        parts = [chunk[name] for chunk in chunks]
        texts = pandas.api.types.union_categoricals(parts, sort_categories=True)
        commas -= texts.categories.str.count(",").to_numpy()[texts.codes].sum()
        rows[name] = texts.as_ordered()
    has_all_fields = commas == (len(COLUMNS) - 1) * (len(rows) + 1)  # pandas fills missing ones
    if not (has_all_fields and _is_valid(rows)):
        raise _damage(path)
    return rows[[*COLUMNS]].astype(dict.fromkeys(INTEGERS, "int64"))


def _chunks(path):
    """Return the rows as DataFrames of CHUNK rows, unchecked. As categories, texts take a tenth."""
    import pandas  # as in `read`

    types = dict.fromkeys(NUMBERS, float) | {"torch": str, "commit": str}  # "2.10" is a version
    missing = dict.fromkeys(NUMBERS, ["", "nan", "NaN"])
    how = {"keep_default_na": False, "na_values": missing, "low_memory": False}
    chunks = []
    for chunk in pandas.read_csv(path, dtype=types, chunksize=CHUNK, **how):
        for name in TEXTS:
            chunk[name] = chunk[name].astype("category").cat.rename_categories(str)
        chunks.append(chunk)
    return chunks


def _is_valid(rows):
    """Return whether all rows of a DataFrame make sense, as the patterns of their fields say."""
    timed = rows.status == "ok"
    counts = rows[[*INTEGERS]]
    measured = rows.loc[timed, [*MEASURED]]
    steps = rows.step[timed]
    tests = (
        rows.status.isin(STATUSES),
        counts.round().eq(counts) & counts.abs().lt(10**18),
        rows.phase[timed].isin(PHASES) & rows.grade[timed].isin(GRADES) & steps.round().eq(steps),
        measured.ge(0) & measured.lt(float("inf")),
        rows.grade[~timed].eq(""),
    )
    return all(test.all(axis=None) for test in tests)


def _damage(path):
    """Return a UserError that names the first damaged line of a file."""
    number = 1
    problem = "unknown header"
    with open(path, newline="", errors="backslashreplace") as file:
        if file.readline() == f"{HEADER}\n":
            lines = csv.reader(file, strict=True)
            problem = None
            try:
                while not problem:
                    number = lines.line_num + 2
                    problem = _problem(next(lines))
            except StopIteration:
                number -= 1
                problem = "is cut off"
            except csv.Error as error:
                problem = f"cannot be read ({error})"
    remedy = f"fix that line, or archive the file with make reset RESULTS_FILE={path}"
    return UserError(f"{path}:{number}: {problem}", remedy)


def _problem(fields):
    """Return the problem of a row, a list of strings, or None."""
    if len(fields) != len(COLUMNS):
        return f"has {len(fields)} fields instead of {len(COLUMNS)}"
    row = dict(zip(COLUMNS, fields, strict=True))
    patterns = OF_ALL | (WITH_TIMINGS if row["status"] == "ok" else WITHOUT_TIMINGS)
    for name, pattern in patterns.items():
        if not re.fullmatch(pattern, row[name], re.IGNORECASE):
            return f"{name} cannot be {row[name][:40]!r}"
    return None


@contextmanager
def locked(path, held=""):
    """Open the file for appending, creating it if needed, and lock out other runs.

    held: message of the UserError where another has the lock; without it, wait for that.
    """
    while True:
        with naming(path):
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if held else fcntl.LOCK_EX)
            except BlockingIOError:
                raise UserError(held) from None
            except OSError as error:  # some network file systems have no locks
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from None
            # `make reset` may have moved the file meanwhile: then lock the new one.
            if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                yield file
                return
        finally:
            os.close(file)
