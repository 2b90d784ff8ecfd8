"""The shortest set of techniques that cannot be told from the best measured, ready to be used.

    python -m Utils.commands.recipe [flags]

A set is what makes a script of the baseline: its line of descent, or a variant's. Candidates are
the measured sets whose result is acceptable, and forecasts that follow from leaving techniques out
one at a time. A candidate stays where the interval of its paired ratio to the best measured does
not say slower; the shortest of them is the recipe. The same is done for memory among those within
10% of the best speed. Given as a list with its evidence, as a script, and as lines for other loops.
"""

import hashlib
import re
import shlex
import tomllib
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from Utils.analysis import compare, intervals, selection, tables
from Utils.analysis.summary import summarize
from Utils.base import command_line, ladder, paths, variants
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.base.ladder import BASELINE

AS_GOOD = ("faster", "no detectable difference")
NEAR = 0.9  # of the best speed: among these the least memory is looked for
WIDE = 0.95  # an interval that reaches below is pointed out
LINES = Path(__file__).with_name("lines.toml")
BAD = ("failed", "out_of_memory")
MARK = "Written by `make recipe`"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A set of techniques with logs of what it takes, indexed by round: of milliseconds a step of
    as many tokens, and of MiB at the peak. A forecast has no name, and rests on measured ones."""

    techniques: frozenset
    ms: pd.Series
    mib: pd.Series
    name: str | None = None
    rests_on: tuple = ()


def recommend(rows, records=None):
    """What to switch on, by selected rows, variants included: a dict of plain values.

    - described: what the rows have in common; says: sentences to read with the rest; more: the
      command for further rounds; settings: of these runs, by the names of the Makefile's variables
    - best: the fastest measured; fastest: the recipe; measured: the shortest that is no forecast;
      least_memory: the same for memory. Each is None where the rows support none, else a dict:
      name and code of the script or variant; techniques; forecast (whether its rows do not exist
      yet) and rests_on; speedup (over the baseline) and to_best, each with _low, _high and verdict;
      reference (the best, or the baseline where it is the best itself) and logs, the log ratios to
      it by round; peak_mib; loss and parity in words; evidence {technique: why it is in};
      left_out {technique: why not}

    records: as for `summary.summarize`. Rows of tainted runs count for losses alone.
    """
    rows, records = rows.assign(note=rows.note.fillna("")), records or {}
    lines = summarize(rows, records)
    clean = _clean(rows, records)
    sets = {name: variants.parts(name) for name in lines.index}
    measured = _candidates(clean, sets)
    problems = _problems(rows, lines, sets, measured)
    usable = {name: c for name, c in measured.items() if name not in problems}
    found = {
        "described": selection.describe(rows),
        "settings": _settings(rows),
        "more": _more(rows),
        "says": [],
        **dict.fromkeys(("best", "fastest", "measured", "least_memory")),
    }
    tainted = rows.run_id[rows.status == "ok"].nunique() - clean.run_id.nunique()
    runs = rows.run_id[rows.status == "ok"].nunique()
    if not usable:
        why = f"all {runs} runs are tainted" if runs and tainted == runs else "no run is usable"
        if lines.status.get(BASELINE) != "ok":
            why = f"{BASELINE} was not measured, so nothing says what the others compute"
        found["says"] = [f"nothing is recommended: {why}; {found['more']}"]
        return found
    if tainted:
        found["says"].append(f"{tainted} of {runs} runs are tainted; their times are not used")

    rounds = pd.Series({name: c.ms.count() for name, c in usable.items()})
    # The fastest of few rounds would be the luckiest, and nothing could be told from it.
    often = rounds.index[rounds >= max(min(2, rounds.max()), rounds.max() / 2)]
    levels = _levels(pd.DataFrame({name: usable[name].ms for name in often}))
    best = usable[levels.idxmin()]
    effects = _effects(measured)
    describe = _Describe(measured, problems, lines, effects, best)
    found["best"] = describe(best)
    if rounds.max() < 2:
        found["fastest"] = found["measured"] = found["best"]
        found["says"].append(
            f"one clean round: nothing can be told from anything else; shown is the fastest "
            f"measured, which another round may not bear out; {found['more']}"
        )
        return found

    candidates = [*usable.values(), *_forecasts(usable, effects)]
    fastest = _shortest(candidates, "ms", best)
    found["fastest"] = describe(fastest)
    found["measured"] = describe(_shortest(usable.values(), "ms", best))
    near = [c for c in candidates if (best.ms - c.ms).dropna().mean() >= np.log(NEAR)]
    least = min((c for c in near if c.name), key=lambda c: _mean(c.mib - best.mib))
    if least.mib.notna().any():
        found["least_memory"] = describe(_shortest(near, "mib", least))
    found["says"] += _caveats(found, best, usable)
    found["says"] += _changed(rows, records, {found[key]["name"] for key in ("best", "fastest")})
    return found


def _clean(rows, records):
    """The rows with timings of runs that are not tainted."""
    return rows[(rows.status == "ok") & (rows.grade == "clean")]


def _candidates(clean, sets):
    """A Candidate for each script and variant with clean rows, by name. sets: its techniques, or
    None where it is not here any more, by name."""
    timed = clean[clean.phase == "timed"]
    ms = np.log(intervals.round_medians(timed))
    mib = np.log(timed.groupby(["technique", "round"]).peak_memory_mib.first())
    names = [name for name, techniques in sets.items() if name in ms and techniques is not None]
    return {name: Candidate(sets[name], ms[name], mib[name], name) for name in names}


def _problems(rows, lines, sets, measured):
    """{name: why it is not to be recommended} of the scripts and variants of which that is so."""
    found = {}
    compared = lines.status.get(BASELINE) == "ok"
    for name, line in lines.iterrows():
        status = rows[rows.technique == name].groupby("round").status.first()
        bad = status[status.isin(BAD)]
        if line.status != "ok":
            found[name] = tables.reason(line)
        elif len(bad):
            found[name] = f"{bad.iloc[0].replace('_', ' ')} in round {bad.index[0]}"
        elif sets[name] is None:
            found[name] = "its script is not here"
        elif not compared:
            found[name] = f"{BASELINE} was not measured beside it"
        elif line.parity == "model changed":
            found[name] = "it computes something else (model changed)"
        elif line.loss_verdict in ("worse", "diverged"):
            found[name] = f"its loss: {tables.loss_text(line)}"
        elif name not in measured:
            found[name] = tables.grade_text(line)
    return found


def _effects(measured):
    """{(set, technique): ratio} of what a technique changes where a set of others is there, for all
    pairs that were measured, with the two Candidates."""
    by_set = _by_set(measured)
    return {
        (others, name): _ratio(by_set[others].ms, with_it.ms)
        | {"without": by_set[others], "with": with_it}
        for techniques, with_it in by_set.items()
        for name in techniques
        if (others := techniques - {name}) in by_set
    }


def _by_set(candidates):
    """Of those that are the same set by other names, the first, scripts before variants."""
    return {c.techniques: c for c in reversed(candidates.values())}


def _ratio(reference, logs):
    """As `summary.speedup`, of logs; {} without a common round."""
    differences = (reference - logs).dropna().round(9)  # equal is equal
    return intervals.as_ratio(*intervals.interval(differences)) if len(differences) else {}


def _mean(logs):
    return np.inf if logs.isna().all() else logs.mean()


def _levels(logs):
    """Each column's mean as if all had run in every round: least squares on column and round."""
    long = logs.rename_axis("round").reset_index().melt("round").dropna()
    names, columns = pd.factorize(long.variable)
    rounds = pd.factorize(long["round"])[0]
    design = np.hstack([np.eye(names.max() + 1)[names], np.eye(rounds.max() + 1)[rounds]])
    return pd.Series(np.linalg.lstsq(design, long.value.to_numpy())[0][: len(columns)], columns)


