"""results.csv and, beside it, results.jsonl with the records of runs: append, read.

A run appends all its rows in one write, under a lock, when it has ended. Its record is written
first, and says where its rows start and how many they are. If a killed process wrote fewer, readers
leave these out, and the next append takes them back. Other damage is refused, never repaired.

A line of results.jsonl is a record, or a text that records share.
"""

import csv
import fcntl
import io
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from Utils.base import files, paths, schema
from Utils.base.errors import UserError, naming, say
from Utils.results.row_rules import (
    COLUMNS,
    CONVERTER,
    HEADER,
    INTEGERS,
    NUMBERS,
    RECORD,
    TEXT,
    TEXTS,
    UNCONVERTED,
    broken_rules,
    first_problem,
)

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it

FIRST_LINE = f"{HEADER}\n".encode()
PLACE = {"run_id": str, "rows": int, "start": int}  # in a record: number and offset of its rows
UNFINISHED = "the rows at its end are of a run that was killed while it wrote them"
OF_ONE_COMMAND = ("pair", "peers")  # suites whose rows no other command shows
SHARED = ("source", "collect_env")  # texts of records
# A shared text is not written again if the last RECENT bytes of the file have it. In a larger file
# a text may be repeated, but appending takes the same time.
RECENT = 2**20
START = re.compile(rb'\{"(?:run_id|text)": "([^"]*)"')  # of a line


class NoResults(UserError):
    """A results file is missing or has no rows."""


def run_id(started: datetime, group: str | None = None) -> str:
    """Return the id of a run. group: that of runs in turns; by default the run has its own."""
    return f"{started:%Y%m%dT%H%M%S.%fZ}-{group or secrets.token_hex(4)}"


def append(path: Path, rows: Iterable[dict], record: dict | None = None) -> None:
    """Append rows, dicts of COLUMNS, and the record of their run: all of it or nothing.

    None is written as an empty field. The time does not depend on the file's size. Raises UserError
    if the file is damaged, cannot be written, or the disk is full.
    """
    rows = list(rows)
    text = _as_lines(rows)
    with files.locked(path) as file, files.uninterrupted():
        with open(file, "rb", closefd=False) as opened:
            whole = check_end(Path(path), opened)
        if whole < os.fstat(file).st_size:
            os.ftruncate(file, whole)
            say(f"{path}: {UNFINISHED}, and are taken back", sys.stderr)

        nothing = "nothing was appended"
        if not whole:
            with naming(path, nothing):
                files.atomic_append(file, f"{HEADER}\n")

        # The rows are last: a record without rows does not count as a run.
        recorded = nullcontext()
        if record:
            place = {"rows": len(rows), "start": os.fstat(file).st_size}
            recorded = record_appended(path, record | place)
        with recorded, naming(path, nothing):
            files.atomic_append(file, text)


def _as_lines(rows):
    """Return rows, dicts of COLUMNS, as lines of a file."""
    lines = io.StringIO()
    csv.DictWriter(lines, COLUMNS, lineterminator="\r\n").writerows(rows)  # so that it quotes \r
    return lines.getvalue().replace("\r\n", "\n")


def initialize(path: Path) -> bool:
    """Write the header to a missing or empty file. Return whether it was written."""
    is_new = not os.path.exists(path) or os.path.getsize(path) == 0
    append(path, [])
    return is_new


def reset(path: Path) -> Path:
    """Archive the file, damaged or not, with its records. Start a new one. Return the archive."""
    path = Path(path)
    with files.locked(path):
        archive = path.with_stem(f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S-%f}")
        path.rename(archive)
        if records_path(path).exists():
            records_path(path).rename(records_path(archive))
    try:
        initialize(path)
    except UserError as error:
        raise UserError(error.message, f"its rows are kept as {archive}") from None
    return archive


def check(path: Path) -> None:
    """Check the header and the end of a file, and that a run may append to it, or create it.

    It is opened, because os.access() does not see all that forbids writing. Raises UserError with
    file, line and remedy.
    """
    path = Path(path)
    if path.exists():
        if not path.is_file():
            raise UserError(f"{path}: not a file")
        whole_size(path, "r+b")
    else:
        _last_record(path)
        with naming(path):
            tempfile.TemporaryFile(dir=path.parent).close()  # raises if no file can be made there


