"""Write results to share: a folder of results/, without personal names.

Home folders, user name and host name are replaced by <home>, <user> and <host> in every text before
anything is written; charts are drawn from the replaced rows.
"""

import csv
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from Utils.analysis import folder_check, folder_page
from Utils.base import files, paths
from Utils.base.errors import UserError, naming
from Utils.base.text import HOMES, plural
from Utils.results import records_file, rows_file, selection, shared_folders

ANYBODY = {"root", "user", "admin", "ubuntu", "localhost"}  # names that identify no one
FIXED = ("run_id", "status", "phase", "model", "device", "torch", "commit")  # never free text


def identity():
    """Return the texts that identify user and host: a list of (text, replacement), paths first."""
    homes = {str(Path.home()), os.environ.get("HOME", "")}
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    users |= {Path(home).name for home in homes}
    hosts = {platform.node(), socket.gethostname(), os.environ.get("HOSTNAME", "")}
    hosts |= {host.partition(".")[0] for host in hosts}
    pairs = [(home, "<home>") for home in sorted(homes, key=len, reverse=True) if len(home) > 1]
    for names, mark in ((hosts, "<host>"), (users, "<user>")):
        known = (name for name in names if len(name) > 2 and name.lower() not in ANYBODY)
        pairs += [(name, mark) for name in sorted(known, key=len, reverse=True)]
    return pairs


def scrub(value, names):
    """Return the value with names replaced in all of its texts, keys aside: those of `identity`, as
    whole words in any case, and all home folders."""
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
    """Write the newest run's group of rows, or that of a device or base, to a folder of results/.

    Groups of other shapes that have the same device, versions and commit are added if they are
    complete. Return the folder and a sentence on the runs left out. Raises UserError.
    """
    all_rows = rows_file.read(results_file)
    newest, _ = selection.select(all_rows, device_name, True, base)
    run_ids = {*newest.run_id}
    for _, group in selection.groups(all_rows):
        if (group[folder_check.SAME].iloc[0] == newest[folder_check.SAME].iloc[0]).all():
            rows, _ = selection.select(group, with_variants=True)
            records = records_file.read(results_file, rows.run_id.unique())
            if not [*folder_check.problems_of_group(rows, records)]:
                run_ids |= {*rows.run_id}
    folder = shared_folders.folder_of(newest.device.iloc[0], max(run_ids))
    if folder.exists() and not run_ids & {*rows_file.read(folder / "results.csv").run_id}:
        raise UserError(f"{folder}: holds other runs of that day", "rename that folder")
    with naming(folder), tempfile.TemporaryDirectory(dir=paths.CACHE) as unfinished:
        unfinished = Path(unfinished)
        _write(unfinished, results_file, run_ids)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(unfinished, folder)
    left_out = all_rows.run_id.nunique() - len(run_ids)
    return folder, f"left out: {plural(left_out, 'run')}" if left_out else ""


def _write(folder, results_file, run_ids):
    """Write rows and records of these runs, without names, and all that follows from them."""
    names = identity()
    with open(results_file, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run_id"] in run_ids]
    shared = [
        {key: text if key in FIXED else scrub(text, names) for key, text in row.items()}
        for row in rows
    ]
    path = folder / "results.csv"
    rows_file.append(path, shared)
    records = records_file.read(results_file, run_ids)
    for record in records.values():
        with records_file.appended(path, scrub(record, names)):
            pass
    reports = dict.fromkeys(scrub(record["collect_env"], names) for record in records.values())
    files.write(folder / "environment.txt", "\n\n".join(reports))
    draw(folder)
    files.write(folder / "README.md", folder_page.page(folder))


def draw(folder):
    """Draw the charts of a folder's rows into it. Raises UserError."""
    command = [sys.executable, str(paths.ROOT / "plot_results.py"), "--results-file=results.csv"]
    how = {"env": paths.environment(), "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=folder, **how)
    if done.returncode:
        raise UserError(f"the charts could not be drawn: {done.stderr.strip()[-300:]}")
    for chart in (folder / "plots").glob("*.png"):
        chart.rename(folder / chart.name)
    shutil.rmtree(folder / "plots")
