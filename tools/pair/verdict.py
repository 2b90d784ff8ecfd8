"""A table and a chart of B over A, and the exit code."""

from Utils.analysis import intervals, text_tables
from Utils.analysis.intervals import INCONCLUSIVE
from Utils.analysis.result_tables import four_digits, remarks
from Utils.base.text import number
from Utils.draw import ratio_charts
from Utils.results import selection

FAILED, TOO_BUSY, SLOWER = 1, 3, 4  # exit codes


def _loss(line):
    """Return the difference of B's loss to A's, in words what differs from the usual."""
    if line.parity == "exact":
        return "identical"
    text = line.loss_difference.text_with_verdict
    return f"{text}, {line.parity}" if line.parity == "model changed" else text


class Comparison:
    """The sides of a pair, script by script.

    summary: of the rows of both sides.
    lines: figures of A and of B, by the name of the script.
    """

    def __init__(self, summary, ladder):
        self.summary = summary
        figures = summary.scripts
        self.lines = {}
        for script in ladder:
            if {script.name, script.parent} <= figures.keys():
                name = script.name.removesuffix("@B")
                self.lines[name] = figures[script.parent], figures[script.name]
        self.ratios = {name: b.parent_speedup for name, (_, b) in self.lines.items()}

    def slower(self, share):
        """Return the names of scripts that take longer in B by more than a share.

        By the nearer end of the interval.
        """
        return [
            name
            for name, ratio in self.ratios.items()
            if ratio.verdict != INCONCLUSIVE and 1 / ratio.high > 1 + share
        ]

    def code(self, share):
        """Return the exit code: 0, FAILED, SLOWER or TOO_BUSY.

        FAILED if a script runs on one side alone, or none on both.
        """
        runs_alike = all(a.status == b.status for a, b in self.lines.values())
        if not runs_alike or not any(self.ratios.values()):
            return FAILED
        if self.slower(share):
            return SLOWER
        verdicts = [ratio.verdict for ratio in self.ratios.values()]
        return TOO_BUSY if INCONCLUSIVE in verdicts else 0

    def described(self):
        """Return a line on each side: device, versions, shape, rounds and commit."""
        rows = self.summary.study.rows
        is_a = rows.parent == ""
        sides = {"A": rows[is_a], "B": rows[~is_a]}
        return [f"{name}: {selection.description(side)}" for name, side in sides.items()]

    def columns(self):
        """Return the columns of the table, lists of texts by title."""
        runs = self.summary.study.rows.sort_values("run_id").groupby("technique")
        first_step_s = runs.first_step_s.first()  # that of the first round

        def both(text):
            return [f"{text(a)} | {text(b)}" for a, b in self.lines.values()]

        return {
            "script": [*self.lines],
            "ms a step, A | B": both(lambda line: four_digits(line.step_ms) or line.status),
            "speedup of B": [str(ratio) for ratio in self.ratios.values()],
            "verdict": [ratio.verdict for ratio in self.ratios.values()],
            "first step (s), A | B": both(lambda line: number(first_step_s[line.name], ".1f")),
            "peak memory (MiB), A | B": both(lambda line: number(line.peak_memory_mib, ",.0f")),
            "loss, B - A": [_loss(b) for _, b in self.lines.values()],
        }

    def table(self, share, in_file):
        """Return the table with captions. in_file: as Markdown."""
        summary = self.summary
        slower = ", ".join(self.slower(share)) or "none"
        headline = f"Slower in B by more than {share:.1%}: {slower}."
        if self.code(share) in (FAILED, TOO_BUSY):
            headline += " Not every script can be judged."
        remark = [
            f"- {name}: {'; '.join(texts)}" for name, texts in remarks(summary).items() if texts
        ]
        caption = (
            "Speedup: step time of A / of B in turns, with its 95% interval; "
            f"{intervals.CORRECTED}. First steps are of the first round, which began with empty "
            "compile caches."
        )
        parts = [
            summary.study.disturbed,
            self.columns(),
            headline,
            "\n".join(f"- {line}" for line in self.described()),
            caption,
            summary.study.left_out,
            "\n".join(remark),
        ]
        return text_tables.page(parts, in_file)

    def chart(self):
        """Draw the speedup of B over A with its interval, and the table beside it."""
        table = self.columns()
        titles = {1.42: "speedup of B", 1.8: "ms a step, A | B", 2.6: "loss, B - A"}
        columns = [(x, title, table[title]) for x, title in titles.items()]
        series = ratio_charts.by_verdict(list(self.ratios.values()))
        head = "Speedup of B over A", *self.described()
        xlabel = "step time of A / of B (x)"
        figure, _ = ratio_charts.forest(list(self.lines), series, head, xlabel, columns, False)
        return figure
