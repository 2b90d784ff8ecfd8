"""The verdict on a change of a training script, from notes on runs with and without it.

Facts are compared exactly. Figures are compared with the noise of the script itself: of runs whose
parameters were shifted by one rounding, or that drew other random numbers.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tools.own_script.rounding import ROUNDING
from Utils.analysis.figures import NEITHER, NOT_TOLD, OTHER
from Utils.base.text import plural

FACTOR = 3  # a figure may differ by that many times the noise
RUNS = 2  # that show the noise

IDENTICAL = "identical"
ROUNDED = "same up to rounding"
RANDOM = "same up to random numbers"

SOURCES = ("loader", "model")  # of inputs
CURVES = {"loss": "losses", "gradient norm": "norms of gradients", "update": "sizes of updates"}


@dataclass(frozen=True)
class Verdict:
    """The answer to whether a changed script still trains the same.

    kind: one of those above. reasons: the weightiest first. steps: number of steps that it speaks
    of. remarks: what differs, and is no reason by itself.
    """

    kind: str
    reasons: list[str] = ()
    steps: int = 0
    remarks: list[str] = ()


class Notes:
    """Notes on a run, from the file that TrainingNotes writes.

    steps: a dict a step. values, gradients: samples of the parameters before the first update, by
    position. trained: positions of the parameters that change.
    """

    def __init__(self, file):
        with np.load(file) as arrays:
            vars(self).update(json.loads(str(arrays["notes"])))
            self.values = _by_position(arrays, "value ")
            self.gradients = _by_position(arrays, "gradient ")
        self.trained = set().union(*(step["changed"] for step in self.steps))

    @property
    def rounding(self):
        """The coarsest type of its matrix products."""
        return max(ROUNDING.keys() & {*self.types, "float32"}, key=ROUNDING.get)

    def curve(self, name):
        """Return a figure of each step, NaN without it."""
        return np.array([step[name] for step in self.steps], float)

    @property
    def states(self):
        """The number of states of the random number generators, more if more is drawn."""
        return len({step["random numbers"] for step in self.steps})

    def count(self, name):
        return sum(step.get(name, 0) for step in self.steps)

    def indices(self):
        """Return the index of each sample, or a digest of each step's inputs."""
        indices = [index for step in self.steps for index in step["indices"]]
        return indices or [str(step["inputs"]["model"]["digests"]) for step in self.steps]


def _by_position(arrays, prefix):
    keys = [key for key in arrays if key.startswith(prefix)]
    return {int(key.removeprefix(prefix)): arrays[key] for key in keys}