def _forecasts(usable, effects):
    """Sets without rows, made by dropping several techniques of a measured one which it can spare,
    one at a time, in time or in memory: a list of Candidates.

    Logs add up, within each round: the noise of the whole itself is in each of the ratios, so their
    variances would not. Not forecast is what the rows speak against: where some of the dropped were
    dropped together and it got slower than so forecast, or one may stand in for another.
    """
    by_set, found = _by_set(usable), {}
    for techniques, whole in sorted(by_set.items(), key=lambda item: len(item[0])):
        without = {
            name: by_set[techniques - {name}]
            for name in sorted(techniques)
            if techniques - {name} in by_set
        }
        spare = [
            name
            for name, c in without.items()
            if _ratio(whole.ms, c.ms).get("verdict") in AS_GOOD
            or _ratio(whole.mib, c.mib).get("verdict") in AS_GOOD
        ]
        contradicted = []
        for n in range(2, len(spare) + 1):
            for dropped in map(frozenset, combinations(spare, n)):
                rest, singly = techniques - dropped, [without[name] for name in sorted(dropped)]
                ms = whole.ms + sum(c.ms - whole.ms for c in singly)
                mib = whole.mib + sum(c.mib - whole.mib for c in singly)
                if rest in by_set:
                    if _ratio(ms, by_set[rest].ms).get("verdict") == "slower":
                        contradicted.append(dropped)
                elif (
                    rest not in found
                    and not any(part <= dropped for part in contradicted)
                    and not any(_may_replace(a, b, effects) for a in dropped for b in dropped - {a})
                ):
                    rests_on = (whole.name, *(c.name for c in singly))
                    found[rest] = Candidate(rest, ms, mib, None, rests_on)
    return list(found.values())


