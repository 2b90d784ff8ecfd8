"""All that is known of a results file on one page, which needs no server and no network.

    python -m Utils.commands.report [--results-file FILE] [--report report.html]
    python -m Utils.commands.report --a results.csv:2.11 --b results.csv:2.13

The figures are those of `summary`, `compare` and `ablation`; here they are laid out and drawn. Bars
and lines are SVG in percent of whatever width there is, so one drawing serves a phone, a screen
and paper. Nothing is ever marked safe: the templates in pages/ escape all that comes from a
file, and the page's own security policy lets nothing run but the one script whose hash it names.
"""

import base64
import dataclasses
import hashlib
import json
import re
import shlex
from contextlib import suppress
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd

from Utils.analysis import ablation, compare, recipe, recipe_code, selection, tables
from Utils.analysis.ablation import WAYS
from Utils.analysis.intervals import NO_INTERVAL
from Utils.analysis.summary import summarize
from Utils.base import command_line, ladder, results
from Utils.base.command_line import Parser
from Utils.base.ladder import BASELINE
from Utils.draw import svg
from Utils.draw.svg import LEVELS, LONGEST, MARKS
from Utils.share.submission import HOMES

PAGES = Path(__file__).with_name("pages")
PARTS = (  # of a record, shown as the environment: key, prefix, how whole numbers are written
    ("device", "device ", ",d"),
    ("dataset_facts", "dataset's ", ",d"),
    ("versions", "", "d"),
    ("variables", "", "d"),
)
MOST_TECHNIQUES = 100  # on one page: more rows than that are no ladder but a mistake
KINDS = {"weights_mib": "weights", "gradients_mib": "gradients"}
KINDS |= {"optimizer_state_mib": "optimizer state", "rest_mib": "rest: activations, workspace"}
UNWRAPPED = re.compile(r"(?<!\n)\n(?!\n|[A-Z]\w+: )")  # line breaks within a paragraph


def headline(lines):
    """The fastest technique that trains the baseline's model as well as it does: a dict with its
    line, the baseline's and the speedup in words; or why there is none, as {"why"}.

    Those with a verdict come first: of many single rounds the largest ratio is the luckiest.
    """
    if BASELINE not in lines.index or np.isnan(lines.median_ms[BASELINE]):
        return {"why": "No baseline to compare with", "remedy": "make baseline"}
    same = lines.own_batch.isna() & lines.parity.isin(["exact", "numerics changed"])
    fair = lines[same & ~lines.loss_verdict.isin(["diverged", "worse"]) & (lines.speedup > 1)]
    fair = fair[np.isfinite(fair.speedup)]
    certain = fair[fair.verdict == "faster"]
    chosen = certain if len(certain) else fair[fair.verdict == NO_INTERVAL]
    if chosen.empty:
        return {"why": "Nothing here is faster than the baseline beyond chance", "remedy": ""}
    best, baseline = lines.loc[chosen.speedup.idxmax()], lines.loc[BASELINE]
    others = lines[(lines.speedup > best.speedup) & ~lines.index.isin(certain.index)]
    return {
        "best": best,
        "baseline": baseline,
        "of": len(chosen),
        "speedup": f"{best.speedup:.2f}x",
        "interval": ""
        if np.isnan(best.speedup_low)
        else f"{best.speedup_low:.2f} to {best.speedup_high:.2f}",
        "loss": tables.loss_text(best),
        "faster_still": [
            {"name": name, "speedup": f"{line.speedup:.2f}x", "why": _unfair(line)}
            for name, line in others.iterrows()
            if np.isfinite(line.speedup)
        ],
    }


def _unfair(line):
    """Why a technique that is faster is not in the headline."""
    if not np.isnan(line.own_batch):
        return "with a batch of its own"
    if line.loss_verdict in ("diverged", "worse"):
        return f"its loss: {line.loss_verdict}"
    return line.verdict if line.parity in ("exact", "numerics changed") else line.parity


