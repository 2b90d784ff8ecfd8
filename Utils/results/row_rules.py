"""Columns of results.csv, the rules for their values, and the first line that breaks one."""

import csv
import operator
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations alone: a training script and the doctor do not need them
    import numpy as np
    import pandas as pd

HEADER = (  # docs/RESULTS.md has the meaning of each column
    "run_id,suite,base,parent,change,round,seed,technique,status,step,phase,step_ms,data_ms,loss,"
    "held_out_loss,batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,"
    "torch,commit,grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
)
FIRST_LINE = f"{HEADER}\n".encode()
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
SIZES = ("batch_size", "requested_batch_size", "seq_len", "world_size")
INTEGERS = ("round", "seed", *SIZES)
MEASURED = ("step_ms", "data_ms", "first_step_s")  # every run with timings has them
FINITE = (*MEASURED, "held_out_loss", "peak_memory_mib", "reserved_memory_mib")
NUMBERS = (*INTEGERS, "step", "loss", *FINITE)
TEXTS = tuple(name for name in COLUMNS if name not in NUMBERS)
LAST_STEPS = 10  # a run's loss is the mean of these timed ones, unless it has one on held-out text
UNDECODED = re.compile("[\0\udc80-\udcff]")  # zero, or a byte that is not of UTF-8
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # a note may have several lines

csv.field_size_limit(2**31 - 1)  # a failed run's note can be long


def of_texts(function: Callable[[str], object], column: "pd.Series") -> "np.ndarray":
    """Return what a function returns for the text of each row. It is called once for equal ones."""
    import numpy as np  # noqa: PLC0415

    return np.array([*map(function, column.cat.categories)])[column.cat.codes]


def broken_rule(rows: "pd.DataFrame") -> tuple:
    """Return (index, column), and perhaps a reason, of the first row that breaks a rule, or ()."""
    broken = []
    for name, is_broken, *reason in _rules({name: rows[name] for name in COLUMNS}):
        if is_broken.any():
            broken.append((is_broken.argmax(), name, *reason))
    return min(broken, key=operator.itemgetter(0), default=())


def _rules(columns):
    """Yield (column, which rows break a rule). A column with several rules comes several times."""
    import numpy as np  # noqa: PLC0415

    for name in TEXTS:

        def is_refused(text, name=name):
            return bool(CONTROL.search(text)) or text not in CHOICES.get(name, [text])

        yield name, of_texts(is_refused, columns[name])

    has_timings = of_texts("ok".__eq__, columns["status"])
    for name in ("phase", "grade"):
        yield name, has_timings == of_texts("".__eq__, columns[name])
    values = {name: columns[name].to_numpy() for name in NUMBERS}
    for name in INTEGERS:
        least = 1 if name in SIZES else -(2**63)
        yield name, (values[name] % 1 != 0) | (values[name] < least) | (values[name] >= 2**63)
    for name in FINITE:
        is_missing = has_timings & np.isnan(values[name]) & (name in MEASURED)
        yield name, is_missing | (values[name] < 0) | np.isposinf(values[name])
    yield "step_ms", values["step_ms"] == 0

    # The rows of a run are together, one a step, counted from 0 on; or one without timings.
    runs = columns["run_id"].cat.codes.to_numpy()
    is_first = np.diff(runs, prepend=-1) != 0
    step_before = np.where(is_first, -1, np.roll(values["step"], 1))
    is_another = np.where(has_timings, values["step"] != step_before + 1, ~is_first)
    is_apart = is_first & columns["run_id"].duplicated().to_numpy()
    yield "step", is_another | is_apart, ": a row of its run is missing, doubled or misplaced"


def first_problem(
    lines: Iterable[str], broken: int | None = None, column: str = "", reason: str = ""
) -> tuple[int, str]:
    """Return the number and the problem of the first damaged line of a file.

    broken, column, reason: see `broken_rule`.
    """
    reader = csv.reader(lines, strict=True)
    number = 1
    index = -1  # the header's

    try:
        for fields in reader:
            problem = _problem(fields) if index >= 0 and fields else ""
            if index == broken:
                problem = problem or f"{column} cannot be {fields[COLUMNS.index(column)]!r}{reason}"
            if problem:
                return number, problem
            index += bool(fields)  # an empty line is not a row
            number = reader.line_num + 1  # a row may have several lines
    except csv.Error as error:
        return number, f"cannot be read ({error})"
    return number - 1, "cannot be read"


def _problem(fields):
    """Return the problem of a row, a list of strings, or ""."""
    if len(fields) != len(COLUMNS):
        return f"has {len(fields)} fields instead of {len(COLUMNS)}"
    text = "".join(fields)
    if UNDECODED.search(text):
        return "has a zero byte, or is not UTF-8"
    for name in NUMBERS:
        value = fields[COLUMNS.index(name)]
        try:
            float(value or "nan")
        except ValueError:
            return f"{name} cannot be {value!r}"
    return ""
