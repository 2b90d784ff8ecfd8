"""results.csv and, beside it, results.jsonl with the records of runs: append, read.

A run appends all its rows in one write, under a lock, when it has ended. Its record is written
first, and says where its rows start and how many they are. If a killed process wrote fewer, readers
leave these out, and the next append takes them back. Other damage is refused, never repaired.

A line of results.jsonl is a record, or a text that records share.
"""

import csv
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
from typing import TYPE_CHECKING

from Utils.base import files, paths, schema
from Utils.base.errors import UserError, naming, say
from Utils.results.row_rules import (
    COLUMNS,
    HEADER,
    INTEGERS,
    NUMBERS,
    RECORD,
    TEXT,
    TEXTS,
    broken_rules,
    damage,
)

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it

PLACE = {"run_id": str, "rows": int, "start": int}  # in a record: number and offset of its rows
UNFINISHED = "the rows at its end are of a run that was killed while it wrote them"
OF_ONE_COMMAND = ("pair", "peers")  # suites whose rows no other command shows
SHARED = ("source", "collect_env")  # texts of records
# A shared text is not written again if the last RECENT bytes of the file have it. In a larger file
# a text may be repeated, but appending takes the same time.
RECENT = 2**20
START = re.compile(rb'\{"(?:run_id|text)": "([^"]*)"')  # of a line


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
        check(path)
        whole = whole_size(path)
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


def check(path: Path, mode: str = "r+b") -> None:
    """Check the header and the end of a file, and that a run may append to it, or create it.

    mode: the file is opened with it, because os.access() does not see all that forbids writing.
    Raises UserError with file, line and remedy.
    """
    path = Path(path)
    with naming(path):
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a file")
        _check_records(path)
        if not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()  # raises if no file can be made there
            return

        with path.open(mode) as file:
            whole = whole_size(path)
            file.seek(max(0, whole - 1))
            end = file.read(1)

    if whole and (not _has_header(path) or end != b"\n"):
        raise damage(path)


def _has_header(path):
    """Return whether a file is there and begins with the header of a results file."""
    with suppress(OSError), open(path, newline="", errors="backslashreplace") as file:
        return file.readline() == f"{HEADER}\n"
    return False


def _check_records(path):
    """Raise UserError if a file's records are of another results file, or are no records."""
    namesake = path.with_name(path.stem if path.suffix == ".csv" else f"{path.name}.csv")
    key, first_line = next(_records(path), ("", b""))
    if _has_header(namesake) or (first_line and not key):
        problem = f"{records_path(path)}: does not belong to {path}"
        raise UserError(problem, "give another RESULTS_FILE")


def whole_size(path: Path) -> int:
    """Return the size in bytes of a file without rows that a killed process has left at its end.

    They are fewer than their record says. The time does not depend on the file's size.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= len(HEADER) and HEADER.encode().startswith(file.read()):
            return 0
        last = _last_record(path)
        start = max(0, min(size, last.get("start", size)))
        file.seek(start)
        end = file.read()

    count = 0 if end.endswith(b"\n") else -1  # the row that is cut off is none
    with suppress(csv.Error):
        for fields in csv.reader(_as_text(end, "replace"), strict=True):
            count += len(fields) == len(COLUMNS)
    mark = f"{last.get('run_id')},".encode()
    is_of_run = end and end[: len(mark)] == mark[: len(end)]
    return start if is_of_run and count < last["rows"] else size


def _last_record(results_file):
    """Return the last record with a place in the file, {} without one."""
    path = records_path(results_file)
    if path.exists():
        with naming(path), open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - RECENT))
            lines = file.readlines()
        for line in reversed(lines):
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if not schema.problem(record, PLACE):
                    return record
    return {}


def has_rows(path: Path) -> bool:
    """Return whether a file exists and has something after its header."""
    return os.path.exists(path) and whole_size(path) not in (0, len(HEADER) + 1)


def read_as_texts(path: Path, start: int = 0) -> list[dict[str, str]]:
    """Return the rows after byte offset `start` as dicts of strings, unchecked.

    Without a file there are none. For the few rows of a new run; `read` is for files of any size.
    """
    if not Path(path).exists():
        return []

    whole = _whole(path)
    if start > len(whole):  # reset meanwhile
        start = 0
    rows = [*csv.DictReader(_as_text(whole[start:]), COLUMNS)]
    return rows if start else rows[1:]  # without the header


def read(path: Path, with_pairs: bool = False) -> "pd.DataFrame":
    """Read a file into a DataFrame of COLUMNS, one row per step.

    Texts are ordered categories, so the newest run has the largest run_id. Raises UserError if
    there is no row, or a damaged line.

    with_pairs: also the rows of `make pair` and `make peers`. Without them there may be none.
    """
    if not has_rows(path):
        problem = "no results yet" if os.path.exists(path) else "no such file"
        raise UserError(f"{path}: {problem}", "run make all to measure this machine")

    import pandas as pd  # noqa: PLC0415  (a training script does not need it)

    check(path, "rb")
    whole = _whole(path)
    if len(whole) < os.path.getsize(path):
        say(f"{path}: {UNFINISHED}, and are left out", sys.stderr)

    try:
        rows = pd.read_csv(
            io.BytesIO(whole),
            dtype=dict.fromkeys(NUMBERS, float) | dict.fromkeys(TEXTS, str),
            keep_default_na=False,
            na_values=dict.fromkeys(NUMBERS, ["", "nan", "NaN"]),
        )
        # pandas fills a line with too few fields.
        lengths = {len(fields) for fields in csv.reader(_as_text(whole))}
    except (ValueError, csv.Error):  # pandas names no line, or the wrong one
        raise damage(path) from None

    rows = rows.astype(dict.fromkeys(TEXTS, pd.CategoricalDtype(ordered=True)))
    is_cut = not lengths <= {0, len(COLUMNS)}  # an empty line has no field
    if is_cut or any(is_broken.any() for _, is_broken in broken_rules(rows)):
        raise damage(path)

    if not with_pairs:
        rows = rows[~rows.suite.isin(OF_ONE_COMMAND)]
    return rows[[*COLUMNS]].astype(dict.fromkeys(INTEGERS, "int64"))


def _whole(path):
    """Return the bytes of a file, without the rows that `whole_size` leaves out."""
    return Path(path).read_bytes()[: whole_size(path)]


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
        wrong = schema.problem(values, TEXT if is_text else RECORD, "the line")
        if wrong:
            remedy = f"fix that line, or archive it with make reset RESULTS_FILE={results_file}"
            raise UserError(f"{records_path(results_file)}:{number}: {wrong}", remedy)
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
