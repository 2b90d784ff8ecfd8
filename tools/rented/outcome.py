"""The outcome of a plan: a page of text, and a folder to share."""

from tools.peers import loop_table
from tools.share import submission
from Utils.analysis import result_tables, text_tables
from Utils.analysis.summary import summarize
from Utils.base import files
from Utils.base.errors import UserError
from Utils.results import rows_file, selection, study

PAGE = "README.md"  # beside the results file


def pieces(plan):
    """Return the pieces as a table.

    It has the rounds that rows have of each, its minutes, and why it failed in this command.
    """
    missing = plan.missing()
    pieces = plan.pieces
    return {
        "script": [piece.title for piece in pieces],
        "rounds": [f"{missing.get(piece, piece.rounds)} of {piece.rounds}" for piece in pieces],
        "minutes": [f"{piece.minutes:g}" for piece in pieces],
        "note": [plan.reasons.get(piece.title, "") for piece in pieces],
    }


def write(plan):
    """Write the page and the folder to share, both beside the results file.

    Return the path of the page.
    """
    path = plan.args.results_file
    parts = [
        f"<!-- Written by {files.MARK}. -->",
        f"# Measured on {plan.device.name}",
        pieces(plan),
    ]
    if rows_file.has_rows(path):
        parts += [*_results(path), "## To share", _share(path)]
    page = path.with_name(PAGE)
    files.write(page, text_tables.page(parts, in_file=True) + "\n")

    return page


def _results(path):
    """Yield the table of each shape, then that of peers."""
    rows = rows_file.read(path, with_pairs=True)
    of_peers = rows[rows.suite == "peers"]
    for summary in map(summarize, study.of_groups(rows.drop(of_peers.index), path)):
        yield f"## {selection.description(summary.study.rows)}"
        yield result_tables.table(summary, in_file=True)
    if len(of_peers):
        yield "## Other people's loops"
        summary = summarize(study.choose(of_peers, path))
        yield loop_table.page_of(summary, in_file=True)


def _share(path):
    """Write what is complete to results/ beside the page. Return a sentence on it."""
    rows = rows_file.read(path)
    complete = rows[rows.run_id.isin(_complete_runs(rows))]
    if complete.empty:
        return f"Nothing: no shape has {submission.FEWEST_ROUNDS} rounds of its scripts yet."
    shared = path.parent / selection.SHARED.name
    try:
        folder, left_out = submission.make(path, complete, shared)
    except UserError as error:
        return f"Nothing: {error}."
    return f"{folder.relative_to(path.parent)}, to be copied to results/. {left_out}".strip()


def _complete_runs(rows):
    """Return the run_ids of scripts with enough rounds, in pairs of rounds."""
    run_ids = set()
    for _, group in selection.comparable_groups(rows):
        number = group["round"]
        paired = group[number < (number.max() + 1) // 2 * 2]
        counts = paired[paired.status == "ok"].groupby("technique")["round"].nunique()
        complete = counts.index[counts >= submission.FEWEST_ROUNDS]
        if group.base.iloc[0] in complete:
            run_ids |= {*paired.run_id[paired.technique.isin(complete)]}
    return run_ids
