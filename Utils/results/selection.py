"""Selection of comparable rows, of a user's file or of one in results/<device>/<date>/."""

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from Utils.base import paths
from Utils.base.errors import UserError, unknown
from Utils.base.text import plain, plural, printable
from Utils.results import row_rules, rows_file
from Utils.scripts.identity import PATCH
from Utils.scripts.ladder import BASELINE

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it

SHARED = paths.ROOT / "results"  # folder of shared results

SHAPE = ["dataset", "requested_batch_size", "seq_len"]
# Sides of a pair may differ in all else, and so may other people's loops.
GROUP_OF_PAIR = ["base", "device", "model", "dataset"]
GROUP = ["base", "unit", "device", "torch", "model", *SHAPE, "world_size", "commit"]


def select(
    rows: "pd.DataFrame",
    device_name: str = "",
    base: str | None = None,
    words: str = "",
    run_id: str | None = None,
) -> "tuple[pd.DataFrame, list[str]]":
    """Return the rows of the group that a command shows, and texts on the runs left out.

    It is the group of the newest run. Runs in several processes, and variants of an ablation,
    decide only if there are no others.

    rows: with the columns rows_file.COLUMNS.
    device_name: part of the device's name.
    base: name or path of the script at the root of the ladder; only its rows are selected.
    words: parts of the group's description.
    run_id: a run whose group is selected, if it may be.

    Raises UserError if there is no such group.
    """
    if base:
        rows = _rows_of_base(rows, base)
    if rows.empty:
        raise UserError(
            "the results hold only pairs or peers",
            f"`{paths.COMMAND} pair` and `{paths.COMMAND} peers` show them",
        )

    described = comparable_groups(rows.drop_duplicates("run_id"))
    part = device_name.lower()
    groups = []
    for text, group in described:
        has_words = all(word in text.lower() for word in words.lower().split())
        if has_words and part in group.device.iloc[0].lower():
            groups.append(group)
    if not groups:
        texts = "; ".join(text for text, _ in described)
        raise UserError(f"no results of {words or device_name!r}", f"there are {texts}")

    def rank(group):
        is_asked = (group.run_id == run_id).any()
        newest_script = max(group.run_id[group.suite != "ablation"], default="")
        return is_asked, group.world_size.iloc[0] == 1, newest_script, group.run_id.max()

    selected = max(groups, key=rank)
    left_out = []
    for text, group in described:
        if group is not selected:
            left_out.append(f"{plural(len(group), 'run')} of {text}")
    return rows[rows.run_id.isin(selected.run_id)], left_out


def _rows_of_base(rows, base):
    """Return the rows of a base, a script's name or path. Raises UserError if there are none."""
    if base.startswith("-m "):  # a module
        base = base[3:].replace(".", "/")
    path = paths.at_start(base)
    folder_and_stem = f"{path.parent.name}/{path.stem}"  # some rows name a script so
    bases = rows.base.unique()
    for name in (base, folder_and_stem, path.stem):
        if name in bases:
            return rows[rows.base == name]
    raise unknown(f"no results of the base {base!r}", base, bases)


def counted_runs(
    rows: "pd.DataFrame", records: dict[str, dict]
) -> "tuple[pd.DataFrame, list[str]]":
    """Return the rows of the runs of a group that count, with plain texts, and texts on the others.

    The runs of every command count, however disturbed. Three kinds do not:
    - A run that was repeated since. Without records to tell commands apart, the newest of each
      technique and round counts, and so do the runs that took turns with it.
    - A run of a user's script with another patch than the newest.
    - A run beside which another program used the GPU, if it did not beside its partners in turns.

    records: by run_id.
    """
    rows = with_plain_texts(_with_rounds_of_commands(rows, records))
    runs = rows.drop_duplicates("run_id").sort_values("run_id", ascending=False)
    turns = turn_groups(runs.run_id) + runs["round"].astype(str)
    is_counted = turns.isin(turns[~runs.duplicated(["technique", "round"])])
    repeated = int((~is_counted).sum())
    texts = [f"{plural(repeated, 'run')} repeated since"] if repeated else []

    records_of_runs = runs.run_id.map(lambda run_id: records.get(run_id, {}))
    patches = records_of_runs.map(lambda record: record.get(PATCH, {}).get("digest"))
    is_old = patches.notna() & ~patches.isin(patches.dropna()[:1])
    is_counted &= ~is_old
    if is_old.any():
        texts.append(f"{plural(int(is_old.sum()), 'run')} of earlier patches")

    programs = records_of_runs.map(_other_programs)
    is_beside = programs != ""
    is_beside_alone = is_beside & ~is_beside.groupby(turns).transform("all")
    for run in runs[is_counted & is_beside_alone].itertuples():
        texts.append(f"{run.technique} of round {run.round}, beside {programs[run.Index]}")
    return rows[rows.run_id.isin(runs.run_id[is_counted & ~is_beside_alone])], texts


def _with_rounds_of_commands(rows, records):
    """Return rows whose rounds are counted on from command to command.

    Each command counts from 0. Its even rounds, which run forwards, stay even. Runs of no suite
    keep their numbers.
    """
    runs = rows[["run_id", "round"]].drop_duplicates("run_id").sort_values("run_id")
    suite_ids = {run_id: records.get(run_id, {}).get("suite_id") for run_id in runs.run_id}
    offset_of_suite = {None: 0}
    rounds = 0
    for suite_id, numbers in runs["round"].groupby(runs.run_id.map(suite_ids), sort=False):
        offset_of_suite[suite_id] = rounds
        rounds += numbers.max() // 2 * 2 + 2

    offsets = {run_id: offset_of_suite[suite_id] for run_id, suite_id in suite_ids.items()}
    return rows.assign(round=rows["round"] + rows.run_id.map(offsets).astype("int64"))


