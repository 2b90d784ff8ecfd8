"""Write docs/coverage.csv: how often simulated tables claim what is not so, for METHOD.

    .venv/bin/python -m tools.docs.coverage

`make readme` writes it to docs/METHOD.md.

A table has seven equal scripts, each with its parent before it, in two groups of turns a round that
share one script. Times are simulated; intervals are those of `make table`.
"""

import itertools

import numpy as np
import pandas as pd

from Utils.analysis import levels
from Utils.base import paths

SCRIPTS = [*"abcdefg"]
GROUPS = [*"abcd", *"defg"]  # the scripts of a round, in two groups
PARENTS = {frozenset(pair) for pair in itertools.pairwise(SCRIPTS)}
TABLE = PARENTS | {frozenset(("a", script)) for script in SCRIPTS[1:]}
LOOKS = (2, 4, 6, 8, 10)  # rounds after which a user looks at the table
TABLES = 1000
NOISE = 0.01  # standard deviation of a run's logarithm
MACHINE = 0.1  # the same of the machine from group to group
DRIFT = 0.02  # change of the machine in a round, from the first script to the last


def equal(random, shape):
    return NOISE * random.standard_normal(shape)


def ten_times(random, shape):
    factors = dict(zip(SCRIPTS, 10 ** random.uniform(-0.5, 0.5, len(SCRIPTS)), strict=True))
    return equal(random, shape) * [factors[script] for script in GROUPS]


def noisy_script(random, shape):
    """Noise of scripts of which the last has ten times that of the others."""
    return equal(random, shape) * [10 if script == "g" else 1 for script in GROUPS]


def heavy_tails(random, shape):
    return NOISE * random.standard_t(3, shape)


def bursts(random, shape):
    """Noise, and in a tenth of the runs another program, which takes up to a fifth of the time."""
    return equal(random, shape) + (random.random(shape) < 0.1) * random.uniform(0, 0.2, shape)


def drift(random, shape):
    """Noise on a machine that gets slower in each round; every other is in reverse order."""
    order = np.where(np.arange(shape[0]) % 2, -1, 1)
    return equal(random, shape) + DRIFT * np.outer(order, np.linspace(0, 1, shape[1]))


KINDS = {
    "equal": equal,
    "differs by 10 times": ten_times,
    "one script ten times as noisy": noisy_script,
    "heavy tails": heavy_tails,
    "bursts in a tenth of the runs": bursts,
    "drift of 2% a round": drift,
}


def table(kind, random, rounds, faster=0.0):
    """Return the runs of a table, for `levels.fit`.

    faster: logarithm of the ratio of the last script to its parent.
    """
    noise = KINDS[kind](random, (rounds, len(GROUPS)))
    machine = np.repeat(MACHINE * random.standard_normal((rounds, 2)), 4, axis=1)
    runs = pd.DataFrame({"script": GROUPS * rounds, "log": (noise + machine).ravel()})
    runs["group"] = runs.index // 4
    runs["round"] = runs.index // len(GROUPS)
    runs["log"] -= faster * (runs.script == "g")
    return runs


def ratios(runs, rounds):
    """Return the Ratios of a table after a number of rounds."""
    of_rounds = levels.fit(runs[runs["round"] < rounds], families=(TABLE,))
    return [of_rounds.ratio(*sorted(pair)) for pair in TABLE]


def false_claims(kind, tables):
    """Return, for tables of equal scripts, whether they claim a difference at each of LOOKS."""
    random = np.random.default_rng(7)
    claims = []
    for _ in range(tables):
        runs = table(kind, random, max(LOOKS))
        claims.append([any(ratio.is_different for ratio in ratios(runs, n)) for n in LOOKS])
    return np.array(claims)


def main():
    rows = []
    for kind in KINDS:
        claims = false_claims(kind, TABLES)
        shares = dict(zip((f"{n} rounds" for n in LOOKS), claims.mean(axis=0), strict=True))
        shares["at any of these looks"] = claims.any(axis=1).mean()
        rows.append({"noise": kind} | {title: f"{share:.1%}" for title, share in shares.items()})
        print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(paths.ROOT / "docs" / "coverage.csv", index=False)


if __name__ == "__main__":
    main()
