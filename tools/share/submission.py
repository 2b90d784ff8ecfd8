"""Shared results, folders of results/: written and checked.

Home folders, user name and host name are replaced by <home>, <user> and <host>; charts are drawn
from the replaced rows.
"""

import itertools
import re
import sys
from pathlib import Path

import pandas as pd

from tools.share import private_names
from Utils.analysis import attribution, result_tables, text_tables
from Utils.analysis.summary import summarize
from Utils.base import child, files, paths
from Utils.base.errors import UserError, naming
from Utils.base.text import MARKUP, plain, plural
from Utils.results import row_rules, rows_file, selection, study

MEMBER = re.compile(r"results\.csv|results\.jsonl|environment\.txt|README\.md|\w[\w-]*\.png")
NEEDED = ("results.csv", "results.jsonl", "environment.txt", "README.md", "speedup*.png")
MOST_MIB = 64  # the largest folder
MOST_PROBLEMS = 5  # in one message
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # its first bytes
PNG_END = b"IEND\xaeB`\x82"
LOCAL_LINK = re.compile(r"!?\[[\w.-]+\]\([\w.-]+\)")

SAME = ["base", "unit", "device", "torch", "model", "commit"]  # equal in all rows of a folder
# Texts of each column. A free text begins with no sign of a spreadsheet's formula, and has no path
# out of a folder.
NAME = r"[\w.][\w.+-]{0,199}"
FREE = r"(?![=+@-])(?!(.*[/\\])?\.\.([/\\]|$))"
PATTERNS = {
    **dict.fromkeys(["run_id", "technique", *SAME], NAME),
    "parent": f"({NAME})?",
    "change": r"([+-]\w+)*",
    "device": FREE + r"[^\[\]]{1,200}",  # it is the text of a link
    "dataset": FREE + ".{1,200}",
    "note": FREE + ".{0,2000}",
}
FIXED = {"run_id", "status", "phase", "model", "device", "torch", "commit"}  # never free text

MALFORMED = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, UserError)
FEWEST_ROUNDS = 4
PAIRS_SINCE = "20261127"  # from this day on, rounds come in pairs
AGAIN = "`make submit` writes a complete folder from your own results"
MARK = "<!-- folders -->"  # before and after the list of folders
VERSIONS = ("python", "torch", "triton", "cudnn", "bitsandbytes", "torchao", "driver")


def write(folder: Path, results_file: Path, run_ids: set[str]) -> None:
    """Write the runs of a results file to the folder, without names. Raises UserError."""
    folder.mkdir()

    marks = private_names.replacements()
    rows = [row for row in rows_file.read_as_texts(results_file) if row["run_id"] in run_ids]
    for row in rows:
        row |= private_names.scrub({key: row[key] for key in row.keys() - FIXED}, marks)
    records = private_names.scrub(rows_file.read_records(results_file, run_ids), marks)

    for run_id, rows_of_run in itertools.groupby(rows, lambda row: row["run_id"]):
        rows_file.append(folder / "results.csv", rows_of_run, records.get(run_id))
    reports = dict.fromkeys(record["collect_env"] for record in records.values())
    files.write(folder / "environment.txt", "\n\n".join(reports))
    draw(folder)
    files.write(folder / "README.md", page(folder))


def draw(folder: Path) -> None:
    """Draw the charts of the rows. Raises UserError."""
    options = [f"--results-file={folder}/results.csv", f"--plotsprefix={folder.resolve()}/"]
    script = str(paths.ROOT / "plot_results.py")
    child.output_of([sys.executable, script, *options], paths.environment())
    for chart in folder.glob("*.svg"):
        chart.unlink()


def page(folder: Path) -> str:
    """Return the text of README.md: device, versions, charts, and the tables of the rows."""
    rows = rows_file.read(folder / "results.csv")
    newest = rows.run_id.max()
    record = rows_file.read_records(folder / "results.csv", [newest]).get(newest, {})
    text = [
        f"# {plain(rows.device.iloc[0])}",
        f"Measured until {_date(newest)} with {plain(versions_of(record))}. This "
        "page is made of results.csv and results.jsonl; [environment.txt](environment.txt) is "
        "torch's report.",
    ]

    for summary in map(summarize, study.of_groups(rows, folder / "results.csv")):
        tables = result_tables.table(summary, all_columns=True, in_file=True)
        text += [f"## {selection.description(summary.study.rows)}", tables]
        ablated = attribution.ablated_script(summary.study)
        if ablated:
            credits = attribution.credits_of(summary, ablated)
            text += ["### Ablation", attribution.table(credits, in_file=True)]

    text.append("## Charts")
    for chart in sorted(folder.glob("*.png")):
        text.append(f"![{chart.name}]({chart.name})")
    return "\n\n".join(text) + "\n"


