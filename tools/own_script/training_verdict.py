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

FACTOR = 5  # a figure may differ by that many times the noise; 4 was the most of honest changes
RUNS = 2  # that show the noise

IDENTICAL = "identical"
ROUNDED = "same up to rounding"
RANDOM = "same up to random numbers"

CURVES = {
    "loss": "losses",
    "gradient norm": "norms of gradients",
    "update": "sizes of updates",
    "input": "norms of inputs",
}


@dataclass(frozen=True)
class Verdict:
    """The answer to whether a changed script still trains the same.

    kind: one of those above. reasons: the weightiest first. steps: number of steps that it speaks
    of. remarks: what differs, and is no reason by itself.
    """

    kind: str
    reasons: list[str]
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

        # A norm that was clipped to a limit has no noise of rounding, so it counts as the limit.
        for step in self.steps:
            for _, limit, acts in step["clipping"]:
                if acts and math.isclose(step["gradient norm"], limit, rel_tol=0.004):
                    step["gradient norm"] = limit
        self.trained = set().union(*self.of_steps("changed"))

    @property
    def rounding(self):
        """The coarsest type of its matrix products."""
        return max(ROUNDING.keys() & {*self.types, "float32"}, key=ROUNDING.get)

    @property
    def states(self):
        """The number of states of the random number generators, more if more is drawn."""
        return len({*self.of_steps("random numbers")})

    def of_steps(self, name):
        return [step.get(name, 0) for step in self.steps]

    def curve(self, name):
        """Return a figure of each step, NaN without it."""
        return np.array(self.of_steps(name), float)

    def size(self, positions):
        """Return the number of elements of some parameters."""
        return sum(math.prod(self.shapes[position]) for position in positions)

    def indices(self):
        """Return the index of each sample, or a digest of each step's inputs."""
        indices = sum(self.of_steps("indices"), [])
        return indices or [str(inputs["model"]["digests"]) for inputs in self.of_steps("inputs")]

    def options(self, step):
        """Return the options of a step's optimizers: numbers that have a value, by its text."""
        counts = {}
        for options, positions in self.steps[step]["options"]:
            for name, value in options.items():
                text = f"{value:.6g}" if isinstance(value, float) else str(value)
                counts.setdefault(name, Counter())[text] += self.size(positions)
        return counts


