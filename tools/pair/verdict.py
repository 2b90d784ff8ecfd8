"""The verdict on a pair: its table, its answers for programs, and the exit code."""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tools.own_script.training_verdict import IDENTICAL, ROUNDED
from Utils.analysis import text_tables, two_sides
from Utils.analysis.figures import NEITHER, NOT_TOLD
from Utils.analysis.figures import OTHER as OTHER_TRAINING
from Utils.analysis.intervals import INCONCLUSIVE, LOOK, Ratio
from Utils.analysis.result_tables import four_digits
from Utils.analysis.two_sides import TwoSides
from Utils.base.text import number, plural
from Utils.results.study import Study

FAILED, UNDECIDED, SLOWER, OTHER = 1, 3, 4, 5  # exit codes
MEANINGS = {
    FAILED: "a run failed, or a script runs on one side alone",
    UNDECIDED: "not every script can be judged; more rounds narrow intervals, as in ROUNDS=8",
    SLOWER: "a script is slower in B by more than SLOWER",
    OTHER: "B trains something else, or worse",
}
NARROW = 4  # columns of the first of two tables, each of which fits 80 letters
LESS = 1.01  # ratio of peaks of memory; one nearer to 1 does not matter
MOST_TRIES = 50  # changes whose errors are 5% together
CONFIDENCE = 0.999  # of an interval on the memory of a change


@dataclass(frozen=True)
class Judgement:
    """What one suite says of B.

    sides: its TwoSides. Those of a change that was not measured have no figures.
    study: of its rows, None without a measurement.
    code: its exit code.
    outside: texts on time outside of the steps, by script.
    same_code: what the code of a change is the same as, "" if it is new.
    tried: number of changes of its script that were ever measured.
    """

    sides: TwoSides
    study: Study | None = None
    code: int = 0
    outside: dict[str, list[str]] = field(default_factory=dict)
    same_code: str = ""
    tried: int = 0


def not_measured(name, reason, **more):
    """Return the Judgement on a change that is not run."""
    sides = TwoSides([], "", {}, {}, {name: Ratio()}, {name: reason})
    return Judgement(sides, **more)


def sides_of_ladder(summary, ladder):
    """Return the TwoSides of a Summary. ladder: with the scripts of B, whose parents are of A."""
    scripts = {
        script.name.removesuffix("@B"): (script.parent, script.name)
        for script in ladder
        if script.parent
    }
    return both_sides(summary, scripts)


def both_sides(summary, scripts):
    """Return the TwoSides of a Summary. scripts: names of rows on A and on B, by script."""
    sides = two_sides.paired(summary, scripts)
    return replace(sides, interval="99.9% interval") if summary.levels.look > LOOK else sides


def slower(sides, share):
    """Return the names of scripts that take longer in B by more than a share.

    By the nearer end of the interval.
    """
    return [
        name
        for name, ratio in sides.ratios.items()
        if ratio.verdict != INCONCLUSIVE and 1 / ratio.high > 1 + share
    ]


def trains_other(sides):
    """Return the names of scripts that train something else in B, or worse, with the reason."""
    figures_b = sides.figures_b.items()
    return [f"{name} ({b.training_problem})" for name, b in figures_b if b.training_problem]


def exit_code(sides, share):
    """Return 0, FAILED, OTHER, SLOWER or UNDECIDED.

    FAILED if a script runs on only one side, or no script runs on both.
    """
    ratios = sides.ratios.values()
    runs_alike = all(
        sides.figures_a[name].status == sides.figures_b[name].status for name in sides.ratios
    )
    if not runs_alike or not any(ratios):
        return FAILED
    if NEITHER in [figures.training.get("kind") for figures in sides.figures_b.values()]:
        return UNDECIDED
    if trains_other(sides):
        return OTHER
    if slower(sides, share):
        return SLOWER

    return UNDECIDED if INCONCLUSIVE in [ratio.verdict for ratio in ratios] else 0


def columns(judgements):
    """Return the columns of the table of some Judgements, lists of texts by title."""
    tables = [_columns(judgement) for judgement in judgements]
    return {title: sum((table[title] for table in tables), []) for title in tables[0]}


def _columns(judgement):
    sides = judgement.sides
    first_step_s = {}  # that of the first round
    if judgement.study:
        runs = judgement.study.rows.sort_values("run_id").groupby("technique")
        first_step_s = runs.first_step_s.first()

    measured = {
        "ms a step": lambda figures: four_digits(figures.step_ms) or figures.status,
        "first step (s)": lambda figures: number(first_step_s[figures.name], ".1f"),
        "peak memory (MiB)": lambda figures: number(figures.peak_memory_mib, ",.0f"),
    }
    figures_b = [sides.figures_b.get(name) for name in sides.ratios]
    return sides.columns(measured) | {
        "loss, B - A": [_loss(b) if b else "" for b in figures_b],
        "training of B": [_training(b, judgement.same_code)[0] for b in figures_b],
    }


def _loss(figures):
    """Return the difference of B's loss to A's, in words what differs from the usual."""
    if figures.parity == "exact":
        return "identical"
    text = figures.loss_difference.text_with_verdict
    return f"{text}, {figures.parity}" if figures.parity == "model changed" else text


