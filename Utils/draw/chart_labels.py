"""Words about a technique, which charts and the page share."""

import textwrap

import numpy as np


def label(line):
    """Return a technique's name, with its batch if that is its own, and with its taint."""
    batch = "" if np.isnan(line.own_batch) else f" (batch {line.own_batch:.0f})"
    return f"{line.label}{batch}{' (tainted)' if line.grade == 'tainted' else ''}"


def labels(lines):
    return [label(line) for _, line in lines.iterrows()]


def memory_unit(rows):
    """Return the unit of memory on the device of rows, in MiB, and the format of its values."""
    on_gpu = rows.reserved_memory_mib.notna().any()
    return ("GiB", 1024, ",.2f") if on_gpu else ("MiB", 1, ",.0f")


def measured(lines):
    """Return the lines with a time, and a sentence on each other one.

    Where none has, all are returned, each to be drawn as its reason.
    """
    missing = lines.step_ms.isna()
    if missing.all() or not missing.any():
        return lines, ""
    texts = [
        textwrap.shorten(f"{label(line)}: {line.reason}", 90, placeholder=" ...")
        for _, line in lines[missing].iterrows()
    ]
    return lines[~missing], "\n".join(["Not measured:", *texts])