def _may_replace(other, name, effects):
    """Whether it may be for `other` that a whole can spare `name`: where `name` pays, `other` is
    never there, nor was it tried there in vain."""
    pays = [
        others
        for (others, added), ratio in effects.items()
        if added == name and ratio.get("verdict") == "faster"
    ]
    cleared = (
        other in others
        or effects.get((others, other), {}).get("verdict") in ("slower", "no detectable difference")
        for others in pays
    )
    return bool(pays) and not any(cleared)


def _shortest(candidates, metric, best):
    """The candidate with the fewest techniques that is not told worse than the best by that metric
    (ms or mib); measured before forecast, then the best by the metric; which can be made."""
    target = getattr(best, metric)
    fit = [c for c in candidates if _ratio(target, getattr(c, metric)).get("verdict") in AS_GOOD]
    fit.sort(key=lambda c: (len(c.techniques), not c.name, _mean(getattr(c, metric) - target)))
    return next((c for c in fit if _made(c)), best)


def _made(candidate):
    """Its script or variant, or None where the merges contradict each other."""
    try:
        if candidate.name:
            return variants.find(candidate.name)
        return variants.made_of(candidate.techniques)
    except UserError:
        return None


def _caveats(found, best, usable):
    """What is to be said beside a recipe."""
    recipe = found["fastest"]
    low = recipe["to_best"].get("speedup_low", 1)
    if low < WIDE:
        yield (
            f"the rows leave open that {recipe['name']} has {1 - low:.0%} less speed than "
            f"{best.name}; more rounds would tell: {found['more']}"
        )
    if not recipe["techniques"]:
        yield f"not even the fastest can be told from {BASELINE}, which is the recipe therefore"
    entries = {entry["name"]: entry for entry in (recipe, found["least_memory"]) if entry}
    for entry in entries.values():
        if entry["forecast"]:
            whole, *without = entry["rests_on"]
            yield (
                f"{entry['name']} is a forecast until it has run: what {_and(without)} change "
                f"by themselves against {whole}, multiplied; make recipe RUN=1 measures it"
            )
    if best.name not in ladder.techniques():
        return
    others = {c.techniques for c in usable.values()}
    untried = [
        name
        for name in ladder.line(best.name)[1:]
        if best.techniques - {name} not in others and variants.without(name, best.name)
    ]
    if untried:
        yield (
            f"what {best.name} is without {_and(untried)} was not measured, so a recipe may be "
            f"shorter: {_command(f'ablate T={best.name}', found['settings'])}"
        )


