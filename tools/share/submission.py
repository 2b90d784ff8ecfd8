"""Shared results, folders of results/: written and checked.

Home folders, user name and host name are replaced by <home>, <user> and <host>; charts are drawn
from the replaced rows.
"""

import itertools
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tools.share import private_names
from Utils.analysis import attribution, recommendation, result_tables, text_tables
from Utils.analysis.summary import summarize
from Utils.base import child, files, paths
from Utils.base.errors import UserError, first_line, naming
from Utils.base.text import MARKUP, plain, plural
from Utils.results import rows_file, selection, study

MEMBER = re.compile(r"results\.csv|results\.jsonl|environment\.txt|README\.md|\w[\w-]*\.png")
NEEDED = ("results.csv", "results.jsonl", "environment.txt", "README.md", "speedup*.png")
MOST_MIB = 64  # the largest folder
PNG = b"\x89PNG\r\n\x1a\n"
LOCAL_LINK = re.compile(r"!?\[[\w.-]+\]\([\w.-]+\)")

# Texts of each column. A free text begins with no sign of a spreadsheet's formula, and has no path
# out of a folder.
NAME = r"[\w.][\w.+-]{0,199}"
FREE = r"(?![=+@-])(?!(.*[/\\])?\.\.([/\\]|$))"
PATTERNS = {
    "run_id": NAME,
    "base": NAME,
    "parent": f"({NAME})?",
    "change": r"([+-]\w+)*",
    "technique": NAME,
    "unit": NAME,
    "model": NAME,
    "torch": NAME,
    "commit": NAME,
    "device": FREE + ".{1,200}",
    "dataset": FREE + ".{1,200}",
    "note": FREE + ".{0,2000}",
}
FIXED = ("run_id", "status", "phase", "model", "device", "torch", "commit")  # never free text
SAME = ["base", "unit", "device", "torch", "model", "commit"]  # equal in all rows of a folder

MALFORMED = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, UserError)
FEWEST_ROUNDS = 4
PAIRS_SINCE = "20261127"  # from this day on, rounds come in pairs
AGAIN = "`make submit` writes a complete folder from your own results"
MARK = "<!-- folders -->"  # before and after the list of folders
VERSIONS = ("python", "torch", "triton", "cudnn", "bitsandbytes", "torchao", "driver")


@dataclass(frozen=True)
class Submission:
    """A folder of results/: rows, records, reports on the environment, charts and a page."""

    folder: Path

    @property
    def results_file(self) -> Path:
        return self.folder / "results.csv"

    def write(self, results_file: Path, run_ids: set[str]) -> None:
        """Write the runs of a results file to the folder, without names. Raises UserError."""
        shutil.rmtree(self.folder, ignore_errors=True)  # of a killed process
        self.folder.mkdir(parents=True)

        marks = private_names.replacements()
        rows = [row for row in rows_file.read_as_texts(results_file) if row["run_id"] in run_ids]
        for row in rows:
            row |= private_names.scrub(row, marks) | {key: row[key] for key in FIXED}
        records = private_names.scrub(rows_file.read_records(results_file, run_ids), marks)

        for run_id, rows_of_run in itertools.groupby(rows, lambda row: row["run_id"]):
            rows_file.append(self.results_file, rows_of_run, records.get(run_id))
        reports = dict.fromkeys(record["collect_env"] for record in records.values())
        files.write(self.folder / "environment.txt", "\n\n".join(reports))
        self.draw()
        files.write(self.folder / "README.md", self.page())

    def draw(self) -> None:
        """Draw the charts of the rows. Raises UserError."""
        command = [sys.executable, paths.ROOT / "plot_results.py", "--results-file=results.csv"]
        done = child.run(command, paths.environment(), cwd=self.folder)
        if done.code:
            raise UserError(f"the charts could not be drawn: {done.reason}")

        plots = self.folder / "plots"
        for chart in plots.rglob("*.png"):
            chart.rename(self.folder / chart.name)
        shutil.rmtree(plots)

    def page(self) -> str:
        """Return the text of README.md: device, versions, charts, and the tables of the rows."""
        rows = rows_file.read(self.results_file)
        newest = rows.run_id.max()
        record = rows_file.read_records(self.results_file, [newest]).get(newest, {})
        text = [
            f"# {plain(rows.device.iloc[0])}",
            f"Measured until {_date(newest)} with {plain(versions_of(record))}. This "
            "page is made of results.csv and results.jsonl; [environment.txt](environment.txt) is "
            "torch's report.",
        ]

        for summary in map(summarize, study.of_groups(rows, self.results_file)):
            headline = recommendation.recommend(summary).headline
            tables = result_tables.table(summary, headline, all_columns=True, in_file=True)
            text += [f"## {selection.description(summary.study.rows)}", tables]
            whole = attribution.ablated_script(summary.study)
            if whole:
                credits = attribution.credits_of(summary, whole)
                text += ["### Ablation", attribution.table(credits, in_file=True)]

        text.append("## Charts")
        for chart in sorted(self.folder.glob("*.png")):
            text.append(f"![{chart.name}]({chart.name})")
        return "\n\n".join(text) + "\n"

    def problems(self) -> list[str]:
        """Return what is wrong with the folder, in which nothing is trusted. Raises UserError."""
        members = list(self.folder.iterdir())
        for path in members:
            if not MEMBER.fullmatch(path.name) or path.is_symlink() or not path.is_file():
                return [f"{path.name[:80]!r} is not allowed"]
        if sum(path.stat().st_size for path in members) > MOST_MIB * 2**20:
            return [f"larger than {MOST_MIB} MiB"]

        rows = rows_file.read(self.results_file, with_pairs=True)
        return [
            *self._problems_of_files(),
            *self._problems_of_texts(rows),
            *self._problems_of_groups(rows),
        ]

    def _problems_of_files(self):
        for path in self.folder.glob("*.png"):
            if path.open("rb").read(len(PNG)) != PNG:
                yield f"{path.name} is not a PNG"
        missing = [name for name in NEEDED if not any(self.folder.glob(name))]
        if missing:
            yield f"lacks {' and '.join(missing)}"

    def _problems_of_texts(self, rows):
        for name, pattern in PATTERNS.items():
            for text in rows[name].unique():
                if not re.fullmatch(pattern, text) or plain(text) != text:
                    line = rows.index[rows[name] == text][0] + 2
                    yield f"results.csv:{line}: {name} {text[:40]!r} is not valid"

        page = (self.folder / "README.md").read_text(errors="replace")
        if MARKUP.search(LOCAL_LINK.sub("", page)):
            yield "README.md holds a tag, or a link to elsewhere"

    def _problems_of_groups(self, rows):
        groups = [group for _, group in selection.comparable_groups(rows)]
        kinds = {tuple(group[SAME].iloc[0]) for group in groups}
        if len(kinds) > 1:
            yield f"rows of {len(kinds)} devices, versions, models or commits; only one is allowed"
            return
        for group in groups:
            yield from _problems_of_group(group, self.results_file)


