"""Words about a technique, which charts and the page share."""

import textwrap

import numpy as np

from Utils.analysis import result_tables


def label(line, tainted=False):
    """Return a technique's name, with its batch if that is its own, and with its taint if asked."""
    batch = "" if np.isnan(line.own_batch) else f" (batch {line.own_batch:.0f})"
    name = f"{line.label}{batch}"
    return f"{name} (tainted)" if tainted and line.grade == "tainted" else name


def measured(lines):
    """Return the lines with something to draw, and a sentence on each other one.

    Where none has, all are returned, each to be drawn as its reason.
    """
    missing = np.array([bool(reason(line)) for _, line in lines.iterrows()])
    if missing.all() or not missing.any():
        return lines, ""
    texts = [
        textwrap.shorten(f"{label(line)}: {reason(line)}", 90, placeholder=" ...")
        for _, line in lines[missing].iterrows()
    ]
    return lines[~missing], "\n".join(["", "", "Not measured:", *texts])


def reason(line):
    """Return why a technique has no bar, or ""."""
    if np.isnan(line.step_ms):
        return result_tables.reason(line)
    return "" if line.speedup else "no baseline to compare with"
