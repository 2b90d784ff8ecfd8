"""The parts of a page on the runs themselves: their environment, quality, commands and sources."""

import shlex
from pathlib import Path

from Utils.analysis.recommendation import make_line
from Utils.scripts import ladder

ENVIRONMENT = {  # of a record: title, where it stands there
    "device memory (MiB)": ("device", "memory_mib"),
    "driver": ("device", "driver"),
    "Python": ("versions", "python"),
    "CUDA or ROCm": ("device", "toolkit"),
    "cuDNN": ("versions", "cudnn"),
}


def environment(rows, records):
    """Return the environment of the runs, texts by title."""
    facts = {name: " or ".join(rows[name].unique()) for name in ("device", "torch", "dataset")}
    for title, (part, key) in ENVIRONMENT.items():
        parts = [record.get(part) or {} for record in records.values()]
        facts[title] = " or ".join(dict.fromkeys(str(p[key]) for p in parts if p.get(key)))
    return {title: text for title, text in facts.items() if text}


def quality(rows, lines):
    """Return the quality of the runs, texts by title."""
    runs = rows[rows.status == "ok"].drop_duplicates("run_id")
    counts = runs.grade.value_counts()
    tainted = lines[lines.grade == "tainted"]
    facts = {f"{grade} runs": str(count) for grade, count in counts.items()}
    return facts | {line.label: line.quality for _, line in tainted.iterrows()}


def commands(rows, records):
    """Return the commands that run these scripts again."""
    commit = rows.commit.iloc[0].removesuffix("-dirty")
    checkout = [f"git checkout {shlex.quote(commit)}"] if commit else []
    return [*checkout, make_line(rows, records, rows["round"].nunique()), "make report"]


def diffs(names, records):
    """Return the diff of each script against the script before it, of the sources that ran where
    they were recorded, a list of {"name", "headline", "lines"}."""
    ran = ladder.techniques()
    for record in records.values():
        name, source = record.get("technique"), record.get("source")
        if source:
            doc, code = ladder.split(source) if source.startswith('"""') else ("", source)
            ran[name] = ladder.Technique(name, Path(f"{name}.py"), doc, code, ladder.facts(doc))
    diffs = []
    for technique in (ran[name] for name in names if name in ran):
        if technique.parent in ran:
            lines = ladder.diff(technique, ran[technique.parent], context=1)[
                2:
            ]  # without the files' names
        else:
            lines = [f" {line}" for line in technique.code.strip("\n").splitlines()]
        diffs.append({"name": technique.name, "headline": technique.headline, "lines": lines})
    return diffs
