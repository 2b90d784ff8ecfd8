"""Selection of comparable rows, of a user's file or of one in results/<device>/<date>/."""

import sys
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.text import plural
from Utils.results import rows_file
from Utils.scripts.ladder import BASELINE

SHARED = paths.ROOT / "results"  # folder of shared results

SHAPE = ["data", "number", "length"]  # corpus, batch and length that decide the group of a row
CHOICES = ["suite", "status", "phase", "grade"]  # compared often, and faster as categories
GROUP = ["base", "unit", "device", "torch", "model", *SHAPE, "world_size", "code"]


def select(rows, device_name=None, with_variants=False, base=None, newest_of=None):
    """Return one group of comparable rows, and a sentence on the rows left out, or "".

    rows: DataFrame of results.COLUMNS. device_name: part of a device's name; by default the group
    of the newest run. Of several runs of a technique in one round, the newest counts, and those
    that took turns with the newest of another.
    base: name or path of the script at the root of the ladder; by default that of the newest run.
    newest_of: rows of which the newest run decides, in place of all. with_variants: keep the rows
    of an ablation. Runs in several processes, for `make scaling`, are left out unless all are.
    Raises UserError if no device has that name or no row is left.
    """
    if base:
        path = Path(base)  # of a script whose rows may have its folder in their name
        bases = rows.base.unique()
        names = [base, f"{path.parent.name}/{path.stem}", path.stem, base.rpartition(".")[2]]
        rows = rows[rows.base == next((name for name in names if name in bases), "")]
        if rows.empty:
            raise UserError(f"no results of the base {base!r}", f"there are {', '.join(bases)}")
    several = rows[rows.world_size > 1]
    if 0 < len(several) < len(rows):
        rows = rows[rows.world_size == 1]
    if not with_variants:
        rows = rows[rows.suite != "ablation"]
        if rows.empty:
            raise UserError("the results hold only variants", "`make ablate` shows them")
    candidates = rows
    if device_name:
        candidates = rows[rows.device.str.contains(device_name, case=False, regex=False)]
        if candidates.empty:
            devices = ", ".join(rows.device.unique())
            raise UserError(f"no results of a device named {device_name!r}", f"there are {devices}")
    if newest_of is not None and candidates.run_id.isin(newest_of.run_id).any():
        candidates = candidates[candidates.run_id.isin(newest_of.run_id)]
    newest = candidates.run_id.max()
    parts = groups(rows)
    same = next(group for _, group in parts if (group.run_id == newest).any())
    # Of each technique and round the newest run, and those that it took turns with; without tainted
    # ones that were repeated.
    runs = plain(same[["run_id", "technique", "round", "grade"]].drop_duplicates("run_id"))
    of_round = ["technique", "round"]
    tainted = runs.grade == "tainted"
    clean = runs.assign(run_id=runs.run_id.where(~tainted, "")).groupby(of_round).run_id
    runs = runs[~tainted | (runs.run_id > clean.transform("max"))]
    is_newest = runs.run_id == runs.groupby(of_round).run_id.transform("max")
    in_turns = turn_groups(runs.run_id) + runs["round"].astype(str)
    counted = runs.run_id[in_turns.isin(in_turns[is_newest])]
    chosen = plain(same[same.run_id.isin(counted)])
    unused = [(f"of {name}", group) for name, group in parts if group is not same]
    if rows.world_size.eq(1).all() and len(several):
        unused.append(("in several processes", several))
    left_out = [f"{plural(group.run_id.nunique(), 'run')} {words}" for words, group in unused]
    if repeated := same.run_id.nunique() - chosen.run_id.nunique():
        left_out.append(f"{plural(repeated, 'run')} repeated since")
    return chosen, "left out: " + "; ".join(left_out) if left_out else ""


def turn_groups(run_ids):
    """Return the group of runs in turns of each run_id of a Series."""
    return run_ids.map({run_id: run_id.rpartition("-")[2] for run_id in run_ids.unique()})


def plain(rows):
    """Return rows of a results file with texts, each held once, for all categories but CHOICES."""
    categories = rows.select_dtypes("category").columns.difference(CHOICES)
    return rows.astype(dict.fromkeys(categories, object))


