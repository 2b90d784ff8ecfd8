"""results.jsonl, beside results.csv: the records of runs. Append, check, read.

A line is a record, or a text that records share, and ends with its own checksum. A record also
announces the rows of its run: where they start, how many bytes they have, and the checksum of each
line. So a reader sees what has changed since, and what a killed process did not write.
"""

import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32 as checksum  # it differs for texts that differ in one byte

from Utils.base import files, paths, schema
from Utils.base.errors import UserError, naming, say_once

SHARED = ("source", "collect_env")  # texts of records
# Appending reads only the last RECENT bytes of the file, so that it takes the same time for any
# file. No line is longer; a shared text among them is not written again.
RECENT = 2**24

TEXT = {"text": str, "content": str}  # a line of the file
RECORD = {  # another line, as far as it is read
    "run_id": str,
    "technique?": str,
    "source?": str,
    "collect_env?": str,
    "command?": [str],
    "settings?": dict,
    "versions?": dict,
    "dataset_facts?": dict,
    "round?": int,
    "ended?": str,
    "suite_id?": str,
    "precision?": str,
    "device?": {"memory_mib?": float, "name?": str},
    "before_update?": {"*": float},
    "memory?": {"*": float},
    "compile?": {"graphs?": float, "recompilations?": float, "cache?": str},
    "quality?": {"reasons?": [str], "mean_power_w?": float},
    "limits?": {
        "flops_per_token?": float,
        "datasheet_tflops?": float,
        "floor_ms?": float,
        "precision?": str,
        "ceilings?": {"matmul_tflops?": {"*": float}},
    },
    "own_script?": {"edits?": {"*": list}, "sources?": {"*": str}, "settings?": [str]},
    "patch?": {"digest": str, "switched": str},
    "training?": {"kind": str, "reasons": [str], "steps": int, "remarks": [str]},
}
STARTS = (b'{"run_id": "', b'{"text": "')  # how lines start
START = re.compile(rb'\{"(?:run_id|text)": "([^"]*)"')
ROWS = re.compile(
    rb', "start": (\d+), "bytes": (\d+), "crc32": (\d+), "lines": "((?:[0-9a-f]{8})+)", "check"'
)
PLACE = ("start", "bytes", "crc32", "lines", "check", "rows")  # the last is of older records


@dataclass(frozen=True)
class RowsOfRun:
    """The rows of a run as its record announces them.

    number: the record's line.
    start: offset in the results file when they were written.
    size: number of bytes.
    checksum: the checksum of all rows.
    checksums: a checksum for each line, as hexadecimal digits.
    """

    run_id: str
    number: int
    start: int
    size: int
    checksum: int
    checksums: bytes

    @property
    def end(self) -> int:
        return self.start + self.size

    def unchanged(self, lines: Iterable[bytes]) -> int:
        """Return the number of lines, from the first on, that are as announced."""
        count = 0
        for line in lines:
            if self.checksums[8 * count :][:8] != _digits(line).encode():
                break
            count += 1
        return count


def damage(results_file: Path, number: int, problem: object, file: Path | None = None) -> UserError:
    """Return a UserError for a damaged line of a results file, or of another file beside it."""
    command = f"{paths.COMMAND} reset RESULTS_FILE={results_file}"
    remedy = f"fix that line, or archive the file with {command}"
    return UserError(f"{file or results_file}:{number}: {problem}", remedy)


def records_path(results_file: Path) -> Path:
    """Return the path of the records that belong to a results file.

    It is NAME.jsonl for NAME.csv, and NAME.csv.jsonl for any other NAME.
    """
    path = Path(results_file)
    return path.with_name(f"{path.name}.csv".removesuffix(".csv.csv") + ".jsonl")


@contextmanager
def appended(results_file: Path, record: dict, start: int, rows: bytes) -> Iterator[None]:
    """Append a record, and take it back if the block raises.

    What a killed process has left of a record is moved to a file beside. The results file has to be
    locked. Raises UserError.

    start: offset at which the rows will be written.
    """
    path = records_path(results_file)
    with naming(path, "nothing was appended"), open(path, "ab+", buffering=0) as file:
        recent = _end_of(file)
        size = file.tell()
        if recent and not recent.endswith(b"\n"):
            cut = recent[recent.rfind(b"\n") + 1 :]
            size -= len(cut)
            move_aside(path, f"line-{size}", cut)
            file.truncate(size)

        # In place of a shared text the record has its hash; a new text is a line before it.
        lines = []
        stored = {"run_id": record["run_id"]} | record  # `read_records` finds it by its first key
        for name in SHARED:
            text = record.get(name)
            if text:
                key = stored[name] = paths.digest(text)
                line = _with_checksum({"text": key, "content": text})
                if line.encode() not in recent:
                    lines.append(line)
        stored |= {
            "start": start,
            "bytes": len(rows),
            "crc32": checksum(rows),
            "lines": "".join(map(_digits, io.BytesIO(rows))),
        }
        lines.append(_with_checksum(stored))

        try:
            files.atomic_append(file.fileno(), "\n".join([*lines, ""]).encode())
            yield
        except BaseException:
            file.truncate(size)
            raise