def _other_programs(record):
    quality = record.get("quality") or {}
    return ", ".join(quality.get("other_processes", ()))


def turn_groups(run_ids: "pd.Series") -> "pd.Series":
    """Return the group of runs in turns of each run_id."""
    return run_ids.map({run_id: run_id.rpartition("-")[2] for run_id in run_ids.unique()})


def with_plain_texts(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return rows with `plain` texts instead of categories, except for the columns CHOICES.

    These are compared often, which is faster with categories. Rows with equal texts share one
    string.
    """
    texts = {}
    for name in rows.select_dtypes("category").columns.difference([*row_rules.CHOICES]):
        used = rows[name].cat.remove_unused_categories()
        plain_texts = np.array([plain(text) for text in used.cat.categories], dtype=object)
        texts[name] = plain_texts[used.cat.codes]
    return rows.assign(**texts)


def comparable_groups(rows: "pd.DataFrame") -> "list[tuple[str, pd.DataFrame]]":
    """Return the groups of comparable rows, each with a description.

    Uncommitted changes on top of a commit are compared with that commit's runs.
    """
    runs = rows.drop_duplicates("run_id")
    runs = runs.assign(commit=runs.commit.str.removesuffix("-dirty"))

    # A user's script shows its batch only when it trains. So its runs without timings get the
    # shape of the newest run with timings that is otherwise comparable.
    has_no_shape = (runs.base != BASELINE) & (runs.status != "ok")
    common = [name for name in GROUP if name not in SHAPE]
    newest_shapes = runs[~has_no_shape].sort_values("run_id").groupby(common)[SHAPE].last()
    for key, group in runs[has_no_shape].groupby(common):
        if key in newest_shapes.index:
            runs.loc[group.index, SHAPE] = newest_shapes.loc[key].tolist()

    described = []
    columns = GROUP_OF_PAIR if runs.suite.isin(rows_file.OF_ONE_COMMAND).all() else GROUP
    for _, group in runs.groupby(columns):
        first = group.iloc[0]
        processes = f"{first.world_size} x " if first.world_size > 1 else ""
        versions = f"torch {first.torch}, {first.dataset}, commit {first.commit or 'unknown'}"
        text = f"{_shape(first)} on {processes}{first.device} ({versions})"
        described.append((text, rows[rows.run_id.isin(group.run_id)]))
    return described


def _shape(row):
    """Return "gpt2 4x64", or for another base "my_model: 64 images"."""
    if row.base == BASELINE:
        return f"{row.model} {row.requested_batch_size}x{row.seq_len}"
    return f"{row.base}: {row.requested_batch_size} {row.unit}" if row.unit != "steps" else row.base


def timed(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows of timed steps."""
    return rows[(rows.status == "ok") & (rows.phase == "timed")]


def numbered(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows of runs with timings, with timed steps counted from 0 on, warm-up before 0.

    The warm-up of later turns is left out.
    """
    ok = rows[rows.status == "ok"]
    is_timed = ok.phase == "timed"
    first = ok.step.where(is_timed).groupby(ok.run_id).transform("min")
    number = is_timed.groupby(ok.run_id).cumsum() - 1
    return ok.assign(step=number.where(is_timed, ok.step - first))[is_timed | (ok.step < first)]


def description(rows: "pd.DataFrame") -> str:
    """Return device, torch version, shape, rounds and commits of selected rows in one line."""
    first = rows[rows.status.eq("ok") | rows.status.ne("ok").all()].iloc[0]
    shape = _shape(first)
    if first.base == BASELINE:
        tokens = f"{first.requested_batch_size}x{first.seq_len} tokens"
        shape = f"{first.model}, {tokens} a step, {first.dataset}"
    elif first.unit != "steps":
        shape += " a step"

    most = rows["round"].nunique()
    steps = timed(rows[["technique", "round", "status", "phase"]])
    fewest = steps.groupby("technique")["round"].nunique().min()  # NaN if no step is timed
    rounds = plural(most, "round")
    if fewest < most:
        rounds = f"{fewest} to {rounds}"

    commits = ", ".join(commit or "unknown" for commit in rows.commit.unique())
    return plain(f"{first.device}, torch {first.torch}, {shape}, {rounds}, commit {commits}")


def shared_files() -> list[Path]:
    """Return the results files of all folders in results/ that can be read. Name the others."""
    return [path for path in sorted(SHARED.glob("[!.]*/*/results.csv")) if _can_be_read(path)]


@functools.cache
def _can_be_read(path):
    try:
        rows_file.read_records(path, rows_file.read(path).run_id.unique())
    except (UserError, OSError) as error:
        print(printable(f"{path.parent}: left out: {error}"), file=sys.stderr)
        return False
    return True


def newest_shared() -> Path | None:
    """Return the newest results file of a GPU in results/, or without one the newest of all."""
    return max(
        shared_files(),
        key=lambda path: (is_of_gpu(path), path.parent.name, path),
        default=None,
    )


def is_of_gpu(path: Path) -> bool:
    """Return whether a run of a results file reserved memory of a device."""
    return any(row["reserved_memory_mib"] for row in rows_file.read_as_texts(path))
