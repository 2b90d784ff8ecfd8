"""How much ratios over the parent vary between rounds, by what stands for a run's step time.

    python -m tests.estimators [--results-file results.csv] [--rounds N]

Prints for each group of rows the root mean square, over techniques, of the standard deviation of
log ratios, where a quantile of a run's timed steps stands for it. The tables use the median. Then
half the width of the tables' intervals over the parent, and the minutes that the rows took. With
--rounds, of the first N rounds alone. For docs/LOG.md and docs/METHOD.md.
"""

import numpy as np
import pandas as pd

from Utils.analysis import round_levels
from Utils.analysis.summary import summarize
from Utils.base import command_line
from Utils.base.command_line import Parser
from Utils.results import rows_file, selection
from Utils.scripts import ladder

QUANTILES = (0.0, 0.25, 0.4, 0.5)
FEWEST_ROUNDS = 4


def main(argv=None):
    parser = Parser("estimators", __doc__)
    command_line.add_results_file(parser)
    parser.add_argument("--rounds", type=command_line.at_least(FEWEST_ROUNDS), default=10**6)
    args = parser.parse_args(argv)
    rows = rows_file.read(args.results_file)
    rows = rows[rows["round"] < args.rounds]
    for name, group in selection.groups(rows):
        timed = selection.timed(group)
        if timed["round"].nunique() >= FEWEST_ROUNDS:
            found = {f"quantile {q:g}": spread(round_levels.step_ms(timed, q)) for q in QUANTILES}
            print(name, *(f"  {what}: {value:.1%}" for what, value in found.items()), sep="\n")
            count = timed.technique.nunique()
            print(f"  {widths(group)}; {minutes(group):.0f} minutes for {count} scripts")


def spread(step_ms):
    """Return the root mean square of the standard deviations of log ratios over the parent."""
    found = []
    for name, technique in ladder.techniques().items():
        if {name, technique.parent} <= {*step_ms.index.get_level_values(0)}:
            found.append(np.log(step_ms[technique.parent] / step_ms[name]).std())
    return np.sqrt(np.mean(np.square(found)))


def widths(rows):
    """Return half the widths of intervals over the parent in words."""
    lines = summarize(selection.select(rows, with_variants=True)[0])
    half = (np.log(lines.parent_speedup_high / lines.parent_speedup_low) / 2).dropna()
    return f"{len(half)} intervals of +-{half.median():.1%} (median), {half.max():.1%} (widest)"


def minutes(rows):
    """Return the minutes from the first start of a run to the last."""
    starts = pd.to_datetime(rows.run_id.str[:15], format="%Y%m%dT%H%M%S")
    return (starts.max() - starts.min()).total_seconds() / 60


if __name__ == "__main__":
    main()
