"""Two results files beside each other: what they hold, what differs, a table.

Their rounds ran at different times or on different machines. Ratios are of tokens per second, so
shapes may differ.
"""

import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.analysis.summary import Summary, summarize
from Utils.analysis.two_sides import TwoSides
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.text import number, plural
from Utils.results import rows_file, selection, study
from Utils.scripts.ladder import split

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
MEASURED = {  # columns of the table, of a script's figures
    "tokens/s": lambda figures: result_tables.four_digits(figures.tokens_per_second),
    "over baseline": lambda figures: figures.speedup.text,
    "peak memory (MiB)": lambda figures: number(figures.peak_memory_mib, ",.0f"),
    "loss": lambda figures: number(figures.loss, ".3f") or figures.loss_difference.text,
}


def select(name: str, text: str, base: str | None = None) -> Summary:
    """Return the Summary of the rows of a side (A or B) that a text, and a base if given, select.

    text: a results file, then optionally a colon and words of the description of a group of runs.
    Of several such groups the newest is selected.

    Raises UserError.
    """
    path, _, words = text.partition(":")
    if not path:
        remedy = f"as in {paths.COMMAND} compare A=results.csv:2.11 B=results.csv:2.13"
        raise UserError(f"{name} names no results file", remedy)

    all_rows = rows_file.read(path)
    try:
        chosen = study.choose(all_rows, path, words=words, base=base)
    except UserError as error:
        raise UserError(f"{path}: {error.message}", error.remedy) from None

    return summarize(chosen)


def sides(a: str, b: str, base: str | None) -> tuple[Summary, Summary]:
    """Return what two texts select. Raises UserError, also if they share runs."""
    a, b = select("A", a, base), select("B", b, base)
    common = {*a.study.rows.run_id} & {*b.study.rows.run_id}
    if common:
        raise UserError(
            f"A and B share {plural(len(common), 'run')} of {selection.description(a.study.rows)}",
            "select runs that are in one alone",
        )
    return a, b


def differences(a: Summary, b: Summary) -> list[str]:
    """Return the recorded differences of two results, a line each: "torch: 2.11.0 | 2.13.0"."""
    conditions = RECORD_CONDITIONS if a.study.records and b.study.records else ()
    values_a, values_b = (_conditions(side, conditions) for side in (a, b))
    lines = []
    for name in values_a | values_b:
        values = [by_name.get(name, []) for by_name in (values_a, values_b)]
        if {*values[0]} != {*values[1]}:
            texts = [", ".join(texts) or "not recorded" for texts in values]
            lines.append(f"{name}: {' | '.join(texts)}")

    codes_a, codes_b = _codes(a), _codes(b)
    edited = {name for name, _ in codes_a ^ codes_b} & dict(codes_a).keys() & dict(codes_b).keys()
    if edited:
        names = [script.name for script in a.shown if script.name in edited]
        lines.append(f"source: the code differs in {', '.join(names)}")

    return lines or ["nothing recorded differs"]


def _row_conditions(side):
    """Return lists of distinct texts of the rows by condition."""
    rows = side.study.rows
    conditions = {
        "device": rows.device,
        "torch": rows.torch,
        "model": rows.model,
        "shape": rows.batch_size.astype(str) + "x" + rows.seq_len.astype(str),
        "dataset": rows.dataset,
        "processes": rows.world_size.astype(str),
        "commit": rows.commit.replace("", "unknown"),
        "day": rows.run_id.str[:8],
    }
    return {name: list(texts.unique()) for name, texts in conditions.items()}


def _conditions(side, names):
    """Return lists of distinct texts by name, from the rows and from fields of the records."""
    conditions = _row_conditions(side)
    for record in side.study.records.values():
        fields = pd.json_normalize({name: record.get(name) for name in names}).squeeze(axis=0)
        for name, value in fields.dropna().items():
            texts = conditions.setdefault(name, [])
            if name not in IN_ROWS and str(value) not in texts:
                texts.append(str(value))
    return conditions


def _codes(side):
    """Return pairs of a technique and its code, without docstring, from the records."""
    sources = [(r.get("technique"), r.get("source")) for r in side.study.records.values()]
    return {(name, split(source)[1]) for name, source in sources if source}


def page(a: Summary, b: Summary, sides: TwoSides) -> str:
    """Return the table of two results with caption and differences."""
    caption = f"B over A: {sides.measure}, at the median step"
    ratios = sides.ratios.values()
    if any(ratio.interval for ratio in ratios):
        caption += f" (Welch's t over rounds). {intervals.MEANING}"
    elif any(ratios):
        caption += f"; {intervals.NO_INTERVAL}"

    return text_tables.page(
        [
            caution(a, b),
            sides.columns(MEASURED) | {"note": [*sides.notes.values()]},
            "\n".join(f"- {line}" for line in sides.described),
            f"{caption}.",
            "What differs (A | B):",
            "\n".join(f"- {line}" for line in differences(a, b)),
        ]
    )


def caution(a: Summary, b: Summary) -> str:
    """Return a sentence if the steps of two results are not the same work, otherwise ""."""
    of_a, of_b = _row_conditions(a), _row_conditions(b)
    differing = [name for name in ("model", "shape", "dataset") if {*of_a[name]} != {*of_b[name]}]
    if not differing:
        return ""
    return (
        f"A and B differ in {' and '.join(differing)}: "
        f"ratios are of {a.study.rows.unit.iloc[0]} per second, not of equal steps."
    )
