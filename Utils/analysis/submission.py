"""Results to share: one file with rows, records, charts and a manifest, without personal names.

    python -m Utils.commands submit make [FILE]   write the newest run's rows, records and charts
    python -m Utils.commands submit check FILE    check that a submission is complete
    python -m Utils.commands submit add FILE      unpack it to results/<device>/<name>/

Home folders, user name and host name are replaced by <home>, <user> and <host> in every text before
anything is written; charts are drawn from the replaced rows. A file from elsewhere is untrusted:
nothing is unpacked before all of its names, sizes and contents have been checked.
"""

import getpass
import json
import os
import platform
import re
import socket
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import UserError, naming
from Utils.base.text import HOMES
from Utils.results import rows_file, selection

COLLECTION = paths.ROOT / "results"
FORMAT = 1
MEMBER = re.compile(
    r"manifest\.json|results\.csv|runs/[\w.-]+\.json|runs/collect_env-\w+\.txt|plots/[\w-]+\.png"
)
NEEDED = ("manifest.json", "results.csv")
MAX_MEMBERS, MAX_MIB = 5000, 64  # unpacked, all together
CLEAN_ROUNDS = 2  # of every technique with timings: the fewest that give an interval
ANYBODY = {"root", "user", "admin", "ubuntu", "localhost"}  # names that identify no one
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
FIXED = ("run_id", "status", "phase", "model", "device", "torch", "commit")  # never free text
FACTS = ("device", "torch", "model", "batch_size", "seq_len", "dataset", "commit", "rounds")


def identity():
    """Return the texts that identify user and host: a list of (text, replacement), paths first."""
    homes = {str(Path.home()), os.environ.get("HOME", "")}
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    with suppress(OSError, KeyError):
        users.add(getpass.getuser())
    users |= {Path(home).name for home in homes if home}
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


def make(path, results_file, device_name=None, base=None):
    """Write the newest run's group of rows, or that device's or base's, to a zip.

    Return its path and the sentence on the rows left out. Raises UserError.

    path: None for a name from device and date.
    """
    rows, left_out = selection.select(rows_file.read(results_file), device_name, True, base)
    chosen, names = {*rows.run_id}, identity()

    def scrubbed(fields):
        return {key: x if key in FIXED else scrub(x, names) for key, x in fields.items()}

    lines = [
        row for row in rows_file.check(results_file, writable=False) if row["run_id"] in chosen
    ]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rows_file.append(folder / "results.csv", map(scrubbed, lines))
        for record in rows_file.records(results_file, chosen).values():
            record["collect_env"] = rows_file.collect_env(results_file, record)
            rows_file.write_record(folder / "results.csv", scrubbed(record))
        manifest = describe(folder)
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        draw(folder)
        if path is None:
            path = Path(f"{_slug(manifest['device'])}-{manifest['date']}.zip")
        _pack(folder, path)
    return path, left_out


def describe(folder):
    """Return the manifest of an unpacked submission, from its rows and records: a dict of FACTS,
    format, date of the newest run, techniques, runs, grade ("clean" or "tainted in 1 of 4 runs")
    and versions."""
    rows = rows_file.read(folder / "results.csv")
    records = rows_file.records(folder / "results.csv", rows.run_id.unique())
    first, timed, newest = rows.iloc[0], rows[rows.status == "ok"], rows.run_id.max()
    tainted, runs = timed.run_id[timed.grade == "tainted"].nunique(), timed.run_id.nunique()
    return {
        "format": FORMAT,
        **first[["base", "unit", "device", "torch", "model"]],
        "batch_size": int(first.requested_batch_size),
        "seq_len": int(first.seq_len),
        "dataset": first.dataset,
        "commit": ", ".join(sorted({*rows.commit})),
        "rounds": int(timed["round"].nunique()),
        "techniques": int(timed.technique.nunique()),
        "runs": int(rows.run_id.nunique()),
        "grade": f"tainted in {tainted} of {runs} runs" if tainted else "clean",
        "date": str(newest)[:8],
        "versions": records.get(newest, {}).get("versions", {}),
    }


def draw(folder):
    """Draw the charts of a folder's rows into it. Raises UserError."""
    command = [sys.executable, str(paths.ROOT / "plot_results.py"), "--results-file=results.csv"]
    how = {"env": paths.environment(), "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=folder, **how)
    if done.returncode:
        raise UserError(f"the charts could not be drawn: {done.stderr.strip()[-300:]}")


def _pack(folder, path):
    """Zip the files of a submission. The zip's own fields hold nothing about this machine."""
    with naming(path), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder).as_posix()
            if MEMBER.fullmatch(name):
                pack.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)


def _slug(text):
    return re.sub(r"[^\w.-]+", "_", text).strip("._-") or "device"


