"""Check of a folder of shared results. It may be a stranger's: nothing in it is trusted."""

import re

from Utils.analysis.summary import summarize
from Utils.base.errors import UserError
from Utils.results import records_file, rows_file, selection, shared_folders

MEMBER = re.compile(r"results\.csv|results\.jsonl|environment\.txt|README\.md|\w[\w-]*\.png")
NEEDED = ("results.csv", "results.jsonl", "environment.txt", "README.md")
MOST_MIB = 64  # of a folder
CLEAN_ROUNDS = 2  # of every technique with timings: the fewest that give an interval
SAME = ["base", "unit", "device", "torch", "model", "code"]  # of all rows in a folder
NAMES = ("run_id", "base", "technique", "unit", "model", "torch", "commit")
PNG = b"\x89PNG\r\n\x1a\n"


def check(path):
    """Check a folder, or all those of results/. Return them. Raises UserError."""
    folders = [path] if (path / "results.csv").exists() else sorted(path.glob("*/*/"))
    if not folders:
        raise UserError(f"{path}: holds no results", "name a folder of results/")
    for folder in folders:
        try:
            problems = [*problems_of_files(folder)] or [*problems_of_rows(folder)]
        except UserError as error:  # its remedy is for a results file of the user's own
            raise UserError(error.message) from None
        if problems:
            raise UserError(f"{folder}: {'; '.join(problems[:5])}")
    return folders


def problems_of_files(folder):
    """Yield what is wrong with names, kinds and sizes of a folder's files."""
    members = {path.name: path for path in folder.iterdir()}
    for name, path in members.items():
        if not MEMBER.fullmatch(name) or path.is_symlink() or not path.is_file():
            yield f"{name[:80]!r} is not allowed"
        elif path.suffix == ".png" and path.open("rb").read(len(PNG)) != PNG:
            yield f"{name} is not a PNG"
    if sum(path.lstat().st_size for path in members.values()) > MOST_MIB * 2**20:
        yield f"larger than {MOST_MIB} MiB"
    if missing := [name for name in NEEDED if name not in members]:
        yield f"lacks {' and '.join(missing)}"
    if not any(name.startswith("speedup") for name in members):
        yield "no chart of speedups"


def problems_of_rows(folder):
    """Yield what is wrong with a folder's rows and records. Raises UserError on a damaged line."""
    path = folder / "results.csv"
    rows = rows_file.read(path)
    for name in (*NAMES, "device", "dataset"):
        for text in rows[name].unique():
            valid = re.fullmatch(r"[\w.+-]+", text) if name in NAMES else text.isprintable()
            if not text or not valid or len(text) > 200:
                yield f"{name} {text[:40]!r} is not valid"
    groups = [group for _, group in selection.groups(rows)]
    kinds = {tuple(group[SAME].iloc[0]) for group in groups}
    if len(kinds) > 1:
        yield f"rows of {len(kinds)} devices, versions, models or commits; only one is allowed"
        return
    if folder.parent.name != shared_folders.folder_of(rows.device.iloc[0], "").parent.name:
        yield f"is not in the folder of {rows.device.iloc[0]}"
    for group in groups:
        group, _ = selection.select(group, with_variants=True)
        yield from problems_of_group(group, records_file.read(path, group.run_id.unique()))


def problems_of_group(rows, records):
    """Yield why rows of one shape, selected, are not complete."""
    if "-dirty" in "".join(rows.commit.unique()) or not all(rows.commit.unique()):
        yield "measured with uncommitted code"
    timed = rows[rows.status == "ok"]
    if not timed.step_ms.gt(0).all():
        yield "step times of 0"
        return
    if rows.base.iloc[0] not in timed.technique.unique():
        yield f"no timings of {rows.base.iloc[0]}"
    facts = [records.get(run_id, {}) for run_id in timed.run_id.unique()]
    parts = [(record.get("versions"), record.get("quality")) for record in facts]
    if lacking := [pair for pair in parts if not all(isinstance(part, dict) for part in pair)]:
        yield f"no record with versions and quality of {len(lacking)} runs"
        return
    try:
        summarize(rows, records)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        yield "its records are malformed"
    clean = timed[timed.grade == "clean"].groupby("technique")["round"].nunique()
    few = [name for name in timed.technique.unique() if clean.get(name, 0) < CLEAN_ROUNDS]
    if few:
        yield f"fewer than {CLEAN_ROUNDS} clean rounds of {', '.join(few)}"
