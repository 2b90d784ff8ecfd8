"""results.csv and, beside it, results.jsonl with the records of runs: append, read.

A run appends all its rows in one write, under a lock, when it has ended. Rows of two runs never
mix. A run killed before the write leaves no rows; killed during it, it can leave a cut-off row. A
damaged file is refused, never repaired or replaced.

A file from before the columns `old_rows.ADDED` is read as if it had them; the first run that
appends to it converts it.

A line of results.jsonl is the record of a run, or a text of SHARED, which records name by hash.
"""

import csv
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path

from Utils.base import files
from Utils.base.errors import UserError, naming
from Utils.results import old_rows

HEADER = (  # docs/COMMANDS.md has the meaning of each column
    "run_id,suite,base,parent,change,round,seed,technique,status,step,phase,step_ms,data_ms,loss,"
    "held_out_loss,batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,"
    "torch,commit,grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
)
COLUMNS = tuple(HEADER.split(","))
OLD_COLUMNS = tuple(name for name in COLUMNS if name not in old_rows.ADDED)
OLD_HEADER = ",".join(OLD_COLUMNS)
COLUMNS_OF_HEADER = {f"{HEADER}\n": COLUMNS, f"{OLD_HEADER}\n": OLD_COLUMNS}
SUITES = ("ladder", "beyond", "ablation", "own", "pair", "peers")
STATUSES = ("ok", "unsupported", "out_of_memory", "failed")
INTEGERS = ("round", "seed", "batch_size", "requested_batch_size", "seq_len", "world_size")
MEASURED = ("step_ms", "data_ms", "first_step_s")  # of every run with timings
OPTIONAL = ("loss", "held_out_loss", "peak_memory_mib", "reserved_memory_mib")
NUMBERS = (*INTEGERS, "step", *MEASURED, *OPTIONAL)
TEXTS = tuple(name for name in COLUMNS if name not in NUMBERS)
# Texts that may look like numbers, or like none.
NAMES = ("base", "parent", "change", "technique", "dataset", "torch", "commit")
CHUNK = 100_000  # rows read at once, so that their texts take little memory
csv.field_size_limit(2**31 - 1)  # a failed run's note can be long
SHARED = ("source", "collect_env")  # texts of records
# Bytes at the file's end in which a text is looked for before it is written: in a larger file a
# text may stand several times, but appending takes the same time.
RECENT = 2**20
RECORD = re.compile(rb'\{"(?:run_id|text)": "([^"]*)"')  # the start of a line


def run_id(started, group=None):
    """Return the id of a run. group: of those that take turns; by default the run has its own."""
    return f"{started:%Y%m%dT%H%M%S.%fZ}-{group or secrets.token_hex(4)}"


def append(path, rows, record=None):
    """Append rows, dicts of COLUMNS, and the record of their run: all of it or nothing.

    None is written as an empty field. It takes the same time whatever the file's size. Raises
    UserError where the file is damaged, cannot be written, or the disk is full.
    """
    text = _as_lines(rows)
    convert(path)
    with locked(path) as file:
        check(path)
        if os.fstat(file).st_size == 0:
            text = f"{HEADER}\n{text}"
        # The rows are last: a record without rows is no run.
        recorded = record_appended(path, record) if record else nullcontext()
        with recorded, naming(path, "nothing was appended"):
            files.append_whole(file, text)


def _as_lines(rows):
    """Return rows, dicts of COLUMNS, as lines of a file."""
    lines = io.StringIO()
    csv.DictWriter(lines, COLUMNS, lineterminator="\r\n").writerows(rows)  # so that it quotes \r
    return lines.getvalue().replace("\r\n", "\n")


def convert(path):
    """Give a file from before the columns `old_rows.ADDED` these columns, and say so.

    The old file is kept under a dated name. Raises UserError if it is damaged or cannot be written.
    """
    path = Path(path)
    if columns_of(path) != OLD_COLUMNS:
        return
    with locked(path):
        if columns_of(path) != OLD_COLUMNS:  # another run has converted it meanwhile
            return
        check(path)
        if has_rows(path):
            _frame(path)  # raises UserError at a damaged line
        archive = _archive_of(path)
        rows = old_rows.fill_texts(partial(_texts, path), path)
        with files.written_whole(path.resolve()) as file, naming(path, "nothing was converted"):
            file.write(f"{HEADER}\n".encode())
            while chunk := [*islice(rows, CHUNK)]:
                file.write(_as_lines(chunk).encode())
            file.flush()
            _copy(path, archive)
    added = ", ".join(old_rows.ADDED)
    print(f"{path}: now with the columns {added}; the file of before is {archive}", file=sys.stderr)


