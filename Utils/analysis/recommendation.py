"""The shortest set of techniques that is statistically indistinguishable from the fastest measured.

A set is the line of descent of a script or variant. Candidates are the measured sets with an
acceptable result, and forecasts from leaving out one technique at a time. A candidate remains if
its paired ratio to the best measured is not significantly slower; the shortest is the recipe. A
second recipe has the least memory within 10% of the best speed. Each is given as a list with its
evidence, as a script, and as lines for other loops.
"""

import shlex
from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import candidates, comparison, intervals, result_tables, round_levels
from Utils.analysis.summary import summarize
from Utils.base import command_line
from Utils.base.errors import UserError
from Utils.results import selection
from Utils.scripts import bases, ladder, variants

NEAR = 0.9  # of the best speed, at least, for the recipe with the least memory
WIDE = 0.95  # an interval with a lower end gets a caveat
BAD = ("failed", "out_of_memory")
MORE = {"ROUNDS": 5}  # enough for an interval


def recommend(rows, records=None):
    """Return the recipes for selected rows, variants included, a dict of plain values.

    - described: the rows' common facts; says: caveats; more: the command for further rounds;
      settings: of these runs, by the names of the Makefile's variables
    - best: the fastest measured; fastest: the recipe; measured: the shortest that is no forecast;
      least_memory: the recipe for memory. Each is None without supporting rows, else a dict: name
      and code of the script or variant; techniques; forecast (true without rows) and rests_on;
      speedup (over the baseline) and to_best, Ratios; reference (the
      best, or the baseline for the best itself) and logs, the log ratios to it by round; peak_mib;
      loss and parity in words; evidence {technique: reason}; left_out {technique: reason}

    records: as for `summary.summarize`. Rows of tainted runs count for losses alone.
    """
    records = records or {}
    lines, clean = summarize(rows, records), rows[rows.grade == "clean"]
    known = settings(rows, records)
    baseline = selection.baseline(rows)
    sets = {name: variants.parts(name) for name in lines.index}
    measured = candidates.measured(clean, sets)
    problems = _problems(rows, lines, sets, measured)
    usable = {name: c for name, c in measured.items() if name not in problems}
    recipes = {
        "described": selection.describe(rows),
        "settings": known,
        "more": command(target(rows), MORE | known),
        "says": [],
        **dict.fromkeys(("best", "fastest", "measured", "least_memory")),
    }
    runs = rows.run_id[rows.status == "ok"].nunique()
    tainted = runs - clean.run_id.nunique()
    if not usable:
        why = f"all {runs} runs are tainted" if runs and tainted == runs else "no run is usable"
        if lines.status.get(baseline) != "ok":
            why = f"{baseline} was not measured, so the losses of the rest have no reference"
        recipes["says"] = [f"nothing is recommended: {why}; {recipes['more']}"]
        return recipes
    if tainted:
        recipes["says"].append(f"{tainted} of {runs} runs are tainted; their times are not used")

    counts = pd.Series({name: c.ms.count() for name, c in usable.items()})
    # The fastest of few rounds would be the luckiest, and every comparison with it inconclusive.
    often = counts.index[counts >= max(min(2, counts.max()), counts.max() / 2)]
    logs = pd.concat({name: usable[name].ms for name in often}, names=["name", "round"])
    logs = logs.dropna().reset_index(name="ms")
    best = usable[round_levels.levels(logs["ms"], logs["name"], logs["round"]).idxmin()]
    effects = candidates.effects(measured)
    findings = Findings(measured, problems, lines, effects, best)
    recipes["best"] = findings.entry(best)
    if counts.max() < 2:
        recipes["fastest"] = recipes["measured"] = recipes["best"]
        recipes["says"].append(
            f"one clean round, so inconclusive: this is the fastest measured, and another round "
            f"may differ; {recipes['more']}"
        )
        return recipes

    sets = [*usable.values(), *candidates.forecasts(usable, effects)]
    recipes["fastest"] = findings.entry(candidates.shortest(sets, "ms", best))
    recipes["measured"] = findings.entry(candidates.shortest(usable.values(), "ms", best))
    near = [c for c in sets if (best.ms - c.ms).dropna().mean() >= np.log(NEAR)]
    least = min((c for c in near if c.name), key=lambda c: candidates.mean(c.mib - best.mib))
    if least.mib.notna().any():
        recipes["least_memory"] = findings.entry(candidates.shortest(near, "mib", least))
    names = {recipes[key]["name"] for key in ("best", "fastest")}
    recipes["says"] += [*_caveats(recipes, best, usable), *_changed(rows, records, names)]
    return recipes