def speed_bars(lines):
    """Speedup over the baseline, a bar a technique: what `bars` of the templates draws."""
    rows = [
        {
            "name": svg.label(line),
            "value": line.speedup,
            **_interval(line if name != BASELINE else None),
            "mark": lines.speedup.get(line.parent, np.nan),
            "tainted": svg.is_tainted(line),
            "reason": svg.reason(line),
        }
        for name, line in lines.iterrows()
    ]
    floor = lines.median_ms.get(BASELINE, np.nan) / lines.floor_ms.min()
    return svg.bars(rows) | {"floor": svg.number(floor, ".1f")}


def _interval(line):
    """low, high and verdict of a ratio, for `bars`; of None, as the baseline's over itself, none
    of them."""
    if line is None or pd.isna(line.verdict):
        return {"low": np.nan, "high": np.nan, "verdict": ""}
    return {"low": line.speedup_low, "high": line.speedup_high, "verdict": line.verdict}


def ladder_table(lines):
    """The rows of the main table: a list of dicts of texts."""
    names = dict(zip(lines.index, tables.own_notes(lines), strict=True))
    return [
        {
            "name": name,
            "label": svg.label(line),
            "parent": line.parent if isinstance(line.parent, str) else "",
            "missing": svg.short(tables.reason(line)) if np.isnan(line.median_ms) else "",
            "note": "" if np.isnan(line.median_ms) else svg.short(names[name].replace("\\|", "|")),
            "speedup": tables.ratio_text(line),
            "over_parent": tables.ratio_text(line, "parent_"),
            "median": svg.number(line.median_ms),
            "spread": svg.number(line.p20_ms) and f"{line.p20_ms:,.1f}-{line.p80_ms:,.1f}",
            "rate": svg.number(line.tokens_per_second, ",.0f"),
            "memory": svg.number(line.peak_memory_mib, ",.0f"),
            "loss": svg.number(line.loss, ".3f"),
            "loss_difference": tables.loss_text(line),
            "computes": "" if pd.isna(line.parity) else line.parity,
            "grade": "" if pd.isna(line.grade) else svg.short(line.grade),
        }
        for name, line in lines.iterrows()
    ]


def memory_bars(lines):
    """Peak memory by kind, a bar a technique; {} where no run has a record of it."""
    unit, scale = ("GiB", 1024) if lines.peak_memory_mib.max() >= 4096 else ("MiB", 1)
    values, totals = {}, {}
    for _, line in lines.iterrows():
        kinds = {word: line[kind] / scale for kind, word in KINDS.items() if line[kind] >= 0}
        values[svg.label(line)] = kinds or svg.reason(line) or "not recorded by kind"
        if kinds and np.isfinite(line.peak_memory_mib):
            totals[svg.label(line)] = line.peak_memory_mib / scale
    return svg.stacks(values, unit, totals)


def profile(path, rows):
    """The kinds of work of each technique that was profiled on the same device at the same shape:
    what `stacks` makes of milliseconds a step of as many tokens, and {"advice"}: {} without."""
    first, values, advice, commits = rows.iloc[0], {}, [], {}
    for name in ladder.techniques():
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found = json.loads((Path(path).parent / "profiles" / f"{name}.json").read_text())
            if found["device"] != first.device or found["torch"] != first.torch:
                continue
            if found["status"] != "ok":
                values[name] = svg.short(f"{found['status'].replace('_', ' ')}: {found['note']}")
                continue
            if (found["model"], found["seq_len"]) != (first.model, first.seq_len):
                continue
            scale = found["asked_batch_size"] / found["batch_size"]
            kinds = {kind: scale * one["ms"] for kind, one in found["profile"]["kinds"].items()}
            values[name] = {kind: ms for kind, ms in kinds.items() if np.isfinite(ms) and ms >= 0}
            advice.append((name, [svg.short(line) for line in found["advice"]]))
            commits[found["commit"] or "unknown"] = None
    described = f"{first.device}, torch {first.torch}, {first.model}, profiled at commit "
    drawn = svg.stacks(values, "ms a step")
    return drawn and drawn | {"advice": advice, "described": described + ", ".join(commits)}