def _digits(line):
    return f"{checksum(line):08x}"


def _with_checksum(values):
    """Return a line whose last value is the checksum of what is before it."""
    text = json.dumps(values, default=str)[:-1]
    return f'{text}, "check": "{_digits(text.encode())}"}}'


def move_aside(path: Path, name: str, content: bytes) -> Path:
    """Write the end of a file to one beside it, unless that is there. Return the latter."""
    beside = path.with_name(f"{path.name}.killed-{name}")
    if not beside.exists():
        with files.atomic_write(beside) as file:
            file.write(content)
    return beside


def last(results_file: Path) -> RowsOfRun | None:
    """Return the last rows that a record announces, None without any.

    Raises UserError if the records are of another results file, or are no records.
    """
    path = records_path(results_file)
    end = b""
    if path.exists():
        with naming(path), open(path, "rb") as file:
            end = _end_of(file)
    *lines, _ = end.split(b"\n")
    is_one_cut = any(start.startswith(end[: len(start)]) for start in STARTS)
    if not is_one_cut and not any(map(START.match, lines)):
        problem = f"{path}: does not belong to {results_file}"
        raise UserError(problem, "give another RESULTS_FILE")
    announced = (_rows_of(line) for line in reversed(lines) if not _is_damaged(line))

    return next(filter(None, announced), None)


def _end_of(file):
    """Return the last RECENT bytes of an open file."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - RECENT))
    return file.read()


def _rows_of(line, number=0):
    """Return the RowsOfRun of a record, None without any."""
    place = ROWS.search(line, max(0, line.rfind(b', "start": ')))
    if not place:
        return None
    start, size, crc32 = map(int, place.groups()[:3])
    return RowsOfRun(_key(line), number, start, size, crc32, place[4])


def _is_damaged(line):
    """Return whether a line differs from its checksum, or has none and is cut off."""
    content, mark, check = line.rpartition(b', "check": ')
    if mark:
        return check.rstrip() != f'"{_digits(content)}"}}'.encode()
    return not (START.match(line) and line.endswith(b"\n"))


def _key(line):
    """Return the first value of a line, a run_id or a hash, "" without one."""
    start = START.match(line)
    return start[1].decode(errors="replace") if start else ""


def rows_of_runs(results_file: Path) -> dict[str, RowsOfRun]:
    """Return the rows that records announce, by run_id. Raises UserError for a damaged line."""
    announced = {}
    for number, line in _whole_lines(results_file):
        rows = _rows_of(line, number)
        if rows:
            announced[rows.run_id] = rows
    return announced


def read_records(results_file: Path, run_ids: Iterable[str]) -> dict[str, dict]:
    """Return the records of runs by run_id, with their shared texts.

    Records of other runs are not parsed. Missing records are left out, and so is a last line that
    is cut off. Raises UserError with the line of any other damage.
    """
    requested = {*run_ids}
    path = records_path(results_file)
    texts = {}
    records = {}
    numbers = {}
    for number, line in _whole_lines(results_file):
        key = _key(line)
        is_text = line.startswith(b'{"text"')
        if not is_text and key not in requested:
            continue
        try:
            values = json.loads(line)
            schema.check(values, TEXT if is_text else RECORD, "the line")
        except (ValueError, RecursionError) as error:
            raise damage(results_file, number, error, path) from None
        if is_text:
            texts[key] = values["content"]
        else:
            record = {name: values[name] for name in values if name not in PLACE}
            if len(record) > 1:  # otherwise it announces rows alone
                numbers[key] = number
                records[key] = record

    for key, record in records.items():
        for name in SHARED:
            if record.get(name) and record[name] not in texts:
                say_once(f"{path}:{numbers[key]}: the text of its {name} is missing")
            record[name] = texts.get(record.get(name), "")
    return records


def run_ids(results_file: Path, suite_id: str | None = None) -> set[str]:
    """Return the run_ids of all records, or of a suite's. Some may have no rows."""
    mark = f'"suite_id": "{suite_id}"'.encode() if suite_id else b'{"run_id"'
    return {_key(line) for line in _lines(results_file) if mark in line} - {""}


def _whole_lines(results_file):
    """Yield (number, line), without a last one that is cut off.

    Raises UserError for another damaged line.
    """
    for number, line in enumerate(_lines(results_file), 1):
        is_damaged = _is_damaged(line)
        if is_damaged and line.endswith(b"\n"):
            problem = "is not as it was written"
            raise damage(results_file, number, problem, records_path(results_file))
        if not is_damaged:
            yield number, line


def _lines(results_file):
    path = records_path(results_file)
    if path.exists():
        with naming(path), open(path, "rb") as file:
            yield from file