def _problems(rows, lines, sets, measured):
    """Return {name: reason} of the scripts and variants that cannot be recommended."""
    found = {}
    baseline = selection.baseline(rows)
    compared = lines.status.get(baseline) == "ok"
    for name, line in lines.iterrows():
        status = rows[rows.technique == name].groupby("round").status.first()
        bad = status[status.isin(BAD)]
        if line.status != "ok":
            found[name] = result_tables.reason(line)
        elif len(bad):
            found[name] = f"{bad.iloc[0].replace('_', ' ')} in round {bad.index[0]}"
        elif sets[name] is None:
            found[name] = "its script is missing"
        elif not compared:
            found[name] = f"not measured with {baseline}"
        elif line.parity == "model changed":
            found[name] = "model changed"
        elif line.loss_difference.verdict in ("worse", "diverged"):
            found[name] = f"its loss: {line.loss_difference.with_verdict}"
        elif name not in measured:
            found[name] = result_tables.grade_text(line)
    return found


def _caveats(recipes, best, usable):
    """Yield the caveats of the recipes."""
    recipe = recipes["fastest"]
    low = recipe["to_best"].low
    if low < WIDE:
        yield (
            f"{recipe['name']} may be up to {1 - low:.0%} slower than {best.name}, by the 95% "
            f"interval; measure more rounds: {recipes['more']}"
        )
    if not recipe["techniques"]:
        yield f"nothing is significantly faster than {recipe['name']}, so it is the recipe"
    entries = {entry["name"]: entry for entry in (recipe, recipes["least_memory"]) if entry}
    for entry in entries.values():
        if entry["forecast"]:
            whole, *without = entry["rests_on"]
            yield (
                f"{entry['name']} is a forecast until it has run: the product of the ratios of "
                f"{joined(without)} to {whole}; measure it with make recipe RUN=1"
            )
    if best.name not in ladder.techniques():
        return
    measured = {c.techniques for c in usable.values()}
    untried = [
        name
        for name in ladder.line(best.name)[1:]
        if best.techniques - {name} not in measured and variants.without(name, best.name)
    ]
    if untried:
        yield (
            f"{best.name} was not measured without {joined(untried)}, so a shorter recipe may "
            f"exist: {command(f'ablate T={best.name}', MORE | recipes['settings'])}"
        )


def _changed(rows, records, names):
    """Yield a caveat for each script that has changed since it was measured."""
    for name in sorted(names & {*rows.technique}):
        if bases.split(name):  # its rows bear its version
            continue
        run_ids, code = rows.run_id[rows.technique == name].unique(), variants.find(name).code
        sources = [records.get(run_id, {}).get("source") for run_id in run_ids]
        if any(source and ladder.split(source)[1] != code for source in sources):
            yield f"{name} has changed since it was measured"


