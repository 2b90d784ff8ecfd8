"""How much ratios over the parent vary between rounds, by what stands for a run's step time.

    python -m tests.estimators [--results-file results.csv]

Prints for each group of rows the root mean square, over techniques, of the standard deviation of
log ratios, where a quantile of a run's timed steps stands for it. The tables use the median. For
docs/LOG.md.
"""

import numpy as np

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
            found = {f"quantile {q:g}": spread(rounds.step_ms(group, q)) for q in QUANTILES}
            print(name, *(f"  {what}: {value:.1%}" for what, value in found.items()), sep="\n")


def spread(step_ms):
    """Return the root mean square of the standard deviations of log ratios over the parent."""
    found = []
    for name, technique in ladder.techniques().items():
        if {name, technique.parent} <= {*step_ms.index.get_level_values(0)}:
            found.append(np.log(step_ms[technique.parent] / step_ms[name]).std())
    return np.sqrt(np.mean(np.square(found)))


if __name__ == "__main__":
    main()