def _copy(path, archive):
    """Copy a file: all of it or nothing."""
    try:
        shutil.copy2(path, archive)
    except OSError:
        archive.unlink(missing_ok=True)
        raise


def _archive_of(path):
    """Return the dated name under which a file is kept."""
    return path.with_stem(f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S-%f}")


def columns_of(path):
    """Return the columns of a results file by its header, None for any other or missing file."""
    with suppress(OSError), open(path, newline="", errors="backslashreplace") as file:
        return COLUMNS_OF_HEADER.get(file.readline())


def initialize(path):
    """Write the header to a missing or empty file. Return whether it was written."""
    is_new = not os.path.exists(path) or os.path.getsize(path) == 0
    append(path, [])
    return is_new


def reset(path):
    """Archive the file, damaged or not, with its records. Start a new one. Return the archive."""
    path = Path(path)
    with locked(path):
        archive = _archive_of(path)
        path.rename(archive)
        if records_path(path).exists():
            records_path(path).rename(records_path(archive))
    initialize(path)
    return archive


def check(path, mode="r+b"):
    """Check the header and the end of a file, and that a run may append to it, or create it.

    mode: of opening it, as os.access() knows less. Raises UserError with file, line and remedy.
    """
    path = Path(path)
    with naming(path):
        if not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()  # raises where no file can be made
            return
        if not path.is_file():
            raise UserError(f"{path}: not a file")
        with path.open(mode) as file:
            header = file.readline()
            file.seek(-1 if header else 0, os.SEEK_END)
            end = file.read()
    if header and (columns_of(path) is None or end != b"\n"):
        raise _damage(path)


def has_rows(path):
    """Return whether a file exists and holds something beside its header."""
    return os.path.exists(path) and os.path.getsize(path) not in {0, *map(len, COLUMNS_OF_HEADER)}


def text_rows(path, start=0):
    """Return the rows after byte offset `start` as dicts of strings, unchecked.

    Without a file there are none. For the few rows of a new run; `read` is for files of any size.
    """
    if not Path(path).exists():
        return []
    start = start if start <= os.path.getsize(path) else 0  # reset meanwhile
    rows = [*_texts(path, start)]
    if rows and columns_of(path) == OLD_COLUMNS:
        rows = [*old_rows.fill_texts(lambda: rows, path)]
    return rows


def _texts(path, start=0):
    """Yield the rows after a byte offset as the file has them, dicts of strings."""
    columns = columns_of(path) or COLUMNS
    with open(path, newline="") as file:
        file.seek(start)
        yield from islice(csv.DictReader(file, columns), 0 if start else 1, None)


def read(path):
    """Read a file into a DataFrame of COLUMNS, one row per step. Texts are ordered categories, so
    that the newest run is the largest run_id.
    Raises UserError where there is no row, or a damaged line.
    """
    if not has_rows(path):
        problem = "no results yet" if os.path.exists(path) else "no such file"
        raise UserError(f"{path}: {problem}", "make baseline writes some")
    rows = _frame(path)
    if columns_of(path) == OLD_COLUMNS:
        rows = old_rows.fill(rows, path)
    return rows[[*COLUMNS]].astype(dict.fromkeys(INTEGERS, "int64"))


def _frame(path):
    """Return the rows of a file, a DataFrame of the columns that it has. Raises UserError."""
    import pandas  # here, because a training script does not need it

    check(path, "rb")
    columns = columns_of(path)
    with open(path, "rb") as file:
        commas = sum(block.count(b",") for block in iter(lambda: file.read(2**20), b""))
    types = dict.fromkeys(NUMBERS, float) | dict.fromkeys(NAMES, str)  # such as 2.10, or 007
    missing = dict.fromkeys(NUMBERS, ["", "nan", "NaN"])
    options = {"keep_default_na": False, "na_values": missing, "low_memory": False}
    texts_of_file = [name for name in TEXTS if name in columns]
    chunks = []
    try:
        for chunk in pandas.read_csv(path, dtype=types, chunksize=CHUNK, **options):
            for name in texts_of_file:
                chunk[name] = chunk[name].astype("category").cat.rename_categories(str)
            chunks.append(chunk)
    except ValueError:  # as pandas raises it: without a line, or with the wrong one
        raise _damage(path) from None
    rows = pandas.concat([chunk[[*NUMBERS]] for chunk in chunks], ignore_index=True)
    for name in texts_of_file:
        parts = [chunk[name] for chunk in chunks]
        texts = pandas.api.types.union_categoricals(parts, sort_categories=True)
        commas -= texts.categories.str.count(",").to_numpy()[texts.codes].sum()
        rows[name] = texts.as_ordered()
    has_all_fields = commas == (len(columns) - 1) * (len(rows) + 1)  # pandas fills missing ones
    if not has_all_fields or any(wrong.any() for _, wrong in _wrong(rows)):
        raise _damage(path)
    return rows


