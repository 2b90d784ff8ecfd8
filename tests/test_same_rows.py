"""One set of rows: all commands show the same runs of a file, and print the same figures.

Each reads the file once, and the records once for its end and once for the runs that it shows.
"""

import re
import shutil
import sys
from collections import Counter
from itertools import count, product
from pathlib import Path

import pytest
from matplotlib.text import Text

import plot_results
from tests.helpers.rows import append_run
from tests.helpers.stand_ins import without_charts
from tools.share.__main__ import main as submit
from tools.share.field_report import main as field_report
from tools.site import site_page
from Utils.analysis import result_tables
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.commands import __main__ as commands
from Utils.results import rows_file, study

LADDER = "no_optimization tensorFloat32 brainFloat16"
SUITES = {  # scripts of each, and columns of their rows
    "another device": (LADDER, {"device": "Other GPU"}),
    "own script": ("train train+tensorFloat32", {"base": "train"}),
    "pair": ("a@A a@B", {"suite": "pair"}),
    "incomplete": ("tensorFloat32", {"batch_size": 2}),
    "ablation": (f"no_optimization+torch_compile {LADDER}", {}),
    "ladder": (LADDER, {}),
    "beyond": ("no_optimization fused_optimizer padded_vocabulary", {"batch_size": 4}),
}
RECORD = {"versions": {}, "quality": {}, "collect_env": ""}


@pytest.mark.parametrize("newest", ["ladder", "beyond"])
def test_commands_show_the_same_runs_and_figures(newest, tmp_path, monkeypatch, capsys):
    """METHOD: "One set of rows decides everywhere". RESULTS: "The folder holds the newest group of
    rows and complete groups of other shapes".
    """
    figures = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("Utils.results.selection.SHARED", tmp_path / "results")
    monkeypatch.setattr("Utils.draw.chart_style.save", lambda figure, name: figures.append(figure))
    without_charts(monkeypatch)

    # Scripts of a round take turns, and no two runs are equally fast.
    path = Path("results.csv")
    numbers = count(100)
    for suite in sorted(SUITES, key=lambda suite: suite == newest):
        names, columns = SUITES[suite]
        for r, (n, name) in product(range(4), enumerate(names.split())):
            number = next(numbers)
            columns = columns | {"round": r, "run_id": f"20260101T{number}-{suite}{r}"}
            append_run(path, name, [(9_000 + number) / 2**n] * 4, RECORD, **columns)

    shutil.copy(path, "b.csv")
    opened = Counter()

    def count_opened(event, args):  # it stays in this process, whatever its next tests audit
        if event == "open" and args:
            opened[Path(str(args[0])).name] += 1

    def output_of(*words, main=commands.main):
        opened.clear()
        main(*words)
        assert main == submit or 0 < opened[path.name] <= opened["results.jsonl"] <= 3
        return capsys.readouterr().out

    sys.addaudithook(count_opened)
    table = output_of("table")
    ratios = re.findall(r"([\d.]+x \(\S+\))\*\*", table)  # over the script before
    left_out = re.search("not shown: .*", table)[0]
    assert ratios and names.split()[-1] in table and "+" not in table
    assert left_out.count("Other GPU") == left_out.count("train: ") == 1 and "@" not in left_out

    suite_rows = rows_file.read(path).query(f"run_id == '{columns['run_id']}'")
    charts = [output_of(main=plot_results.main)]
    charts += [text.get_text() for figure in figures for text in figure.findobj(Text)]
    output_of("report")
    for text in (
        output_of(main=field_report),
        output_of("recipe", "RECIPE=recipe.py"),
        Path("report.html").read_text(),
        result_tables.table(summarize(study.of_suite(suite_rows, path))),
        "".join(charts),
    ):
        assert [part for part in [*ratios, left_out] if part not in text] == []
    ratio, _ = ratios[0].split()
    assert f" {ratio} " in output_of("compare", "A=results.csv", "B=b.csv:other")

    # The folder to share has other shapes too. The site reads it.
    assert "results/Test_GPU/2026-01-01\n" in output_of(main=submit)
    (shared,) = tmp_path.glob("results/*/*/results.csv")
    assert {*rows_file.read(shared).batch_size} == {1, 4}
    page = shared.with_name("README.md").read_text()
    assert all(ratio in page for ratio in ratios)
    before = site_page.COLUMNS.index("before")
    for *_, shape, answer in site_page.measured_answers(shared):
        if f" {shape} tokens" in table:
            rows = [row[before:] for row in answer["rows"] if row[before + 1]]
    assert [str(Ratio(*row[:3])) for row in rows] == ratios
