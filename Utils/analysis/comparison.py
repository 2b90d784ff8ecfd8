"""Two results, technique by technique: devices, torch versions or commits.

The ratio is of tokens per second, so shapes may differ. Rounds are not paired: A and B ran at
different times or on different machines. So the interval is Welch's t on the logs of the rounds'
rates, 95%; with one round on either side there is none.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, round_levels, text_tables
from Utils.analysis.summary import grade_text, reason, summarize
from Utils.base.errors import UserError
from Utils.base.text import number, plural
from Utils.results import records_file, rows_file, selection
from Utils.scripts import ladder

# Fields of a record that are conditions of the run, not its outcome; and those also in the rows.
CONDITIONS = (
    *("settings", "threads", "interop_threads", "variables", "versions", "platform", "device"),
    "dataset_facts",
)
IN_ROWS = {
    *("settings.batch_size", "settings.seq_len", "settings.model", "settings.dataset"),
    *("versions.torch", "device.name", "dataset_facts.dataset"),
}


@dataclass(frozen=True)
class Side:
    """A or B: comparable rows, their summary and their records."""

    name: str
    path: Path
    rows: pd.DataFrame  # of results.COLUMNS
    lines: pd.DataFrame  # of summary.summarize
    records: dict  # by run_id, those that exist

    def __str__(self):
        return f"{self.name}: {selection.describe(self.rows)}"

    @property
    def shapes(self):
        shapes = self.rows.batch_size.astype(str) + "x" + self.rows.seq_len.astype(str)
        return list(shapes.unique())

    def cell(self, technique, form):
        """Return the text form(line) of a technique, or "" where it was not run."""
        return form(self.lines.loc[technique]) if technique in self.lines.index else ""

    def state(self, technique):
        """Return why a technique has no timing, or ""."""
        if technique not in self.lines.index:
            return "not run"
        line = self.lines.loc[technique]
        return reason(line) if pd.isna(line.step_ms) else ""


def select(name, text):
    """Return the Side of that name (A or B) that a text selects.

    text: a results file, optionally with a colon and words that the description of a group of runs
    must contain; of several groups the newest run's counts. Raises UserError without such a run.
    """
    ends = [i for i, letter in enumerate(text) if letter == ":"]  # a file's name may have colons
    exists = [end for end in (len(text), *reversed(ends)) if os.path.exists(text[:end])]
    end = next(iter([*exists, *ends, len(text)]))
    path, words = text[:end], text[end + 1 :].split()
    if not path:
        raise UserError(f"{name} names no results file", f"for example {name}=results.csv:H100")
    groups = selection.groups(rows_file.read(path))
    matching = [
        group for common, group in groups if all(word.lower() in common.lower() for word in words)
    ]
    if not matching:
        remedy = f"there are {'; '.join(common for common, _ in groups)}"
        raise UserError(f"{path}: no runs match {' '.join(words)!r}", remedy)
    rows, _ = selection.select(pd.concat(matching))
    records = records_file.read(path, sorted(rows.run_id.unique()))
    return Side(name, Path(path), rows, summarize(rows, records), records)


def sides(a, b):
    """Return the Sides A and B that two texts select. Raises UserError, also if they share runs."""
    a, b = select("A", a), select("B", b)
    runs = [set(side.rows.run_id) for side in (a, b)]
    if runs[0] == runs[1]:
        raise UserError(f"A and B are the same runs: {selection.describe(a.rows)}")
    if common := runs[0] & runs[1]:
        problem = f"A and B share {plural(len(common), 'run')}"
        raise UserError(problem, "select runs that are in one alone")
    return a, b


def compare(a, b):
    """Return the speedup of B over A (Sides), a Series of Ratios of tokens per second, indexed by
    technique in ladder order; unknown where one side has no timing. Holm corrects the verdicts."""
    names = list(dict.fromkeys([*a.lines.index, *b.lines.index]))
    in_ladder = list(ladder.techniques())
    names.sort(key=lambda name: in_ladder.index(name) if name in in_ladder else len(in_ladder))
    rates_a, rates_b = tokens_per_second(a.rows), tokens_per_second(b.rows)
    ratios = [
        ratio(rates_a[name], rates_b[name])
        if name in rates_a and name in rates_b
        else intervals.Ratio()
        for name in names
    ]
    return pd.Series(intervals.holm(ratios), pd.Index(names, name="technique"), dtype=object)


def tokens_per_second(rows):
    """Return the rate of each technique and round, a Series, from the levels that its step time in
    a summary is the mean of."""
    timed = selection.timed(rows)
    by_run = timed.groupby(["technique", "round"])
    tokens = by_run.requested_batch_size.first() * by_run.seq_len.first()
    return tokens / round_levels.step_ms(timed) * 1e3


def ratio(a, b):
    """Return the Ratio of `b` to `a` (of the geometric means), from rounds that are not paired, by
    Welch. It has no interval with one round on either side. a, b: rates by round."""
    mean_a, mean_b = (intervals.drift_free_mean(np.log(rates)) for rates in (a, b))
    return intervals.Ratio.of_logs(mean_b.minus(mean_a).estimate())


def differences(a, b):
    """Return the recorded differences of A and B (Sides), a line each: "torch: 2.11.0 | 2.13.0".
    Several values on one side are all listed. Missing records come last."""
    both_recorded = a.records and b.records
    of_a, of_b = (_facts(side, CONDITIONS if both_recorded else ()) for side in (a, b))
    sources = [_sources(side) for side in (a, b)]
    lines = []
    for name in of_a | of_b:
        values = [of_a.get(name, {}), of_b.get(name, {})]
        if values[0] != values[1]:
            lines.append(f"{name}: " + " | ".join(", ".join(v) or "not recorded" for v in values))
    in_both = [name for name in a.lines.index if name in sources[0] and name in sources[1]]
    if edited := [name for name in in_both if sources[0][name] != sources[1][name]]:
        lines.append(f"source: the code differs in {', '.join(edited)}")
    lines = lines or ["nothing recorded differs"]
    for side in (a, b):
        runs = side.rows.run_id.nunique()
        if lost := runs - len(side.records):
            file = records_file.path_of(side.path)
            lines.append(f"{side.name}: no record of {lost} of {runs} runs in {file}")
    return lines


def _facts(side, conditions):
    """Return distinct texts, as the keys of a dict, by name: of the rows and of the records."""
    rows = side.rows
    facts = {name: dict.fromkeys(rows[name]) for name in ("device", "torch", "model")}
    facts |= {"shape": dict.fromkeys(side.shapes), "dataset": dict.fromkeys(rows.dataset)}
    facts["processes"] = dict.fromkeys(rows.world_size.astype(str))
    facts["commit"] = dict.fromkeys(rows.commit.replace("", "unknown"))
    for record in side.records.values():
        for name, value in _flat({key: record.get(key) for key in conditions}):
            if name not in IN_ROWS:
                facts.setdefault(name, {})[value] = None
    return facts


def _sources(side):
    """Return the code of each technique, without its docstring, a set."""
    sources = {}
    for record in side.records.values():
        if record.get("source"):
            code = ladder.split(record["source"])[1]
            sources.setdefault(record.get("technique"), set()).add(code)
    return sources


def _flat(value, name=""):
    """Yield ("settings.steps", "50") and so on from nested dicts, without None."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif value is not None:
        yield name, str(value)