def check_folder(folder: Path, name: Path, remedy: str) -> None:
    """Raise UserError, which names a path, for what is wrong with the folder."""
    problems = [*itertools.islice(_problems(folder), MOST_PROBLEMS)]
    if problems:
        raise UserError(f"{name}: {'; '.join(problems)}", remedy)


def _problems(folder):
    """Yield what is wrong with the folder, in which nothing is trusted. Raises UserError."""
    if folder.is_symlink() or folder.parent.is_symlink():
        yield "is a link"
        return
    members = list(folder.iterdir())
    for path in members:
        if not MEMBER.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            yield f"{path.name[:80]!r} is not allowed"
            return
    if sum(path.stat().st_size for path in members) > MOST_MIB * 2**20:
        yield f"larger than {MOST_MIB} MiB"
        return

    # Files.
    rows = rows_file.read(folder / "results.csv", with_pairs=True)
    for path in folder.glob("*.png"):
        content = path.read_bytes()
        if not content.startswith(PNG) or not content.endswith(PNG_END):
            yield f"{path.name} is not a PNG"
    missing = [name for name in NEEDED if not any(folder.glob(name))]
    if missing:
        yield f"lacks {' and '.join(missing)}"
        return

    # Texts.
    for name, pattern in PATTERNS.items():
        for text in rows[name].unique():
            if not re.fullmatch(pattern, text) or plain(text) != text:
                line = rows.index[rows[name] == text][0] + 2
                yield f"results.csv:{line}: {name} {text[:40]!r} is not valid"
    page = (folder / "README.md").read_text(errors="replace")
    if MARKUP.search(LOCAL_LINK.sub("", page)):
        yield "README.md holds a tag, or a link to elsewhere"
    environment = (folder / "environment.txt").read_text(errors="replace")
    if row_rules.CONTROL.search(page + environment):
        yield "README.md or environment.txt holds control characters"

    # Groups of comparable rows.
    kinds = rows.assign(commit=rows.commit.str.removesuffix("-dirty"))[SAME].drop_duplicates()
    if len(kinds) > 1:
        yield f"rows of {len(kinds)} devices, versions, models or commits; only one is allowed"
        return
    for _, group in selection.comparable_groups(rows):
        yield from _problems_of_group(group, folder / "results.csv")


def make(
    results_file: Path,
    all_rows: pd.DataFrame,
    shared: Path,
    device_name: str = "",
    base: str | None = None,
) -> tuple[Path, str]:
    """Write the newest run's group of rows, or that of a device or base, to a folder of results/.

    Complete groups of other shapes come with it. Return the folder and a sentence on the runs left
    out. Raises UserError if the folder would not be complete; then nothing has been written.

    all_rows: those of the file that may be written.
    shared: folder of results, the repository's or another.
    """
    # The newest group, and complete ones that differ in shape alone.
    newest, _ = selection.select(all_rows, device_name, base)
    run_ids = {*newest.run_id}
    for _, group in selection.comparable_groups(all_rows):
        is_like_newest = (group[SAME].iloc[0] == newest[SAME].iloc[0]).all()
        if is_like_newest and not any(_problems_of_group(group, results_file)):
            run_ids |= {*group.run_id}

    device = re.sub(r"[^\w.-]+", "_", newest.device.iloc[0]).strip("._-") or "device"
    folder = shared / device / _date(max(run_ids))
    if folder.exists() and not run_ids & {*rows_file.read(folder / "results.csv").run_id}:
        raise UserError(f"{folder}: holds other runs of that day", "rename that folder")
    files.claim(folder, lambda folder: all(MEMBER.fullmatch(x.name) for x in folder.iterdir()))

    # The folder is complete before it replaces an older one, which is kept aside until then.
    remedy = "nothing was written; make all ROUNDS=4 on a clean checkout gives all of it"
    with naming(folder):
        shared.mkdir(parents=True, exist_ok=True)
        with files.new_folder(shared) as unfinished:
            new = unfinished / "new"
            write(new, results_file, run_ids)
            check_folder(new, results_file, remedy)
            folder.parent.mkdir(exist_ok=True)
            with files.uninterrupted():
                if folder.exists():
                    folder.rename(unfinished / "older")
                new.rename(folder)
    files.write(*folder_list())

    left_out = all_rows.run_id.nunique() - len(run_ids)
    return folder, f"left out: {plural(left_out, 'run')}" if left_out else ""