def check_end(path: Path, file: BinaryIO) -> int:
    """Return the size of an open file without rows that a killed process has left at its end.

    They are fewer than their record says. Raises UserError if the header or the last line is
    damaged. The time does not depend on the file's size.
    """
    size = os.fstat(file.fileno()).st_size
    last = _last_record(path)
    file.seek(0)
    head = file.read(len(FIRST_LINE))
    if head != FIRST_LINE:
        if FIRST_LINE.startswith(head):
            return 0
        if head.startswith(f"{UNCONVERTED}\n".encode()):
            command = f"make init_results RESULTS_FILE={path}"
            remedy = f"convert it: git switch --detach {CONVERTER} && {command} && git switch -"
            raise UserError(f"{path}:1: has no columns suite, parent and change", remedy)
        raise _damage(path, 1, "unknown header")

    # The rows at the end, with the line end before them, are of the last record if they begin with
    # its run_id.
    start = max(1, min(size, last.get("start", size)))
    file.seek(start - 1)
    end = file.read()
    is_cut = not end.endswith(b"\n")
    count = -1 if is_cut else 0  # the row that is cut off is none
    with suppress(csv.Error):
        for fields in csv.reader(_as_text(end, "replace"), strict=True):
            count += len(fields) == len(COLUMNS)
    mark = f"\n{last.get('run_id')},".encode()
    if end[: len(mark)] == mark[: len(end)] and count < last.get("rows", 0):
        return start
    if is_cut:
        file.seek(0)
        raise _damage(path, len(file.readlines()), "is cut off")
    return size


def _damage(path, number, problem, damaged_path=None):
    """Return a UserError that names a damaged line of a file or its records, and what to do."""
    remedy = f"fix that line, or archive the file with make reset RESULTS_FILE={path}"
    return UserError(f"{damaged_path or path}:{number}: {problem}", remedy)


def _last_record(results_file):
    """Return the last record with a place in the file, {} without one.

    Raises UserError if the records are of another results file, or are no records.
    """
    name = results_file.stem if results_file.suffix == ".csv" else f"{results_file.name}.csv"
    is_shared = False
    with suppress(OSError), open(results_file.with_name(name), "rb") as file:
        is_shared = file.read(len(FIRST_LINE)) == FIRST_LINE

    path = records_path(results_file)
    lines = []
    if path.exists():
        with naming(path), open(path, "rb") as file:
            lines = _recent(file).splitlines()
    if is_shared or (lines and not any(map(START.match, lines))):
        problem = f"{path}: does not belong to {results_file}"
        raise UserError(problem, "give another RESULTS_FILE")

    for line in reversed(lines):
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            schema.check(record, PLACE)
            return record
    return {}