def quality(rows, lines, records):
    """How far the runs of each technique can be trusted: columns of texts by title."""
    found = []
    for name in lines.index:
        own = rows[rows.technique == name].drop_duplicates("run_id")
        facts = [records.get(run_id, {}).get("quality") or {} for run_id in own.run_id]
        reasons = {" and ".join(one["reasons"]): None for one in facts if one.get("reasons")}
        clean, tainted = ((own.grade == grade).sum() for grade in results.GRADES)
        found.append(
            {
                "technique": name,
                "runs": str(len(own)),
                "clean": str(clean) if clean or tainted else "",
                "tainted": str(tainted) if clean or tainted else "",
                "why": svg.short("; ".join(reasons)),
                "other processes (of the cores)": _most(facts, "other_cpu_share", ".1%"),
                "hypervisor (of the cores)": _most(facts, "steal_share", ".1%"),
                "drift over the run": _most(facts, "drift", "+.0%"),
                "temperature (°C)": _most(facts, "temperature_c", ".0f"),
                "SM clock (MHz)": _most(facts, "sm_clock_mhz", ",.0f"),
                "power (W)": _most(facts, "mean_power_w", ",.0f"),
            }
        )
    return {key: [line[key] for line in found] for key in found[0]}


def _most(facts, key, form):
    """The value farthest from 0 of those that are known."""
    values = [one[key] for one in facts if isinstance(one.get(key), (int, float))]
    return svg.number(max(values, key=abs), form) if values else ""


def environment(path, records):
    """What the runs ran on: a list of (name, value), and the reports of torch's collect_env."""
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
                found.setdefault(name, {})[svg.short(value)] = None
        if isinstance(file := record.get("collect_env"), str) and file not in reports:
            reports[file] = results.collect_env(path, record)[:20_000]
    return [(name, " or ".join(values)) for name, values in found.items()], [
        *filter(None, reports.values())
    ]


def repeat(rows, records):
    """The commands that make these results again."""
    ok, settled = rows[rows.status == "ok"], [r.get("settings") or {} for r in records.values()]
    names = set(rows.technique)
    first = rows.iloc[0]
    given = {
        "rounds": rows["round"].nunique(),
        "steps": int(ok.step.max()) + 1 if len(ok) else None,
        "warmup": ok.step[ok.phase == "warmup"].nunique() if len(ok) else None,
        "batch_size": int(rows.requested_batch_size.iloc[0]),
        "seq_len": int(first.seq_len),
        "model": first.model,
        "dataset": first.dataset,
        "seed": settled[0].get("seed") if settled else None,
    }
    chosen = next(iter(records.values()), {}).get("chosen_automatically") or ()
    parser = Parser("", "")
    command_line.add_settings(parser)
    given = {
        key: value
        for key, value in given.items()
        if value is not None and key not in chosen and value != parser.get_default(key)
    }
    groups = {"ladder": "all", "everything": "everything"}
    target = next((t for g, t in groups.items() if names == {x.name for x in ladder.group(g)}), "")
    if target:
        words = [f"{key.upper()}={shlex.quote(str(value))}" for key, value in given.items()]
        command = " ".join(["make", target, *words])
    else:
        flags = [f"--{k.replace('_', '-')}={shlex.quote(str(v))}" for k, v in given.items()]
        known = [name for name in ladder.techniques() if name in names]
        command = " ".join(["python -m Utils.commands.suite", *known, *flags])
    commits = [c.removesuffix("-dirty") for c in rows.commit.unique() if c]
    dirty = rows.commit.str.endswith("-dirty").any()
    return {
        "commands": [*(f"git checkout {shlex.quote(c)}" for c in commits[:1]), command],
        "versions": f"torch {first.torch}",
        "dirty": bool(dirty),
    }


