"""What each technique is worth alone, in the ladder, and when it is left out of the whole.

    python -m Utils.commands.ablation [WHOLE] [flags of the scripts]

A ladder credits a technique with what it adds to those before it, so the order decides. Here every
rung also runs alone, on the baseline, and the whole (by default the last script of the longest line
of the ladder) runs without it, in the same interleaved rounds: scripts that `variants` merges. Rows
bear the variants' names, `no_optimization+flash_attention` and `fused_optimizer-flash_attention`,
and no table or chart of the ladder shows them.
"""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, selection, tables
from Utils.base import ladder, variants
from Utils.base.ladder import BASELINE

WAYS = {  # a column of `credits`, and what it is called
    "alone": "alone, on the baseline",
    "ladder": "in the ladder, on its parent",
    "last": "added last, to the whole without it",
}


def last_rung():
    """The end of the longest line at the top level: what the ladder makes of the baseline."""
    names = [technique.name for technique in ladder.group("ladder")]
    return max(names, key=lambda name: len(ladder.line(name)))


def members(whole):
    """The techniques to give credit to: those from which `whole` descends and itself; for the
    ladder's own whole, its other branches too."""
    line = ladder.line(whole)[1:]
    if whole == last_rung():
        line += [t.name for t in ladder.group("ladder") if t.name not in (BASELINE, *line)]
    return line


def names_of(technique, whole):
    """What is divided by what to give `technique` credit: {way: (without it, with it)}, each the
    name of a script or of a variant. A way that cannot be gone is left out."""
    first, line = ladder.get(technique).parent == BASELINE, ladder.line(whole)
    pairs = {"ladder": (ladder.get(technique).parent, technique)}
    if first:
        pairs["alone"] = pairs["ladder"]
    elif variants.alone(technique):
        pairs["alone"] = (BASELINE, f"{BASELINE}+{technique}")
    if technique == whole:
        pairs["last"] = pairs["ladder"]
    elif technique in line and variants.without(technique, whole):
        pairs["last"] = (f"{whole}-{technique}", whole)
    return {way: pairs[way] for way in WAYS if way in pairs}


def plan(whole):
    """The names of all scripts and variants that have to run, each once."""
    pairs = [pair for name in members(whole) for pair in names_of(name, whole).values()]
    return list(dict.fromkeys([BASELINE, *(name for pair in pairs for name in pair)]))


def whole_of(rows):
    """The script that the variants among selected rows are an ablation of, the newest where there
    are several; None where there are no variants."""
    found = [variants.parse(name) for name in rows.sort_values("run_id").technique.unique()]
    if not any(found):
        return None
    wholes = [whole for whole, sign, _ in filter(None, found) if sign == "-"]
    return wholes[-1] if wholes else last_rung()


def credits(rows, whole):
    """One line a technique: what it is worth in each of WAYS, as a DataFrame indexed by technique.

    rows: selected rows, variants included. For each way its speedup, with _low, _high and
    _verdict; NaN where there are no rows. `says`: a sentence where two ways differ by more than
    chance, or why a way cannot be gone; "" elsewhere.
    """
    medians = intervals.round_medians(selection.timed(rows))
    lines = []
    for name in members(whole):
        line, logs = {"technique": name}, {}
        for way, (without, with_it) in names_of(name, whole).items():
            if without in medians and with_it in medians:
                found = intervals.speedup(medians[without], medians[with_it])
                line |= {key.replace("speedup", way): value for key, value in found.items()}
                line[f"{way}_verdict"] = line.pop("verdict", "")
                logs[way] = np.log(medians[without] / medians[with_it])
        line["says"] = _disagreement(line, logs, whole) or _missing(name, whole)
        lines.append(line)
    columns = [f"{way}{part}" for way in WAYS for part in ("", "_low", "_high", "_verdict")]
    return pd.DataFrame(lines, columns=["technique", *columns, "says"]).set_index("technique")


def _disagreement(line, logs, whole):
    """What is to be said where a technique's worth alone and its worth at the end are not the
    same, by the interval of their paired difference; "" where they may be."""
    if not {"alone", "last"} <= set(logs):
        return ""
    _, low, high = intervals.interval((logs["alone"] - logs["last"]).dropna())
    if not (low > 0 or high < 0):
        return ""
    text = f"{line['alone']:.2f}x alone and {line['last']:.2f}x added last to {whole}"
    if low > 0:
        return f"{text}; part of what it saves, the others save too"
    return f"{text}; it pays most together with the others"


def _missing(name, whole):
    """Why a technique has no variant, where that is so."""
    pairs, reasons = names_of(name, whole), []
    if "alone" not in pairs:
        reasons.append(f"alone it does not apply: it needs {' and '.join(variants.needs(name))}")
    if "last" not in pairs and name in ladder.line(whole):
        child = variants.builds_on(name, whole)
        reasons.append(f"it cannot be left out of {whole}: {child} builds on it")
    return "; ".join(reasons)


def table(lines):
    """`credits` as a GitHub-markdown table, and the sentences below it. A string."""
    shown = {"technique": list(lines.index)}
    for way, title in WAYS.items():
        part = lines[[way, f"{way}_low", f"{way}_high", f"{way}_verdict"]].set_axis(
            ["speedup", "speedup_low", "speedup_high", "verdict"], axis=1
        )
        shown[title] = [tables.ratio_text(line) for _, line in part.iterrows()]
    says = [f"- {name}: {line.says}" for name, line in lines.iterrows() if line.says]
    return "\n".join([tables.markdown(shown), *([""] if says else []), *says])
