"""Two results side by side, technique by technique.

Rounds are not paired, as they ran at different times or on different machines. Ratios are of tokens
per second, so shapes may differ.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.analysis.summary import Summary, summarize
from Utils.base.errors import UserError
from Utils.base.text import number, plural
from Utils.results import rows_file, selection, study
from Utils.scripts.ladder import split

ROW_CONDITIONS = ["device", "torch", "model", "shape", "dataset", "processes", "commit", "day"]
# Fields of a record that are conditions of the run, not its outcome; and those also in the rows.
RECORD_CONDITIONS = [
    "settings",
    "threads",
    "interop_threads",
    "variables",
    "versions",
    "platform",
    "device",
    "dataset_facts",
]
IN_ROWS = {
    "settings.batch_size",
    "settings.seq_len",
    "settings.model",
    "settings.dataset",
    "versions.torch",
    "device.name",
    "dataset_facts.dataset",
}
COLUMNS = (  # as `result_tables.MAIN`
    ("{unit}/s", "tokens_per_second", result_tables.four_digits),
    ("over baseline", "speedup", lambda ratio: ratio.text),
    ("peak memory (MiB)", "peak_memory_mib", ",.0f"),
    ("loss", None, lambda script: number(script.loss, ".3f") or script.loss_difference.text),
)


@dataclass(frozen=True)
class Side:
    """A or B: a summary, and the path of its rows.

    rows: with all of ROW_CONDITIONS. records: of these rows, by run_id.
    """

    name: str
    path: str
    rows: pd.DataFrame
    records: dict[str, dict]
    summary: Summary

    def __str__(self):
        return f"{self.name}: {selection.description(self.rows)}"


def select(name: str, text: str, base: str | None = None) -> Side:
    """Return the Side of that name (A or B) that a text, and a base if given, select.

    text: a results file, then optionally a colon and words of the description of a group of runs.
    Of several such groups the newest is selected.

    Raises UserError.
    """
    path, _, words = text.partition(":")
    if not path:
        remedy = "as in make compare A=results.csv:2.11 B=results.csv:2.13"
        raise UserError(f"{name} names no results file", remedy)

    all_rows = rows_file.read(path)
    try:
        chosen = study.choose(all_rows, path, words=words, base=base)
    except UserError as error:
        raise UserError(f"{path}: {error.message}", error.remedy) from None

    rows = chosen.rows
    rows = rows.assign(
        shape=rows.batch_size.astype(str) + "x" + rows.seq_len.astype(str),
        processes=rows.world_size.astype(str),
        commit=rows.commit.replace("", "unknown"),
        day=rows.run_id.str[:8],
    )
    return Side(name, path, rows, chosen.records, summarize(chosen))


def sides(a: str, b: str, base: str | None = None) -> tuple[Side, Side]:
    """Return the Sides A and B that two texts select. Raises UserError, also if they share runs."""
    a, b = select("A", a, base), select("B", b, base)
    common = {*a.rows.run_id} & {*b.rows.run_id}
    if common:
        problem = f"A and B share {plural(len(common), 'run')} of {selection.description(a.rows)}"
        raise UserError(problem, "select runs that are in one alone")
    return a, b


def compare(a: Side, b: Side) -> pd.Series:
    """Return the Ratios of B's tokens per second to A's, by technique in ladder order."""
    identities = b.summary.study.identities | a.summary.study.identities
    ordered = study.in_order(identities, a.summary.study.ladder)
    shown = {script.name for script in (*a.summary.shown, *b.summary.shown)}
    names = pd.Index([name for name in ordered if name in shown])
    rates_a, rates_b = _rates(a, names), _rates(b, names)
    ratios = [intervals.unpaired_ratio(rates_a[name], rates_b[name]) for name in names]
    return pd.Series(intervals.holm(ratios), names, dtype=object)


def _rates(side, names):
    """Return tokens per second by round and technique, from the levels that times are means of."""
    first = side.rows.iloc[0]
    tokens = first.requested_batch_size * first.seq_len
    rates = tokens / np.exp(side.summary.levels.logs) * 1e3
    return rates.reindex(columns=names)


def differences(a: Side, b: Side) -> list[str]:
    """Return the recorded differences of two Sides, a line each: "torch: 2.11.0 | 2.13.0"."""
    conditions = RECORD_CONDITIONS if a.records and b.records else ()
    values_a, values_b = _conditions(a, conditions), _conditions(b, conditions)
    lines = []
    for name in values_a | values_b:
        values = values_a.get(name, []), values_b.get(name, [])
        if {*values[0]} != {*values[1]}:
            texts = [", ".join(texts) or "not recorded" for texts in values]
            lines.append(f"{name}: {' | '.join(texts)}")

    codes_a, codes_b = _codes(a), _codes(b)
    edited = {name for name, _ in codes_a ^ codes_b} & dict(codes_a).keys() & dict(codes_b).keys()
    if edited:
        names = [script.name for script in a.summary.shown if script.name in edited]
        lines.append(f"source: the code differs in {', '.join(names)}")

    lines = lines or ["nothing recorded differs"]
    for side in (a, b):
        runs = {*side.rows.run_id}
        lost = runs - side.records.keys()
        if lost:
            file = rows_file.records_path(side.path)
            lines.append(f"{side.name}: no record of {len(lost)} of {len(runs)} runs in {file}")
    return lines


def _conditions(side, names):
    """Return lists of distinct texts by name: of the rows, and of fields of the records."""
    conditions = {name: list(side.rows[name].unique()) for name in ROW_CONDITIONS}
    for record in side.records.values():
        fields = pd.json_normalize({name: record.get(name) for name in names}).squeeze(axis=0)
        for name, value in fields.dropna().items():
            texts = conditions.setdefault(name, [])
            if name not in IN_ROWS and str(value) not in texts:
                texts.append(str(value))
    return conditions


def _codes(side):
    """Return pairs of a technique and its code, without docstring, from the records."""
    sources = [(r.get("technique"), r.get("source")) for r in side.records.values()]
    return {(name, split(source)[1]) for name, source in sources if source}


def table(a: Side, b: Side) -> str:
    """Return two Sides as a table with caption and differences."""
    ratios = compare(a, b)
    unit = a.rows.unit.iloc[0]
    caption = f"B over A: {unit} per second of B / of A, at the median step"
    if any(ratio.interval for ratio in ratios):
        caption += (
            f", with its 95% confidence interval (Welch's t over rounds); {intervals.CORRECTED}"
        )
    elif any(ratios):
        caption += f"; {intervals.NO_INTERVAL}"

    return text_tables.page(
        [
            caution(a, b),
            columns(a, b, ratios),
            f"- {a}\n- {b}",
            f"{caption}.",
            "What differs (A | B):",
            "\n".join(f"- {line}" for line in differences(a, b)),
        ]
    )


def caution(a: Side, b: Side) -> str:
    """Return a sentence if the steps of two Sides are not the same work, otherwise ""."""
    others = [name for name in ("model", "shape", "dataset") if {*a.rows[name]} != {*b.rows[name]}]
    if not others:
        return ""
    return (
        f"A and B differ in {' and '.join(others)}: "
        f"ratios are of {a.rows.unit.iloc[0]} per second, not of equal steps."
    )


def columns(a: Side, b: Side, ratios: pd.Series) -> dict[str, list[str]]:
    """Return the columns of `table`: lists of texts, one per technique, by title.

    ratios: of `compare`. The note of a technique is why it has no timing, or its notes and taint.
    """
    unit = a.rows.unit.iloc[0]
    texts_a, texts_b = _texts(a, ratios.index, unit), _texts(b, ratios.index, unit)
    columns = {
        "technique": list(ratios.index),
        "B over A": list(map(str, ratios)),
        "verdict on B": [ratio.verdict for ratio in ratios],
    }
    for title in texts_a.columns.drop("note"):
        columns[f"{title}, A | B"] = list(texts_a[title] + " | " + texts_b[title])

    columns["note"] = []
    for note_a, note_b in zip(texts_a["note"], texts_b["note"], strict=True):
        notes = [f"A: {note_a}"] if note_a else []
        if note_b:
            notes.append(f"B: {note_b}")
        columns["note"].append(note_a if note_a == note_b else "; ".join(notes))
    return columns


def _texts(side, names, unit):
    """Return the texts of COLUMNS and a note of each technique, a DataFrame by name."""
    scripts = side.summary.shown
    cells = result_tables.texts_of(scripts, COLUMNS, unit)
    index = [script.name for script in scripts]
    texts = pd.DataFrame(cells, index).reindex(names, fill_value="-").replace("", "-")
    notes = result_tables.remarks(side.summary)
    return texts.assign(note=["; ".join(notes.get(name, ["not run"])) for name in names])
