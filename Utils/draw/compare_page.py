"""The page that compares two results."""

from collections import Counter

import numpy as np

from Utils.analysis import comparison
from Utils.analysis.intervals import NO_INTERVAL
from Utils.base.text import short
from Utils.draw import page_template, svg
from Utils.results import selection


def page(a, b):
    """Return the page of two selections of results (see `compare`), a string of HTML. Raises
    UserError."""
    a, b = comparison.sides(a, b)
    ratios = comparison.compare(a, b)
    rows = [
        {
            "name": name,
            "ratio": ratio,
            "verdict": ratio.verdict,
            "mark": np.nan,
            "tainted": any(s.lines.grade.get(name) == "tainted" for s in (a, b)),
            "reason": "" if ratio else short(comparison.why_not(a, b, name)),
        }
        for name, ratio in ratios.items()
    ]
    verdicts = Counter(ratio.verdict for ratio in ratios)
    return page_template.render(
        "compare.html",
        sides=[{"name": s.name, "described": selection.describe(s.rows)} for s in (a, b)],
        bars_drawn=svg.bars(rows),
        counts={verdict: verdicts[verdict] for verdict in svg.MARKS},
        undecided=verdicts[NO_INTERVAL],
        columns=page_template.table(comparison.columns(a, b, ratios), "technique"),
        differences=[short(line) for line in comparison.differences(a, b)],
    )
