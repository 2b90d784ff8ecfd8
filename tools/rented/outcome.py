"""The outcome of a plan: a page of text, and a folder to share."""

import shutil
import tempfile
from itertools import groupby
from pathlib import Path

from tools.peers import loop_table
from tools.share import submission
from Utils.analysis import intervals, recommendation, result_tables, text_tables
from Utils.analysis.result_tables import four_digits
from Utils.analysis.summary import summarize
from Utils.base import files
from Utils.base.errors import UserError
from Utils.results import rows_file, selection, study

PAGE = "README.md"  # beside the results file


def _minutes(seconds):
    return f"{seconds / 60:.1f}"


def to_run(plan):
    """Return the pieces that are not complete as a table, a row for each title; {} without any.

    A row has the minutes of a round, those of all rows up to it, and why they are not run.
    """
    rows = []
    total_s = 0.0
    for title, group in groupby(plan.missing(), lambda piece: piece.title):
        first, *more = group
        seconds = plan.seconds(first)
        refusal = plan.refusal(first)
        total_s += 0 if refusal else seconds * (1 + len(more))
        row = title, str(1 + len(more)), _minutes(seconds), "" if refusal else _minutes(total_s)
        rows.append((*row, refusal))

    titles = "script", "rounds", "minutes each", "up to it", "note"
    return dict(zip(titles, zip(*rows, strict=True), strict=bool(rows)))


def write(plan):
    """Write the page beside the results file, and the folder to share into a folder there.

    Return the path of the page.
    """
    path = plan.args.results_file
    ran = plan.ended
    parts = [
        f"<!-- Written by {files.MARK}. -->",
        f"# Measured on {plan.conditions['device']}",
        {
            "script": [*ran],
            "minutes": [_minutes(ended["seconds"]) for ended in ran.values()],
            "expected": [_minutes(ended["expected_s"]) for ended in ran.values()],
            "note": [ended["reason"] for ended in ran.values()],
        },
        "## Not measured",
        to_run(plan) or "Nothing is left.",
    ]
    if rows_file.has_rows(path):
        parts += [*_results(plan, path), "## To share", _share(path)]
    page = path.with_name(PAGE)
    files.write(page, text_tables.page(parts, in_file=True) + "\n")
    return page


def _results(plan, path):
    """Yield the forecasts beside what was measured, then the table of each shape, and of peers."""
    rows = rows_file.read(path, with_pairs=True)
    is_of_peers = rows.suite == "peers"
    summaries = [*map(summarize, study.of_groups(rows[~is_of_peers], path))]
    yield "## Forecast and measured"
    yield _beside_forecast(plan, summaries)
    for summary in summaries:
        headline = recommendation.recommend(summary).headline
        yield f"## {selection.description(summary.study.rows)}"
        yield result_tables.table(summary, headline, in_file=True)
    if is_of_peers.any():
        yield "## Other people's loops"
        summary = summarize(study.choose(rows[is_of_peers], path))
        yield loop_table.page_of(summary, in_file=True)


def _beside_forecast(plan, summaries):
    """Return a table of steps: forecast with its 90% range, measured, and the forecast's error."""
    lines = []
    for summary in summaries:
        first = summary.study.rows.iloc[0]
        shape = first.requested_batch_size, first.seq_len
        for script in summary.shown:
            seconds = plan.forecasts.get((script.name, *shape), {}).get("seconds")
            if seconds and script.is_timed:
                forecast, low, high = (four_digits(1e3 * end) for end in seconds)
                lines.append(
                    {
                        "script": script.name,
                        "shape": f"{shape[0]}x{shape[1]}",
                        "forecast (ms)": f"{forecast} ({low}-{high})",
                        "measured (ms)": four_digits(script.step_ms),
                        "error": f"{1e3 * seconds[0] / script.step_ms - 1:+.1%}",
                    }
                )
    if not lines:
        return "No step that was measured has a forecast."
    return {title: [line[title] for line in lines] for title in lines[0]}


def _share(path):
    """Write what is complete to results/, with a copy beside the page. Return a sentence on it."""
    rows = rows_file.read(path)
    run_ids = _complete_runs(rows)
    if not run_ids:
        rounds = f"{intervals.BOLD_ROUNDS} rounds"
        return f"Nothing: no shape has {rounds} of its scripts yet."

    records = rows_file.read_records(path, run_ids)
    chosen = [row for row in rows_file.read_as_texts(path) if row["run_id"] in run_ids]
    with tempfile.TemporaryDirectory() as scratch:
        complete = Path(scratch) / "results.csv"
        for run_id, rows_of_run in groupby(chosen, lambda row: row["run_id"]):
            rows_file.append(complete, rows_of_run, records.get(run_id))
        try:
            folder, left_out = submission.make(complete)
        except UserError as error:
            return f"Nothing: {error}."
    copy = path.parent / folder.relative_to(selection.SHARED.parent)
    if copy != folder:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
    return f"{copy.relative_to(path.parent)}, to be copied to results/. {left_out}".strip()


def _complete_runs(rows):
    """Return the run_ids of scripts with enough rounds, in pairs of rounds."""
    run_ids = set()
    for _, group in selection.comparable_groups(rows):
        rounds = sorted(group["round"].unique())
        paired = group[group["round"].isin(rounds[: len(rounds) // 2 * 2])]
        timed = paired[paired.status == "ok"]
        counts = timed.groupby("technique")["round"].nunique()
        complete = counts.index[counts >= intervals.BOLD_ROUNDS]
        if group.base.iloc[0] in complete:
            run_ids |= {*paired.run_id[paired.technique.isin(complete)]}
    return run_ids