def diffs(lines, records):
    """Each technique's docstring and diff, of the sources that ran where they were recorded: a
    list of {"name", "parent", "headline", "doc", "lines"}, a line being (class, text)."""
    sources = {r.get("technique"): r["source"] for r in records.values() if r.get("source")}
    known, found = ladder.techniques(), []

    def as_run(technique):
        if technique.name not in sources:
            return technique
        doc, code = ladder.split(str(sources[technique.name]))
        return dataclasses.replace(technique, doc=doc, code=code)

    for name in lines.index:
        if name not in known:
            continue
        technique = as_run(known[name])
        if technique.parent in known:
            text = ladder.diff(technique, as_run(known[technique.parent]))
        else:
            text = [f" {line}" for line in technique.code.strip("\n").splitlines()]
        kinds = {"+": "added", "-": "removed", "@": "place"}
        coloured = [
            ("" if line[:3] in ("+++", "---") else kinds.get(line[:1], ""), line) for line in text
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


def worth(rows):
    """What each technique is worth alone and when left out, by selected rows with their variants:
    what `dots` makes of it, {"whole"} and {"described"}; {} where no variants are there."""

    whole = ablation.whole_of(rows)
    if whole is None:
        return {}
    found = ablation.credits(rows, whole)
    return {"whole": whole, "described": selection.describe(rows)} | svg.dots(found, WAYS)


def recipes(rows, records):
    """What to switch on, by selected rows with their variants: {"said", "entries"}, those for speed
    and for memory; {} where the rows support none. See `recipe.recommend`."""

    timed = rows.status == "ok"
    sound = rows[~timed | (rows.step_ms.gt(0) & rows.batch_size.gt(0))]  # what has a logarithm
    found = recipe.recommend(sound, records) if len(sound) else {"fastest": None}
    titles = {
        "fastest": "The fewest techniques that cannot be told from the fastest",
        "least_memory": "The least memory, near the best speed",
    }
    entries = [
        {
            "title": title,
            "name": one["name"],
            "kind": "a forecast, not measured" if one["forecast"] else "measured",
            "speedup": tables.ratio_text(one["speedup"]),
            "to_best": tables.ratio_text(one["to_best"])
            if one["name"] != found["best"]["name"]
            else "",
            "best": found["best"]["name"],
            "memory": svg.number(one["peak_mib"], ",.0f"),
            "loss": "; ".join(filter(None, [one["loss"], one["parity"]])),
            "why": {"switch on": list(one["evidence"]), "why": [*one["evidence"].values()]},
            "why_not": {"leave out": list(one["left_out"]), "why": [*one["left_out"].values()]},
            "lines": recipe_code.lines_of(one["techniques"], one["batch"]),
            "script": recipe_code.script(one, found["described"]),
        }
        for key, title in titles.items()
        if (one := found.get(key))
    ]
    return {"said": found["says"], "entries": entries} if entries else {}


def report(path, device_name="", price=None):
    """The page of a results file, a string of HTML. Raises UserError.

    device_name: as for summary.select. price: what an hour of the device costs.
    """
    everything = _shortened(results.read(path))
    with_variants, _ = selection.select(everything, device_name, with_variants=True)
    rows, left_out = selection.select(everything, device_name)
    rows, too_many = _at_most(rows)
    all_records = results.records(path, with_variants.run_id.unique())
    records = {
        run_id: all_records[run_id] for run_id in rows.run_id.unique() if run_id in all_records
    }
    with np.errstate(all="ignore"):  # times of 0 and the like are shown as they are
        lines = summarize(rows, records)
    _, memory, limits, cost = tables.columns(lines, price)
    timed = lines.median_ms.notna().to_numpy()
    facts, reports = environment(path, records)
    shown = diffs(lines, records)
    parts = {
        "steps": (svg.step_times(rows, lines), "make baseline"),
        "memory": (memory_bars(lines), "make all"),
        "profile": (profile(path, rows), "make profile T=all"),
        "ablation": (worth(with_variants), "make ablate"),
        "recipe": (recipes(with_variants, all_records), "make recipe"),
        "limits": (_table(limits, timed, "products in"), "make ceilings all"),
        "environment": (facts, "make all"),
    }
    return _render(
        "report.html",
        described=selection.describe(rows),
        device=rows.device.iloc[0],
        headline=headline(lines),
        intervals=lines.speedup_low.notna().any(),
        bars_drawn=speed_bars(lines),
        ladder=ladder_table(lines),
        memory_table=_table(memory, timed, "weights (MiB)"),
        cost=_table(cost, timed, "technique"),
        quality=_table(quality(rows, lines, records), np.ones(len(lines), bool), "technique"),
        reports=reports,
        repeat=repeat(rows, records),
        diffs=shown,
        with_diff={one["name"] for one in shown},
        runs=rows.run_id.nunique(),
        rows=len(rows),
        left_out=[text for text in (left_out, too_many) if text],
        missing=[(name, command) for name, (part, command) in parts.items() if not part],
        **{name: part for name, (part, _) in parts.items()},
    )


def _shortened(rows):
    """The rows with no name or version of more than LONGEST letters, as the page repeats them."""
    names = ["technique", "device", "torch", "model", "dataset", "commit"]
    long = [name for name in names if rows[name].str.len().max() > LONGEST]
    return rows.assign(**{name: rows[name].str.slice(0, LONGEST) for name in long})


def _at_most(rows):
    """The rows of MOST_TECHNIQUES techniques, those with scripts first, and a sentence on what was
    left out, or ""."""
    names, known = list(rows.technique.unique()), ladder.techniques()
    if len(names) <= MOST_TECHNIQUES:
        return rows, ""
    kept = sorted(names, key=lambda name: name not in known)[:MOST_TECHNIQUES]
    return rows[rows.technique.isin(kept)], f"left out: {len(names) - len(kept)} techniques more"


def _table(columns, keep, needed):
    """Columns of texts for a table: only those rows, and no column without a text; {} where
    `needed` is not known."""
    columns = {
        name: [
            svg.short(text.replace("\\|", "|"))
            for text, kept in zip(texts, keep, strict=True)
            if kept
        ]
        for name, texts in columns.items()
    }
    columns = {name: texts for name, texts in columns.items() if any(texts)}
    return columns if columns.get(needed) else {}


def comparison(a, b):
    """The page that compares two selections of results (see `compare`), a string of HTML. Raises
    UserError."""

    a, b = compare.sides(a, b)
    ratios = compare.compare(a, b)
    rows = [
        {
            "name": name,
            "value": line.speedup,
            **_interval(line),
            "mark": np.nan,
            "tainted": any(
                name in s.lines.index and svg.is_tainted(s.lines.loc[name]) for s in (a, b)
            ),
            "reason": "" if np.isfinite(line.speedup) else svg.short(compare.why_not(a, b, name)),
        }
        for name, line in ratios.iterrows()
    ]
    verdicts = ratios.verdict.value_counts()
    return _render(
        "compare.html",
        sides=[{"name": s.name, "described": selection.describe(s.rows)} for s in (a, b)],
        bars_drawn=svg.bars(rows),
        counts={verdict: int(verdicts.get(verdict, 0)) for verdict in MARKS},
        undecided=int(verdicts.get(NO_INTERVAL, 0)),
        columns=_table(compare.columns(a, b, ratios), np.ones(len(ratios), bool), "technique"),
        differences=[svg.short(line) for line in compare.differences(a, b)],
    )


def _render(template, **parts):
    """A template filled in, its style and its script inside it, their hashes in its policy."""
    loader = jinja2.FileSystemLoader(PAGES)
    pages = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"number": svg.number, "rows": lambda table: zip(*table.values(), strict=True)}
    hashes = {
        name.replace(".", "_"): base64.b64encode(
            hashlib.sha256(pages.get_template(name).render().encode()).digest()
        ).decode()
        for name in ("page.css", "page.js")
    }
    html = pages.get_template(template).render(hashes=hashes, levels=LEVELS, **parts)
    # Homes say who someone is. Records hold none; a note or a data set's path may. And a page can
    # hold what UTF-8 cannot: half a pair, from a file that was not text.
    return HOMES.sub("~", html).encode(errors="replace").decode()
