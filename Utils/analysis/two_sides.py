"""Two sides, A and B, script by script: the ratio of B to A, and a table.

Sides in two results files ran at different times, so their ratios are unpaired; those of
`make pair` took turns, so their ratios are paired.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from Utils.analysis import result_tables
from Utils.analysis.figures import ScriptFigures
from Utils.analysis.intervals import CONFIDENCE, Ratio, of_each
from Utils.analysis.summary import Summary
from Utils.results import selection, study


@dataclass(frozen=True)
class TwoSides:
    """Figures of A and B by script, in ladder order.

    described: a line on A and a line on B.
    measure: what a ratio divides, in words; above 1 if B is faster.
    interval: what the intervals are, in words.
    figures_a, figures_b: by script; a side may lack some.
    ratios: by script; false without timings on both sides.
    notes: by script; why it has no timing on a side, or remarks on its timings, "" without any.
    """

    described: list[str]
    measure: str
    figures_a: dict[str, ScriptFigures]
    figures_b: dict[str, ScriptFigures]
    ratios: dict[str, Ratio]
    notes: dict[str, str]
    interval: str = "95% interval, for all ratios together"

    def columns(self, measured: dict[str, Callable[[ScriptFigures], str]]) -> dict[str, list[str]]:
        """Return the columns of a table: lists of texts, one per script, by title.

        measured: functions of a script's figures, by title; their texts are "of A | of B".
        """
        columns = {
            "script": [*self.ratios],
            "B over A": list(map(str, self.ratios.values())),
            "verdict on B": [self._verdict(name) for name in self.ratios],
        }
        for title, text_of in measured.items():
            columns[f"{title}, A | B"] = [self._both(name, text_of) for name in self.ratios]
        return columns

    def _verdict(self, name):
        """Return the verdict on a ratio. What trains something else is not faster."""
        b = self.figures_b.get(name)
        verdict = self.ratios[name].verdict
        return "not the same" if b and b.training_problem and verdict == "faster" else verdict

    def _both(self, name, text_of):
        texts = []
        for figures in (self.figures_a, self.figures_b):
            text = text_of(figures[name]) if name in figures else ""
            texts.append(text or "-")
        return " | ".join(texts)


def unpaired(a: Summary, b: Summary) -> TwoSides:
    """Return the sides of two Summaries, with ratios of B's rates to A's."""
    identities = b.study.identities | a.study.identities
    ordered = study.in_order(identities, a.study.ladder)
    figures_a = {script.name: script for script in a.shown}
    figures_b = {script.name: script for script in b.shown}
    names = [name for name in ordered if name in figures_a | figures_b]

    on_both = figures_a.keys() & figures_b.keys()
    confidence = of_each(CONFIDENCE, len(on_both))
    ratios = [
        _unpaired_ratio(a, b, name, confidence) if name in on_both else Ratio() for name in names
    ]
    return TwoSides(
        described=_described(a.study.rows, b.study.rows),
        measure=f"{a.study.rows.unit.iloc[0]} per second of B / of A",
        figures_a=figures_a,
        figures_b=figures_b,
        ratios=dict(zip(names, ratios, strict=True)),
        notes=_notes(names, result_tables.remarks(a), result_tables.remarks(b)),
    )


def _unpaired_ratio(a, b, name, confidence):
    """Return the Ratio of B's tokens per second to A's, by Welch's t over their rounds."""
    if not (a.scripts[name].is_timed and b.scripts[name].is_timed):
        return Ratio()
    level_a, variance_a, freedom_a = a.levels.unpaired(name)
    level_b, variance_b, freedom_b = b.levels.unpaired(name)
    error = math.sqrt(variance_a + variance_b)
    freedom = min(freedom_a, freedom_b)
    if error > 0:
        freedom = error**4 / (variance_a**2 / freedom_a + variance_b**2 / freedom_b)
    more_tokens = math.log(_tokens(b) / _tokens(a))
    return Ratio.by_t(more_tokens + level_a - level_b, error, freedom, confidence)


def _tokens(summary):
    """Return the tokens of a step of the requested batch, to which times refer."""
    first = summary.study.rows.iloc[0]
    return first.requested_batch_size * first.seq_len


def paired(summary: Summary, scripts: dict[str, tuple[str, str]]) -> TwoSides:
    """Return the sides of one Summary, whose scripts took turns, with ratios of times.

    scripts: names of a script's rows on A and on B, by its name. One without rows is left out.
    """
    figures = summary.scripts
    measured = {name: sides for name, sides in scripts.items() if figures.keys() >= {*sides}}
    figures_a = {name: figures[a] for name, (a, _) in measured.items()}
    figures_b = {name: figures[b] for name, (_, b) in measured.items()}

    rows = summary.study.rows
    is_a = rows.parent == ""
    return TwoSides(
        described=_described(rows[is_a], rows[~is_a]),
        measure="step time of A / of B",
        figures_a=figures_a,
        figures_b=figures_b,
        ratios={name: b.parent_speedup for name, b in figures_b.items()},
        notes=_notes(measured, _texts(figures_a), _texts(figures_b)),
    )


def joined(sides: list[TwoSides]) -> TwoSides:
    """Return the TwoSides of several measurements, of which each has scripts of its own.

    What holds for all is that of the first with figures.
    """
    dicts = {"figures_a": {}, "figures_b": {}, "ratios": {}, "notes": {}}
    for measurement in sides:
        for name, of_all in dicts.items():
            of_all |= getattr(measurement, name)
    first = next((measurement for measurement in sides if measurement.described), sides[0])
    return replace(first, **dicts)


def _texts(figures):
    """Return why scripts have no timing, or their notes, by name."""
    return {
        name: [script.reason] if script.reason else script.notes for name, script in figures.items()
    }


def _described(rows_a, rows_b):
    return [f"A: {selection.description(rows_a)}", f"B: {selection.description(rows_b)}"]


def _notes(names, texts_a, texts_b):
    """Return the notes of scripts by name. texts_a, texts_b: lists of texts by name."""
    notes = {}
    for name in names:
        note_a = "; ".join(texts_a.get(name, ["not run"]))
        note_b = "; ".join(texts_b.get(name, ["not run"]))
        if note_a == note_b:
            notes[name] = note_a
            continue
        of_sides = [f"{side}: {note}" for side, note in (("A", note_a), ("B", note_b)) if note]
        notes[name] = "; ".join(of_sides)
    return notes
