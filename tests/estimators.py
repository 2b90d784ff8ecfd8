"""How much ratios over the parent vary between rounds, by what stands for a run's step time.

    python -m tests.estimators [--results-file results.csv]

Prints for each group of rows the root mean square, over techniques, of the standard deviation of
log ratios: of the levels that the tables use (`rounds.step_ms`), and of quantiles of a run's timed
steps, joined over a round in the same way. For docs/LOG.md.
"""

import numpy as np
import pandas as pd

from Utils.analysis import rounds, selection
from Utils.base import command_line, ladder, results
from Utils.base.command_line import Parser

QUANTILES = (0.0, 0.25, 0.4, 0.5)
FEWEST_ROUNDS = 4


def main(argv=None):
    parser = Parser("estimators", __doc__)
    command_line.add_results_file(parser)
    rows = selection.timed(results.read(parser.parse_args(argv).results_file))
    for name, group in selection.groups(rows):
        if group["round"].nunique() >= FEWEST_ROUNDS:
            found = {"in use": spread(rounds.step_ms(group))}
            found |= {f"quantile {q:g}": spread(of_quantile(group, q)) for q in QUANTILES}
            print(name, *(f"  {what}: {value:.1%}" for what, value in found.items()), sep="\n")


def of_quantile(timed, q):
    """Return step times as `rounds.step_ms` does, from a quantile of each run's timed steps."""
    scaled = np.log(timed.step_ms * timed.requested_batch_size / timed.batch_size)
    timed = timed.assign(log=scaled, group=timed.run_id.str[-rounds.TOKEN :])
    runs = timed.groupby(["round", "group", "technique", "run_id"]).log.quantile(q).reset_index()
    return np.exp(pd.concat(rounds._levels(r, part) for r, part in runs.groupby("round")))


def spread(step_ms):
    """Return the root mean square of the standard deviations of log ratios over the parent."""
    found = []
    for name, technique in ladder.techniques().items():
        if {name, technique.parent} <= {*step_ms.index.get_level_values(0)}:
            found.append(np.log(step_ms[technique.parent] / step_ms[name]).std())
    return np.sqrt(np.mean(np.square(found)))


if __name__ == "__main__":
    main()