class Comparison:
    """Notes on a script, a, and on a change of it, b.

    noted_a, noted_b: functions that return the Notes of a run with a perturbation and its number.
    """

    def __init__(self, noted_a, noted_b):
        self.noted_a = noted_a
        self.noted_b = noted_b
        self.a = noted_a()
        self.b = noted_b()
        self.pairs = [*zip(self.a.steps, self.b.steps, strict=False)]
        self.matched = _matched(self.a, self.b)
        self.unchanged = [*range(len(self.a.names))]
        self.same_inputs = [_are_same(x["inputs"], y["inputs"]) for x, y in self.pairs]

        # With other forwards the same generators draw for other tensors.
        same_states = all(
            x.get(name) == y.get(name)
            for x, y in self.pairs
            for name in ("random numbers", "forwards")
        )
        draws = self.a.draws or self.b.draws
        self.same_random_numbers = same_states or (all(self.same_inputs) and not draws)
        self.remarks = [*self.a.failures, *self.b.failures, *self._work()]

    def verdict(self):
        """Return the Verdict."""
        kind, reasons = self._kind()
        return Verdict(kind, reasons, len(self.pairs), self.remarks)

    def _kind(self):
        a = self.a
        losses = a.curve("loss")
        if np.isinf(losses).any() or np.isnan(losses).any() != np.isnan(losses).all():
            return NOT_TOLD, ["a loss of the unchanged script is not finite"]
        if max(a.curve("update")) <= ROUNDING["float32"] * _norm(a.values):
            return NEITHER, ["no parameter changes by more than its rounding"]
        if not max(a.curve("gradient norm")):
            return NEITHER, ["all gradients are 0"]

        inputs = [*self._inputs()]
        facts = inputs + self._facts()
        start = self._start()
        if start:
            return (OTHER, facts) if facts else (NOT_TOLD, [start])
        figures = [] if inputs else [*self._first_gradients(), *self._curves()]
        # A limit on gradients that acts shows in the figures.
        clipping = self._clipping()
        acts = any(acts for step in a.steps for _, _, acts in step["clipping"])
        if clipping and (figures or facts or not acts):
            facts.append(clipping)
        if facts or figures:
            return OTHER, facts + figures
        if not self.same_random_numbers:
            return RANDOM, []
        if self._is_identical():
            return IDENTICAL, []
        return f"{ROUNDED} ({self.rounding})", []

    def _start(self):
        """Return why figures of both cannot be compared, or ""."""
        again = self.noted_a(self.a.rounding, 0)
        if _distance(self.a.values, again.values, self.unchanged):
            return "it starts from other parameters each time; set a seed"
        if _distance(self.a.values, self.b.values, self.matched) > 2 * ROUNDING[self.rounding]:
            return "it starts from other parameters, so that nothing else can be compared"
        skipped = self.b.count("skipped updates")
        return f"a GradScaler skips {plural(skipped, 'update')}" if skipped else ""

    @property
    def rounding(self):
        return max(self.a.rounding, self.b.rounding, key=ROUNDING.get)

    def _facts(self):
        """Return the facts that differ, in words."""
        a, b = self.a, self.b
        facts = []
        if len(a.steps) != len(b.steps):
            facts.append(f"ends after {plural(len(b.steps), 'step')} of {len(a.steps)}")
        facts += self._trained()
        for x, y in [(a.count("updates"), b.count("updates"))]:
            if x != y and len(a.steps) == len(b.steps):
                facts.append(f"{plural(y, 'update')} for {x}")
        if a.draws != b.draws:
            facts.append(f"its forward draws {'' if b.draws else 'no '}random numbers")
        facts += self._dropout()
        if b.has_8_bits and not a.has_8_bits:
            facts.append("moments in 8 bits")
        facts += self._options()
        x, y = (
            sum("forwards without gradients" in step for step in part)
            for part in zip(*self.pairs, strict=True)
        )
        if x != y:
            facts.append(f"validation in {y or 'no'} of {plural(len(self.pairs), 'step')} for {x}")
        return facts

    def _trained(self):
        """Yield the parameters that only one of both trains."""
        a, b = self.a, self.b
        if self.matched is None:
            x, y = (sum(math.prod(notes.shapes[p]) for p in notes.trained) for notes in (a, b))
            if x != y:
                yield f"{y:,} numbers trained for {x:,}"
            return
        trained = {p for p, position in enumerate(self.matched) if position in b.trained}
        of_all = f"of {plural(len(a.names), 'parameter')}"
        if a.trained - trained:
            yield f"{len(a.trained - trained)} {of_all} no longer trained"
        if trained - a.trained:
            yield f"{len(trained - a.trained)} {of_all} trained that were not"

    def _inputs(self):
        """Yield what differs in the inputs."""
        for source in SOURCES:
            for step, pair in enumerate(self.pairs):
                x, y = (notes["inputs"][source] for notes in pair)
                is_ahead = source == "loader" and self.same_inputs[step]
                if is_ahead or _leaves(x["digests"]) != _leaves(y["digests"]):
                    continue
                for name in ("samples", "elements"):
                    if x[name] != y[name]:
                        yield f"{y[name]:,} {name} a step for {x[name]:,}{_since(step)}"
                        return
        if False in self.same_inputs:
            if self.same_random_numbers:
                yield f"other inputs{_since(self.same_inputs.index(False))}"
                return
            x, y = self.a.indices(), self.b.indices()
            if len(x) == len(y) and len({*x}) != len({*y}):
                yield f"{len({*y})} of {len(y)} inputs are distinct, for {len({*x})}"

    def _dropout(self):
        """Yield what differs in the dropout by torch's functions, if there is no other one."""
        if self.a.is_compiled or self.b.is_compiled:
            return
        for step, pair in enumerate(self.pairs):
            x, y = (notes["dropout"] for notes in pair)
            if x != y:
                if not self.without_dropout[1].draws:
                    texts = [", ".join(f"{n:,} at {p}" for p, n in of.items()) for of in (y, x)]
                    yield f"dropout: {texts[0] or 'none'} for {texts[1] or 'none'}{_since(step)}"
                return

    @cached_property
    def without_dropout(self):
        return self.noted_a("dropout", 0), self.noted_b("dropout", 0)

    def _options(self):
        """Yield the options of optimizers that differ, with the first such step."""
        differing = set()
        for step, (x, y) in enumerate(self.pairs):
            of_a, of_b = _options(x, self.a), _options(y, self.b)
            for name in sorted(of_a.keys() & of_b.keys() - differing):
                is_other = of_a[name].keys() != of_b[name].keys()
                if is_other or (self.matched and of_a[name] != of_b[name]):
                    differing.add(name)
                    texts = [" and ".join(sorted(values)) for values in (of_b[name], of_a[name])]
                    title = "learning rate" if name == "lr" else name.replace("_", " ")
                    values = " for ".join(texts) if is_other else "of other parameters"
                    yield f"{title} {values}{_since(step)}"

    def _clipping(self):
        """Return how calls that clip gradients differ, or ""."""
        for step, pair in enumerate(self.pairs):
            x, y = (
                {f"{name} at {limit:g}" for name, limit, _ in notes["clipping"]} for notes in pair
            )
            if x != y:
                texts = [" and ".join(sorted(calls)) or "none" for calls in (y, x)]
                return f"clipping: {' for '.join(texts)}{_since(step)}"
        return ""

    def _work(self):
        """Yield how much of the work differs."""
        for name in ("forwards", "backwards"):
            x, y = self.a.count(name), self.b.count(name)
            if x != y:
                yield f"{y} {name} for {x}"
        if self.a.flop and self.b.flop and abs(self.b.flop / self.a.flop - 1) > 0.01:
            yield f"{self.b.flop / self.a.flop:.2f} times the FLOP of a step"

    def _noise(self):
        return [self.noted_a(self.rounding, number) for number in range(RUNS)]

    def _first_gradients(self):
        """Yield how the first gradients differ, if by more than by rounding."""
        a, b = self.a, self.b
        if not self.same_random_numbers:
            if self.same_inputs[0] is False:
                self.remarks.append("first gradients not compared, as the inputs are others")
                return
            if a.draws:
                a, b = self.without_dropout
                if a.draws or b.draws or b.states > a.states:
                    self.remarks.append("first gradients not compared: not all dropout can be off")
                    return
        noise = max(
            _distance(self.a.gradients, run.gradients, self.unchanged) for run in self._noise()
        )
        distance = _distance(a.gradients, b.gradients, self.matched)
        if distance > FACTOR * max(noise, ROUNDING["float32"]):
            rounding = f"{self.rounding} by {_share(noise)}"
            yield f"first gradients differ by {_share(distance)} of their norm, {rounding}"

    def _curves(self):
        """Yield which figures of the steps drift away."""
        runs = self._noise()
        if not self.same_random_numbers:
            kind = "order" if self.same_inputs[0] is False else "random numbers"
            runs += [self.noted_a(kind, number) for number in range(RUNS)]
        for name, title in CURVES.items():
            curves = [notes.curve(name)[: len(self.pairs)] for notes in (self.a, self.b, *runs)]
            if np.isnan(curves[0]).all():
                continue
            step = _drift(*curves)
            if step is not None:
                yield f"{title} differ{_since(step)}"

    def _is_identical(self):
        return _distance(self.a.gradients, self.b.gradients, self.matched) == 0 and all(
            np.array_equal(self.a.curve(name), self.b.curve(name), equal_nan=True)
            for name in CURVES
        )


