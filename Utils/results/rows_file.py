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
import io
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from Utils.base import files, paths
from Utils.base.errors import UserError, naming
from Utils.results import old_rows
from Utils.results.row_rules import (
    COLUMNS,
    COLUMNS_OF_HEADER,
    HEADER,
    INTEGERS,
    NUMBERS,
    OLD_COLUMNS,
    OLD_HEADER,
    TEXTS,
    broken_rules,
    damage,
)

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it

CHUNK = 100_000  # rows converted at once
SHARED = ("source", "collect_env")  # texts of records
# A shared text is not written again if the last RECENT bytes of the file have it. In a larger file
# a text may be repeated, but appending takes the same time.
RECENT = 2**20
RECORD = re.compile(rb'\{"(?:run_id|text)": "([^"]*)"')  # the start of a line


def run_id(started: datetime, group: str | None = None) -> str:
    """Return the id of a run. group: that of runs in turns; by default the run has its own."""
    return f"{started:%Y%m%dT%H%M%S.%fZ}-{group or secrets.token_hex(4)}"


def append(path: Path, rows: Iterable[dict], record: dict | None = None) -> None:
    """Append rows, dicts of COLUMNS, and the record of their run: all of it or nothing.

    None is written as an empty field. The time does not depend on the file's size. Raises UserError
    if the file is damaged, cannot be written, or the disk is full.
    """
    text = _as_lines(rows)
    convert(path)
    with locked(path) as file:
        check(path)
        if os.fstat(file).st_size == 0:
            text = f"{HEADER}\n{text}"

        # The rows are last: a record without rows does not count as a run.
        recorded = record_appended(path, record) if record else nullcontext()
        with recorded, naming(path, "nothing was appended"):
            files.atomic_append(file, text)


def _as_lines(rows):
    """Return rows, dicts of COLUMNS, as lines of a file."""
    lines = io.StringIO()
    csv.DictWriter(lines, COLUMNS, lineterminator="\r\n").writerows(rows)  # so that it quotes \r
    return lines.getvalue().replace("\r\n", "\n")


def convert(path: Path) -> None:
    """Add the columns `old_rows.ADDED` to a file from before them, and say so on stderr.

    The old file is kept under a dated name. Raises UserError if it is damaged or cannot be written.
    """
    path = Path(path)
    if columns_of(path) != OLD_COLUMNS:
        return

    with locked(path):
        if columns_of(path) != OLD_COLUMNS:  # another run has converted it meanwhile
            return
        check(path)
        archive = _archive_of(path)
        rows = _texts(path)
        with files.atomic_write(path.resolve()) as file, naming(path, "nothing was converted"):
            file.write(f"{HEADER}\n".encode())
            while chunk := [*islice(rows, CHUNK)]:
                file.write(_as_lines(chunk).encode())
            file.flush()  # raises if the disk is full, before the copy is made
            with files.atomic_write(archive) as copy, path.open("rb") as original:
                shutil.copyfileobj(original, copy)

    added = ", ".join(old_rows.ADDED)
    print(f"{path}: now with the columns {added}; the file of before is {archive}", file=sys.stderr)


def _archive_of(path):
    """Return the dated name under which a file is kept."""
    return path.with_stem(f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S-%f}")


def columns_of(path: Path) -> tuple | None:
    """Return the columns of a results file by its header, None for any other or missing file."""
    with suppress(OSError), open(path, newline="", errors="backslashreplace") as file:
        return COLUMNS_OF_HEADER.get(file.readline())


def initialize(path: Path) -> bool:
    """Write the header to a missing or empty file. Return whether it was written."""
    is_new = not os.path.exists(path) or os.path.getsize(path) == 0
    append(path, [])
    return is_new


def reset(path: Path) -> Path:
    """Archive the file, damaged or not, with its records. Start a new one. Return the archive."""
    path = Path(path)
    with locked(path):
        archive = _archive_of(path)
        path.rename(archive)
        if records_path(path).exists():
            records_path(path).rename(records_path(archive))
    try:
        initialize(path)
    except UserError as error:
        raise UserError(error.message, f"its rows are kept as {archive}") from None
    return archive


def check(path: Path, mode: str = "r+b") -> None:
    """Check the header and the end of a file, and that a run may append to it, or create it.

    mode: the file is opened with it, because os.access() does not see all that forbids writing.
    Raises UserError with file, line and remedy.
    """
    path = Path(path)
    with naming(path):
        if not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()  # raises if no file can be made there
            return
        if not path.is_file():
            raise UserError(f"{path}: not a file")

        with path.open(mode) as file:
            header = file.readline()
            file.seek(-1 if header else 0, os.SEEK_END)
            end = file.read()

    if header and (columns_of(path) is None or end != b"\n"):
        raise damage(path)


def has_rows(path: Path) -> bool:
    """Return whether a file exists and has something after its header."""
    sizes_without_rows = (0, len(HEADER) + 1, len(OLD_HEADER) + 1)
    return os.path.exists(path) and os.path.getsize(path) not in sizes_without_rows


def read_as_texts(path: Path, start: int = 0) -> list[dict[str, str]]:
    """Return the rows after byte offset `start` as dicts of strings, unchecked.

    Without a file there are none. For the few rows of a new run; `read` is for files of any size.
    """
    if not Path(path).exists():
        return []

    if start > os.path.getsize(path):  # reset meanwhile
        start = 0
    return [*_texts(path, start)]