def groups(rows):
    """Return the groups of comparable rows: a list of (description, rows), the rows with a column
    `code`, the commit without "-dirty", and those of SHAPE.
    """
    # Uncommitted changes on top of a commit are compared with that commit's runs.
    rows = rows.assign(code=rows.commit.str.removesuffix("-dirty"), data=rows.dataset)
    rows = rows.assign(number=rows.requested_batch_size, length=rows.seq_len)
    # Only a run that trains can tell the batch of a script of the user's: its runs without timing
    # are of the newest shape of the others.
    bare = (rows.base != BASELINE) & (rows.status != "ok")
    if bare.any():
        common = [name for name in GROUP if name not in SHAPE]
        shapes = rows[~bare].sort_values("run_id").groupby(common)[SHAPE].last()
        for key, group in rows[bare].groupby(common):
            if key in shapes.index:
                for name in SHAPE:
                    rows.loc[group.index, name] = shapes.loc[key, name]
    described = []
    for _, group in rows.groupby(GROUP):
        first = group.iloc[0]
        shape = _shape(first, first.number, first.length)
        processes = f"{first.world_size} x " if first.world_size > 1 else ""
        versions = f"torch {first.torch}, {first.data}, commit {first.code or 'unknown'}"
        described.append((f"{shape} on {processes}{first.device} ({versions})", group))
    return described


def _shape(row, batch_size, seq_len):
    """Return "gpt2 4x64", or for another base "my_model: 64 images"."""
    if row.base == BASELINE:
        return f"{row.model} {batch_size}x{seq_len}"
    return f"{row.base}: {batch_size} {row.unit}" if row.unit != "steps" else row.base


def timed(rows):
    """Return the rows of timed steps."""
    return rows[(rows.status == "ok") & (rows.phase == "timed")]


def numbered(rows):
    """Return the rows of runs with timings, with each run's steps counted from its first timed."""
    ok = rows[rows.status == "ok"]
    first = ok.step.where(ok.phase == "timed").groupby(ok.run_id).transform("min")
    return ok.assign(step=ok.step - first)


def select_ladder(rows, device_name=None, base=None):
    """Select rows for the ladder's table and charts; arguments and result as of `select`.

    Where the newest group is one of beyond/, with some rungs of the ladder alone, the group of its
    device with the most rungs is taken.
    """
    chosen, left_out = select(rows, device_name, base=base)
    rungs = rows[(rows.suite == "ladder") & (rows.device == chosen.device.iloc[0])]
    if len(rungs) and (chosen.suite == "beyond").any():
        parts = [group for _, group in groups(rungs)]
        fullest = max(parts, key=lambda group: (group.technique.nunique(), group.run_id.max()))
        chosen_rungs = chosen[chosen.suite == "ladder"]
        if fullest.technique.nunique() > chosen_rungs.technique.nunique():
            return select(rows, device_name, base=base, newest_of=fullest)
    return chosen, left_out


def describe(rows):
    """Return the common facts of selected rows in one line."""
    first = rows[rows.status.eq("ok") | rows.status.ne("ok").all()].iloc[0]
    batch = first.requested_batch_size
    if first.base == BASELINE:
        shape = f"{first.model}, {batch}x{first.seq_len} tokens a step, {first.dataset}"
    else:
        shape = _shape(first, batch, first.seq_len)
        shape += " a step" if first.unit != "steps" else ""
    most = rows["round"].nunique()
    steps = timed(rows[["technique", "round", "status", "phase"]])
    fewest = steps.groupby("technique")["round"].nunique().min()  # NaN where none is timed
    rounds = f"{fewest} to {plural(most, 'round')}" if fewest < most else plural(most, "round")
    commits = ", ".join(commit or "unknown" for commit in rows.commit.unique())
    return f"{first.device}, torch {first.torch}, {shape}, {rounds}, commit {commits}"


def shared_files():
    """Return the results files of all folders."""
    return sorted(SHARED.glob("*/*/results.csv"))


def newest_shared():
    """Return the newest results file of a GPU, else the newest of all; None without any."""
    return max(
        shared_files(), key=lambda path: (is_of_gpu(path), path.parent.name, path), default=None
    )


def is_of_gpu(path):
    """Return whether a run reserved memory of a device."""
    return any(row["reserved_memory_mib"] for row in rows_file.text_rows(path))


def reading(path):
    """Return the results file that a command reads: without rows in `path`, and then it says so,
    the newest in results/.
    """
    shared = None if rows_file.has_rows(path) else newest_shared()
    if shared is None:
        return path
    shown = shared.relative_to(SHARED.parent)
    print(f"{path} has no rows yet: these are of {shown}", file=sys.stderr)
    return shared
