"""Patched sources of a user's script, imported in place of its files. It needs no other module.

Functions of the import system, which open code, read a source from memory; its bytecode is neither
read nor written. inspect and tracebacks see the patched lines. Files that a script opens by itself
are as they are.
"""

import _io
import importlib.util
import io
import json
import linecache
import os
import sys
from pathlib import Path

VARIABLE = "PATCHED_SOURCES"  # in processes that the script starts
STARTUP = str(Path(__file__).with_name("startup"))  # folder of a sitecustomize


def install(file):
    """Let this process and those that it starts import patched sources.

    Return the set of the files that were opened, which grows. file: JSON of texts by path.
    """
    texts = json.loads(Path(file).read_text())
    bytecode = {importlib.util.cache_from_source(path) for path in texts}
    opened = set()
    usual = io.open_code

    def open_code(path):
        path = os.path.realpath(path)
        if path in bytecode:
            raise FileNotFoundError(path)
        if path not in texts:
            return usual(path)
        opened.add(path)
        return io.BytesIO(texts[path].encode())

    io.open_code = _io.open_code = open_code  # runpy and importlib each have one of these
    for path, text in texts.items():
        linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path

    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ[VARIABLE] = str(file)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if STARTUP not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, *paths]))
    return opened