def _texts(path, start=0):
    """Yield the rows after a byte offset as the file has them, dicts of strings.

    All rows of an old file have the columns `old_rows.ADDED` too.
    """
    columns = columns_of(path) or COLUMNS
    with open(path, newline="") as file:
        file.seek(start)
        lines_of_header = 0 if start else 1
        rows = islice(csv.DictReader(file, columns), lines_of_header, None)
        if columns == OLD_COLUMNS and has_rows(path):
            added = read(path)[[*old_rows.ADDED]].itertuples(index=False)
            rows = (row | more._asdict() for row, more in zip(rows, added, strict=True))
        yield from rows


def read(path: Path, with_pairs: bool = False) -> "pd.DataFrame":
    """Read a file into a DataFrame of COLUMNS, one row per step.

    Texts are ordered categories, so the newest run has the largest run_id. Raises UserError if
    there is no row, or a damaged line.

    with_pairs: also the rows of `make pair`, which no other command shows. Without them there may
        be none.
    """
    if not has_rows(path):
        problem = "no results yet" if os.path.exists(path) else "no such file"
        raise UserError(f"{path}: {problem}", "run make all to measure this machine")

    rows = _frame(path)
    if columns_of(path) == OLD_COLUMNS:
        rows = old_rows.fill(rows, path)
    if not with_pairs:
        rows = rows[rows.suite != "pair"]
    return rows[[*COLUMNS]].astype(dict.fromkeys(INTEGERS, "int64"))


def _frame(path):
    """Return the rows of a file, a DataFrame of the columns that it has. Raises UserError."""
    import pandas as pd  # noqa: PLC0415  (a training script does not need it)

    check(path, "rb")
    columns = columns_of(path)
    text_columns = [name for name in TEXTS if name in columns]

    try:
        rows = pd.read_csv(
            path,
            dtype=dict.fromkeys(NUMBERS, float) | dict.fromkeys(text_columns, str),
            keep_default_na=False,
            na_values=dict.fromkeys(NUMBERS, ["", "nan", "NaN"]),
        )
        with open(path, newline="") as file:  # pandas fills a line with too few fields
            lengths = {len(fields) for fields in csv.reader(file)}
    except (ValueError, csv.Error):  # pandas names no line, or the wrong one
        raise damage(path) from None

    rows = rows.astype(dict.fromkeys(text_columns, pd.CategoricalDtype(ordered=True)))
    is_cut = not lengths <= {0, len(columns)}  # an empty line has no field
    if is_cut or any(is_broken.any() for _, is_broken in broken_rules(rows)):
        raise damage(path)
    return rows


@contextmanager
def locked(path: Path, held: str = "") -> Iterator[int]:
    """Open the file for appending, creating it if needed, and lock out other runs.

    Yields the file's descriptor.

    held: message of the UserError if another process has the lock; without a message, wait for it.
    """
    operation = fcntl.LOCK_EX | fcntl.LOCK_NB if held else fcntl.LOCK_EX
    while True:
        with naming(path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            try:
                fcntl.flock(file, operation)
            except BlockingIOError:
                raise UserError(held) from None
            except OSError as error:  # some network file systems have no locks
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from None

            # `make reset` may have moved the file meanwhile: then lock the new one.
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                yield descriptor
                return


def records_path(results_file: Path) -> Path:
    """Return the path of the records that belong to a results file."""
    return Path(results_file).with_suffix(".jsonl")


@contextmanager
def record_appended(results_file: Path, record: dict) -> Iterator[None]:
    """Append a record, and take it back if the block raises.

    The results file has to be locked. Raises UserError.
    """
    path = records_path(results_file)
    with naming(path, "nothing was appended"), open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - RECENT))
        recent = file.read()

        lines = []
        if recent and not recent.endswith(b"\n"):
            lines.append("")  # ends the line of a killed process

        # In place of a shared text the record has its hash; a new text is a line before it.
        stored = {"run_id": record["run_id"]} | record  # `read_records` finds it by its first key
        for name in SHARED:
            text = record.get(name)
            if text:
                key = paths.digest(text)
                stored[name] = key
                line = json.dumps({"text": key, "content": text})
                if line.encode() not in recent:
                    lines.append(line)
        lines.append(json.dumps(stored, default=str))

        try:
            files.atomic_append(file.fileno(), "\n".join([*lines, ""]))
            yield
        except BaseException:
            file.truncate(size)
            raise


def read_records(results_file: Path, run_ids: Iterable[str]) -> dict[str, dict]:
    """Return the records of runs by run_id, with their shared texts.

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
            line = texts.get(str(record.get(name)), b"")
            record[name] = _parsed(line).get("content", "")
    return {key: record for key, record in records.items() if "run_id" in record}


def run_ids_of(suite_id: str, results_file: Path) -> set[str]:
    """Return the run_ids of a suite's records. Some may have no rows."""
    mark = f'"suite_id": "{suite_id}"'.encode()
    return {key for key, line in _records(results_file) if mark in line}


def _records(results_file):
    """Yield the first value of each line, a run_id or a hash, and the line."""
    with suppress(FileNotFoundError), open(records_path(results_file), "rb") as file:
        for line in file:
            start = RECORD.match(line)
            if start:
                yield start[1].decode(errors="replace"), line


def _parsed(line):
    """Return the dict of a line, or an empty one if the line is damaged."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {}
