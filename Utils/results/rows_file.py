"""results.csv: its columns, appending to it, reading it.

One row per step, append-only, readable by `pandas.read_csv` without options. A run appends all its
rows in one write, under a lock, when it has ended: a killed run leaves no rows, and concurrent runs
never interleave. A damaged file is refused, never repaired or replaced.
"""

import csv
import fcntl
import io
import os
import tempfile
from contextlib import contextmanager
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
NUMBERS = ("step", *MEASURED, *OPTIONAL)
TEXTS = tuple(name for name in COLUMNS if name not in (*INTEGERS, *NUMBERS))
HEADER = ",".join(COLUMNS)
LARGEST = 2**63  # of a whole number
TAILS = (2**13, 2**20)  # bytes at the end of the file that hold its last row: usually, and at most
CHUNK = 100_000  # rows read at once, so that their texts take little memory
csv.field_size_limit(2**31 - 1)  # a failed run's note can be long


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
        with records_file.appended(path, record), naming(path, "nothing was appended"):
            files.append_whole(file, text)


def initialize(path):
    """Write the header to a missing or empty file. Return whether it was written."""
    with locked(path) as file:
        empty = os.fstat(file).st_size == 0
    if empty:
        append(path, [])
    else:
        check(path)
    return empty


def reset(path):
    """Archive the file, damaged or not, with its records. Start a new one. Return the archive."""
    path = Path(path)
    with locked(path):
        stem = f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S}"
        archive = path.with_stem(stem)
        count = 1
        while archive.exists():
            count += 1
            archive = path.with_stem(f"{stem}-{count}")
        path.rename(archive)
        records = records_file.path_of(path)
        if records.exists():
            records.rename(records_file.path_of(archive))
    initialize(path)
    return archive