def unpack(path, folder):
    """Unpack an untrusted file into the folder, after all of it has been checked. Raises UserError
    if it is no submission."""
    contents = {}
    try:
        with zipfile.ZipFile(path) as pack:
            members = pack.infolist()
            if len(members) > MAX_MEMBERS:
                raise UserError(f"{path}: {len(members)} files; at most {MAX_MEMBERS} are allowed")
            left = MAX_MIB * 2**20
            for member in members:
                kind = stat.S_IFMT(member.external_attr >> 16)
                if not MEMBER.fullmatch(member.filename) or kind not in (0, stat.S_IFREG):
                    name = repr(member.filename[:80])
                    raise UserError(f"{path}: {name} is not allowed in a submission")
                if member.filename in contents:
                    raise UserError(f"{path}: has {member.filename} twice")
                with pack.open(member) as file:  # the size in its header may be false
                    contents[member.filename] = file.read(left + 1)
                left -= len(contents[member.filename])
                if left < 0:
                    raise UserError(f"{path}: larger than {MAX_MIB} MiB unpacked")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UNREADABLE:
        raise UserError(f"{path}: not a zip file, or damaged or encrypted") from None
    if missing := [name for name in NEEDED if name not in contents]:
        raise UserError(f"{path}: no submission; it lacks {' and '.join(missing)}")
    for name, data in contents.items():
        file = Path(folder) / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)


def problems(folder):
    """Yield the problems of an unpacked submission. Raises UserError if its rows cannot be read."""
    rows = rows_file.read(folder / "results.csv")
    for name in ("run_id", "base", "technique", "unit", "model", "torch", "commit"):
        for text in rows[name].unique():
            if not re.fullmatch(r"[\w.+-]{1,200}", text):
                yield f"{name} {text[:40]!r} is not valid"
    for name in ("device", "dataset"):
        for text in rows[name].unique():
            if not text or not text.isprintable() or len(text) > 200:
                yield f"{name} {text[:40]!r} is not valid"
    if len(groups := selection.groups(rows)) > 1:
        yield f"rows of {len(groups)} devices, versions, shapes or commits; only one is allowed"
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        stated = {name: manifest[name] for name in (*FACTS, "format", "grade")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        yield "its manifest cannot be read"
        return
    actual = describe(folder)
    for name, value in stated.items():
        if value != actual[name]:
            yield f"its manifest says {name} {str(value)[:40]!r}, its rows {actual[name]!r}"
    if "dirty" in actual["commit"] or not actual["commit"]:
        yield f"measured with uncommitted code ({actual['commit'] or 'commit unknown'})"
    timed = rows[rows.status == "ok"]
    if not timed.step_ms.gt(0).all():
        yield "step times of 0"
        return
    if rows.base.nunique() > 1:
        yield "results of several bases"
        return
    if rows.base.iloc[0] not in set(timed.technique):
        yield f"no timings of {rows.base.iloc[0]}"
    records = rows_file.records(folder / "results.csv", rows.run_id.unique())
    known = [records.get(run_id, {}) for run_id in timed.run_id.unique()]
    parts = [[record.get(name) for name in ("versions", "quality")] for record in known]
    if lacking := [part for part in parts if not all(isinstance(x, dict) for x in part)]:
        yield f"no record with versions and quality of {len(lacking)} runs"
        return
    try:
        summarize(rows, records)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        yield "its records are malformed"
    clean = timed[timed.grade == "clean"].groupby("technique")["round"].nunique()
    names = timed.technique.unique()
    if few := [name for name in names if clean.get(name, 0) < CLEAN_ROUNDS]:
        yield f"fewer than {CLEAN_ROUNDS} clean rounds of {', '.join(few)}"
    if not (folder / "plots" / "speedup.png").exists():
        yield "no chart of speedups"
    for chart in (folder / "plots").glob("*.png"):
        if not chart.read_bytes().startswith(b"\x89PNG\r\n\x1a\n"):
            yield f"{chart.name} is not a PNG"


def check(path):
    """Return the manifest of a complete submission. Raises UserError if it is not complete."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(path, folder)
        try:
            reasons = [*problems(Path(folder))]
        except UserError as error:  # its remedy applies to the user's own results file
            raise UserError(f"{path}: {error.message.replace(f'{folder}/', '')}") from None
        if reasons:
            raise UserError(f"{path}: {'; '.join(reasons[:5])}")
        return json.loads((Path(folder) / "manifest.json").read_text())


def add(path):
    """Unpack a complete submission into the collection. Return its folder. Raises UserError."""
    manifest = check(path)
    folder = COLLECTION / _slug(manifest["device"]) / _slug(Path(path).stem)
    with naming(folder):
        folder.mkdir(parents=True)
    unpack(path, folder)
    return folder