def _matched(a, b):
    """Return the positions in b of the parameters of a, None if they are merged or split."""
    matched = [*range(len(b.names))]
    if {*a.names} == {*b.names} and len({*b.names}) == len(b.names):
        matched = [b.names.index(name) for name in a.names]
    return matched if a.shapes == [b.shapes[position] for position in matched] else None


def _leaves(digests):
    return {key.split()[0] for key in digests}


def _are_same(a, b):
    """Return whether inputs of a step are the same for a loader or a model, None if unknown."""
    answers = []
    for source in SOURCES:
        x, y = a[source]["digests"], b[source]["digests"]
        if x and y:
            common = x.keys() & y.keys()
            finest = {}
            for key in sorted(common, key=lambda key: -ROUNDING.get(key.split(".")[-1], 1)):
                finest[key.split()[0]] = key
            is_same = _leaves(x) == _leaves(y) == _leaves(common)
            answers.append(is_same and all(x[key] == y[key] for key in finest.values()))
    return any(answers) if answers else None


def _options(step, notes):
    """Return the options of a step's optimizers by name: numbers that have a value, by its text."""
    counts = {}
    for options, positions in step["options"]:
        size = sum(math.prod(notes.shapes[position]) for position in positions)
        for name, value in options.items():
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            counts.setdefault(name, Counter())[text] += size
    return counts


def _since(step):
    return f" from step {step + 1} on" if step else ""


def _share(value):
    return f"{value:.2g}" if value < 1e-3 else f"{value:.1%}"


def _norm(arrays):
    return math.hypot(*(float(np.linalg.norm(array)) for array in arrays.values()))


def _distance(a, b, matched):
    """Return the norm of a difference over the norm of a; of norms if they cannot be matched."""
    norm = _norm(a)
    if matched is None:
        return abs(_norm(b) / norm - 1)
    difference = {p: b[matched[p]] - a[p] for p in a if matched[p] in b}
    return _norm(difference) / norm


def _drift(a, b, *runs):
    """Return the first step at which b differs from a by more than runs do, or None.

    The mean difference may be as large as it is by chance.
    """
    if not np.isfinite(b).all():
        return int(np.argmin(np.isfinite(b)))
    noise = np.max(np.abs(np.array(runs) - a))
    allowed = FACTOR * np.maximum(noise, 4 * ROUNDING["float32"] * np.abs(a))
    too_far = np.abs(b - a) > allowed
    if too_far.any():
        return int(np.argmax(too_far))
    means = np.abs((np.array(runs) - a).mean(axis=1))
    by_chance = max(*means, noise / math.sqrt(len(a)), allowed.min() / FACTOR)
    return 0 if abs((b - a).mean()) > FACTOR * by_chance else None
