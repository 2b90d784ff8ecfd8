"""All that is known of a results file on one page, which needs no server and no network.

    python -m Utils.report [--results-file FILE] [--report report.html]
    python -m Utils.report --a results.csv:2.11 --b results.csv:2.13

The figures are those of `summary`, `compare` and `ablation`; here they are laid out and drawn. Bars
and lines are SVG in percent of whatever width there is, so one drawing serves a phone, a screen
and paper. Nothing is ever marked safe: the templates of Utils/pages escape all that comes from a
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

from Utils import ladder, results, settings, submission, summary
from Utils.drawing import (
    LEVELS,
    LONGEST,
    MARKS,
    bars,
    dots,
    is_tainted,
    label,
    number,
    reason,
    short,
    stacks,
    step_times,
)
from Utils.errors import UserError, one_line
from Utils.settings import ROOT

PAGES = ROOT / "Utils" / "pages"
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


# Parts of the page ------------------------------------------------------------------------------


def headline(lines):
    """The fastest technique that trains the baseline's model as well as it does: a dict with its
    line, the baseline's and the speedup in words; or why there is none, as {"why"}.

    Those with a verdict come first: of many single rounds the largest ratio is the luckiest.
    """
    if summary.BASELINE not in lines.index or np.isnan(lines.median_ms[summary.BASELINE]):
        return {"why": "No baseline to compare with", "remedy": "make baseline"}
    same = lines.own_batch.isna() & lines.parity.isin(["exact", "numerics changed"])
    fair = lines[same & ~lines.loss_verdict.isin(["diverged", "worse"]) & (lines.speedup > 1)]
    fair = fair[np.isfinite(fair.speedup)]
    certain = fair[fair.verdict == "faster"]
    chosen = certain if len(certain) else fair[fair.verdict == summary.NO_INTERVAL]
    if chosen.empty:
        return {"why": "Nothing here is faster than the baseline beyond chance", "remedy": ""}
    best, baseline = lines.loc[chosen.speedup.idxmax()], lines.loc[summary.BASELINE]
    others = lines[(lines.speedup > best.speedup) & ~lines.index.isin(certain.index)]
    return {
        "best": best,
        "baseline": baseline,
        "of": len(chosen),
        "speedup": f"{best.speedup:.2f}x",
        "interval": ""
        if np.isnan(best.speedup_low)
        else f"{best.speedup_low:.2f} to {best.speedup_high:.2f}",
        "loss": summary.loss_text(best),
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
            "name": label(line),
            "value": line.speedup,
            **_interval(line if name != summary.BASELINE else None),
            "mark": lines.speedup.get(line.parent, np.nan),
            "tainted": is_tainted(line),
            "reason": reason(line),
        }
        for name, line in lines.iterrows()
    ]
    floor = lines.median_ms.get(summary.BASELINE, np.nan) / lines.floor_ms.min()
    return bars(rows) | {"floor": number(floor, ".1f")}


def _interval(line):
    """low, high and verdict of a ratio, for `bars`; of None, as the baseline's over itself, none
    of them."""
    if line is None or pd.isna(line.verdict):
        return {"low": np.nan, "high": np.nan, "verdict": ""}
    return {"low": line.speedup_low, "high": line.speedup_high, "verdict": line.verdict}


def ladder_table(lines):
    """The rows of the main table: a list of dicts of texts."""
    names = dict(zip(lines.index, summary.own_notes(lines), strict=True))
    return [
        {
            "name": name,
            "label": label(line),
            "parent": line.parent if isinstance(line.parent, str) else "",
            "missing": short(summary.reason(line)) if np.isnan(line.median_ms) else "",
            "note": "" if np.isnan(line.median_ms) else short(names[name].replace("\\|", "|")),
            "speedup": summary.ratio_text(line),
            "over_parent": summary.ratio_text(line, "parent_"),
            "median": number(line.median_ms),
            "spread": number(line.p20_ms) and f"{line.p20_ms:,.1f}-{line.p80_ms:,.1f}",
            "rate": number(line.tokens_per_second, ",.0f"),
            "memory": number(line.peak_memory_mib, ",.0f"),
            "loss": number(line.loss, ".3f"),
            "loss_difference": summary.loss_text(line),
            "computes": "" if pd.isna(line.parity) else line.parity,
            "grade": "" if pd.isna(line.grade) else short(line.grade),
        }
        for name, line in lines.iterrows()
    ]


def memory_bars(lines):
    """Peak memory by kind, a bar a technique; {} where no run has a record of it."""
    unit, scale = ("GiB", 1024) if lines.peak_memory_mib.max() >= 4096 else ("MiB", 1)
    values, totals = {}, {}
    for _, line in lines.iterrows():
        kinds = {word: line[kind] / scale for kind, word in KINDS.items() if line[kind] >= 0}
        values[label(line)] = kinds or reason(line) or "not recorded by kind"
        if kinds and np.isfinite(line.peak_memory_mib):
            totals[label(line)] = line.peak_memory_mib / scale
    return stacks(values, unit, totals)


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
                values[name] = short(f"{found['status'].replace('_', ' ')}: {found['note']}")
                continue
            if (found["model"], found["seq_len"]) != (first.model, first.seq_len):
                continue
            scale = found["asked_batch_size"] / found["batch_size"]
            kinds = {kind: scale * one["ms"] for kind, one in found["profile"]["kinds"].items()}
            values[name] = {kind: ms for kind, ms in kinds.items() if np.isfinite(ms) and ms >= 0}
            advice.append((name, [short(line) for line in found["advice"]]))
            commits[found["commit"] or "unknown"] = None
    described = f"{first.device}, torch {first.torch}, {first.model}, profiled at commit "
    drawn = stacks(values, "ms a step")
    return drawn and drawn | {"advice": advice, "described": described + ", ".join(commits)}


def quality(rows, lines, records):
    """How far the runs of each technique can be trusted: columns of texts by title."""
    found = []
    for name in lines.index:
        own = rows[rows.technique == name].drop_duplicates("run_id")
        facts = [records.get(run_id, {}).get("quality") or {} for run_id in own.run_id]
        notes = own.note[own.status == "ok"].astype(str)
        reasons = dict.fromkeys(
            note.partition(summary.TAINTED)[2] for note in notes if summary.TAINTED in note
        )
        known = sum("grade" in one for one in facts)
        tainted = notes.str.contains(summary.TAINTED, regex=False).sum()
        found.append(
            {
                "technique": name,
                "runs": str(len(own)),
                "clean": str(known - tainted) if known >= tainted and known else "",
                "tainted": str(tainted) if known or tainted else "",
                "why": short("; ".join(reasons)),
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
    return number(max(values, key=abs), form) if values else ""


def environment(records):
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
                found.setdefault(name, {})[short(value)] = None
        if record.get("collect_env"):
            reports[str(record["collect_env"])[:20_000]] = None
    return [(name, " or ".join(values)) for name, values in found.items()], list(reports)


def repeat(rows, records):
    """The commands that make these results again."""
    ok, settled = rows[rows.status == "ok"], [r.get("settings") or {} for r in records.values()]
    names = set(rows.technique)
    first = rows.iloc[0]
    given = {
        "rounds": rows["round"].nunique(),
        "steps": int(ok.step.max()) + 1 if len(ok) else None,
        "warmup": ok.step[ok.phase == "warmup"].nunique() if len(ok) else None,
        "batch_size": int(summary.asked_batch(rows.head(1)).iloc[0]),
        "seq_len": int(first.seq_len),
        "model": first.model,
        "dataset": first.dataset,
        "seed": settled[0].get("seed") if settled else None,
    }
    chosen = next(iter(records.values()), {}).get("chosen_automatically") or ()
    parser = settings.Parser("", "")
    settings.add_settings(parser)
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
        command = " ".join(["python -m Utils.suite", *known, *flags])
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
    from Utils import ablation  # here, as it imports what draws charts

    whole = ablation.whole_of(rows)
    if whole is None:
        return {}
    found = ablation.credits(rows, whole)
    return {"whole": whole, "described": summary.describe(rows)} | dots(found, ablation.WAYS)


def recipes(rows, records):
    """What to switch on, by selected rows with their variants: {"said", "entries"}, those for speed
    and for memory; {} where the rows support none. See `recipe.recommend`."""
    from Utils import recipe  # here, as it imports what draws charts

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
            "speedup": recipe.ratio_text(one["speedup"]),
            "to_best": recipe.ratio_text(one["to_best"])
            if one["name"] != found["best"]["name"]
            else "",
            "best": found["best"]["name"],
            "memory": number(one["peak_mib"], ",.0f"),
            "loss": "; ".join(filter(None, [one["loss"], one["parity"]])),
            "why": {"switch on": list(one["evidence"]), "why": [*one["evidence"].values()]},
            "why_not": {"leave out": list(one["left_out"]), "why": [*one["left_out"].values()]},
            "lines": recipe.lines_of(one["techniques"], one["batch"]),
            "script": recipe.script(one, found["described"]),
        }
        for key, title in titles.items()
        if (one := found.get(key))
    ]
    return {"said": found["says"], "entries": entries} if entries else {}


# The page ---------------------------------------------------------------------------------------


def report(path, device_name="", price=None):
    """The page of a results file, a string of HTML. Raises UserError.

    device_name: as for summary.select. price: what an hour of the device costs.
    """
    everything = _shortened(results.read(path))
    with_variants, _ = summary.select(everything, device_name, with_variants=True)
    rows, left_out = summary.select(everything, device_name)
    rows, too_many = _at_most(rows)
    all_records = results.records(path, with_variants.run_id.unique())
    records = {
        run_id: all_records[run_id] for run_id in rows.run_id.unique() if run_id in all_records
    }
    with np.errstate(all="ignore"):  # times of 0 and the like are shown as they are
        lines = summary.summarize(rows, records)
    _, memory, limits, cost = summary.columns(lines, price)
    timed = lines.median_ms.notna().to_numpy()
    facts, reports = environment(records)
    shown = diffs(lines, records)
    parts = {
        "steps": (step_times(rows, lines), "make baseline"),
        "memory": (memory_bars(lines), "make all"),
        "profile": (profile(path, rows), "make profile T=all"),
        "ablation": (worth(with_variants), "make ablate"),
        "recipe": (recipes(with_variants, all_records), "make recipe"),
        "limits": (_table(limits, timed, "products in"), "make ceilings all"),
        "environment": (facts, "make all"),
    }
    return _render(
        "report.html",
        described=summary.describe(rows),
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
            short(text.replace("\\|", "|")) for text, kept in zip(texts, keep, strict=True) if kept
        ]
        for name, texts in columns.items()
    }
    columns = {name: texts for name, texts in columns.items() if any(texts)}
    return columns if columns.get(needed) else {}


def comparison(a, b):
    """The page that compares two selections of results (see `compare`), a string of HTML. Raises
    UserError."""
    from Utils import compare  # here, as it imports what draws charts

    a, b = compare.sides(a, b)
    ratios = compare.compare(a, b)
    rows = [
        {
            "name": name,
            "value": line.speedup,
            **_interval(line),
            "mark": np.nan,
            "tainted": any(name in s.lines.index and is_tainted(s.lines.loc[name]) for s in (a, b)),
            "reason": "" if np.isfinite(line.speedup) else short(compare.why_not(a, b, name)),
        }
        for name, line in ratios.iterrows()
    ]
    verdicts = ratios.verdict.value_counts()
    return _render(
        "compare.html",
        sides=[{"name": s.name, "described": summary.describe(s.rows)} for s in (a, b)],
        bars_drawn=bars(rows),
        counts={verdict: int(verdicts.get(verdict, 0)) for verdict in MARKS},
        undecided=int(verdicts.get(summary.NO_INTERVAL, 0)),
        columns=_table(compare.columns(a, b, ratios), np.ones(len(ratios), bool), "technique"),
        differences=[short(line) for line in compare.differences(a, b)],
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
    pages.filters |= {"number": number, "rows": lambda table: zip(*table.values(), strict=True)}
    hashes = {
        name.replace(".", "_"): base64.b64encode(
            hashlib.sha256(pages.get_template(name).render().encode()).digest()
        ).decode()
        for name in ("page.css", "page.js")
    }
    html = pages.get_template(template).render(hashes=hashes, levels=LEVELS, **parts)
    # Homes say who someone is. Records hold none; a note or a data set's path may. And a page can
    # hold what UTF-8 cannot: half a pair, from a file that was not text.
    return submission.HOMES.sub("~", html).encode(errors="replace").decode()


def main(argv=None):
    """Writes a page of all that the results hold, or of two results compared, and names it."""
    parser = settings.Parser("report", main.__doc__)
    settings.add_selection(parser)
    help = "of an hour of this device; adds what a billion tokens cost"
    parser.add_argument("--price", type=summary.hourly_price, help=help)
    help = "where the page is written"
    parser.add_argument("--report", type=Path, default=Path("report.html"), help=help)
    help = "results file, or FILE:WORDS, to compare B with; see `make compare`"
    parser.add_argument("--a", default="", help=help)
    parser.add_argument("--b", default="", help="the same; how many times as fast it is as A")
    args = parser.parse_args(argv)
    if args.a or args.b:
        html = comparison(args.a, args.b)
    else:
        html = report(args.results_file, args.device_name, args.price)
    try:
        args.report.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{args.report}: {error.strerror}") from None
    print(args.report)


if __name__ == "__main__":
    with one_line("report"):
        main()
