"""Shared results, folders of results/: written and checked.

Home folders, user name and host name are replaced by <home>, <user> and <host>; charts are drawn
from the replaced rows.
"""

import itertools
import os
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

from Utils.analysis import attribution, intervals, recommendation, result_tables, text_tables
from Utils.analysis.summary import summarize
from Utils.base import child, files, paths
from Utils.base.errors import UserError, first_line, naming
from Utils.base.text import HOMES, MARKUP, plain, plural
from Utils.results import rows_file, selection, study

ANYBODY = {"root", "user", "admin", "ubuntu", "localhost"}  # names that identify no one
FIXED = ("run_id", "status", "phase", "model", "device", "torch", "commit")  # never free text
MEMBER = re.compile(r"results\.csv|results\.jsonl|environment\.txt|README\.md|\w[\w-]*\.png")
NEEDED = ("results.csv", "results.jsonl", "environment.txt", "README.md", "speedup*.png")
MOST_MIB = 64  # the largest folder
SAME = ["base", "unit", "device", "torch", "model", "commit"]  # equal in all rows of a folder
NAMES = ("run_id", "base", "parent", "change", "technique", "unit", "model", "torch", "commit")
TEXTS = {"device": 200, "dataset": 200, "note": 2000}  # free texts, and their most letters
OUTSIDE = re.compile(r"(^|[/\\])\.\.([/\\]|$)")  # a path out of a folder
LOCAL_LINK = re.compile(r"!?\[[\w.-]+\]\([\w.-]+\)")
FORMULA = ("=", "+", "-", "@")  # a spreadsheet runs a cell that begins so
MALFORMED = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, UserError)
PNG = b"\x89PNG\r\n\x1a\n"
PAIRS_SINCE = "20261127"  # from this day on, rounds come in pairs
AGAIN = "`make submit` writes a complete folder from your own results"
MARK = "<!-- folders -->"  # before and after the list of folders
VERSIONS = ("python", "torch", "triton", "cudnn", "bitsandbytes", "torchao", "driver")


def identity() -> list[tuple[str, str]]:
    """Return the texts that identify user and host, each with its replacement, longest first."""
    home = Path.home()
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
    hosts = [platform.node(), os.environ.get("HOSTNAME", "")]
    hosts += [host.partition(".")[0] for host in hosts]

    marks = dict.fromkeys([home.name, *users], "<user>") | dict.fromkeys(hosts, "<host>")
    marks[str(home)] = "<home>"
    names = [name for name in marks if len(name) > 2 and name.lower() not in ANYBODY]
    return [(name, marks[name]) for name in sorted(names, key=len, reverse=True)]


def scrub(value: object, names: list[tuple[str, str]]) -> object:
    """Return the value with names replaced in all of its texts, except for keys.

    Replaced are the names of `identity`, as words of their own in any case, and all home folders.
    """

    def replace(text):
        for name, mark in names:
            word = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            text = re.sub(word, mark, text, flags=re.IGNORECASE)
        return HOMES.sub("<home>", text)

    return _with_texts(value, replace)


def _with_texts(value, function):
    """Return a value of JSON with a function of all of its texts, except for keys."""
    if isinstance(value, dict):
        return {key: _with_texts(item, function) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, function) for item in value]
    return function(value) if isinstance(value, str) else value


def make(
    results_file: Path, device_name: str | None = None, base: str | None = None
) -> tuple[Path, str]:
    """Write the newest run's group of rows, or that of a device or base, to a folder of results/.

    Complete groups of other shapes come with it. Return the folder and a sentence on the runs left
    out. Raises UserError if the folder would not be complete; then nothing has been written.
    """
    all_rows = rows_file.read(results_file)
    newest, _ = selection.select(all_rows, device_name, base)
    run_ids = _run_ids_to_share(all_rows, newest, results_file)

    device = re.sub(r"[^\w.-]+", "_", newest.device.iloc[0]).strip("._-") or "device"
    folder = selection.SHARED / device / _date(max(run_ids))
    if folder.exists() and not run_ids & {*rows_file.read(folder / "results.csv").run_id}:
        raise UserError(f"{folder}: holds other runs of that day", "rename that folder")

    files.claim(folder, lambda folder: all(MEMBER.fullmatch(x.name) for x in folder.iterdir()))

    # Rows and records without names.
    names = identity()
    rows = [row for row in rows_file.read_as_texts(results_file) if row["run_id"] in run_ids]
    for row in rows:
        row |= scrub(row, names) | {key: row[key] for key in FIXED}
    records = scrub(rows_file.read_records(results_file, run_ids), names)

    # The folder is complete before it replaces an older one, which comes back if that fails.
    with naming(folder), tempfile.TemporaryDirectory() as unfinished:
        new = Path(unfinished) / "new"
        older = Path(unfinished) / "older"
        new.mkdir()
        for run_id, rows_of_run in itertools.groupby(rows, lambda row: row["run_id"]):
            rows_file.append(new / "results.csv", rows_of_run, records.get(run_id))
        reports = dict.fromkeys(record["collect_env"] for record in records.values())
        files.write(new / "environment.txt", "\n\n".join(reports))
        draw(new)
        files.write(new / "README.md", page(new))
        problems = [*_problems(new)]
        if problems:
            remedy = "nothing was written; make all ROUNDS=4 on a clean checkout gives all of it"
            raise UserError(f"{results_file}: {'; '.join(problems[:5])}", remedy)

        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            shutil.move(folder, older)
        try:
            shutil.move(new, folder)
            files.write(*folder_list())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if older.exists():
                shutil.move(older, folder)
            raise

    left_out = all_rows.run_id.nunique() - len(run_ids)
    return folder, f"not in it: {plural(left_out, 'run')}" if left_out else ""


