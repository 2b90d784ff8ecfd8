"""The sections of a page on the runs: their quality, environment, commands and sources."""

import re
import shlex
from pathlib import Path

import pandas as pd

from Utils.analysis import make_line
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
LONGEST_REPORT = 20_000  # letters


def quality(rows, lines, records):
    """Return the quality of each technique's runs, columns of texts by title."""
    texts = []
    for name in lines.index:
        runs = rows[rows.technique == name].drop_duplicates("run_id")
        facts = [records.get(run_id, {}).get("quality") or {} for run_id in runs.run_id]
        reasons = dict.fromkeys(" and ".join(run.get("reasons") or ()) for run in facts)
        text = {"technique": name, "runs": str(len(runs))}
        for grade in rows_file.GRADES:
            text[grade] = str(runs.grade.eq(grade).sum()) if runs.grade.notna().any() else ""
        text["why"] = short("; ".join(filter(None, reasons)))
        for title, (key, form) in READINGS.items():
            text[title] = _farthest(facts, key, form)
        texts.append(text)
    return pd.DataFrame(texts).to_dict("list")


def _farthest(facts, key, form):
    """Return the known value that is farthest from 0, as text."""
    values = [run[key] for run in facts if isinstance(run.get(key), (int, float))]
    return number(max(values, key=abs), form) if values else ""


def environment(records):
    """Return the environment of the runs, a dict of texts, and torch's collect_env reports."""
    values = {}
    reports = {}
    for record in records.values():
        for name, value in _facts(record):
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                values.setdefault(name, {})[short(value)] = None
        if report := record.get("collect_env"):
            reports[report[:LONGEST_REPORT]] = None
    environment = {name: " or ".join(texts) for name, texts in values.items()}
    return environment, list(reports)


def _facts(record):
    """Yield the names and values of a record's environment."""
    yield "platform", record.get("platform")
    yield "threads", record.get("threads")
    for part, prefix, form in PARTS:
        facts = record.get(part)
        for key, value in facts.items() if isinstance(facts, dict) else ():
            yield f"{prefix}{key}", format(value, form) if type(value) is int else value


def repeat(rows, records):
    """Return the commands that reproduce these results."""
    record = next(iter(records.values()), {})
    settings = make_line.given_settings(rows, records) | {"ROUNDS": rows["round"].nunique()}
    settings["SEED"] = (record.get("settings") or {}).get("seed")
    automatic = record.get("chosen_automatically") or ()
    settings = {key: settings[key] for key in SETTINGS if key in settings}
    settings = {key: value for key, value in settings.items() if key.lower() not in automatic}
    names = {*rows.technique}
    groups = [{t.name for t in ladder.group(group)} for group in ("ladder", "everything")]
    if names in groups or selection.baseline(rows) != ladder.BASELINE:
        command = make_line.make_line(make_line.target(rows), settings)
    else:
        changed = {key.lower(): value for key, value in make_line.changed(settings).items()}
        in_order = [name for name in ladder.techniques() if name in names]
        flags = command_line.as_flags(changed)
        command = " ".join(["python -m Utils.commands suite", *in_order, *flags])
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
    scripts = ladder.techniques()
    if lines.base.iloc[0] != ladder.BASELINE:  # what ran is all there is
        scripts = {name: _as_technique(name, source) for name, source in sources.items()}
    ran = dict(scripts)
    for name in sources.keys() & scripts.keys():
        ran[name] = _as_technique(name, sources[name], scripts[name].path)
    diffs = []
    for name in lines.index[lines.index.isin(scripts)]:
        technique = ran[name]
        if technique.parent in ran:
            text = ladder.diff(technique, ran[technique.parent])
        else:
            text = [f" {line}" for line in technique.code.strip("\n").splitlines()]
        diff = {"name": name, "headline": technique.headline, "changed": technique != scripts[name]}
        diff["doc"] = UNWRAPPED.sub(" ", technique.doc.partition("\n")[2].strip())
        diff["lines"] = [(_kind(line), line) for line in text]
        diffs.append(diff)
    return diffs


def _kind(line):
    """Return the class of a diff's line."""
    if line.startswith(("+++", "---")):
        return ""
    return {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "")


def _as_technique(name, source, path=Path()):
    """Return the Technique of a source that ran."""
    doc, code = ladder.split(source) if source.startswith('"' * 3) else ("", source)
    return ladder.Technique(name, path, doc, code, ladder.facts(doc))