def _changed(rows, records, names):
    """Says which scripts are no longer what was measured."""
    for name in sorted(names):
        code = variants.find(name).code if name in set(rows.technique) else None
        for run_id in rows.run_id[rows.technique == name].unique():
            source = records.get(run_id, {}).get("source")
            if source and ladder.split(source)[1] != code:
                yield f"{name} is another script by now than the one that was measured"
                break


class _Describe:
    """Turns a Candidate into what `recommend` returns of it."""

    def __init__(self, measured, problems, lines, effects, best):
        self.measured, self.problems, self.lines = measured, problems, lines
        self.effects, self.best = effects, best

    def __call__(self, candidate):
        script, baseline = _made(candidate), self.measured.get(BASELINE)
        if script is None:
            raise UserError(f"{candidate.name}: its script can no longer be made")
        is_best = candidate.techniques == self.best.techniques
        reference = baseline if is_best and baseline else self.best
        line = self.lines.loc[candidate.name] if candidate.name else None
        order = [name for name in ladder.techniques() if name in candidate.techniques]
        others = set().union(*(c.techniques for c in self.measured.values()), self.problems)
        return {
            "name": script.name,
            "code": script.code,
            "techniques": order,
            "forecast": candidate.name is None,
            "rests_on": list(candidate.rests_on),
            "speedup": _ratio(baseline.ms, candidate.ms) if baseline else {},
            "to_best": _ratio(self.best.ms, candidate.ms),
            "reference": reference.name,
            "logs": (reference.ms - candidate.ms).dropna().to_dict(),
            "peak_mib": float(np.exp(candidate.mib.median())),
            "batch": None if line is None or np.isnan(line.own_batch) else int(line.own_batch),
            "loss": tables.loss_text(line) if line is not None else "",
            "parity": line.parity if line is not None and isinstance(line.parity, str) else "",
            "evidence": {name: self._why(name, candidate.techniques) for name in order},
            "left_out": {
                name: self.problems.get(name) or self._why(name, candidate.techniques)
                for name in ladder.techniques()
                if name in others and name not in candidate.techniques and name != BASELINE
            },
        }

    def _why(self, name, techniques):
        """What the technique changed in the measured pair that is nearest to the set."""
        pairs = [
            (len((others | {name}) ^ techniques), ratio)
            for (others, added), ratio in self.effects.items()
            if added == name and ratio.get("verdict")
        ]
        if not pairs:
            return "measured only together with others"
        ratio = min(pairs, key=lambda pair: pair[0])[1]
        without, with_it = ratio["without"], ratio["with"]
        more = np.exp(with_it.mib.median()) - np.exp(without.mib.median())
        memory = "" if np.isnan(more) else f"; {more:+,.0f} MiB"
        return f"{ratio_text(ratio)}{memory}: {with_it.name} against {without.name}"


def ratio_text(ratio):
    """ "1.52x (1.48-1.56), faster", or "1.52x" with one round, or "not known"."""
    if not ratio:
        return "not known"
    if np.isnan(ratio["speedup_low"]):
        return f"{ratio['speedup']:.2f}x"
    low, high = ratio["speedup_low"], ratio["speedup_high"]
    return f"{ratio['speedup']:.2f}x ({low:.2f}-{high:.2f}), {ratio['verdict']}"


def _settings(rows):
    """The settings of these runs, by the names of the Makefile's variables."""
    first, timed = rows.iloc[0], rows[rows.status == "ok"]
    newest = timed[timed.run_id == timed.run_id.max()]
    steps = {"STEPS": len(newest), "WARMUP": int((newest.phase == "warmup").sum())}
    return {
        "MODEL": first.model,
        "BATCH_SIZE": int(rows.requested_batch_size.iloc[0]),
        "SEQ_LEN": int(first.seq_len),
        "DATASET": first.dataset,
        **(steps if len(newest) else {}),
    }


def _more(rows):
    """The command that measures the same again, with rounds enough for an interval."""
    names = {*rows.technique}
    if any(map(variants.parse, names)):
        target = "ablate"
    else:
        target = "all" if names <= {t.name for t in ladder.group("ladder")} else "everything"
    return _command(target, _settings(rows))