def _run_ids_to_share(all_rows, newest, results_file):
    """Return the run_ids of the newest group, and of complete groups that differ only in shape."""
    run_ids = {*newest.run_id}
    for _, group in selection.comparable_groups(all_rows):
        if (group[SAME].iloc[0] == newest[SAME].iloc[0]).all():
            rows, _ = selection.without_repeats(group)
            if not [*_problems_of_group(rows, results_file)]:
                run_ids |= {*rows.run_id}
    return run_ids


def _date(run_id):
    """Return the date of a run, "2026-11-26"."""
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"


def draw(folder: Path) -> None:
    """Draw the charts of a folder's rows into it. Raises UserError."""
    command = [sys.executable, paths.ROOT / "plot_results.py"]
    command.append(f"--results-file={folder.name}/results.csv")
    done = child.run(command, paths.environment(), cwd=folder.parent)
    if done.code:
        raise UserError(f"the charts could not be drawn: {done.reason}")
    for chart in folder.parent.glob("plots/*.png"):
        chart.rename(folder / chart.name)


def page(folder: Path) -> str:
    """Return the README.md of a folder: device, versions, charts, and the tables of its rows."""
    path = folder / "results.csv"
    rows = rows_file.read(path)
    newest = rows.run_id.max()
    record = rows_file.read_records(path, [newest]).get(newest, {})
    text = [
        f"# {plain(rows.device.iloc[0])}",
        f"Measured until {_date(newest)} with {plain(versions_of(record))}. This "
        "page is made of results.csv and results.jsonl; [environment.txt](environment.txt) is "
        "torch's report.",
    ]

    for summary in map(summarize, study.of_groups(rows, path)):
        headline = recommendation.recommend(summary).headline
        tables = result_tables.table(summary, headline, all_columns=True, in_file=True)
        text += [f"## {selection.description(summary.study.rows)}", tables]
        whole = attribution.ablated_script(summary.study)
        if whole:
            credits = attribution.speedups_by_switch(summary, whole)
            text += ["### Ablation", attribution.table(credits, in_file=True)]

    text.append("## Charts")
    for chart in sorted(folder.glob("*.png")):
        text.append(f"![{chart.name}]({chart.name})")
    return "\n\n".join(text) + "\n"


def versions_of(record: dict) -> str:
    """Return the versions of Python, packages and driver in a record, as a list in words."""
    driver = (record.get("device") or {}).get("driver")
    versions = (record.get("versions") or {}) | {"driver": driver}
    return ", ".join(f"{name} {versions[name]}" for name in VERSIONS if versions.get(name))


def pages() -> dict[Path, str]:
    """Return the text of each folder's page, and of the list of all, by path.

    A folder that cannot be read is left out, with a line on stderr.
    """
    texts = dict([folder_list()])
    for path in selection.shared_files():
        try:
            texts[path.with_name("README.md")] = page(path.parent)
        except MALFORMED as error:
            print(f"{path.parent}: left out: {first_line(error)}", file=sys.stderr)
    return texts


def folder_list() -> tuple[Path, str]:
    """Return the path and the text of the list of all folders that can be read."""
    lines = []
    for path in selection.shared_files():
        page_path = path.with_name("README.md")
        rows = rows_file.read(path)
        first = rows.iloc[0]
        ok = rows[rows.status == "ok"]
        lines.append(
            {
                "device": f"[{plain(first.device)}]({page_path.relative_to(selection.SHARED)})",
                "date": path.parent.name,
                "torch": plain(first.torch),
                "commit": plain(first.commit),
                "techniques": str(ok.technique.nunique()),
                "rounds": str(ok["round"].nunique()),
            }
        )

    columns = pd.DataFrame(lines).to_dict("list")
    table = text_tables.markdown(columns, {"device", "date", "torch", "commit"})
    path = selection.SHARED / "README.md"
    parts = path.read_text().split(MARK) if path.exists() else ["# Results by device\n\n", ""]
    return path, MARK.join([parts[0], f"\n{table}\n", parts[-1]])


