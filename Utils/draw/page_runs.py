"""The sections of a page on the runs: their quality, environment, commands and sources."""

import dataclasses
import re
import shlex
from pathlib import Path

from Utils.analysis import selection
from Utils.base import bases, command_line, ladder, results
from Utils.base.ladder import BASELINE
from Utils.base.text import number, short

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
UNWRAPPED = re.compile(r"(?<!\n)\n(?!\n|[A-Z]\w+: )")  # line breaks within a paragraph
CLASSES = {"+": "added", "-": "removed", "@": "place"}  # of a diff's lines


def quality(rows, lines, records):
    """Return the quality of each technique's runs, columns of texts by title."""
    texts = []
    for name in lines.index:
        runs = rows[rows.technique == name].drop_duplicates("run_id")
        facts = [records.get(run_id, {}).get("quality") or {} for run_id in runs.run_id]
        reasons = {" and ".join(run["reasons"]): None for run in facts if run.get("reasons")}
        clean, tainted = ((runs.grade == grade).sum() for grade in results.GRADES)
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
            reports[file] = results.collect_env(path, record)[:20_000]
    facts = [(name, " or ".join(values)) for name, values in found.items()]
    return facts, [report for report in reports.values() if report]


def repeat(rows, records):
    """Return the commands that reproduce these results."""
    settled = [record.get("settings") or {} for record in records.values()]
    names = set(rows.technique)
    first, (steps, warmup) = rows.iloc[0], selection.asked(rows, records)
    given = {
        "rounds": rows["round"].nunique(),
        "steps": steps,
        "warmup": warmup,
        "batch_size": int(rows.requested_batch_size.iloc[0]),
        "seq_len": int(first.seq_len),
        "model": first.model,
        "dataset": first.dataset,
        "seed": settled[0].get("seed") if settled else None,
    }
    chosen = [*(next(iter(records.values()), {}).get("chosen_automatically") or ())]
    base = selection.baseline(rows)
    chosen += ["model"] * (first.model == base)
    chosen += ["dataset", "batch_size", "seq_len"] * bases.has_own_data(first)  # its own
    defaults = command_line.defaults()
    given = {
        key: value
        for key, value in given.items()
        if value is not None and key not in chosen and value != defaults[key]
    }
    groups = {"ladder": "all", "everything": "everything"}
    target = next((t for g, t in groups.items() if names == {x.name for x in ladder.group(g)}), "")
    if base != BASELINE:
        beyond = {bases.last(name) for name in names} & ladder.beyond()
        target = f"{'everything' if beyond else 'all'} BASE={base}"
    if target:
        words = [f"{key.upper()}={shlex.quote(str(value))}" for key, value in given.items()]
        command = " ".join(["make", target, *words])
    else:
        flags = [f"--{k.replace('_', '-')}={shlex.quote(str(v))}" for k, v in given.items()]
        known = [name for name in ladder.techniques() if name in names]
        command = " ".join(["python -m Utils.commands.suite", *known, *flags])
    commits = [c.removesuffix("-dirty").partition("+")[0] for c in rows.commit.unique() if c]
    dirty = rows.commit.str.endswith("-dirty").any()
    return {
        "commands": [*(f"git checkout {shlex.quote(c)}" for c in commits[:1]), command],
        "versions": f"torch {first.torch}",
        "dirty": bool(dirty),
    }


def _as_technique(name, source):
    """Return the Technique of a source that ran."""
    doc, code = ladder.split(source) if source.startswith('"' * 3) else ("", source)
    return ladder.Technique(name, Path(f"{name}.py"), doc, code, ladder.facts(doc))


def diffs(lines, records):
    """Return each technique's docstring and diff, of the sources that ran where they were recorded.

    It is a list of {"name", "parent", "headline", "doc", "lines"}, a line being (class, text).
    """
    sources = {r.get("technique"): r["source"] for r in records.values() if r.get("source")}
    known, found = ladder.techniques(), []

    def as_run(technique):
        if technique.name not in sources:
            return technique
        doc, code = ladder.split(str(sources[technique.name]))
        return dataclasses.replace(technique, doc=doc, code=code)

    base = lines.base.iloc[0] if len(lines) else BASELINE
    if base != BASELINE:  # what ran is all there is
        names = [name for name in lines.index if name in sources]
        known = {name: _as_technique(name, str(sources[name])) for name in names}
    for name in lines.index:
        if name not in known:
            continue
        technique = as_run(known[name])
        if technique.parent in known:
            text = ladder.diff(technique, as_run(known[technique.parent]))
        else:
            text = [f" {line}" for line in technique.code.strip("\n").splitlines()]
        coloured = [
            ("" if line[:3] in ("+++", "---") else CLASSES.get(line[:1], ""), line) for line in text
        ]
        found.append(
            {
                "name": name,
                "parent": technique.parent,
                "headline": technique.headline,
                "doc": UNWRAPPED.sub(" ", technique.doc.partition("\n")[2].strip()),
                "lines": coloured,
                "changed": as_run(known[name]) != known[name],
            }
        )
    return found
