"""The shortest set of techniques that cannot be told from the best measured, ready to be used.

    python -m Utils.commands.recipe [flags]

A set is what makes a script of the baseline: its line of descent, or a variant's. Candidates are
the measured sets whose result is acceptable, and forecasts that follow from leaving techniques out
one at a time. A candidate stays where the interval of its paired ratio to the best measured does
not say slower; the shortest of them is the recipe. The same is done for memory among those within
10% of the best speed. Given as a list with its evidence, as a script, and as lines for other loops.
"""

import shlex
from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import candidates, compare, intervals, selection, tables
from Utils.analysis.summary import summarize
from Utils.base import command_line, ladder, variants
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.base.ladder import BASELINE

NEAR = 0.9  # of the best speed: among these the least memory is looked for
WIDE = 0.95  # an interval that reaches below is pointed out
BAD = ("failed", "out_of_memory")


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
    records = records or {}
    lines, clean = summarize(rows, records), rows[rows.grade == "clean"]
    sets = {name: variants.parts(name) for name in lines.index}
    measured = candidates.measured(clean, sets)
    problems = _problems(rows, lines, sets, measured)
    usable = {name: c for name, c in measured.items() if name not in problems}
    found = {
        "described": selection.describe(rows),
        "settings": _settings(rows),
        "more": _more(rows),
        "says": [],
        **dict.fromkeys(("best", "fastest", "measured", "least_memory")),
    }
    runs = rows.run_id[rows.status == "ok"].nunique()
    tainted = runs - clean.run_id.nunique()
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
    levels = candidates.levels(pd.DataFrame({name: usable[name].ms for name in often}))
    best = usable[levels.idxmin()]
    effects = candidates.effects(measured)
    findings = Findings(measured, problems, lines, effects, best)
    found["best"] = findings.entry(best)
    if rounds.max() < 2:
        found["fastest"] = found["measured"] = found["best"]
        found["says"].append(
            f"one clean round: nothing can be told from anything else; shown is the fastest "
            f"measured, which another round may not bear out; {found['more']}"
        )
        return found

    sets = [*usable.values(), *candidates.forecasts(usable, effects)]
    found["fastest"] = findings.entry(candidates.shortest(sets, "ms", best))
    found["measured"] = findings.entry(candidates.shortest(usable.values(), "ms", best))
    near = [c for c in sets if (best.ms - c.ms).dropna().mean() >= np.log(NEAR)]
    least = min((c for c in near if c.name), key=lambda c: candidates.mean(c.mib - best.mib))
    if least.mib.notna().any():
        found["least_memory"] = findings.entry(candidates.shortest(near, "mib", least))
    found["says"] += _caveats(found, best, usable)
    found["says"] += _changed(rows, records, {found[key]["name"] for key in ("best", "fastest")})
    return found


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
                f"{entry['name']} is a forecast until it has run: what {joined(without)} change "
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
            f"what {best.name} is without {joined(untried)} was not measured, so a recipe may be "
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


@dataclass(frozen=True, eq=False)
class Findings:
    """What is known of the sets: those measured, why some are not to be recommended, the summary's
    lines, what each technique changes, and the best set."""

    measured: dict
    problems: dict
    lines: pd.DataFrame
    effects: dict
    best: candidates.Candidate

    def entry(self, candidate):
        """Return what `recommend` says of a Candidate, a dict."""
        script, baseline = candidates.made(candidate), self.measured.get(BASELINE)
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
            "speedup": candidates.ratio(baseline.ms, candidate.ms) if baseline else {},
            "to_best": candidates.ratio(self.best.ms, candidate.ms),
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
        return f"{tables.ratio_text(ratio)}{memory}: {with_it.name} against {without.name}"


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


def joined(names):
    """Join names as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def agreement(entry, rows):
    """Whether new rows bear out the ratio for which a recipe was chosen, in a sentence.

    entry: of `recommend`. Earlier and new rounds are no pairs, so the quotient of the two ratios
    gets Welch's interval, as in `compare`.
    """
    names = (entry["name"], entry["reference"])
    measured = candidates.measured(
        rows[rows.grade == "clean"], {name: variants.parts(name) for name in names}
    )
    if len(measured) < 2:
        return f"{entry['name']}: no clean rows of it beside {entry['reference']} to say anything"
    logs = (measured[entry["reference"]].ms - measured[entry["name"]].ms).dropna()
    earlier = pd.Series(entry["logs"])
    kind = "forecast" if entry["forecast"] else "measured before"
    said = intervals.as_ratio(*intervals.interval(earlier))
    now = intervals.as_ratio(*intervals.interval(logs)) if len(logs) else {}
    what = (
        f"{entry['name']} against {entry['reference']}: {kind} {tables.interval_text(said)}, "
        f"now {tables.interval_text(now) or 'not known'}"
    )
    quotient = compare.ratio(np.exp(earlier), np.exp(logs)) if len(logs) > 1 else {}
    if not quotient or np.isnan(quotient["speedup_low"]):
        return f"{what}; too few rounds to say whether they agree"
    if quotient["verdict"] == "no detectable difference":
        return f"{what}; they agree"
    return f"{what}; they do not agree, now / then is {tables.interval_text(quotient)}"