def _command(target, given):
    """make with that target, five rounds and the settings, as far as they are not the usual."""
    parser = Parser("", "")
    command_line.add_settings(parser)
    usual = {name.upper(): value for name, value in vars(parser.parse_args([])).items()}
    words = [f"{k}={shlex.quote(str(v))}" for k, v in given.items() if usual[k] != v]
    return " ".join(["make", target, "ROUNDS=5", *words])


def text(found, paths):
    """What `recommend` found, as a page in GitHub-markdown: list, code, lines. A string.

    paths: {"fastest" or "least_memory": where its script was written}.
    """
    if not found["fastest"]:
        return found["says"][0]
    page = ["\n".join([found["described"], *(f"- {sentence}" for sentence in found["says"])])]
    titles = {
        "fastest": "The recipe: the fewest techniques that cannot be told from the fastest",
        "least_memory": f"Least memory within {1 - NEAR:.0%} of the best speed, likewise",
    }
    for key, title in titles.items():
        if found[key]:
            page += [f"## {title}", *_section(found, found[key], paths.get(key))]
    return "\n\n".join(page)


def _section(found, entry, path):
    """The paragraphs on one recipe; a sentence where it is the other one."""
    best, memory = found["best"], f"{entry['peak_mib']:,.0f} MiB at the peak"
    if np.isnan(entry["peak_mib"]):
        memory = "peak memory not known"
    if entry is not found["fastest"] and entry["name"] == found["fastest"]["name"]:
        return [f"The same: {entry['name']}, {memory}."]
    kind = "forecast" if entry["forecast"] else "measured"
    facts = [f"{entry['name']}, {kind}: {memory}"]
    if entry["techniques"]:
        facts.append(f"Against {BASELINE}: {ratio_text(entry['speedup'])}")
    if entry["name"] != best["name"]:
        facts.append(
            f"To the best measured, {best['name']} with {ratio_text(best['speedup'])}: "
            f"{ratio_text(entry['to_best'])}"
        )
    if entry["forecast"] and entry is found["fastest"]:
        facts.append(f"The shortest that was measured: {found['measured']['name']}")
    if entry["loss"]:
        facts.append(f"Loss less the baseline's: {entry['loss']} ({entry['parity']})")
    if entry["batch"]:
        facts.append(
            f"It trains on {entry['batch']} sequences a step: fewer updates from as many tokens "
            "are another training"
        )
    parts = ["\n".join(f"{fact}." for fact in facts)]
    if entry["evidence"]:
        parts.append(_table("what to switch on", "what it changed", entry["evidence"]))
    if entry["left_out"]:
        parts.append(_table("what to leave out", "why", entry["left_out"]))
    if path:
        parts.append(f"As code, {path}:\n\n    {run_line(path)}")
    for library, lines in lines_of(entry["techniques"], entry["batch"]).items():
        lines = "\n".join(f"    {line}".rstrip() for line in lines)
        parts.append(f"As lines for a loop of your own, {library}:\n\n{lines}")
    return parts


def _table(left, right, texts):
    frame = pd.DataFrame({left: list(texts), right: list(texts.values())})
    return frame.to_markdown(index=False, disable_numparse=True)


def lines_of(techniques, batch=None):
    """The techniques as lines of code, by library: {library: list of lines}.

    batch: of a technique that chose its own. A technique that `LINES` does not know, as one's own,
    is shown by its diff.
    """
    known = tomllib.loads(LINES.read_text())
    found = {}
    for library, call, arguments, lines in (
        ("PyTorch", None, None, "pytorch"),
        ("Hugging Face Trainer", "TrainingArguments", "arguments", "hugging"),
        ("Lightning", "Trainer", "trainer", "lightning"),
    ):
        has = [t for t in techniques if {arguments, lines} & {*known.get(t, ())}]
        replaced = {name for t in has for name in known[t].get("replaces", ())}
        inside, around = [], []
        for name in techniques:
            own = known.get(name, {})
            if name in replaced:
                continue
            if arguments in own:
                inside.append(f"    {own[arguments]},  # {name}")
            if lines in own:
                around += [f"# {name}", *own[lines].strip().splitlines()]
            if name in has:
                continue
            if name not in known and library == "PyTorch":
                diff = ladder.diff(ladder.get(name), ladder.get(ladder.get(name).parent))
                around += [f"# {name}, which is", *(f"#   {line}" for line in diff[2:])]
            elif name not in known:
                around.append(f"# {name}: no switch is known; its diff is above")
            else:
                around.append(f"# {name}: no switch; in the model's or the loop's own code")
        block = [f"{call}(", *inside, ")"] if inside else []
        text = "\n".join([*block, *around]) or "# nothing: as it comes"
        found[library] = text.replace("{batch}", str(batch or "...")).splitlines()
    return found