def check(path):
    """Check that a run may append to a file: its header and its last row.

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
            complete = _ends_are_complete(file)
    if not complete:
        raise _damaged(path)


def _ends_are_complete(file):
    """Return whether a binary file is empty, or has our header and a complete last row."""
    header = file.readline()
    if header != f"{HEADER}\n".encode():
        return not header
    size = file.seek(0, os.SEEK_END)
    for tail in TAILS:
        file.seek(max(len(header), size - tail))
        lines = file.read().decode(errors="replace").splitlines(keepends=True)
        if not lines or (lines[-1].endswith("\n") and _ends_in_row(lines)):
            return True
    return False


def _ends_in_row(lines):
    """Return whether the last of these lines, or several whose note is in quotes, are a row."""
    fewest = len(lines) - 1
    for start in range(fewest, -1 if '"' in lines[-1] else fewest - 1, -1):
        last = [*csv.reader(lines[start:])]
        if len(last) == 1 and len(last[0]) == len(COLUMNS):
            return True
    return False


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
    """Read a file into a DataFrame of COLUMNS, one row per step. Texts are ordered categories.

    Raises UserError where there is no file, no row, or a damaged line.
    """
    import pandas  # here, because a training script does not need it

    if not Path(path).exists():
        raise UserError(f"{path}: no such file", "make baseline writes it")
    try:
        with naming(path), open(path, "rb") as file:
            complete = _ends_are_complete(file)
        chunks = _chunks(path) if complete and os.path.getsize(path) else []
    except ValueError:  # as pandas raises it: without a line, or with the wrong one
        raise _damaged(path) from None
    chunks = [chunk for chunk in chunks if len(chunk)]
    if not (complete and all(map(_is_valid, chunks))):
        raise _damaged(path)
    if not chunks:
        raise UserError(f"{path}: no results yet", "make baseline writes some")
    columns = {name: _joined([chunk[name] for chunk in chunks]) for name in COLUMNS}
    rows = pandas.DataFrame(columns)
    if not _has_all_fields(path, rows):
        raise _damaged(path)
    return rows


def _chunks(path):
    """Return the rows as DataFrames of CHUNK rows, unchecked. As categories, texts take a tenth."""
    import pandas  # as in `read`

    how = {"chunksize": CHUNK, "low_memory": False, "keep_default_na": False}
    how["na_values"] = dict.fromkeys(NUMBERS, ["", "nan", "NaN"])
    types = dict.fromkeys(NUMBERS, float)
    while True:
        chunks = []
        for chunk in pandas.read_csv(path, dtype=types, **how):
            mistaken = [name for name in TEXTS if not pandas.api.types.is_string_dtype(chunk[name])]
            if mistaken and len(chunk):
                break
            chunks.append(chunk.astype(dict.fromkeys(TEXTS, "category")))
        else:
            return chunks
        types |= dict.fromkeys(mistaken, str)  # "2.10" is a version; reading all as such is slow


def _joined(parts):
    """Return a column from its parts."""
    import pandas  # as in `read`

    if parts[0].name in TEXTS:
        joined = pandas.api.types.union_categoricals(parts, sort_categories=True)
        return joined.as_ordered()  # so that the newest run is the largest run_id
    joined = pandas.concat(parts, ignore_index=True)
    return joined.astype("int64") if joined.name in INTEGERS else joined


def _has_all_fields(path, rows):
    """Return whether no row lacks fields, which pandas would fill: the file has all commas."""
    with open(path, "rb") as file:
        commas = sum(block.count(b",") for block in iter(lambda: file.read(2**20), b""))
    for texts in (rows[name].cat for name in TEXTS):
        commas -= texts.categories.str.count(",").to_numpy()[texts.codes].sum()
    return commas == (len(COLUMNS) - 1) * (len(rows) + 1)


def _is_valid(rows):
    """Return whether all rows of a DataFrame make sense. `_problem` says what does not."""
    timed = rows.status == "ok"
    whole_numbers = all(
        rows[name].dtype.kind in "if" and rows[name].mod(1).eq(0).all() for name in INTEGERS
    )
    return bool(
        rows.status.isin(STATUSES).all()
        and rows.phase[timed].isin(PHASES).all()
        and rows.grade.isin(GRADES).eq(timed).all()
        and rows.grade[~timed].eq("").all()
        and whole_numbers
        and rows[[*INTEGERS]].abs().lt(LARGEST).all(axis=None)
        and rows.step.mod(1).eq(0).where(timed | rows.step.notna(), True).all()
        and rows.loc[timed, [*MEASURED]].ge(0).all(axis=None)
        and rows.loc[timed, [*MEASURED]].lt(float("inf")).all(axis=None)
    )


def _damaged(path):
    """Return a UserError that names the first damaged line of a file."""
    number, problem = _first_problem(path)
    remedy = f"archive the file with make reset RESULTS_FILE={path}"
    return UserError(f"{path}:{number}: {problem}", f"fix that line, or {remedy}")


def _first_problem(path):
    """Return the number of the first damaged line, and its problem."""
    with open(path, newline="", errors="surrogateescape") as file:
        if file.readline() != f"{HEADER}\n":
            return 1, "unknown header"
        lines = csv.reader(file, strict=True)
        number = 2
        try:
            for fields in lines:
                if problem := _problem(fields):
                    return number, problem
                number = lines.line_num + 2
        except csv.Error as error:
            return number, f"cannot be read ({error})"
        return lines.line_num + 1, "is cut off"


def _problem(fields):
    """Return the problem of a row, a list of strings, or None."""
    if any("\udc80" <= letter <= "\udcff" for field in fields for letter in field):
        return "is not text"
    if len(fields) != len(COLUMNS):
        return f"has {len(fields)} fields instead of {len(COLUMNS)}"
    row = dict(zip(COLUMNS, fields, strict=True))
    timed = row["status"] == "ok"
    for name, known in (
        ("status", STATUSES),
        ("phase", PHASES if timed else (row["phase"],)),
        ("grade", GRADES if timed else ("",)),
    ):
        if row[name] not in known:
            return f"has the unknown {name} {row[name]!r}"
    needed = (*INTEGERS, "step", *MEASURED) if timed else INTEGERS
    for name in (*INTEGERS, *NUMBERS):
        if not row[name] and name not in needed:
            continue
        try:
            number = float(row[name])
        except ValueError:
            return f"has {name} {row[name]!r}, which is not a number"
        if name in (*INTEGERS, "step") and number % 1 != 0:
            return f"has {name} {row[name]!r}, which is not a whole number"
        if name in INTEGERS and abs(number) >= LARGEST:
            return f"has a {name} of {len(row[name])} digits, which is too large"
        if name in MEASURED and timed and not 0 <= number < float("inf"):
            return f"has {name} {row[name]}, which is not a duration"
    return None


@contextmanager
def locked(path, held=""):
    """Open the file for appending, creating it if needed, and lock out other runs.

    held: message of the UserError where another has the lock; without it, wait for that.
    """
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
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
