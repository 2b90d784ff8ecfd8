"""Write docs/coverage.csv: the coverage of 95% intervals in simulated tables, for METHOD.

    .venv/bin/python -m tools.docs.coverage

`make readme` writes it to docs/METHOD.md.

A table has seven scripts, each with its parent before it. Levels are simulated; intervals are those
of `make table`.
"""

import itertools

import numpy as np
import pandas as pd

from Utils.analysis import intervals
from Utils.analysis.levels import Levels
from Utils.base import paths

SCRIPTS = list("abcdefg")
PAIRS = list(itertools.pairwise(SCRIPTS))  # parents and scripts
ROUNDS = (2, 3, 4, 8)
TABLES = 2000
NOISE = 0.01  # standard deviation of a level
DRIFT = 0.02  # change of the machine in a round, from the first script to the last


def equal(random, shape):
    return NOISE * random.standard_normal(shape)


def ten_times(random, shape):
    factors = 10 ** random.uniform(-0.5, 0.5, shape[1])
    return equal(random, shape) * factors


def noisy_script(random, shape):
    """Noise of scripts of which the last has ten times that of the others."""
    factors = np.ones(shape[1])
    factors[-1] = 10
    return equal(random, shape) * factors


def heavy_tails(random, shape):
    return NOISE * random.standard_t(3, shape)


def drift(random, shape):
    """Noise on a machine that gets slower in each round; every other is in reverse order."""
    order = np.where(np.arange(shape[0]) % 2, -1, 1)
    return equal(random, shape) + DRIFT * np.outer(order, np.linspace(0, 1, shape[1]))


KINDS = {
    "equal": equal,
    "differs by 10 times": ten_times,
    "one script ten times as noisy": noisy_script,
    "heavy tails": heavy_tails,
    "drift of 2% a round": drift,
}


def coverage(kind, rounds, tables):
    """Return the share of intervals that hold the true ratio: over a parent, and over the base.

    The third value is that of the last script over its parent.
    """
    random = np.random.default_rng(rounds)
    hits = []
    for _ in range(tables):
        noise = KINDS[kind](random, (rounds, len(SCRIPTS)))
        logs = pd.DataFrame(noise, columns=SCRIPTS)  # a row a round
        table = Levels(logs, intervals.common_variance(logs, PAIRS), False)
        over_base = [(SCRIPTS[0], script) for script in SCRIPTS[1:]]
        ratios = [table.ratio(*pair) for pair in PAIRS + over_base]
        hits.append([ratio.low <= 1 <= ratio.high for ratio in ratios])
    shares = np.mean(hits, axis=0)
    return shares[:6].mean(), shares[6:].mean(), shares[5]


def main():
    rows = []
    for kind in KINDS:
        row = {"noise": kind}
        for rounds in ROUNDS:
            parent, base, last = coverage(kind, rounds, TABLES)
            text = f"{parent:.0%}, {base:.0%}"
            if kind == "one script ten times as noisy":
                text += f"; {last:.0%}"
            row[f"{rounds} rounds"] = text
        rows.append(row)
    pd.DataFrame(rows).to_csv(paths.ROOT / "docs" / "coverage.csv", index=False)


if __name__ == "__main__":
    main()
