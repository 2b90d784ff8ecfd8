"""Selection of comparable rows."""

from Utils.base import turns, variants
from Utils.base.errors import UserError
from Utils.base.text import plural

GROUP = [
    *("device", "torch", "model", "dataset", "requested_batch_size", "seq_len", "world_size"),
    "code",
]


def select(rows, device_name=None, with_variants=False, newest_of=None):
    """Return one group of comparable rows, and a sentence on the rows left out, or "".

    rows: DataFrame of results.COLUMNS. device_name: part of a device's name; by default the group
    of the newest run. Of several runs of a technique in one round, the newest counts, and those
    that took turns with the newest of another.
    newest_of: rows of which the newest run decides, in place of all. with_variants: keep the rows
    of an ablation. Runs in several processes, for `make scaling`, are left out unless all are.
    Raises UserError if no device has that name or no row is left.
    """
    several = rows[rows.world_size > 1]
    if len(several) < len(rows):
        rows = rows[rows.world_size == 1]
    if not with_variants:
        names = [name for name in rows.technique.unique() if variants.parse(name)]
        rows = rows[~rows.technique.isin(names)]
        if names and rows.empty:
            raise UserError("the results hold only variants", "`make ablate` shows them")
    candidates = rows
    if device_name:
        candidates = rows[rows.device.str.contains(device_name, case=False, regex=False)]
        if candidates.empty:
            known = ", ".join(rows.device.unique())
            raise UserError(f"no results of a device named {device_name!r}", f"there are {known}")
    if newest_of is not None and candidates.run_id.isin(newest_of.run_id).any():
        candidates = candidates[candidates.run_id.isin(newest_of.run_id)]
    newest, parts = candidates.run_id.max(), groups(rows)
    same = next(group for _, group in parts if newest in set(group.run_id))
    # The newest run of each technique and round, and those that it took turns with.
    latest = same[same.run_id == same.groupby(["technique", "round"]).run_id.transform("max")]
    key = same.run_id.str[-turns.TOKEN :] + same["round"].astype(str)
    chosen = same[key.isin(key[latest.index])]

    left_out = [f"{count(group)} of {name}" for name, group in parts if group is not same]
    if rows.world_size.eq(1).all() and len(several):
        left_out.append(f"{count(several)} in several processes")
    repeated = same[~same.run_id.isin(chosen.run_id)]
    if len(repeated):
        left_out.append(f"{count(repeated)} repeated since")
    return chosen, "left out: " + "; ".join(left_out) if left_out else ""


def groups(rows):
    """Return the groups of comparable rows: a list of (description, rows), the rows with a column
    `code`, the commit without "-dirty"."""
    # Uncommitted changes on top of a commit are compared with that commit's runs.
    rows = rows.assign(code=rows.commit.str.removesuffix("-dirty"))
    return [
        (
            f"{model} {B}x{T} on {f'{ranks} x ' if ranks > 1 else ''}{device} "
            f"(torch {version}, {dataset}, commit {code or 'unknown'})",
            group,
        )
        for (device, version, model, dataset, B, T, ranks, code), group in rows.groupby(GROUP)
    ]


def timed(rows):
    """Return the rows of timed steps."""
    return rows[(rows.status == "ok") & (rows.phase == "timed")]


def initial(rows):
    """Return the rows of the steps before each run's first timed step."""
    ok = rows[rows.status == "ok"]
    first = ok.step.where(ok.phase == "timed").groupby(ok.run_id).transform("min")
    return ok[ok.step < first]


def count(rows):
    return plural(rows.run_id.nunique(), "run")


def describe(rows):
    """Return the common facts of selected rows in one line."""
    first = rows.iloc[0]
    commits = ", ".join(commit or "unknown" for commit in rows.commit.unique())
    return (
        f"{first.device}, torch {first.torch}, {first.model}, "
        f"{first.requested_batch_size}x{first.seq_len} "
        f"tokens a step, {first.dataset}, {plural(rows['round'].nunique(), 'round')}, "
        f"commit {commits}"
    )