class Comparison:
    """Notes on a script, a, and on a change of it, b.

    noted_a, noted_b: functions that return the Notes of a run with a perturbation and its number.
    """

    def __init__(self, noted_a, noted_b):
        self.noted_a = noted_a
        self.noted_b = noted_b
        self.a = a = noted_a()
        self.b = b = noted_b()
        self.pairs = [*zip(a.steps, b.steps, strict=False)]
        self.rounding = max(a.rounding, b.rounding, key=ROUNDING.get)
        self.noise = [noted_a(self.rounding, number) for number in range(RUNS)]

        inputs = [notes.of_steps("inputs") for notes in (a, b, self.noise[0])]
        self.same_inputs = same_inputs = [*map(_are_same_inputs, *inputs)]

        # Whether both draw the same random numbers, or none that matter. With other forwards the
        # same generators draw for other tensors.
        draws = a.draws or b.draws
        names = ["random numbers", "forwards"] if draws else ["random numbers"]
        same_states = all(x.get(name) == y.get(name) for x, y in self.pairs for name in names)
        if a.has_workers or b.has_workers:  # these draw numbers of their own
            same_states &= same_inputs[0] is False or False not in same_inputs
        self.same_numbers = same_states or (all(same_inputs) and not draws)

        # How much of the work differs.
        self.remarks = [*a.failures, *b.failures]
        for name in ("forwards", "backwards"):
            x, y = (sum(notes.of_steps(name)) for notes in (a, b))
            if x != y:
                self.remarks.append(f"{y} {name} for {x}")
        if a.flop and b.flop and abs(b.flop / a.flop - 1) > 0.01:
            self.remarks.append(f"{b.flop / a.flop:.2f} times the FLOP of a step")

        # Positions in b of the parameters of a, None if they are merged or split.
        self.unchanged = range(len(a.names))
        self.matched = range(len(b.names))
        if {*a.names} == {*b.names} and len({*b.names}) == len(b.names):
            self.matched = [b.names.index(name) for name in a.names]
        if a.shapes != [b.shapes[position] for position in self.matched]:
            self.matched = None
            self.remarks.append("parameters are not compared one by one")

    def verdict(self):
        """Return the Verdict."""
        kind, reasons = self._kind()
        return Verdict(kind, reasons, len(self.pairs), self.remarks)

    def _kind(self):
        a, b = self.a, self.b
        if np.isinf(a.curve("loss")).any() or not np.isfinite(a.curve("update")).all():
            return NOT_TOLD, ["a loss of the unchanged script is not finite"]
        if max(a.curve("update")) <= ROUNDING["float32"] * _norm(a.values):
            return NEITHER, ["no parameter changes by more than its rounding"]
        if not max(a.curve("gradient norm")):
            return NEITHER, ["all gradients are 0"]

        inputs = [*self._inputs()]
        facts = [*inputs, *self._facts()]

        # Why figures of both cannot be compared, or "".
        start = ""
        skipped = sum(b.of_steps("skipped updates"))
        if _distance(a.values, self.noise[0].values, self.unchanged):
            start = "it starts from other parameters each time; set a seed"
        elif _distance(a.values, b.values, self.matched) > 2 * ROUNDING[self.rounding]:
            start = "it starts from other parameters, so that nothing else can be compared"
        elif skipped:
            start = f"a GradScaler skips {plural(skipped, 'update')}"

        figures = [] if inputs or start else [*self._first_gradients(), *self._curves()]
        # A limit on gradients that acts shows in the figures.
        acts = any(acts for calls in a.of_steps("clipping") for _, _, acts in calls)
        clipping = self._difference(_clipping)
        if clipping and (facts or figures or not acts):
            facts.append(f"clipping: {clipping}")
        if figures and not facts and self.matched is None:  # other numbers may be in other places
            start = f"parameters are merged or split, and {figures[0]}"
        elif facts or figures:
            return OTHER, facts + figures
        if start:
            return NOT_TOLD, [start]
        if not self.same_numbers:
            return RANDOM, []
        curves = [np.array_equal(a.curve(x), b.curve(x), equal_nan=True) for x in CURVES]
        if all(curves) and not _distance(a.gradients, b.gradients, self.matched):
            return IDENTICAL, []
        return f"{ROUNDED} ({self.rounding})", []

    def _facts(self):
        """Yield the facts that differ, but for inputs and clipping."""
        a, b = self.a, self.b
        steps = len(self.pairs)
        if len(a.steps) != len(b.steps):
            yield f"ends after {plural(len(b.steps), 'step')} of {len(a.steps)}"

        # The parameters that only one of both trains.
        if self.matched is None:
            x, y = a.size(a.trained), b.size(b.trained)
            if x != y:
                yield f"{y:,} numbers trained for {x:,}"
        else:
            trained = {p for p, position in enumerate(self.matched) if position in b.trained}
            of_all = f"of {plural(len(a.names), 'parameter')}"
            if a.trained - trained:
                yield f"{len(a.trained - trained)} {of_all} no longer trained"
            if trained - a.trained:
                yield f"{len(trained - a.trained)} {of_all} trained that were not"
        x, y = (sum(notes.of_steps("updates")[:steps]) for notes in (a, b))
        if x != y:
            yield f"{plural(y, 'update')} for {x}"

        # Random numbers, and dropout by torch's functions if there is no other one.
        if a.draws != b.draws:
            yield f"its forward draws {'' if b.draws else 'no '}random numbers"
        dropout = self._difference(_dropout)
        is_compiled = a.is_compiled or b.is_compiled
        if dropout and not is_compiled and not self._without_dropout[1].draws:
            yield f"dropout: {dropout}"
        if b.has_8_bits and not a.has_8_bits:
            yield "moments in 8 bits"

        # The options of optimizers, with the first step at which they differ.
        differing = set()
        for step in range(steps):
            of_a, of_b = a.options(step), b.options(step)
            for name in sorted(of_a.keys() & of_b.keys() - differing):
                is_other = of_a[name].keys() != of_b[name].keys()
                if is_other or (self.matched and of_a[name] != of_b[name]):
                    differing.add(name)
                    texts = [" and ".join(sorted(values)) for values in (of_b[name], of_a[name])]
                    title = "learning rate" if name == "lr" else name.replace("_", " ")
                    values = " for ".join(texts) if is_other else "of other parameters"
                    yield f"{title} {values}{_since(step)}"

        name = "forwards without gradients"
        x, y = (np.count_nonzero(notes.of_steps(name)[:steps]) for notes in (a, b))
        if x != y:
            yield f"validation in {y or 'no'} of {plural(steps, 'step')} for {x}"

    def _inputs(self):
        """Yield what differs in the inputs."""
        for source in ("loader", "model"):
            for step, pair in enumerate(self.pairs):
                x, y = (notes["inputs"][source] for notes in pair)
                is_ahead = source == "loader" and self.same_inputs[step]
                if is_ahead or len(x["digests"]) != len(y["digests"]):
                    continue
                for name in ("samples", "elements"):
                    if x[name] != y[name]:
                        yield f"{y[name]:,} {name} a step for {x[name]:,}{_since(step)}"
                        return

        if False not in self.same_inputs:
            return
        x, y = self.a.indices(), self.b.indices()
        if self.same_numbers:
            yield f"other inputs{_since(self.same_inputs.index(False))}"
        elif len(x) == len(y) and len({*x}) != len({*y}):
            yield f"{len({*y})} of {len(y)} inputs are distinct, for {len({*x})}"

    @cached_property
    def _without_dropout(self):
        return self.noted_a("dropout"), self.noted_b("dropout")

    def _difference(self, texts):
        """Return how some texts of a step differ, and the first step at which they do, or ""."""
        for step, pair in enumerate(self.pairs):
            x, y = (texts(notes) or "none" for notes in pair)
            if x != y:
                return f"{y} for {x}{_since(step)}"
        return ""

    def _first_gradients(self):
        """Yield how the first gradients differ, if by more than by rounding."""
        a, b = self.a, self.b
        if not self.same_numbers:
            if not self.same_inputs[0]:
                self.remarks.append("first gradients not compared, as inputs may be others")
                return
            if a.draws:
                a, b = self._without_dropout
                if a.draws or b.draws or b.states > a.states:
                    self.remarks.append("first gradients not compared: not all dropout can be off")
                    return

        noise = max(_distance(self.a.gradients, n.gradients, self.unchanged) for n in self.noise)
        distance = _distance(a.gradients, b.gradients, self.matched)
        if distance > FACTOR * max(noise, ROUNDING["float32"]):
            by_rounding = f"{self.rounding} by {_share(noise)}"
            yield f"first gradients differ by {_share(distance)} of their norm, {by_rounding}"

    def _curves(self):
        """Yield which figures of the steps drift away."""
        runs = [*self.noise]
        if not self.same_numbers:
            kind = "random numbers" if self.same_inputs[0] else "order"
            runs += [self.noted_a(kind, number) for number in range(RUNS)]
        for name, title in CURVES.items():
            curves = [notes.curve(name)[: len(self.pairs)] for notes in (self.a, self.b, *runs)]
            step = None if np.isnan(curves[0]).all() else _drift(*curves)
            if step is not None:
                yield f"{title} differ{_since(step)}"


