"""A table and a chart of B over A, and the exit code."""

from Utils.analysis import intervals, text_tables
from Utils.analysis.intervals import INCONCLUSIVE
from Utils.analysis.result_tables import four_digits, remarks
from Utils.base.text import number
from Utils.draw import ratio_charts
from Utils.results import selection

FAILED, TOO_BUSY, SLOWER = 1, 3, 4  # exit codes


class Comparison:
    """The sides of a pair, script by script.

    summary: of the rows of both sides.
    lines: figures of A and of B, by the name of the script.
    """

    def __init__(self, summary, ladder):
        self.summary = summary
        figures = summary.figures
        self.lines = {}
        for script in ladder:
            if {script.name, script.parent} <= {*figures.index}:
                name = script.name.removesuffix("@B")
                self.lines[name] = figures.loc[script.parent], figures.loc[script.name]
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

        table = {}
        for name, (a, b) in self.lines.items():
            first_steps = [number(first_step_s[line.name], ".1f") for line in (a, b)]
            peaks = [number(line.peak_memory_mib, ",.0f") for line in (a, b)]
            times = [four_digits(line.step_ms) or line.status for line in (a, b)]
            losses = b.loss_difference.text_with_verdict
            if b.parity == "exact":
                losses = "identical"
            elif b.parity == "model changed":
                losses += f", {b.parity}"
            cells = {
                "script": name,
                "ms a step, A | B": " | ".join(times),
                "speedup of B": str(self.ratios[name]),
                "verdict": self.ratios[name].verdict,
                "first step (s), A | B": " | ".join(first_steps),
                "peak memory (MiB), A | B": " | ".join(peaks),
                "loss, B - A": losses,
            }
            for title, text in cells.items():
                table.setdefault(title, []).append(text)
        return table

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
