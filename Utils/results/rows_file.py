"""results.csv: append, read. Its records are in results.jsonl, see records_file.

A run appends all its rows in one write, under a lock, when it has ended. Its record is written
first and announces them. If a killed process wrote fewer, readers leave these out, and the next
append moves them to a file beside. Other damage is refused, never repaired.
"""

import csv
import fcntl
import io
import os
import secrets
import sys
import tempfile
from collections.abc import Iterable
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from Utils.base import files, paths
from Utils.base.errors import UserError, naming, say, say_once
from Utils.base.text import plural
from Utils.results import records_file
from Utils.results.records_file import checksum, damage, read_records, records_path, run_ids
from Utils.results.row_rules import (
    COLUMNS,
    CONVERTER,
    FIRST_LINE,
    INTEGERS,
    NUMBERS,
    TEXTS,
    UNCONVERTED,
    broken_rule,
    first_problem,
    of_texts,
)

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it

__all__ = [
    "read_records",
    "records_path",
    "run_ids",
]  # from records_file, for callers that read both
UNFINISHED = "the last rows are incomplete, as their run was killed while writing"
OF_ONE_COMMAND = ("pair", "peers")  # suites whose rows no other command shows


class NoResults(UserError):
    """A results file is missing or has no rows."""


def run_id(started: datetime, group: str | None) -> str:
    """Return the id of a run. group: that of runs in turns; without one the run has its own."""
    return f"{started:%Y%m%dT%H%M%S.%fZ}-{group or secrets.token_hex(4)}"


def append(path: Path, rows: Iterable[dict], record: dict | None = None) -> None:
    """Append rows, dicts of COLUMNS, and the record of their run: all of it or nothing.

    None is written as an empty field. The time does not depend on the file's size. Raises UserError
    if the file is damaged, cannot be written, or the disk is full.
    """
    rows = list(rows)
    path = Path(path)
    lines = io.StringIO()
    csv.DictWriter(lines, COLUMNS, lineterminator="\r\n").writerows(rows)  # so that it quotes \r
    text = lines.getvalue().replace("\r\n", "\n").encode(errors="backslashreplace")

    nothing = "nothing was appended"
    with files.locked(path) as file, files.uninterrupted():
        with open(file, "rb", closefd=False) as opened:
            end = check_end(path, opened)
            opened.seek(end)
            unfinished = opened.read()
        if end and unfinished:
            beside = records_file.move_aside(path, records_file.last(path).run_id, unfinished)
            say(f"{path}: {UNFINISHED}; moved to {beside}", sys.stderr)
        os.ftruncate(file, end)
        if not end:
            with naming(path, nothing):
                files.atomic_append(file, FIRST_LINE)

        # The rows are last: a record without rows does not count as a run.
        recorded = nullcontext()
        if rows:
            record = {"run_id": rows[0]["run_id"]} | (record or {})
            start = os.fstat(file).st_size
            recorded = records_file.appended(path, record, start, text)
        with recorded, naming(path, nothing):
            files.atomic_append(file, text)


def initialize(path: Path) -> bool:
    """Write the header to a missing or empty file. Return whether it was written."""
    check(path)
    is_new = not whole_size(path)
    append(path, [])
    return is_new


def reset(path: Path) -> Path:
    """Archive the file, damaged or not, with its records. Start a new one. Return the archive."""
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
    if path.exists():
        if not path.is_file():
            raise UserError(f"{path}: not a file")
        whole_size(path, "r+b")
    else:
        records_file.last(path)
        with naming(path):
            tempfile.TemporaryFile(dir=path.parent).close()  # raises if no file can be made there


def check_end(path: Path, file: BinaryIO) -> int:
    """Return the size of an open file without rows that a killed process has left at its end.

    These are a part, from the start on, of the last rows that a record announces. Raises UserError
    if the header or the end is damaged. The time does not depend on the file's size.
    """
    size = os.fstat(file.fileno()).st_size
    last = records_file.last(path)
    file.seek(0)
    head = file.read(len(FIRST_LINE))
    if head != FIRST_LINE:
        if FIRST_LINE.startswith(head):
            return 0
        if head.startswith(f"{UNCONVERTED}\n".encode()):
            command = f"make init_results RESULTS_FILE={path}"
            remedy = f"convert it: git switch --detach {CONVERTER} && {command} && git switch -"
            raise UserError(f"{path}:1: has no columns suite, parent and change", remedy)
        raise damage(path, 1, "unknown header")

    if last and last.start <= size < last.end:
        file.seek(last.start)
        lines = [line for line in file if line.endswith(b"\n")]
        if last.unchanged(lines) == len(lines):
            return last.start
        file.seek(0)
        _check_rows(path, file.read())

    file.seek(size - 1)
    if file.read() != b"\n":
        file.seek(0)
        raise damage(path, len(file.readlines()), "is cut off")
    return size


