"""The outcome of a plan: a page of text, and a folder to share."""

import shutil
from itertools import accumulate

from tools.forecast import stored_forecast
from tools.peers import loop_table
from tools.share import submission
from Utils.analysis import recommendation, result_tables, text_tables
from Utils.analysis.result_tables import four_digits
from Utils.analysis.summary import summarize
from Utils.base import files
from Utils.base.errors import UserError
from Utils.results import rows_file, selection, study

PAGE = "README.md"  # beside the results file


def to_run(plan):
    """Return the pieces that have not ended as a table, {} without any.

    It has the rounds that rows have of them, their minutes, those of all up to them, and why they
    failed in this command.
    """
    missing = plan.missing()
    if not missing:
        return {}
    return {
        "script": [piece.title for piece in missing],
        "rounds": [f"{done} of {piece.rounds}" for piece, done in missing.items()],
        "minutes": [f"{piece.minutes:g}" for piece in missing],
        "up to it": [f"{minutes:g}" for minutes in accumulate(p.minutes for p in missing)],
        "note": [plan.reasons.get(piece.title, "") for piece in missing],
    }


def write(plan):
    """Write the page beside the results file, and the folder to share into a folder there.

    Return the path of the page.
    """
    path = plan.args.results_file
    missing = plan.missing()
    ended = [piece for piece in plan.pieces if piece not in missing]
    parts = [
        f"<!-- Written by {files.MARK}. -->",
        f"# Measured on {plan.device.name}",
        {
            "script": [piece.title for piece in ended],
            "rounds": [str(piece.rounds) for piece in ended],
        },
        "## Not measured",
        to_run(plan) or "Nothing is left.",
    ]
    if rows_file.has_rows(path):
        parts += [*_results(path), "## To share", _share(path)]
    page = path.with_name(PAGE)
    files.write(page, text_tables.page(parts, in_file=True) + "\n")
    return page


def _results(path):
    """Yield the forecasts beside what was measured, then the table of each shape, and of peers."""
    rows = rows_file.read(path, with_pairs=True)
    is_of_peers = rows.suite == "peers"
    summaries = [*map(summarize, study.of_groups(rows[~is_of_peers], path))]
    yield "## Forecast and measured"
    yield _beside_forecast(summaries)
    for summary in summaries:
        headline = recommendation.recommend(summary).headline
        yield f"## {selection.description(summary.study.rows)}"
        yield result_tables.table(summary, headline, in_file=True)
    if is_of_peers.any():
        yield "## Other people's loops"
        summary = summarize(study.choose(rows[is_of_peers], path))
        yield loop_table.page_of(summary, in_file=True)


def _beside_forecast(summaries):
    """Return a table of steps: forecast with its 90% range, measured, and the forecast's error."""
    lines = []
    for summary in summaries:
        first = summary.study.rows.iloc[0]
        shape = first.requested_batch_size, first.seq_len
        forecasts = stored_forecast.forecasts(first.device, first.model, *shape)
        for forecast in forecasts.itertuples():
            script = summary.scripts.get(forecast.technique)
            if script and script.status == "ok":
                ends = forecast.forecast_ms, forecast.low_ms, forecast.high_ms
                ms, low, high = map(four_digits, ends)
                lines.append(
                    {
                        "script": script.name,
                        "shape": f"{shape[0]}x{shape[1]}",
                        "forecast (ms)": f"{ms} ({low}-{high})",
                        "measured (ms)": four_digits(script.step_ms),
                        "error": f"{forecast.forecast_ms / script.step_ms - 1:+.1%}",
                    }
                )
    if not lines:
        return "No step that was measured has a forecast."
    return {title: [line[title] for line in lines] for title in lines[0]}


def _share(path):
    """Write what is complete to results/, with a copy beside the page. Return a sentence on it."""
    rows = rows_file.read(path)
    complete = rows[rows.run_id.isin(_complete_runs(rows))]
    if complete.empty:
        rounds = f"{submission.FEWEST_ROUNDS} rounds"
        return f"Nothing: no shape has {rounds} of its scripts yet."
    try:
        folder, left_out = submission.make(path, all_rows=complete)
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
        complete = counts.index[counts >= submission.FEWEST_ROUNDS]
        if group.base.iloc[0] in complete:
            run_ids |= {*paired.run_id[paired.technique.isin(complete)]}
    return run_ids
