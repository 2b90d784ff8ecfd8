"""Studies: rows and records that may be compared, chosen once for all tables, charts and pages."""

from argparse import Namespace
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from Utils.base.text import plural
from Utils.results import rows_file, selection
from Utils.scripts import ladder
from Utils.scripts.identity import Identity, changes
from Utils.scripts.ladder import Ladder

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it


@dataclass(frozen=True)
class Study:
    """Rows of one device, version, model, shape and commit, and their records.

    Tables, charts, pages and the recipe take these rows and no others; see `of_rows`.

    rows: rows of the scripts that tables and charts show.
    all_rows: the same, with those of an ablation.
    left_out: a sentence on rows that are not shown, or "".
    records: dicts by run_id.
    stands_in: whether these are another machine's rows, as this one has none.
    """

    rows: "pd.DataFrame"
    all_rows: "pd.DataFrame"
    left_out: str = ""
    records: dict[str, dict] = field(default_factory=dict)
    stands_in: bool = False

    @property
    def owner(self) -> str:
        """The start of all headings: the device of another machine, "" for this one's."""
        return f"{self.rows.device.iloc[0]}: " if self.stands_in else ""

    @property
    def base(self) -> str:
        """Name of the script that ratios are over."""
        return self.rows.base.iloc[0]

    @cached_property
    def disturbed(self) -> str:
        """A sentence if disturbed runs count; then nothing is concluded. Otherwise ""."""
        return selection.disturbed(self.all_rows)

    @property
    def is_ours(self) -> bool:
        """False for a user's own script."""
        return self.base == self.ladder.base

    @cached_property
    def identities(self) -> dict[str, Identity]:
        """The Identity of each script, by name, as its newest row has it."""
        columns = ["technique", "suite", "parent", "change"]
        runs = self.all_rows[["run_id", *columns]].drop_duplicates().sort_values("run_id")
        identities = dict.fromkeys(self.all_rows.technique.unique())
        for name, *identity in runs[columns].astype(str).itertuples(index=False):
            identities[name] = Identity(*identity)
        return identities

    @cached_property
    def ladder(self) -> Ladder:
        """The repository's scripts as the rows' device runs them."""
        return ladder.of_rows(self.identities)

    def parent(self, name: str) -> str:
        """Return the parent of a script, "" for a base. The ladder has that of unmeasured ones."""
        if name in self.identities:
            return self.identities[name].parent
        if self.is_ours and name in self.ladder.scripts:
            return self.ladder.get(name).parent or ""
        return ""

    def change(self, name: str) -> list[tuple[str, str]]:
        """Return the signs and techniques of a script's change over its parent."""
        if name in self.identities:
            return changes(self.identities[name].change)
        return [("+", name)] if self.parent(name) else []

    def leaves_out(self, name: str) -> bool:
        """Return whether a script is its parent without some techniques."""
        return self.identities[name].change.startswith("-")

    def lineage(self, name: str) -> list[str]:
        """Return the names from the base to a script, as far as they are known."""
        names = [name]
        while (parent := self.parent(names[-1])) and parent not in names:
            names.append(parent)
        return names[::-1]

    def techniques(self, name: str) -> frozenset[str]:
        """Return the techniques of a script: those of its parent, with its change."""
        techniques = set()
        for script in self.lineage(name):
            for sign, technique in self.change(script):
                if sign == "+":
                    techniques.add(technique)
                else:
                    techniques.discard(technique)
        return frozenset(techniques)

    @cached_property
    def order(self) -> list[str]:
        """Names of all scripts in the order of the ladder, those of an ablation last."""
        return in_order(self.identities, self.ladder)

    def names(self, suite: str) -> set[str]:
        """Return the names of the scripts of a suite."""
        return {name for name, identity in self.identities.items() if identity.suite == suite}

    def beyond(self) -> set[str]:
        """Return the names of scripts outside the ladder, or with a technique from there."""
        outside = self.ladder.beyond()
        names = self.names("beyond")
        for name in self.names("own"):
            if {technique for _, technique in self.change(name)} & outside:
                names.add(name)
        return names


def in_order(identities: dict[str, Identity], repository: Ladder) -> list[str]:
    """Return names of scripts in the order of their ladder, those of an ablation last.

    identities: by name, as rows have them.
    repository: has the parents of scripts without rows. So a script keeps its position even if its
    parent was not measured.
    """
    parents = repository.parents()
    for name, identity in identities.items():
        if identity.suite != "ablation":
            parents[name] = identity.parent or None

    scripts = {name: SimpleNamespace(name=name, parent=parent) for name, parent in parents.items()}
    ordered = [name for name in ladder.in_order(scripts) if name in identities]
    return list(dict.fromkeys([*ordered, *identities]))


def newest(
    rows: "pd.DataFrame",
    path: Path | None = None,
    device_name: str | None = None,
    base: str | None = None,
    with_ablation: bool = False,
    newest_of: "pd.DataFrame | None" = None,
) -> Study:
    """Return the Study of the newest runs among rows, or those of a device or base.

    Other arguments, and errors, are those of `selection.select`.

    rows: with the columns rows_file.COLUMNS.
    path: their file, for the records; without it the Study has none.
    with_ablation: show the rows of an ablation too.
    """
    shown, left_out = selection.select(rows, device_name, with_ablation, base, newest_of)

    # The rows of the group with its ablation.
    all_rows = shown
    if rows.suite.eq("ablation").any() and not shown.suite.eq("ablation").any():
        all_rows, _ = selection.select(rows, device_name, True, base, shown)

    records = rows_file.read_records(path, all_rows.run_id.unique()) if path else {}
    return of_rows(shown, all_rows, left_out, records)


def newest_ladder(
    rows: "pd.DataFrame", path: Path, device_name: str | None = None, base: str | None = None
) -> Study:
    """Return the Study for the ladder's table and charts; arguments as those of `newest`.

    It is of the newest runs. If these are of beyond/, which has only some rungs of the ladder, it
    is of the group of the same device with the most rungs.
    """
    chosen = newest(rows, path, device_name, base)
    rungs = rows[(rows.suite == "ladder") & (rows.device == chosen.rows.device.iloc[0])]

    if len(rungs) and chosen.names("beyond"):
        groups = [group for _, group in selection.comparable_groups(rungs)]
        fullest = max(groups, key=lambda group: (group.technique.nunique(), group.run_id.max()))
        if fullest.technique.nunique() > len(chosen.names("ladder")):
            return newest(rows, path, device_name, base, newest_of=fullest)
    return chosen


def of_rows(
    rows: "pd.DataFrame",
    all_rows: "pd.DataFrame",
    left_out: str = "",
    records: dict[str, dict] | None = None,
) -> Study:
    """Return the Study of the runs that count; see `selection.undisturbed`."""
    counted = selection.undisturbed(all_rows)
    dropped = all_rows.run_id.nunique() - counted.run_id.nunique()
    if dropped:
        disturbed = plural(dropped, "disturbed run")
        left_out = f"{left_out}; {disturbed}" if left_out else f"not shown: {disturbed}"
    return Study(rows[rows.run_id.isin(counted.run_id)], counted, left_out, records or {})


def study_of_command(args: Namespace, stands_in: bool = False) -> Study:
    """Return the Study that a command's results_file, device_name and base select.

    Raises UserError. stands_in: see Study.
    """
    path = args.results_file
    chosen = newest(rows_file.read(path), path, args.device_name, args.base)
    return replace(chosen, stands_in=stands_in)