def _check_rows(path, content):
    """Return the run_ids of announced rows that are there, and a list of the missing RowsOfRun.

    Raises UserError for a line that is not as it was announced.
    """
    announced = records_file.rows_of_runs(path)
    checked = {}
    start = len(FIRST_LINE)
    while start < len(content):
        run_id = content[start : content.find(b",", start)].decode(errors="replace")
        run = announced.get(run_id)
        if run is None:
            start = content.find(b"\n", start) + 1
            continue

        is_again = run_id in checked
        if is_again or checksum(content[start : start + run.size]) != run.checksum:
            unchanged = 0 if is_again else run.unchanged(io.BytesIO(content[start:]))
            number = content.count(b"\n", 0, start) + 1 + unchanged
            raise damage(path, number, f"is not what run {run_id} wrote there")
        checked[run_id] = run
        start += run.size

    # Rows that a killed process did not write were replaced by those that start at the same byte.
    starts = {run.start for run in checked.values()}
    return checked.keys(), [run for run in announced.values() if run.start not in starts]


def whole_size(path: Path, mode: str = "rb") -> int:
    """Return the size of a file as `check_end` does, 0 without one. mode: to open it with."""
    if not os.path.exists(path):
        return 0
    with _opened(path, mode) as (_, end):
        return end


def has_rows(path: Path) -> bool:
    """Return whether a file exists and has something after its header."""
    return whole_size(path) > len(FIRST_LINE)


@contextmanager
def _opened(path, mode="rb"):
    """Yield an open file, to which no run appends meanwhile, and the result of `check_end`."""
    with naming(path), open(path, mode) as file:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_SH)
        yield file, check_end(Path(path), file)


def read_as_texts(path: Path, start: int = 0) -> list[dict[str, str]]:
    """Return the rows after byte offset `start` as dicts of strings, unchecked.

    Return all if the file was reset meanwhile. Without a file there are none. For the few rows of a
    new run; `read` is for files of any size.
    """
    if not os.path.exists(path):
        return []
    with _opened(path) as (file, end):
        file.seek(start if start <= end else 0)
        rows = csv.DictReader(_as_text(file.read(end - file.tell())), COLUMNS)
    return [row for row in rows if row["run_id"] != COLUMNS[0]]  # without the header


def read(path: Path, with_pairs: bool = False) -> "pd.DataFrame":
    """Read a file into a DataFrame of COLUMNS, one row per step.

    Texts are ordered categories, so the newest run has the largest run_id. Lines on stderr name
    what is missing or was not checked. Raises NoResults if there is no row, and UserError for a
    damaged line.

    with_pairs: also the rows of `make pair` and `make peers`. Without them there may be none.
    """
    remedy = f"run {paths.COMMAND} all to measure this machine"
    if not os.path.exists(path):
        raise NoResults(f"{path}: no such file", remedy)
    with _opened(path) as (file, end):
        file.seek(0)
        content = file.read(end)
        if file.read(1):
            say_once(f"{path}: {UNFINISHED}; left out")
        checked, missing = _check_rows(path, content)
    if end <= len(FIRST_LINE):
        raise NoResults(f"{path}: no results yet", remedy)

    rows = _parsed(path, content)
    all_runs = rows.run_id.unique()
    unchecked = {*all_runs} - checked
    records = records_path(path)
    if unchecked:
        runs = f"{len(unchecked)} of {plural(len(all_runs), 'run')}"
        say_once(f"{path}: not checked: {runs}, without checksums in {records}")
    if missing:
        position = f"{records}:{missing[0].number}"
        say_once(f"{position}: the first of {plural(len(missing), 'run')} without rows in {path}")

    if not with_pairs:
        rows = rows[~rows.suite.isin(OF_ONE_COMMAND)]
    return rows.astype(dict.fromkeys(INTEGERS, "int64"))


def _parsed(path, content):
    """Return the content of a file as a DataFrame. Raises UserError for a damaged line."""
    import pandas as pd  # noqa: PLC0415  (a training script does not need it)

    # pandas would convert texts that are all numbers: so a last row has other texts.
    last_row = ",".join("x" if name in TEXTS else "" for name in COLUMNS)
    text = pd.CategoricalDtype(ordered=True)
    problem = ()
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
            commas += of_texts(lambda text: text.count(","), rows[name]).sum()
        problem = broken_rule(rows)
        is_damaged = content.count(b",") != commas or b"\0" in content or problem
    if is_damaged:
        raise damage(path, *first_problem(_as_text(content, "surrogateescape"), *problem))
    return rows


def _as_text(lines, errors="strict"):
    """Return bytes as a text file for the csv module."""
    return io.TextIOWrapper(io.BytesIO(lines), "utf-8", errors, newline="")