def table(a, b):
    """Return two Sides as a table with caption and differences, a string."""
    ratios = compare(a, b)
    unit = a.rows.unit.iloc[0]
    meaning = f"B over A: {unit} per second of B / of A"
    if any(ratio.interval for ratio in ratios):
        meaning += ", with its 95% confidence interval (Welch's t over rounds); "
        meaning += intervals.CORRECTED
    elif any(ratios):
        meaning += f"; {intervals.NO_INTERVAL}"
    shapes = [" or ".join(side.shapes) for side in (a, b)]
    if shapes[0] != shapes[1]:
        meaning += f". The shapes differ, {shapes[0]} and {shapes[1]}: a ratio of {unit}, not steps"
    texts = text_tables.shown(columns(a, b, ratios), ("technique", "verdict on B", "note"))
    differing = "\n".join(text_tables.fitted(f"- {line}", "  ") for line in differences(a, b))
    facts = "\n".join(text_tables.fitted(f"- {side}", "  ") for side in (a, b))
    meaning = text_tables.fitted(f"{meaning}.")
    return "\n\n".join([texts, facts, meaning, "What differs (A | B):", differing])


def columns(a, b, ratios):
    """Return the columns of `table`: lists of texts, one per technique, by title."""
    columns = {
        "technique": list(ratios.index),
        "B over A": [str(ratio) for ratio in ratios],
        "verdict on B": [ratio.verdict for ratio in ratios],
    }
    for title, cell in (
        (
            f"{a.rows.unit.iloc[0]}/s",
            lambda line: result_tables.four_digits(line.tokens_per_second),
        ),
        ("over baseline", lambda line: line.speedup.text),
        ("peak memory (MiB)", memory_text),
        ("loss", loss_text),
    ):
        pairs = [(a.cell(name, cell) or "-", b.cell(name, cell) or "-") for name in ratios.index]
        columns[f"{title}, A | B"] = [" | ".join(pair) for pair in pairs]
    columns["note"] = [_both(_note(a, name), _note(b, name)) for name in ratios.index]
    return columns


def memory_text(line):
    return number(line.peak_memory_mib, ",.0f")


def loss_text(line):
    return "diverged" if line.loss_difference.diverged else number(line.loss, ".3f")


def _note(side, technique):
    """Return why a technique has no timing, else its notes and taint, for a cell of a table."""
    if state := side.state(technique):
        return state
    line = side.lines.loc[technique]
    notes = result_tables.own_notes(side.lines)[technique]
    if line.grade == "tainted":
        notes = [*notes, grade_text(line)]
    return "; ".join(notes)


def why_not(a, b, technique):
    """Return why a technique has no ratio, or ""."""
    return _both(a.state(technique), b.state(technique))


def _both(a, b):
    """Join the texts on A and B; equal ones become one."""
    if a == b:
        return a
    return "; ".join(f"{name}: {text}" for name, text in (("A", a), ("B", b)) if text)