def make(
    results_file: Path,
    device_name: str | None = None,
    base: str | None = None,
    all_rows: pd.DataFrame | None = None,
) -> tuple[Path, str]:
    """Write the newest run's group of rows, or that of a device or base, to a folder of results/.

    Complete groups of other shapes come with it. Return the folder and a sentence on the runs left
    out. Raises UserError if the folder would not be complete; then nothing has been written.

    all_rows: those that may be written, by default all of the file.
    """
    if all_rows is None:
        all_rows = rows_file.read(results_file)
    newest, _ = selection.select(all_rows, device_name, base)
    run_ids = _run_ids_to_share(all_rows, newest, results_file)

    device = re.sub(r"[^\w.-]+", "_", newest.device.iloc[0]).strip("._-") or "device"
    folder = selection.SHARED / device / _date(max(run_ids))
    if folder.exists() and not run_ids & {*rows_file.read(folder / "results.csv").run_id}:
        raise UserError(f"{folder}: holds other runs of that day", "rename that folder")
    files.claim(folder, lambda folder: all(MEMBER.fullmatch(x.name) for x in folder.iterdir()))

    # The folder is complete before it replaces an older one.
    new = Submission(selection.SHARED / ".new")
    remedy = "nothing was written; make all ROUNDS=4 on a clean checkout gives all of it"
    try:
        with naming(folder):
            new.write(results_file, run_ids)
            problems = new.problems()
            if problems:
                raise UserError(f"{results_file}: {'; '.join(problems[:5])}", remedy)
            _replace(folder, new.folder)
    finally:
        shutil.rmtree(new.folder, ignore_errors=True)
    files.write(*folder_list())

    left_out = all_rows.run_id.nunique() - len(run_ids)
    return folder, f"not in it: {plural(left_out, 'run')}" if left_out else ""


def _run_ids_to_share(all_rows, newest, results_file):
    """Return the run_ids of the newest group, and of complete groups that differ only in shape."""
    run_ids = {*newest.run_id}
    for _, group in selection.comparable_groups(all_rows):
        differs_in_shape_alone = (group[SAME].iloc[0] == newest[SAME].iloc[0]).all()
        if differs_in_shape_alone and not [*_problems_of_group(group, results_file)]:
            run_ids |= {*group.run_id}
    return run_ids


def _replace(folder, new):
    """Move a new folder to the place of an older one, if there is one."""
    older = new.with_name(".old")
    shutil.rmtree(older, ignore_errors=True)  # of a killed process
    folder.parent.mkdir(exist_ok=True)
    with files.uninterrupted():
        if folder.exists():
            folder.rename(older)
        new.rename(folder)
    shutil.rmtree(older, ignore_errors=True)


def check(path: Path) -> list[Path]:
    """Check a folder, or all those of results/. Return them. Raises UserError."""
    folders = [path] if (path / "results.csv").exists() else sorted(path.glob("[!.]*/*/"))
    if not folders:
        raise UserError(f"{path}: holds no results", "name a folder of results/")
    for folder in folders:
        try:
            problems = Submission(folder).problems()
        except UserError as error:  # its remedy is for a user's own results file
            raise UserError(error.message, AGAIN) from None
        if problems:
            raise UserError(f"{folder}: {'; '.join(problems[:5])}", AGAIN)
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
        parts = [record.get(name) for name in ("versions", "quality", "device", "limits")]
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
    texts = dict([folder_list()])
    for path in selection.shared_files():
        try:
            texts[path.with_name("README.md")] = Submission(path.parent).page()
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