def _wrong(row):
    """Yield each column with a rule and whether its value breaks that, for a dict of values or for
    a DataFrame.
    """
    timed = row["status"] == "ok"
    if "suite" in row:  # not of an old file
        yield "suite", sum(row["suite"] == suite for suite in SUITES) == 0
    yield "status", sum(row["status"] == status for status in STATUSES) == 0
    yield "phase", timed & (row["phase"] != "warmup") & (row["phase"] != "timed")
    yield "grade", timed & (row["grade"] != "clean") & (row["grade"] != "tainted")
    yield "grade", (row["status"] != "ok") & (row["grade"] != "")
    yield "step", timed & (row["step"] % 1 != 0)
    for name in INTEGERS:
        yield name, (row[name] % 1 != 0) | (abs(row[name]) >= 2**63)
    for name in MEASURED:
        yield name, timed & ((row[name] < 0) | (row[name] * 0 != 0))  # NaN and infinite ones too


def _damage(path):
    """Return a UserError that names the first damaged line of a file."""
    number = 1
    with open(path, newline="", errors="backslashreplace") as file:
        columns = COLUMNS_OF_HEADER.get(file.readline())
        problem = "" if columns else "unknown header"
        lines = csv.reader(file, strict=True)
        try:
            while not problem:
                number = lines.line_num + 2
                problem = _problem(next(lines), columns)
        except StopIteration:
            number -= 1
            problem = "is cut off"
        except csv.Error as error:
            problem = f"cannot be read ({error})"
    remedy = f"fix that line, or archive the file with make reset RESULTS_FILE={path}"
    return UserError(f"{path}:{number}: {problem}", remedy)


def _problem(fields, columns):
    """Return the problem of a row, a list of strings, or None."""
    if len(fields) != len(columns):
        return f"has {len(fields)} fields instead of {len(columns)}"
    texts = dict(zip(columns, fields, strict=True))
    values = dict(texts)
    for name in NUMBERS:
        try:
            values[name] = float(texts[name] or "nan")
        except ValueError:
            return f"{name} cannot be {texts[name]!r}"
    wrong = [name for name, is_wrong in _wrong(values) if is_wrong]
    return f"{wrong[0]} cannot be {texts[wrong[0]]!r}" if wrong else None


@contextmanager
def locked(path, held=""):
    """Open the file for appending, creating it if needed, and lock out other runs.

    held: message of the UserError where another has the lock; without it, wait for that.
    """
    while True:
        with naming(path):
            file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        with os.fdopen(file, "ab", buffering=0):  # which closes it
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


def records_path(results_file):
    """Return the path of the records that belong to a results file."""
    return Path(results_file).with_suffix(".jsonl")


@contextmanager
def record_appended(results_file, record):
    """Append a record, a dict, and take it back where the block raises.

    The results file has to be locked. Raises UserError.
    """
    path = records_path(results_file)
    with naming(path, "nothing was appended"), open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - RECENT))
        recent = file.read()
        lines = [] if recent.endswith(b"\n") or not recent else [""]  # the end of a killed process
        for name in SHARED:
            if text := record.get(name):
                key = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
                record = record | {name: key}
                line = json.dumps({"text": key, "content": text})
                if line.encode() not in recent:
                    lines.append(line)
        first = {"run_id": record["run_id"]}  # by which `read_records` finds it
        lines += [json.dumps(first | record, default=str), ""]
        try:
            files.append_whole(file.fileno(), "\n".join(lines))
            yield
        except BaseException:
            file.truncate(size)
            raise


def read_records(results_file, run_ids):
    """Return the records of runs, dicts by run_id, with their shared texts.

    Other lines of the file are not parsed. Missing and damaged records are left out.
    """
    requested = {*run_ids}
    texts = {}
    records = {}
    for key, line in _records(results_file):
        if line.startswith(b'{"text"'):
            texts[key] = line
        elif key in requested:
            records[key] = _parsed(line)
    for record in records.values():
        for name in SHARED:
            record[name] = _parsed(texts.get(str(record.get(name)), b"")).get("content", "")
    return {key: record for key, record in records.items() if "run_id" in record}


def run_ids_of(suite_id, results_file):
    """Return the run_ids of a suite's records. Some may have no rows."""
    mark = f'"suite_id": "{suite_id}"'.encode()
    return {key for key, line in _records(results_file) if mark in line}


def _records(results_file):
    """Yield the first value of each line, a run_id or a hash, and the line."""
    with suppress(FileNotFoundError), open(records_path(results_file), "rb") as file:
        for line in file:
            if start := RECORD.match(line):
                yield start[1].decode(errors="replace"), line


def _parsed(line):
    """Return the dict of a line; an empty one where it is damaged."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {}
