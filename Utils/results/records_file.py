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
LINE = re.compile(rb'\{"(?:run_id|text)": "([^"]*)"')


def path_of(results_file):
    """Return the path of the records that belong to a results file."""
    return Path(results_file).with_suffix(".jsonl")


@contextmanager
def appended(results_file, record):
    """Append a record, a dict, and take it back where the block raises.

    The results file has to be locked. Raises UserError.
    """
    path = path_of(results_file)
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
        first = {"run_id": record["run_id"]}  # by which `read` finds it
        lines += [json.dumps(first | record, default=str), ""]
        try:
            files.append_whole(file.fileno(), "\n".join(lines))
            yield
        except BaseException:
            file.truncate(size)
            raise


def read(results_file, run_ids):
    """Return the records of runs, dicts by run_id, with their shared texts.

    Other lines of the file are not parsed. Missing and damaged records are left out.
    """
    requested = {*run_ids}
    texts_and_requested = (
        (key, line)
        for key, line in _lines(results_file)
        if key in requested or line.startswith(b'{"text"')
    )
    lines = dict(texts_and_requested)
    records = {key: _parsed(line) for key, line in lines.items() if key in requested}
    for record in records.values():
        for name in SHARED:
            text = _parsed(lines.get(str(record.get(name)), b""))
            record[name] = text.get("content", "")
    return {key: record for key, record in records.items() if "run_id" in record}


def run_ids_of(suite, results_file):
    """Return the run_ids of a suite's records. Some may have no rows."""
    mark = f'"suite": "{suite}"'.encode()
    return {key for key, line in _lines(results_file) if mark in line}


def _lines(results_file):
    """Yield the first value of each line, a run_id or a hash, and the line."""
    with suppress(FileNotFoundError), open(path_of(results_file), "rb") as file:
        for line in file:
            if start := LINE.match(line):
                yield start[1].decode(errors="replace"), line


def _parsed(line):
    """Return the dict of a line; an empty one where it is damaged."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {}