def _recent(file):
    """Return the last RECENT bytes of an open file."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - RECENT))
    return file.read()


def whole_size(path: Path, mode: str = "rb") -> int:
    """Return the size of a file as `check_end` does, 0 without one. mode: to open it with."""
    if not os.path.exists(path):
        return 0
    with naming(path), open(path, mode) as file:
        return check_end(Path(path), file)


def has_rows(path: Path) -> bool:
    """Return whether a file exists and has something after its header."""
    return whole_size(path) > len(FIRST_LINE)


def read_as_texts(path: Path, start: int = 0) -> list[dict[str, str]]:
    """Return the rows after byte offset `start` as dicts of strings, unchecked.

    Without a file there are none. For the few rows of a new run; `read` is for files of any size.
    """
    rows = csv.DictReader(_as_text(_content(path, start)), COLUMNS)
    return [row for row in rows if row["run_id"] != COLUMNS[0]]  # without the header


def _content(path, start=0):
    """Return the bytes of a file after an offset, without rows that `check_end` leaves out.

    Return all if the file was reset meanwhile, and b"" without a file.
    """
    if not os.path.exists(path):
        return b""
    with naming(path), open(path, "rb") as file:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_SH)
        whole = check_end(Path(path), file)
        file.seek(start if start <= whole else 0)
        return file.read(whole - file.tell())


def read(path: Path, with_pairs: bool = False) -> "pd.DataFrame":
    """Read a file into a DataFrame of COLUMNS, one row per step.

    Texts are ordered categories, so the newest run has the largest run_id. Raises NoResults if
    there is no row, and UserError for a damaged line.

    with_pairs: also the rows of `make pair` and `make peers`. Without them there may be none.
    """
    import pandas as pd  # noqa: PLC0415  (a training script does not need it)

    content = _content(path)
    if len(content) <= len(FIRST_LINE):
        problem = "no results yet" if os.path.exists(path) else "no such file"
        raise NoResults(f"{path}: {problem}", "run make all to measure this machine")
    if len(content) < os.path.getsize(path):
        say(f"{path}: {UNFINISHED}, and are left out", sys.stderr)

    # pandas would convert texts that are all numbers: so a last row has other texts.
    last_row = ",".join("x" if name in TEXTS else "" for name in COLUMNS)
    text = pd.CategoricalDtype(ordered=True)
    is_damaged = True
    with suppress(ValueError):  # pandas names no line, or the wrong one
        rows = pd.read_csv(
            io.BytesIO(content + last_row.encode()),
            dtype=dict.fromkeys(NUMBERS, float) | dict.fromkeys(TEXTS, text),
            keep_default_na=False,
            na_values=dict.fromkeys(NUMBERS, ["", "nan", "NaN"]),
        )[:-1]

        # pandas fills a line with too few fields: then commas are missing.
        commas = (1 + len(rows)) * (len(COLUMNS) - 1)
        for name in TEXTS:
            commas += rows[name].map(lambda value: value.count(",")).astype(int).sum()
        is_cut = content.count(b",") != commas
        is_damaged = is_cut or any(is_broken.any() for _, is_broken in broken_rules(rows))
    if is_damaged:
        raise _damage(path, *first_problem(_as_text(content, "surrogateescape")))

    if not with_pairs:
        rows = rows[~rows.suite.isin(OF_ONE_COMMAND)]
    return rows.astype(dict.fromkeys(INTEGERS, "int64"))


def _as_text(lines, errors="strict"):
    """Return bytes as a text file for the csv module."""
    return io.TextIOWrapper(io.BytesIO(lines), "utf-8", errors, newline="")


def records_path(results_file: Path) -> Path:
    """Return the path of the records that belong to a results file.

    It is NAME.jsonl for NAME.csv, and for any other name that name and .jsonl.
    """
    path = Path(results_file)
    return path.with_name(f"{path.name.removesuffix('.csv')}.jsonl")


@contextmanager
def record_appended(results_file: Path, record: dict) -> Iterator[None]:
    """Append a record, and take it back if the block raises.

    The results file has to be locked. Raises UserError.
    """
    path = records_path(results_file)
    with naming(path, "nothing was appended"), open(path, "ab+", buffering=0) as file:
        recent = _recent(file)
        size = file.tell()

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

    Records of other runs are not parsed. Missing records are left out, and so are lines that a
    killed process has cut off. Raises UserError with the line of any other damage.
    """
    requested = {*run_ids}
    texts = {}
    records = {}
    for number, (key, line) in enumerate(_records(results_file), 1):
        is_text = line.startswith(b'{"text"')
        if key and not is_text and key not in requested:
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        try:
            schema.check(values, TEXT if is_text else RECORD, "the line")
        except ValueError as error:
            raise _damage(results_file, number, error, records_path(results_file)) from None
        if is_text:
            texts[key] = values["content"]
        elif values["run_id"] in requested:
            records[values["run_id"]] = values

    for record in records.values():
        for name in SHARED:
            record[name] = texts.get(record.get(name), "")
    return records


def run_ids(results_file: Path, suite_id: str | None = None) -> set[str]:
    """Return the run_ids of all records, or of a suite's. Some may have no rows."""
    mark = f'"suite_id": "{suite_id}"'.encode() if suite_id else b'{"run_id"'
    return {key for key, line in _records(results_file) if key and mark in line}


def _records(results_file):
    """Yield the first value of each line, a run_id or a hash, "" without one, and the line."""
    path = records_path(results_file)
    if path.exists():
        with naming(path), open(path, "rb") as file:
            for line in file:
                start = START.match(line)
                yield start[1].decode(errors="replace") if start else "", line