def _by_position(arrays, prefix):
    keys = [key for key in arrays if key.startswith(prefix)]
    return {int(key.removeprefix(prefix)): arrays[key] for key in keys}


def _are_same_inputs(a, b, again):
    """Return whether inputs of a step are the same for a loader or a model, None if unknown.

    again: those of a with other parameters, on which a GAN's inputs depend.
    """
    answers = []
    for source in a:
        x, y, z = (inputs[source]["digests"] for inputs in (a, b, again))
        if x and y and x == z:
            answers.append(len(x) == len(y) and all(map(_is_same_tensor, x, y)))
    return any(answers) if answers else None


def _is_same_tensor(a, b):
    """Return whether tensors are the same in the coarser of their types. a, b: digests by type."""
    common = sorted(a.keys() & b.keys(), key=lambda name: ROUNDING.get(name, 0))
    return bool(common) and a[common[0]] == b[common[0]]


def _dropout(step):
    return ", ".join(f"{n:,} at {p}" for p, n in step["dropout"].items())


def _clipping(step):
    return " and ".join(sorted({f"{name} at {limit:g}" for name, limit, _ in step["clipping"]}))


def _since(step):
    return f" from step {step + 1} on" if step else ""


def _share(value):
    return f"{value:.2g}" if value < 1e-3 else f"{value:.1%}"


def _norm(arrays):
    return math.hypot(*(float(np.linalg.norm(array)) for array in arrays.values()))


def _distance(a, b, matched):
    """Return the norm of a difference over the norm of a; of norms if they cannot be matched."""
    if matched is None:
        return abs(_norm(b) / _norm(a) - 1)
    difference = {p: b[matched[p]] - a[p] for p in a if matched[p] in b}
    return _norm(difference) / _norm(a)


def _drift(a, b, *runs):
    """Return the first step at which b differs from a by more than runs do, or None.

    Their mean over the steps may differ as much as it does by chance.
    """
    if not np.isfinite(b).all():
        return int(np.argmin(np.isfinite(b)))

    differences = np.array(runs) - a
    noise = np.abs(differences).max()
    is_half = not (b.astype(np.float32).view(np.uint32) & 0xFFFF).any()  # computed in bfloat16
    resolution = ROUNDING["bfloat16"] if is_half else 4 * ROUNDING["float32"]
    allowed = FACTOR * np.maximum(noise, resolution * np.abs(a))
    too_far = np.abs(b - a) > allowed
    if too_far.any():
        return int(np.argmax(too_far))

    by_chance = max(np.abs(differences.mean(axis=1)).max(), noise / math.sqrt(len(a)))
    is_off = abs((b - a).mean()) > max(FACTOR * by_chance, allowed.min())
    return 0 if is_off else None
