"""results.jsonl: the records of runs, beside results.csv.

A line is the record of a run, or a text that several share: the source of a script, torch's report
of the environment. Records name such texts by their hash.
"""

import hashlib
import json
import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path

from Utils.base import files
from Utils.base.errors import naming

SHARED = ("source", "collect_env")
# Bytes at the file's end in which a text is looked for before it is written: in a larger file a
# text may stand several times, but appending takes the same time.
RECENT = 2**20
LINE = re.compile(rb'\{"(run_id|text)": "([^"]*)"')


def path_of(results_file):
    """Return the path of the records that belong to a results file."""
    return Path(results_file).with_suffix(".jsonl")


@contextmanager
def appended(results_file, record):
    """Append a record, a dict or None, and take it back where the block raises.

    The results file has to be locked. Raises UserError.
    """
    if record is None:
        yield
        return
    path, remedy = path_of(results_file), "nothing was appended"
    with naming(path, remedy):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    size = os.fstat(file).st_size
    try:
        with naming(path, remedy):
            recent = os.pread(file, RECENT, max(0, size - RECENT))
            files.append_whole(file, _lines(record, recent))
        yield
    except BaseException:
        os.ftruncate(file, size)
        raise
    finally:
        os.close(file)


def _lines(record, recent):
    """Return the lines to append for a record. recent: the end of the file, in bytes."""
    lines = [] if recent.endswith(b"\n") or not recent else [""]  # the end of a killed process
    for name in SHARED:
        if text := record.get(name):
            key = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
            record = record | {name: key}
            if f'{{"text": "{key}"'.encode() not in recent:
                lines.append(json.dumps({"text": key, "content": text}))
    first = {"run_id": record["run_id"]}  # by which `read` finds it
    return "\n".join([*lines, json.dumps(first | record, default=str), ""])


def read(results_file, run_ids):
    """Return the records of runs, dicts by run_id, with their shared texts.

    Other lines of the file are not parsed. Missing and damaged records are left out.
    """
    wanted = {*run_ids}
    records = {}
    texts = {}
    for line in _each_line(results_file):
        start = LINE.match(line)
        key = start and start[2].decode(errors="replace")
        if start and start[1] == b"text":
            texts[key] = line
        elif key in wanted:
            with suppress(ValueError, RecursionError):
                records[key] = json.loads(line)
    for record in records.values():
        for name in SHARED:
            record[name] = _content(texts.get(str(record.get(name)), b""))
    return records


def run_ids_of(suite, results_file):
    """Return the run_ids of a suite's records. Some may have no rows."""
    mark = f'"suite": "{suite}"'.encode()
    lines = (line for line in _each_line(results_file) if mark in line)
    return {LINE.match(line)[2].decode() for line in lines if LINE.match(line)}


def _each_line(results_file):
    with suppress(FileNotFoundError), open(path_of(results_file), "rb") as file:
        yield from file


def _content(line):
    """Return the text of a shared text's line, or "" where it is missing or damaged."""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        return str(json.loads(line)["content"])
    return ""