@dataclass(frozen=True, eq=False)
class Findings:
    """Facts about the sets: those measured, the problems of some, the summary's lines, the effect
    of each technique, and the best set."""

    measured: dict
    problems: dict
    lines: pd.DataFrame
    effects: dict
    best: candidates.Candidate

    def entry(self, candidate):
        """Return the dict of `recommend` for a Candidate."""
        script, baseline = candidates.made(candidate), self.measured.get(self.lines.base.iloc[0])
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
            "base": self.lines.base.iloc[0],
            "unit": self.lines.unit.iloc[0],
            "facts": {
                k: script.facts.texts[k] for k in ("Base", "Unit") if k in script.facts.texts
            },
            "techniques": order,
            "forecast": candidate.name is None,
            "rests_on": list(candidate.rests_on),
            "speedup": (
                candidates.ratio(baseline.ms, candidate.ms) if baseline else intervals.Ratio()
            ),
            "to_best": candidates.ratio(self.best.ms, candidate.ms),
            "reference": reference.name,
            "logs": (reference.ms - candidate.ms).dropna().to_dict(),
            "peak_mib": float(np.exp(candidate.mib.median())),
            "batch": None if line is None or np.isnan(line.own_batch) else int(line.own_batch),
            "loss": line.loss_difference.with_verdict if line is not None else "",
            "parity": line.parity if line is not None and isinstance(line.parity, str) else "",
            "evidence": {name: self._why(name, candidate.techniques) for name in order},
            "left_out": {
                name: self.problems.get(name) or self._why(name, candidate.techniques)
                for name in ladder.techniques()
                if name in others and name not in candidate.techniques and name != ladder.BASELINE
            },
        }

    def _why(self, name, techniques):
        """Return the technique's effect in the measured pair that is nearest to the set."""
        pairs = [
            (len((rest | {name}) ^ techniques), effect)
            for (rest, added), effect in self.effects.items()
            if added == name and effect.ratio
        ]
        if not pairs:
            return "measured only in combination"
        effect = min(pairs, key=lambda pair: pair[0])[1]
        without, with_it = effect.without, effect.with_it
        more = np.exp(with_it.mib.median()) - np.exp(without.mib.median())
        memory = "" if np.isnan(more) else f"; {more:+,.0f} MiB"
        return f"{effect.ratio.with_verdict}{memory}: {with_it.name} against {without.name}"


def settings(rows, records):
    """Return the settings of these runs, by the names of the Makefile's variables."""
    first, (steps, warmup) = rows.iloc[0], selection.asked(rows, records)
    known = {} if first.model == first.base else {"MODEL": first.model}
    if not bases.has_own_data(first):  # a base with batches of its own chooses their shape
        known |= {
            "BATCH_SIZE": int(rows.requested_batch_size.iloc[0]),
            "SEQ_LEN": int(first.seq_len),
            "DATASET": first.dataset,
        }
    return known | ({"STEPS": steps, "WARMUP": warmup} if steps else {})


def target(rows):
    """Return the target of the Makefile that runs the scripts of these rows."""
    beyond = {bases.last(name) for name in rows.technique.unique()} & ladder.beyond()
    name = "ablate" if selection.variants_in(rows) else "everything" if beyond else "all"
    base = selection.baseline(rows)
    return name if base == ladder.BASELINE else f"{name} BASE={base}"


def command(target, given):
    """Return make with that target and the settings that are not the default."""
    return " ".join(["make", target, *(f"{key}={value}" for key, value in changed(given).items())])


def changed(given):
    """Return the known settings that are not the default, quoted for a shell. given: by the names
    of the Makefile's variables."""
    defaults = command_line.defaults()
    return {
        key: shlex.quote(str(value))
        for key, value in given.items()
        if value not in (None, defaults[key.lower()])
    }


def joined(names):
    """Join names as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def agreement(entry, rows):
    """Return a sentence on whether new rows agree with the ratio that chose a recipe.

    entry: of `recommend`. Earlier and new rounds are not paired, so the quotient of the two ratios
    gets Welch's interval, as in `compare`.
    """
    names = (entry["name"], entry["reference"])
    measured = candidates.measured(
        rows[rows.grade == "clean"], {name: variants.parts(name) for name in names}
    )
    if len(measured) < 2:
        return f"{entry['name']}: inconclusive, no clean rows of it and {entry['reference']}"
    logs = (measured[entry["reference"]].ms - measured[entry["name"]].ms).dropna()
    earlier = pd.Series(entry["logs"])
    kind = "forecast" if entry["forecast"] else "measured before"
    before = intervals.Ratio.of_logs(intervals.drift_free(earlier))
    now = intervals.Ratio.of_logs(intervals.drift_free(logs)) if len(logs) else intervals.Ratio()
    text = (
        f"{entry['name']} against {entry['reference']}: {kind} {before}, "
        f"now {str(now) or 'not known'}"
    )
    if len(logs) < 2 or len(earlier) < 2:
        return f"{text}; inconclusive: too few rounds"
    quotient = comparison.ratio(np.exp(earlier), np.exp(logs))
    if quotient.verdict == "no detectable difference":
        return f"{text}; they agree"
    return f"{text}; they do not agree, now / then is {quotient}"
