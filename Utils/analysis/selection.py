"""Rows that may be compared with one another."""

from Utils.base import variants
from Utils.base.errors import UserError

GROUP = [
    *("device", "torch", "model", "dataset", "requested_batch_size", "seq_len", "world_size"),
    "code",
]


def select(rows, device_name=None, with_variants=False):
    """The rows that may be compared with one another, and a sentence on what was left out, or "".

    rows: DataFrame of results.COLUMNS. device_name: part of a device's name; without it the
    newest run decides. Of several runs of a technique in one round, the newest counts.
    with_variants: keep the rows of an ablation, which are no techniques of anyone's.
    Runs in several processes, which `make scaling` compares, are left out where there are others.
    Raises UserError where no device has that name, and where nothing is left.
    """
    several = rows[rows.world_size > 1]
    if len(several) < len(rows):
        rows = rows[rows.world_size == 1]
    if not with_variants:
        names = [name for name in rows.technique.unique() if variants.parse(name)]
        rows = rows[~rows.technique.isin(names)]
        if names and rows.empty:
            raise UserError("the results hold nothing but variants; `make ablate` shows them")
    candidates = rows
    if device_name:
        candidates = rows[rows.device.str.contains(device_name, case=False, regex=False)]
        if candidates.empty:
            known = ", ".join(rows.device.unique())
            raise UserError(f"no results of a device named {device_name!r}; there are {known}")
    newest, parts = candidates.run_id.max(), groups(rows)
    same = next(group for _, group in parts if newest in set(group.run_id))
    latest = same.groupby(["technique", "round"]).run_id.transform("max")
    chosen = same[same.run_id == latest]

    left_out = [f"{count(group)} of {name}" for name, group in parts if group is not same]
    if rows.world_size.eq(1).all() and len(several):
        left_out.append(f"{count(several)} in several processes")
    repeated = same[~same.run_id.isin(chosen.run_id)]
    if len(repeated):
        left_out.append(f"{count(repeated)} repeated since")
    return chosen, "left out: " + "; ".join(left_out) if left_out else ""


def groups(rows):
    """The rows that may be compared with one another, with what they have in common in words: a
    list of (words, rows), the rows with one column more: `code`, the commit without "-dirty"."""
    # An idea that is tried on top of a commit is compared with that commit's runs.
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
    """The rows of timed steps."""
    return rows[(rows.status == "ok") & (rows.phase == "timed")]


def count(rows):
    runs = rows.run_id.nunique()
    return f"{runs} run{'s' * (runs > 1)}"


def describe(rows):
    """What selected rows have in common, in one line."""
    first, rounds = rows.iloc[0], rows["round"].nunique()
    commits = ", ".join(commit or "unknown" for commit in rows.commit.unique())
    return (
        f"{first.device}, torch {first.torch}, {first.model}, "
        f"{first.requested_batch_size}x{first.seq_len} "
        f"tokens a step, {first.dataset}, {rounds} round{'s' * (rounds > 1)}, commit {commits}"
    )
