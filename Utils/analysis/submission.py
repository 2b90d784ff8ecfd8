"""Shared results, folders of results/: checked, and written with home folders, user name and host
name replaced by <home>, <user> and <host>; charts are drawn from the replaced rows.
"""

import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from Utils.analysis import attribution, result_tables, text_tables
from Utils.analysis.recommendation import recommend
from Utils.analysis.summary import CLEAN_ROUNDS, summarize
from Utils.base import files, paths
from Utils.base.errors import UserError, naming
from Utils.base.text import HOMES, plural
from Utils.results import rows_file, selection, study
from Utils.results.study import Study

ANYBODY = {"root", "user", "admin", "ubuntu", "localhost"}  # names that identify no one
FIXED = ("run_id", "status", "phase", "model", "device", "torch", "commit")  # never free text
MEMBER = re.compile(r"results\.csv|results\.jsonl|environment\.txt|README\.md|\w[\w-]*\.png")
NEEDED = ("results.csv", "results.jsonl", "environment.txt", "README.md", "speedup*.png")
MOST_MIB = 64  # of a folder
SAME = ["base", "unit", "device", "torch", "model", "code"]  # of all rows in a folder
NAMES = ("run_id", "base", "parent", "change", "technique", "unit", "model", "torch", "commit")
TEXTS = {"device": 200, "dataset": 200, "note": 2000}  # of anyone's choosing; most letters
# Tags, but for those that stand for names, and paths out of a folder.
HOSTILE = re.compile(r"<(?!home>|user>|host>)[A-Za-z/!?]|(^|[/\\])\.\.([/\\]|$)")
PNG = b"\x89PNG\r\n\x1a\n"
AGAIN = "`make submit` writes a complete folder from your own results"
MARK = "<!-- folders -->"  # before and behind the list of folders
VERSIONS = ("python", "torch", "triton", "cudnn", "bitsandbytes", "torchao", "driver")


def identity():
    """Return the texts that identify user and host: a list of (text, replacement)."""
    homes = {str(Path.home()), os.environ.get("HOME", "")}
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    users |= {Path(home).name for home in homes}
    hosts = {platform.node(), os.environ.get("HOSTNAME", "")}
    hosts |= {host.partition(".")[0] for host in hosts}
    marks = dict.fromkeys(users, "<user>") | dict.fromkeys(hosts, "<host>")
    names = [name for name in marks if len(name) > 2 and name.lower() not in ANYBODY]
    pairs = [(name, marks[name]) for name in names]
    pairs += [(home, "<home>") for home in homes if len(home) > 1]
    return sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)


def scrub(value, names):
    """Return the value with names replaced in all of its texts, keys aside: those of `identity`, as
    whole words in any case, and all home folders.
    """
    if isinstance(value, dict):
        return {key: scrub(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [scrub(item, names) for item in value]
    if not isinstance(value, str):
        return value
    for text, mark in names:
        word = rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])"
        value = re.sub(word, mark, value, flags=re.IGNORECASE)
    return HOMES.sub("<home>", value)


def make(results_file, device_name=None, base=None):
    """Write the newest run's group of rows, or that of a device or base, to a folder of results/,
    with complete groups of other shapes. Return the folder and a sentence on the runs left out.
    Raises UserError.
    """
    all_rows = rows_file.read(results_file)
    newest, _ = selection.select(all_rows, device_name, True, base)
    run_ids = {*newest.run_id}
    for _, group in selection.groups(all_rows):
        if (group[SAME].iloc[0] == newest[SAME].iloc[0]).all():
            rows, _ = selection.select(group, with_variants=True)
            if not [*_problems_of_group(rows, results_file)]:
                run_ids |= {*rows.run_id}
    device = re.sub(r"[^\w.-]+", "_", newest.device.iloc[0]).strip("._-") or "device"
    last = max(run_ids)
    folder = selection.SHARED / device / f"{last[:4]}-{last[4:6]}-{last[6:8]}"
    if folder.exists() and not run_ids & {*rows_file.read(folder / "results.csv").run_id}:
        raise UserError(f"{folder}: holds other runs of that day", "rename that folder")
    names = identity()
    rows = [row for row in rows_file.text_rows(results_file) if row["run_id"] in run_ids]
    for row in rows:
        row |= scrub({key: text for key, text in row.items() if key not in FIXED}, names)
    records = scrub(rows_file.read_records(results_file, run_ids), names)
    with naming(folder), tempfile.TemporaryDirectory() as unfinished:
        path = Path(unfinished) / "results.csv"
        for run_id, of_run in itertools.groupby(rows, lambda row: row["run_id"]):
            rows_file.append(path, of_run, records.get(run_id))
        reports = "\n\n".join(dict.fromkeys(r["collect_env"] for r in records.values()))
        files.write(path.with_name("environment.txt"), reports)
        draw(path.parent)
        files.write(path.with_name("README.md"), page(path.parent))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(unfinished, folder)
    left_out = all_rows.run_id.nunique() - len(run_ids)
    return folder, f"left out: {plural(left_out, 'run')}" if left_out else ""