def script(entry, described):
    """The recipe as a script, its docstring with the evidence. A string."""
    digest = hashlib.sha256(entry["code"].encode()).hexdigest()[:16]
    kind = "forecast" if entry["forecast"] else "measured"
    why = [f"- {name}: {text}" for name, text in entry["evidence"].items()]
    doc = [
        f"{entry['name']}, made by merging the diffs of its techniques.",
        "",
        f"{MARK}, which writes it anew as long as its code is not changed ({digest}).",
        f"{kind.capitalize()}: {ratio_text(entry['speedup'])}, against {BASELINE}",
        f"({described}).",
        *(["", *why] if why else []),
        "",
    ]
    return f'"""{chr(10).join(doc)}"""{entry["code"]}'


def write(path, text):
    """Writes a recipe's script. Raises UserError where something else is there, or a recipe that
    someone has changed."""
    try:
        if path.exists():
            doc, code = ladder.split(path.read_text())
            written = re.search(rf"^{MARK}.*\((\w+)\)", doc, re.MULTILINE)
            if not written:
                raise UserError(f"{path}: is no recipe, and stays; RECIPE=... names another file")
            if written[1] != hashlib.sha256(code.encode()).hexdigest()[:16]:
                raise UserError(f"{path}: was changed, and stays; RECIPE=... names another file")
        if path.is_relative_to(paths.CACHE):  # elsewhere a folder that is not there is a slip
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', '') or 'is no text'}") from None


def run_line(path):
    """The command that runs a recipe's script from the project's folder."""
    path = path.resolve()
    if path.is_relative_to(paths.ROOT):
        path = path.relative_to(paths.ROOT)
    return f"{'' if len(path.parts) == 1 else 'PYTHONPATH=. '}python {path}"


def agreement(entry, rows, records=None):
    """Whether new rows bear out the ratio for which a recipe was chosen, in a sentence.

    entry: of `recommend`. Earlier and new rounds are no pairs, so the quotient of the two ratios
    gets Welch's interval, as in `compare`.
    """
    clean = _clean(rows.assign(note=rows.note.fillna("")), records or {})
    names = (entry["name"], entry["reference"])
    measured = _candidates(clean, {name: variants.parts(name) for name in names})
    if len(measured) < 2:
        return f"{entry['name']}: no clean rows of it beside {entry['reference']} to say anything"
    logs = (measured[entry["reference"]].ms - measured[entry["name"]].ms).dropna()
    earlier = pd.Series(entry["logs"])
    kind = "forecast" if entry["forecast"] else "measured before"
    said = intervals.as_ratio(*intervals.interval(earlier))
    now = intervals.as_ratio(*intervals.interval(logs)) if len(logs) else {}
    what = (
        f"{entry['name']} against {entry['reference']}: {kind} {_interval(said)}, "
        f"now {_interval(now)}"
    )
    quotient = compare.ratio(np.exp(earlier), np.exp(logs)) if len(logs) > 1 else {}
    if not quotient or np.isnan(quotient["speedup_low"]):
        return f"{what}; too few rounds to say whether they agree"
    if quotient["verdict"] == "no detectable difference":
        return f"{what}; they agree"
    return f"{what}; they do not agree, now / then is {_interval(quotient)}"


def _interval(ratio):
    return ratio_text(ratio).partition(", ")[0]


def _and(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