def check(path: Path) -> list[Path]:
    """Check a folder, or all those of results/. Return them. Raises UserError."""
    folders = [path] if (path / "results.csv").exists() else sorted(path.glob("[!.]*/*/"))
    if not folders:
        raise UserError(f"{path}: holds no results", "name a folder of results/")
    for folder in folders:
        try:
            check_folder(folder, folder, AGAIN)
        except UserError as error:  # its remedy may be for a user's own results file
            raise UserError(error.message, AGAIN) from None
    return folders


def _problems_of_group(group, results_file):
    """Yield why a group of comparable rows is not complete."""
    records = rows_file.read_records(results_file, group.run_id.unique())
    rows, _ = selection.counted_runs(group, records)
    uncommitted = rows[~rows.commit.str.fullmatch("[^-]+")].technique.unique()
    if len(uncommitted):
        yield f"measured with uncommitted code: {', '.join(uncommitted)}"
    timed = rows[rows.status == "ok"]
    if rows.base.iloc[0] not in timed.technique.unique():
        yield f"no timings of {rows.base.iloc[0]}"

    # Records of the runs with timings.
    lacking = 0
    for run_id in timed.run_id.unique():
        record = records.get(run_id, {})
        lacking += not {"versions", "quality"} <= record.keys()
        parts = [
            record.get(name) for name in ("versions", "quality", "device", "limits", "platform")
        ]
        if private_names.with_texts(parts, plain) != parts:
            yield f"the record of {run_id} holds markup or control characters"
            return
    if lacking:
        yield f"no record with versions and quality of {lacking} runs"
        return
    try:
        summarize(study.of_group(rows, [], records))
    except MALFORMED:
        yield "its records are malformed"

    rounds = timed.groupby("technique")["round"].nunique()
    in_pairs = rows.run_id.max() >= PAIRS_SINCE
    fewest = FEWEST_ROUNDS if in_pairs else 2
    few = rounds.index[rounds < fewest]
    if len(few):
        yield f"fewer than {fewest} rounds of {', '.join(few)}"
    if in_pairs and rows["round"].nunique() % 2:
        yield "an odd number of rounds; they come in pairs"


def _date(run_id):
    """Return the date of a run, "2026-11-26"."""
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"


def versions_of(record: dict) -> str:
    """Return the versions of Python, packages and driver in a record, as a list in words."""
    driver = (record.get("device") or {}).get("driver")
    versions = (record.get("versions") or {}) | {"driver": driver}
    return ", ".join(f"{name} {versions[name]}" for name in VERSIONS if versions.get(name))


def pages() -> dict[Path, str]:
    """Return the text of each folder's page, and of the list of all, by path.

    A folder that cannot be read is left out, with a line on stderr.
    """
    shared = selection.shared_files()
    return dict([folder_list()]) | {
        path.with_name("README.md"): page(path.parent) for path in shared
    }


def folder_list() -> tuple[Path, str]:
    """Return the path and the text of the list of all folders that can be read."""
    lines = []
    for path in selection.shared_files():
        rows = rows_file.read(path)
        first = rows.iloc[0]
        timed = rows[rows.status == "ok"]
        link = f"{path.parent.relative_to(selection.SHARED)}/README.md"
        line = {
            "device": f"[{plain(first.device)}]({link})",
            "date": path.parent.name,
            "torch": plain(first.torch),
            "commit": plain(first.commit),
            "techniques": f"{timed.technique.nunique()}",
            "rounds": f"{timed['round'].nunique()}",
        }
        lines.append(line)

    table = text_tables.markdown(pd.DataFrame(lines), {"device", "date", "torch", "commit"})
    path = selection.SHARED / "README.md"
    parts = path.read_text().split(MARK) if path.exists() else ["# Results by device\n\n", ""]
    return path, MARK.join([parts[0], f"\n{table}\n", parts[-1]])