def check(path: Path) -> list[Path]:
    """Check a folder, or all those of results/. Return them. Raises UserError."""
    folders = [path] if (path / "results.csv").exists() else sorted(path.glob("*/*/"))
    if not folders:
        raise UserError(f"{path}: holds no results", "name a folder of results/")
    for folder in folders:
        try:
            problems = [*_problems(folder)]
        except UserError as error:  # its remedy is for a user's own results file
            raise UserError(error.message, AGAIN) from None
        if problems:
            raise UserError(f"{folder}: {'; '.join(problems[:5])}", AGAIN)
    return folders


def _problems(folder):
    """Yield what is wrong with a folder, in which nothing is trusted. Raises UserError."""
    # Its files.
    members = list(folder.iterdir())
    for path in members:
        if not MEMBER.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            yield f"{path.name[:80]!r} is not allowed"
            return
        if path.suffix == ".png" and path.open("rb").read(len(PNG)) != PNG:
            yield f"{path.name} is not a PNG"
    if sum(path.lstat().st_size for path in members) > MOST_MIB * 2**20:
        yield f"larger than {MOST_MIB} MiB"
        return
    missing = [name for name in NEEDED if not any(folder.glob(name))]
    if missing:
        yield f"lacks {' and '.join(missing)}"

    # Their texts.
    path = folder / "results.csv"
    rows = rows_file.read(path, with_pairs=True)
    for name in (*NAMES, *TEXTS):
        for text in rows[name].unique():
            if not _is_valid(name, text):
                line = rows.index[rows[name] == text][0] + 2
                yield f"results.csv:{line}: {name} {text[:40]!r} is not valid"
    text = (folder / "README.md").read_text(errors="replace")
    if MARKUP.search(LOCAL_LINK.sub("", text)):
        yield "README.md holds a tag, or a link to elsewhere"

    # Groups of comparable rows.
    groups = [group for _, group in selection.comparable_groups(rows)]
    kinds = {tuple(group[SAME].iloc[0]) for group in groups}
    if len(kinds) > 1:
        yield f"rows of {len(kinds)} devices, versions, models or commits; only one is allowed"
        return
    for group in groups:
        yield from _problems_of_group(selection.without_repeats(group)[0], path)


def _is_valid(name, text):
    """Return whether a text is valid in the column of that name."""
    if not text:
        return name in ("parent", "change", "note")
    if name == "change":
        return re.fullmatch(r"([+-]\w+)+", text)
    if name in NAMES:
        return re.fullmatch(r"[\w.][\w.+-]{0,199}", text)
    is_harmless = plain(text) == text and not text.startswith(FORMULA)
    return is_harmless and len(text) <= TEXTS[name] and not OUTSIDE.search(text)


def _problems_of_group(rows, results_file):
    """Yield why rows of one shape, selected, are not complete."""
    uncommitted = rows[~rows.commit.str.fullmatch("[^-]+")].technique.unique()
    if len(uncommitted):
        yield f"measured with uncommitted code: {', '.join(uncommitted)}"
    timed = rows[rows.status == "ok"]
    if rows.base.iloc[0] not in timed.technique.unique():
        yield f"no timings of {rows.base.iloc[0]}"

    records = rows_file.read_records(results_file, rows.run_id.unique())
    lacking = 0
    for run_id in timed.run_id.unique():
        record = records.get(run_id, {})
        lacking += not {"versions", "quality"} <= record.keys()
        parts = [record.get(name) for name in ("versions", "quality", "device", "limits")]
        if _with_texts(parts, plain) != parts:
            yield f"the record of {run_id} holds markup or control characters"
            return
    if lacking:
        yield f"no record with versions and quality of {lacking} runs"
        return
    try:
        summarize(study.of_group(rows, [], records))
    except MALFORMED:
        yield "its records are malformed"

    clean = timed[timed.grade == "clean"].groupby("technique")["round"].nunique()
    in_pairs = rows.run_id.max() >= PAIRS_SINCE
    fewest = intervals.BOLD_ROUNDS if in_pairs else selection.UNDISTURBED_ROUNDS
    few = [name for name in timed.technique.unique() if clean.get(name, 0) < fewest]
    if few:
        yield f"fewer than {fewest} undisturbed rounds of {', '.join(few)}"
    if in_pairs and rows["round"].nunique() % 2:
        yield "an odd number of rounds; they come in pairs"
