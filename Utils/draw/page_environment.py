"""The sections of a page on the runs: their quality, environment, commands and sources."""

import dataclasses
import re
import shlex
from pathlib import Path

from Utils.analysis import recommendation
from Utils.base import command_line
from Utils.base.text import number, short
from Utils.results import rows_file, selection
from Utils.scripts import ladder

PARTS = (  # of a record, shown as the environment: key, prefix, how whole numbers are written
    ("device", "device ", ",d"),
    ("dataset_facts", "dataset's ", ",d"),
    ("versions", "", "d"),
    ("variables", "", "d"),
)
READINGS = {  # of a run's quality: title, key and format
    "other processes (of the cores)": ("other_cpu_share", ".1%"),
    "hypervisor (of the cores)": ("steal_share", ".1%"),
    "drift over the run": ("drift", "+.0%"),
    "temperature (°C)": ("temperature_c", ".0f"),
    "SM clock (MHz)": ("sm_clock_mhz", ",.0f"),
    "power (W)": ("mean_power_w", ",.0f"),
}
SETTINGS = ("ROUNDS", "STEPS", "WARMUP", "BATCH_SIZE", "SEQ_LEN", "MODEL", "DATASET", "SEED")
UNWRAPPED = re.compile(r"(?<!\n)\n(?!\n|[A-Z]\w+: )")  # line breaks within a paragraph
# Of a diff's lines, by their beginning.
CLASSES = {"+++": "", "---": "", "+": "added", "-": "removed", "@": "place"}


def quality(rows, lines, records):
    """Return the quality of each technique's runs, columns of texts by title."""
    texts = []
    for name in lines.index:
        runs = rows[rows.technique == name].drop_duplicates("run_id")
        facts = [records.get(run_id, {}).get("quality") or {} for run_id in runs.run_id]
        reasons = {" and ".join(run["reasons"]): None for run in facts if run.get("reasons")}
        clean, tainted = ((runs.grade == grade).sum() for grade in rows_file.GRADES)
        texts.append(
            {
                "technique": name,
                "runs": str(len(runs)),
                "clean": str(clean) if clean or tainted else "",
                "tainted": str(tainted) if clean or tainted else "",
                "why": short("; ".join(reasons)),
                **{title: _most(facts, *reading) for title, reading in READINGS.items()},
            }
        )
    return {key: [line[key] for line in texts] for key in texts[0]}


def _most(facts, key, form):
    """Return the known value that is farthest from 0, as text."""
    values = [run[key] for run in facts if isinstance(run.get(key), (int, float))]
    return number(max(values, key=abs), form) if values else ""


def environment(path, records):
    """Return the environment of the runs, (name, value) pairs, and torch's collect_env reports."""
    found, reports = {}, {}
    for record in records.values():
        facts = {"platform": record.get("platform"), "threads": record.get("threads")}
        for part, before, form in PARTS:
            inner = record.get(part) if isinstance(record.get(part), dict) else {}
            facts |= {
                f"{before}{key}": format(value, form) if type(value) is int else value
                for key, value in inner.items()
            }
        for name, value in facts.items():
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                found.setdefault(name, {})[short(value)] = None
        if isinstance(file := record.get("collect_env"), str) and file not in reports:
            reports[file] = rows_file.collect_env(path, record)[:20_000]
    facts = [(name, " or ".join(values)) for name, values in found.items()]
    return facts, [report for report in reports.values() if report]


def repeat(rows, records):
    """Return the commands that reproduce these results."""
    record, names = next(iter(records.values()), {}), {*rows.technique}
    given = recommendation.settings(rows, records) | {"ROUNDS": rows["round"].nunique()}
    given["SEED"] = (record.get("settings") or {}).get("seed")
    chosen = record.get("chosen_automatically") or ()
    given = {key: given[key] for key in SETTINGS if key in given and key.lower() not in chosen}
    groups = [{t.name for t in ladder.group(group)} for group in ("ladder", "everything")]
    if names in groups or selection.baseline(rows) != ladder.BASELINE:
        command = recommendation.command(recommendation.target(rows), given)
    else:
        flags = {key.lower(): value for key, value in recommendation.changed(given).items()}
        known = [name for name in ladder.techniques() if name in names]
        flags = command_line.as_flags(flags)
        command = " ".join(["python -m Utils.commands.suite", *known, *flags])
    commits = [c.removesuffix("-dirty").partition("+")[0] for c in rows.commit.unique() if c]
    return {
        "commands": [*(f"git checkout {shlex.quote(c)}" for c in commits[:1]), command],
        "versions": f"torch {rows.torch.iloc[0]}",
        "dirty": bool(rows.commit.str.endswith("-dirty").any()),
    }


def diffs(lines, records):
    """Return each technique's docstring and diff, of the sources that ran where they were recorded.

    It is a list of {"name", "headline", "doc", "lines", "changed"}, a line being (class, text).
    """
    sources = {r.get("technique"): str(r["source"]) for r in records.values() if r.get("source")}
    known, found = ladder.techniques(), []
    if lines.base.iloc[0] != ladder.BASELINE:  # what ran is all there is
        known = {name: _as_technique(name, source) for name, source in sources.items()}

    def as_run(technique):
        if technique.name not in sources:
            return technique
        doc, code = ladder.split(sources[technique.name])
        return dataclasses.replace(technique, doc=doc, code=code)

    for name in lines.index[lines.index.isin(known)]:
        technique = as_run(known[name])
        if technique.parent in known:
            text = ladder.diff(technique, as_run(known[technique.parent]))
        else:
            text = [f" {line}" for line in technique.code.strip("\n").splitlines()]
        found.append(
            {
                "name": name,
                "headline": technique.headline,
                "doc": UNWRAPPED.sub(" ", technique.doc.partition("\n")[2].strip()),
                "lines": [
                    (CLASSES.get(line[:3], CLASSES.get(line[:1], "")), line) for line in text
                ],
                "changed": technique != known[name],
            }
        )
    return found


def _as_technique(name, source):
    """Return the Technique of a source that ran."""
    doc, code = ladder.split(source) if source.startswith('"' * 3) else ("", source)
    return ladder.Technique(name, Path(f"{name}.py"), doc, code, ladder.facts(doc))
