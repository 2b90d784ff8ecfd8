"""Two results side by side, technique by technique. Rounds are not paired, as they ran at different
times or on different machines. Ratios are of tokens per second, so shapes may differ.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.analysis.summary import Summary, summarize
from Utils.base.errors import UserError
from Utils.base.text import number, plural
from Utils.results import rows_file, selection
from Utils.results.study import Study, in_order
from Utils.scripts.ladder import split

OF_ROWS = ["device", "torch", "model", "shape", "dataset", "processes", "commit"]
# Fields of a record that are conditions of the run, not its outcome; and those also in the rows.
CONDITIONS = ["settings", "threads", "interop_threads", "variables", "versions", "platform"]
CONDITIONS += ["device", "dataset_facts"]
IN_ROWS = {f"settings.{name}" for name in ("batch_size", "seq_len", "model", "dataset")}
IN_ROWS |= {"versions.torch", "device.name", "dataset_facts.dataset"}
COLUMNS = (  # as `result_tables.MAIN`
    ("{unit}/s", "tokens_per_second", result_tables.four_digits),
    ("over baseline", "speedup", lambda ratio: ratio.text),
    ("peak memory (MiB)", "peak_memory_mib", ",.0f"),
    ("loss", None, lambda line: number(line.loss, ".3f") or line.loss_difference.text),
)


@dataclass(frozen=True)
class Side:
    """A or B: a summary, and the path of its rows. rows: with their shape."""

    name: str
    path: Path
    rows: pd.DataFrame
    summary: Summary

    @property
    def lines(self):
        return self.summary.lines

    @property
    def records(self):
        return self.summary.study.records

    def __str__(self):
        return f"{self.name}: {selection.describe(self.rows)}"


def select(name, text):
    """Return the Side of that name (A or B) that a text selects: a results file, and after a colon
    words of the description of a group of runs, of several the newest. Raises UserError.
    """
    path, _, words = text.partition(":")
    if not path:
        raise UserError(f"{name} names no results file", f"for example {name}=results.csv:H100")
    groups = selection.groups(rows_file.read(path))
    parts = words.lower().split()
    matching = [rows for text, rows in groups if all(part in text.lower() for part in parts)]
    if not matching:
        remedy = f"there are {'; '.join(text for text, _ in groups)}"
        raise UserError(f"{path}: no runs match {words!r}", remedy)
    rows, _ = selection.select(pd.concat(matching))
    summary = summarize(Study(rows, rows, "", rows_file.read_records(path, rows.run_id.unique())))
    rows = rows.assign(shape=rows.batch_size.astype(str) + "x" + rows.seq_len.astype(str))
    return Side(name, Path(path), rows, summary)


def sides(a, b):
    """Return the Sides A and B that two texts select. Raises UserError, also if they share runs."""
    a, b = select("A", a), select("B", b)
    if common := {*a.rows.run_id} & {*b.rows.run_id}:
        problem = f"A and B share {plural(len(common), 'run')} of {selection.describe(a.rows)}"
        raise UserError(problem, "select runs that are in one alone")
    return a, b


def compare(a, b):
    """Return the Ratios of B's tokens per second to A's, a Series by technique in ladder order."""
    identities = b.summary.study.identities | a.summary.study.identities
    names = pd.Index(in_order(identities, a.summary.study.ladder))
    rates = []  # by round and technique, from the levels that a step time is the mean of
    for side in (a, b):
        timed = selection.timed(side.rows)
        by_run = timed.groupby(["technique", "round"])
        tokens = by_run.requested_batch_size.first() * by_run.seq_len.first()
        of_side = tokens / intervals.step_ms(timed) * 1e3
        rates.append(of_side.unstack("technique").reindex(columns=names))
    ratios = [intervals.unpaired_ratio(rates[0][name], rates[1][name]) for name in names]
    return pd.Series(intervals.holm(ratios), names, dtype=object)


def differences(a, b):
    """Return the recorded differences of two Sides, a line each: "torch: 2.11.0 | 2.13.0"."""
    conditions = CONDITIONS if a.records and b.records else ()
    of_a, of_b = _facts(a, conditions), _facts(b, conditions)
    lines = []
    for name in of_a | of_b:
        values = [of_a.get(name, []), of_b.get(name, [])]
        if {*values[0]} != {*values[1]}:
            lines.append(f"{name}: " + " | ".join(", ".join(v) or "not recorded" for v in values))
    codes = []  # of each side pairs of technique and code, without docstring
    for side in (a, b):
        sources = [(r.get("technique"), r.get("source")) for r in side.records.values()]
        codes.append({(name, split(source)[1]) for name, source in sources if source})
    in_both = dict(codes[0]).keys() & dict(codes[1]).keys() & dict(codes[0] ^ codes[1]).keys()
    if edited := [name for name in a.lines.index if name in in_both]:
        lines.append(f"source: the code differs in {', '.join(edited)}")
    lines = lines or ["nothing recorded differs"]
    for side in (a, b):
        runs = side.rows.run_id.nunique()
        if lost := runs - len(side.records):
            file = rows_file.records_path(side.path)
            lines.append(f"{side.name}: no record of {lost} of {runs} runs in {file}")
    return lines


def _facts(side, conditions):
    """Return lists of distinct texts, by name: of the rows and of the records."""
    processes = side.rows.world_size.astype(str)
    commit = side.rows.commit.replace("", "unknown")
    rows = side.rows.assign(processes=processes, commit=commit)[OF_ROWS]
    facts = {name: list(texts.unique()) for name, texts in rows.items()}
    for record in side.records.values():
        values = pd.json_normalize({name: record.get(name) for name in conditions}).squeeze(axis=0)
        for name, value in values.dropna().items():
            texts = facts.setdefault(name, [])
            if name not in IN_ROWS and str(value) not in texts:
                texts.append(str(value))
    return facts


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
    shapes = [" or ".join(side.rows["shape"].unique()) for side in (a, b)]
    if shapes[0] != shapes[1]:
        meaning += f". The shapes differ, {' and '.join(shapes)}: a ratio of {unit}, not steps"
    parts = [columns(a, b, ratios), f"- {a}\n- {b}", f"{meaning}.", "What differs (A | B):"]
    return text_tables.page([*parts, "\n".join(f"- {line}" for line in differences(a, b))])


def columns(a, b, ratios):
    """Return the columns of `table`: lists of texts, one per technique, by title. The note is why
    it has no timing, else its notes and taint.
    """
    on_sides = []
    for side in (a, b):
        texts = result_tables.texts_of(side.lines, COLUMNS, a.rows.unit.iloc[0])
        texts = pd.DataFrame(texts, side.lines.index).reindex(ratios.index, fill_value="-")
        notes = result_tables.remarks(side.summary)
        notes = ["; ".join(notes.get(name, ["not run"])) for name in ratios.index]
        on_sides.append(texts.replace("", "-").assign(note=notes))
    on_a, on_b = on_sides
    columns = {
        "technique": list(ratios.index),
        "B over A": [str(ratio) for ratio in ratios],
        "verdict on B": [ratio.verdict for ratio in ratios],
    }
    for title in on_a.columns.drop("note"):
        columns[f"{title}, A | B"] = list(on_a[title] + " | " + on_b[title])
    columns["note"] = []
    for notes in zip(on_a["note"], on_b["note"], strict=True):
        named = "; ".join(f"{side}: {note}" for side, note in zip("AB", notes, strict=True) if note)
        columns["note"].append(notes[0] if notes[0] == notes[1] else named)
    return columns
