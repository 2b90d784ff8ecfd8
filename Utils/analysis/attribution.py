"""Ablation: the speedup of each technique alone, in the ladder, and added last to the whole.

In a ladder, a technique's speedup depends on the order. Here every rung also runs alone, on the
baseline, and the whole (by default the last script of the ladder's longest line) runs without it,
in the same interleaved rounds. `variants` merges these scripts. Rows bear the variants' names,
`no_optimization+flash_attention` and `fused_optimizer-flash_attention`, and no table or chart of
the ladder shows them.
"""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, round_levels, text_tables
from Utils.analysis.intervals import Ratio
from Utils.results import selection
from Utils.scripts import ladder, own_names, variants

WAYS = {  # columns of `credits`, and their titles
    "alone": "alone, on the baseline",
    "ladder": "in the ladder, on its parent",
    "last": "added last, to the whole without it",
}


def last_rung(bfloat16=True):
    """Return the end of the longest line of the ladder of a device with or without bfloat16."""
    names = [technique.name for technique in ladder.group("ladder", bfloat16)]
    return max(names, key=lambda name: len(ladder.line(name)))


def members(whole):
    """Return the techniques to ablate: the line of `whole`, and the other branches of the ladder
    where `whole` is its last rung. Of a base, those of its whole ladder."""
    if of_base := own_names.split(whole):
        return of_base[1]
    line = ladder.line(whole)[1:]
    bfloat16 = "float16" not in ladder.get(whole).needs
    if whole == last_rung(bfloat16):
        names = [technique.name for technique in ladder.group("ladder", bfloat16)]
        line += [name for name in names if name not in (ladder.BASELINE, *line)]
    return line


def names_of(technique, whole):
    """Return the pairs whose ratio is the technique's speedup: {way: (without it, with it)}, names
    of scripts or variants. A way that has no variant is left out."""
    if of_base := own_names.split(whole):
        return _on_own_script(technique, *of_base)
    parent, line = ladder.get(technique).parent, ladder.line(whole)
    pairs = {"ladder": (parent, technique)}
    if parent == ladder.BASELINE:
        pairs["alone"] = pairs["ladder"]
    elif variants.together([technique]):
        pairs["alone"] = (ladder.BASELINE, f"{ladder.BASELINE}+{technique}")
    if technique == whole:
        pairs["last"] = pairs["ladder"]
    elif technique in line and variants.without(technique, whole):
        pairs["last"] = (f"{whole}-{technique}", whole)
    return {way: pairs[way] for way in WAYS if way in pairs}


def _on_own_script(technique, base, names):
    """Return the pairs of `names_of` for the switches on an own script."""
    replaced = own_names.REPLACES.get(technique, set())
    position = own_names.ORDER.index(technique)
    before = [t for t in names if own_names.ORDER.index(t) < position and t not in replaced]
    pairs = {"alone": ([], [technique]), "ladder": (before, [*before, technique])}
    if technique in names:
        pairs["last"] = ([name for name in names if name != technique], names)
    return {way: tuple("+".join([base, *t]) for t in pair) for way, pair in pairs.items()}


def plan(whole):
    """Return the names of all scripts and variants to run, each once."""
    pairs = [pair for name in members(whole) for pair in names_of(name, whole).values()]
    first = own_names.split(whole)[0] if own_names.split(whole) else ladder.BASELINE
    return list(dict.fromkeys([first, *(name for pair in pairs for name in pair)]))


def whole_of(rows):
    """Return the script that the rows ablate, the newest of several; None without variants."""
    if (base := selection.baseline(rows)) != ladder.BASELINE:
        return _whole_of_base(rows, base)
    names = rows.sort_values("run_id").technique.unique()
    parsed = [parts for name in names if (parts := variants.parse(name))]
    wholes = [whole for whole, sign, _ in parsed if sign == "-"]
    return wholes[-1] if wholes else last_rung(selection.has_bfloat16(rows)) if parsed else None


def _whole_of_base(rows, base):
    """Return the longest script of a base's ladder with timings; None without variants."""
    rows = rows[rows.status == "ok"]
    alone = selection.variants_in(rows)
    if not alone:
        return None
    line = {*own_names.LADDER} - {"8bit_optimizer"}
    runs = rows[~rows.technique.isin(alone)].technique.unique()
    names = [name for name in runs if {*own_names.split(name)[1]} <= line]
    return max(names, key=lambda name: name.count("+"), default=base)


def credits(rows, whole):
    """Return a DataFrame with one line per technique: its speedup in each of WAYS, a Ratio, unknown
    without rows; verdicts are corrected by Holm over all of them. `says`: a remark where two ways
    differ significantly, or where a way has no variant; "" elsewhere.

    rows: selected rows, variants included.
    """
    medians = round_levels.step_ms(selection.timed(rows))
    ratios = {}
    says = {}
    for name in members(whole):
        logs = {
            way: np.log(medians[without] / medians[with_it])
            for way, (without, with_it) in names_of(name, whole).items()
            if without in medians and with_it in medians
        }
        of_name = {way: intervals.ratio_of(values) for way, values in logs.items()}
        ratios |= {(name, way): of_name.get(way, Ratio()) for way in WAYS}
        says[name] = _disagreement(logs, of_name, whole) or _missing(name, whole)
    index = pd.MultiIndex.from_tuples(ratios)
    lines = pd.Series(intervals.holm(ratios.values()), index, dtype=object).unstack()
    lines = lines.loc[list(says), list(WAYS)].rename_axis("technique")
    return lines.assign(says=pd.Series(says))


def _disagreement(logs, ratios, whole):
    """Return a remark if the speedups alone and added last differ, by their paired ratio; else
    ""."""
    if not {"alone", "last"} <= logs.keys():
        return ""
    verdict = intervals.ratio_of(logs["alone"] - logs["last"]).verdict
    if verdict not in (Ratio.above, Ratio.below):
        return ""
    text = f"{ratios['alone'].text} alone and {ratios['last'].text} added last to {whole}"
    if max(ratios["alone"].value, ratios["last"].value) < 1:
        return f"{text}; it costs {'most' if verdict == Ratio.above else 'least'} in combination"
    if verdict == Ratio.above:
        return f"{text}; other techniques save part of the same time"
    return f"{text}; it gains most in combination"


def _missing(name, whole):
    """Return why a technique has no variant for a way, or ""."""
    if own_names.split(whole):
        return ""
    pairs, reasons = names_of(name, whole), []
    if "alone" not in pairs:
        reasons.append(f"not applicable alone: it needs {' and '.join(variants.needs(name))}")
    if "last" not in pairs and name in ladder.line(whole):
        child = variants.builds_on(name, whole)
        reasons.append(f"not removable from {whole}: {child} builds on it")
    return "; ".join(reasons)


def table(lines, in_file=False):
    """Return `credits` as a table with its remarks, a string. in_file: as Markdown."""
    shown = {"technique": list(lines.index)}
    for way, title in WAYS.items():
        shown[title] = [result_tables.bold(ratio) for ratio in lines[way]]
    parts = [text_tables.shown(shown, in_file=in_file)]
    says = [f"- {name}: {line.says}" for name, line in lines.iterrows() if line.says]
    parts += [""] if says else []
    parts += [text_tables.fitted(text, "  ", in_file) for text in says]
    return "\n".join(parts)