def draw(folder):
    """Draw the charts of a folder's rows into it. Raises UserError."""
    command = [sys.executable, paths.ROOT / "plot_results.py", "--results-file=results.csv"]
    options = {"env": paths.environment(), "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=folder, **options)
    if done.returncode:
        raise UserError(f"the charts could not be drawn: {done.stderr.strip()[-300:]}")
    for chart in (folder / "plots").glob("*.png"):
        chart.rename(folder / chart.name)
    shutil.rmtree(folder / "plots")


def page(folder):
    """Return the README.md of a folder: device, versions, charts, and the tables of its rows."""
    path = folder / "results.csv"
    rows = rows_file.read(path)
    newest = rows.run_id.max()
    record = rows_file.read_records(path, [newest]).get(newest, {})
    versions = {**record.get("versions", {}), "driver": (record.get("device") or {}).get("driver")}
    facts = [f"{name} {versions[name]}" for name in VERSIONS if versions.get(name)]
    text = [
        f"# {rows.device.iloc[0]}",
        f"Measured until {newest[:4]}-{newest[4:6]}-{newest[6:8]} with {', '.join(facts)}. This "
        "page is made of results.csv and results.jsonl; [environment.txt](environment.txt) is "
        "torch's report.",
    ]
    for _, group in selection.groups(rows):
        chosen = study.newest(group, path)
        summary = summarize(replace(chosen, left_out=""))
        headline = recommend(summary).headline
        tables = result_tables.table(summary, headline, all_columns=True, in_file=True)
        text += [f"## {selection.describe(summary.study.rows)}", tables]
        whole = attribution.whole_of(summary.study)
        if whole:
            credits = attribution.credits(summary.study, whole)
            text += ["### Ablation", attribution.table(credits, in_file=True)]
    charts = sorted(chart.name for chart in folder.glob("*.png"))
    return "\n\n".join([*text, "## Charts", *(f"![{name}]({name})" for name in charts)]) + "\n"


def write_pages():
    """Write the page of every folder and the list of all. Return their paths."""
    pages = []
    lines = []
    for path in selection.shared_files():
        rows = rows_file.read(path)
        pages.append(path.with_name("README.md"))
        files.write(pages[-1], page(path.parent))
        first = rows.iloc[0]
        counts = rows[rows.status == "ok"][["technique", "round"]].nunique().astype(str)
        device = f"[{first.device}]({pages[-1].relative_to(selection.SHARED)})"
        lines.append((device, path.parent.name, first.torch, first.commit, *counts))
    titles = ("device", "date", "torch", "commit", "techniques", "rounds")
    columns = dict(zip(titles, zip(*lines, strict=True), strict=True))
    table = text_tables.markdown(columns, titles[:4])
    path = selection.SHARED / "README.md"
    parts = path.read_text().split(MARK) if path.exists() else ["# Results by device\n\n", "", ""]
    files.write(path, MARK.join([parts[0], f"\n{table}\n", parts[-1]]))
    return [*pages, path]


def check(path):
    """Check a folder, or all those of results/. Return them. Raises UserError."""
    folders = [path] if (path / "results.csv").exists() else sorted(path.glob("*/*/"))
    if not folders:
        raise UserError(f"{path}: holds no results", "name a folder of results/")
    for folder in folders:
        try:
            problems = [*_problems(folder)]
        except UserError as error:  # its remedy is for a results file of the user's own
            raise UserError(error.message, AGAIN) from None
        if problems:
            raise UserError(f"{folder}: {'; '.join(problems[:5])}", AGAIN)
    return folders


def _problems(folder):
    """Yield what is wrong with a folder, in which nothing is trusted. Raises UserError."""
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
    if missing := [name for name in NEEDED if not any(path.match(name) for path in members)]:
        yield f"lacks {' and '.join(missing)}"
    path = folder / "results.csv"
    rows = rows_file.read(path)
    for name in (*NAMES, *TEXTS):
        for text in rows[name].unique():
            if name in NAMES:
                may_be_empty = name in ("parent", "change")
                valid = re.fullmatch(r"[\w.+-]{1,200}", text) or (may_be_empty and not text)
            else:
                fits = len(text) <= TEXTS[name] and (text or name == "note")
                valid = fits and text.isprintable() and not HOSTILE.search(text)
            if not valid:
                line = rows.index[rows[name] == text][0] + 2
                yield f"results.csv:{line}: {name} {text[:40]!r} is not valid"
    if HOSTILE.search((folder / "README.md").read_text(errors="replace").replace("../", "")):
        yield "README.md holds a tag"
    groups = [group for _, group in selection.groups(rows)]
    kinds = {tuple(group[SAME].iloc[0]) for group in groups}
    if len(kinds) > 1:
        yield f"rows of {len(kinds)} devices, versions, models or commits; only one is allowed"
        return
    for group in groups:
        yield from _problems_of_group(selection.select(group, with_variants=True)[0], path)


def _problems_of_group(rows, results_file):
    """Yield why rows of one shape, selected, are not complete."""
    if "-dirty" in "".join(rows.commit.unique()) or not all(rows.commit.unique()):
        yield "measured with uncommitted code"
    timed = rows[rows.status == "ok"]
    if rows.base.iloc[0] not in timed.technique.unique():
        yield f"no timings of {rows.base.iloc[0]}"
    records = rows_file.read_records(results_file, rows.run_id.unique())
    facts = [records.get(run_id, {}) for run_id in timed.run_id.unique()]
    parts = [(type(record.get("versions")), type(record.get("quality"))) for record in facts]
    if lacking := len(parts) - parts.count((dict, dict)):
        yield f"no record with versions and quality of {lacking} runs"
        return
    try:
        summarize(Study(rows, rows, records=records))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        yield "its records are malformed"
    clean = timed[timed.grade == "clean"].groupby("technique")["round"].nunique()
    if few := [n for n in timed.technique.unique() if clean.get(n, 0) < CLEAN_ROUNDS]:
        yield f"fewer than {CLEAN_ROUNDS} clean rounds of {', '.join(few)}"
