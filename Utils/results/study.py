"""Studies: rows and records that may be compared, chosen once for all tables, charts and pages."""

import os
import sys
from argparse import Namespace
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from Utils.base.text import plain, plural
from Utils.results import rows_file, selection
from Utils.scripts import ladder
from Utils.scripts.identity import Identity, changes
from Utils.scripts.ladder import Ladder, Technique

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it


@dataclass(frozen=True)
class Study:
    """Rows of one device, version, model, shape and commit, and their records.

    Tables, charts, pages and the recipe take these rows and no others; see `choose`.

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
    def disturbance(self) -> str:
        """A sentence on what else the machine did during the runs, "" for an idle one."""
        runs = self.all_rows[self.all_rows.status == "ok"].drop_duplicates("run_id")
        disturbed = runs.run_id[runs.grade == "tainted"]
        if disturbed.empty:
            return ""

        shares = [0.0]
        for run_id in disturbed:
            quality = self.records.get(run_id, {}).get("quality") or {}
            shares.append(quality.get("other_cpu_share", 0) + quality.get("steal_share", 0))
        text = f"Disturbed: {len(disturbed)} of {plural(len(runs), 'run')}"
        if max(shares) > 0.01:
            text = f"Shared machine. {text}, by up to {max(shares):.0%} of its cores"
        return f"{text}; the intervals include it."

    @property
    def is_ours(self) -> bool:
        """False for a user's own script."""
        return self.base == self.ladder.base

    def chart(self, name: str) -> str:
        """Return the name of a chart's file in plots/, where a user's script has a folder."""
        return name if self.is_ours else os.path.join(self.base.replace("/", "_"), name)

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
        """The repository's scripts in the precision of the rows' device, as a record states it."""
        precisions = [record.get("precision") for record in self.records.values()]
        stated = [precision for precision in precisions if precision in ladder.PRECISIONS]
        return ladder.repository(*stated[:1])

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

    def technique(self, name: str) -> Technique | None:
        """Return the repository's script of a name, None for a variant or a user's script."""
        return self.ladder.scripts.get(name) if self.is_ours else None

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


def choose(rows: "pd.DataFrame", path: Path | None = None, **criteria: str) -> Study:
    """Return the Study that a command shows: that of one group of comparable rows.

    rows: with the columns rows_file.COLUMNS.
    path: their file, for the records; without it the Study has none.
    criteria: those of `selection.select`, which may raise UserError.
    """
    group, left_out = selection.select(rows, **criteria)
    records = rows_file.read_records(path, group.run_id.unique()) if path else {}
    return of_group(group, left_out, records)


def of_groups(rows: "pd.DataFrame", path: Path) -> list[Study]:
    """Return the Study of each group of comparable rows of a file."""
    records = rows_file.read_records(path, rows.run_id.unique())
    return [of_group(group, [], records) for _, group in selection.comparable_groups(rows)]


def of_group(rows: "pd.DataFrame", left_out: list[str], records: dict[str, dict]) -> Study:
    """Return the Study of the runs of a group.

    left_out: texts on runs that are not shown.
    records: by run_id, of the group's runs at least.
    """
    counted, texts = selection.counted_runs(rows, records)
    left_out = left_out + texts
    is_script = counted.suite != "ablation"
    shown = counted[is_script] if is_script.any() else counted
    kept = {run_id: records[run_id] for run_id in counted.run_id.unique() if run_id in records}
    sentence = plain(f"not shown: {'; '.join(left_out)}") if left_out else ""
    return Study(shown, counted, sentence, kept)


def of_suite(rows: "pd.DataFrame", path: Path) -> Study:
    """Return the Study that a command shows of a file after a suite, of which `rows` are.

    After an ablation its rows are shown too.
    """
    is_of_file = not rows.suite.isin(rows_file.OF_ONE_COMMAND).all()
    all_rows = rows_file.read(path) if is_of_file else rows
    chosen = choose(all_rows, path, run_id=rows.run_id.max())
    is_ablation = rows.suite.eq("ablation").any()
    return replace(chosen, rows=chosen.all_rows) if is_ablation else chosen


def study_of_command(args: Namespace, stands_in: bool = False) -> Study:
    """Return the Study that a command's results_file, device_name and base select.

    Raises UserError.

    stands_in: replace a file without rows by the newest one in results/, with a line on stderr, but
    not a missing file that the user has named.
    """
    path = args.results_file
    try:
        rows = rows_file.read(path)
        stands_in = False
    except rows_file.NoResults:
        is_missing = "results_file" in args.explicit and not path.exists()
        shared = selection.newest_shared() if stands_in and not is_missing else None
        if shared is None:
            raise
        shown = shared.relative_to(selection.SHARED.parent)
        print(f"{path} has no rows yet; showing {shown}", file=sys.stderr)
        path = args.results_file = shared
        rows = rows_file.read(path)

    chosen = choose(rows, path, device_name=args.device_name, base=args.base)
    return replace(chosen, stands_in=stands_in)
