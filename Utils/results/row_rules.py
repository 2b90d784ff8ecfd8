"""Columns of results.csv, the rules for their values, and the first line that breaks one."""

import csv
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it

HEADER = (  # docs/COMMANDS.md has the meaning of each column
    "run_id,suite,base,parent,change,round,seed,technique,status,step,phase,step_ms,data_ms,loss,"
    "held_out_loss,batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,"
    "torch,commit,grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
)
COLUMNS = tuple(HEADER.split(","))
UNCONVERTED = HEADER.replace("suite,base,parent,change", "base")  # the header until CONVERTER
CONVERTER = "a11b414"  # the last commit that reads files with that header
GRADES = {"clean": "undisturbed", "tainted": "disturbed"}  # with words for a person
CHOICES = {
    "suite": ("ladder", "beyond", "ablation", "own", "pair", "peers"),
    "status": ("ok", "unsupported", "out_of_memory", "failed"),
    "phase": ("warmup", "timed", ""),  # "" without timings
    "grade": (*GRADES, ""),
}
INTEGERS = ("round", "seed", "batch_size", "requested_batch_size", "seq_len", "world_size")
MEASURED = ("step_ms", "data_ms", "first_step_s")  # every run with timings has them
OPTIONAL = ("loss", "held_out_loss", "peak_memory_mib", "reserved_memory_mib")
NUMBERS = (*INTEGERS, "step", *MEASURED, *OPTIONAL)
TEXTS = tuple(name for name in COLUMNS if name not in NUMBERS)
LAST_STEPS = 10  # a run's loss is the mean of these timed ones, unless it has one on held-out text
UNDECODED = re.compile("[\udc80-\udcff]")  # a byte that is not of UTF-8

TEXT = {"text": str, "content": str}  # a line of results.jsonl
NUMBER = (None, float)
VALUES = {"*": (None, str, bool, float)}
RECORD = {  # another line, as far as it is read
    "run_id": str,
    "technique?": str,
    "source?": str,
    "collect_env?": str,
    "command?": [str],
    "settings?": VALUES,
    "versions?": VALUES,
    "dataset_facts?": VALUES,
    "round?": int,
    "ended?": str,
    "suite_id?": (None, str),
    "precision?": str,
    "device?": (None, {"memory_mib?": NUMBER, "name?": str}),
    "memory?": {"*": NUMBER},
    "compile?": (None, {"graphs?": NUMBER, "recompilations?": NUMBER, "cache?": (None, str)}),
    "quality?": {"reasons?": [str], "mean_power_w?": NUMBER},
    "limits?": (
        None,
        {
            "flops_per_token": NUMBER,
            "datasheet_tflops": NUMBER,
            "floor_ms?": NUMBER,
            "precision": (None, str),
            "ceilings": (None, {"matmul_tflops?": {"*": float}}),
        },
    ),
    "own_script?": {"settings?": [str]},
}
csv.field_size_limit(2**31 - 1)  # a failed run's note can be long


def broken_rules(row: "dict | pd.DataFrame") -> Iterator[tuple]:
    """Yield (column, whether its value breaks a rule): a bool for a dict, a Series for many rows.

    A column with several rules comes several times.
    """
    for name, choices in CHOICES.items():
        yield name, sum(row[name] == choice for choice in choices) == 0

    has_timings = row["status"] == "ok"
    yield "phase", has_timings == (row["phase"] == "")
    yield "grade", has_timings == (row["grade"] == "")
    yield "step", has_timings & (row["step"] % 1 != 0)
    for name in INTEGERS:
        yield name, (row[name] % 1 != 0) | (abs(row[name]) >= 2**63)
    for name in MEASURED:
        is_not_finite = row[name] * 0 != 0
        yield name, has_timings & ((row[name] < 0) | is_not_finite)


def first_problem(lines: Iterable[str]) -> tuple[int, str]:
    """Return the number and the problem of the first damaged line of a file."""
    reader = csv.reader(lines, strict=True)
    try:
        next(reader)  # the header
        while True:
            number = reader.line_num + 1  # a row may have several lines
            problem = _problem(next(reader))
            if problem:
                return number, problem
    except csv.Error as error:
        return number, f"cannot be read ({error})"
    except StopIteration:
        return number - 1, "cannot be read"


def _problem(fields):
    """Return the problem of a row, a list of strings, or ""."""
    if not fields:
        return ""  # an empty line
    if len(fields) != len(COLUMNS):
        return f"has {len(fields)} fields instead of {len(COLUMNS)}"

    if UNDECODED.search("".join(fields)):
        return "is not UTF-8"
    values = dict(zip(COLUMNS, fields, strict=True))
    for name in NUMBERS:
        try:
            values[name] = float(values[name] or "nan")
        except ValueError:
            return f"{name} cannot be {values[name]!r}"

    for name, is_broken in broken_rules(values):
        if is_broken:
            return f"{name} cannot be {fields[COLUMNS.index(name)]!r}"
    return ""