def _samples(judgement):
    """Yield the ratio of times of a sample, if it is not the one of a step."""
    sides = judgement.sides
    for name, ratio in sides.ratios.items():
        if ratio:
            sizes = judgement.study.rows.groupby("technique").batch_size.last()
            more = sizes[sides.figures_b[name].name] / sizes[sides.figures_a[name].name]
            if more != 1:
                yield f"{name}: {ratio.text} a step, {ratio.value * more:.2f}x a sample"


def page(judgements, share, in_file):
    """Return the table of some Judgements, with captions.

    share: SLOWER. in_file: as Markdown.
    """
    sides = two_sides.joined([judgement.sides for judgement in judgements])
    studies = [judgement.study for judgement in judgements if judgement.study]
    headline = f"Slower in B by more than {share:.1%}: {', '.join(slower(sides, share)) or 'none'}."
    training = f"Trains something else in B, or worse: {', '.join(trains_other(sides)) or 'none'}."
    tried = judgements[-1].tried
    tries = ""
    if tried:
        chance = "below" if tried <= MOST_TRIES else "above"
        tries = f"{plural(tried, 'change')} tried. The chance of a wrong one is {chance} 5%."
    caption = (
        f"B over A: {sides.measure} in turns. In brackets the {sides.interval}. First steps are of "
        "the first round, which began with empty compile caches."
    )

    texts = columns(judgements)
    more = {title: texts.pop(title) for title in [*texts][NARROW:]}
    lines = []
    for judgement in judgements:
        lines += _samples(judgement)
        for name, places in judgement.outside.items():
            lines += [f"{name}: more {place}" for place in places]
    parts = [
        _disturbance(studies),
        texts,
        headline,
        training,
        tries,
        "\n".join(f"- {line}" for line in lines),
        {"script": texts["script"], **more},
        "\n".join(f"- {line}" for line in sides.described),
        caption,
        *dict.fromkeys(study.left_out for study in studies),
        "\n".join(f"- {name}: {note}" for name, note in sides.notes.items() if note),
    ]
    return text_tables.page(parts, in_file)


def _disturbance(studies):
    """Return the sentence on what else the machine did during the runs of some studies."""
    if not studies:
        return ""
    rows = pd.concat([study.all_rows for study in studies])
    records = {}
    for study in studies:
        records |= study.records
    return replace(studies[0], all_rows=rows, records=records).disturbance


def answers(judgement, share):
    """Yield the answer for a program on each script of a Judgement; see docs/JUDGE.md.

    share: SLOWER.
    """
    sides = judgement.sides
    for name, ratio in sides.ratios.items():
        a, b = sides.figures_a.get(name), sides.figures_b.get(name)
        memory = _memory(judgement.study, a, b) if ratio else Ratio()
        kind, reasons = _training(b, judgement.same_code)
        answer = {
            "change": name,
            "keep": keep(ratio, memory, kind, share),
            "time": {
                "verdict": ratio.verdict,
                **_numbers(ratio),
                "a_ms": getattr(a, "step_ms", None),
                "b_ms": getattr(b, "step_ms", None),
            },
            "memory": {
                "verdict": memory_verdict(memory),
                **_numbers(memory),
                "a_mib": getattr(a, "peak_memory_mib", None),
                "b_mib": getattr(b, "peak_memory_mib", None),
            },
            "training": {"verdict": kind, "reasons": reasons},
            "outside_steps": judgement.outside.get(name, []),
            "note": sides.notes[name],
            "same_code_as": judgement.same_code,
            "tried": judgement.tried,
        }
        # pandas has null for a figure that is unknown.
        yield json.loads(pd.Series(answer).to_json(double_precision=6))


def _numbers(ratio):
    return {"a_over_b": ratio.value, "low": ratio.low, "high": ratio.high}


def keep(ratio, memory, training, share):
    """Return whether a change is worth keeping, or None if that is not known.

    It is if it is faster, or takes less memory without being slower, and trains the same.

    ratio, memory: Ratios of A to B. training: kind of verdict. share: SLOWER.
    """
    if training in (NOT_TOLD, NEITHER):
        return None
    if not training.startswith((IDENTICAL, "same")):
        return False
    if ratio.is_different:
        return ratio.verdict == Ratio.higher
    if not ratio:
        return False
    is_undecided = not ratio.half_width <= share
    return None if is_undecided else memory_verdict(memory) == "less"


def memory_verdict(ratio):
    """Return the verdict on a Ratio of peaks of memory, of A to B."""
    if ratio.verdict in ("", INCONCLUSIVE):
        return ratio.verdict
    if ratio.low > LESS:
        return "less"
    return "more" if ratio.high < 1 / LESS else ratio.no_difference


def _memory(study, a, b):
    """Return the Ratio of peaks of memory of A to B, by their rounds."""
    peaks = study.rows.groupby(["technique", "round"]).peak_memory_mib.first()
    logs = np.log(peaks[a.name] / peaks[b.name]).dropna()
    return Ratio.by_t(logs.mean(), logs.sem(), len(logs) - 1, CONFIDENCE)


def _training(figures, same_code):
    """Return (kind, reasons) of the verdict on the training of B, of which figures may be None."""
    if not figures:
        return (IDENTICAL if same_code else ""), []
    if figures.training:
        return figures.training["kind"], figures.training["reasons"]
    if figures.training_problem:
        return OTHER_TRAINING, [figures.training_problem]
    if figures.parity == "exact":
        return IDENTICAL, []
    is_same = figures.loss_difference.verdict in ("same", "better")
    return (ROUNDED if is_same else NOT_TOLD), []
