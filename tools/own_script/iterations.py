"""Training iterations, whose ends are told by the steps of several optimizers."""

from dataclasses import dataclass, field
from itertools import pairwise


class Iterations:
    """The optimizer whose steps end an iteration: the one that steps most rarely.

    A GAN has two optimizers, and an iteration has a step of each, or five steps of one and one of
    the other. The period of an optimizer is the number of steps that other optimizers make between
    two of its own steps. An optimizer that has not stepped for three of its periods is inactive
    until it steps again.

    ending: key of that optimizer, None before the first step. changes: number of times that another
    optimizer took its place.
    """

    def __init__(self):
        self.ending = None
        self.changes = 0
        self.steps = 0  # of all optimizers
        # By key: the number of all steps when it was created, or up to its last ones, at most 3.
        self.recent = {}

    def created(self, key):
        """Count an optimizer from now on."""
        self.recent.setdefault(key, [self.steps])

    def left_out(self, key):
        """Stop counting an optimizer, because another optimizer steps it."""
        self.recent.pop(key, None)

    def period(self, key):
        """Return the number of steps of other optimizers between two of its own, at least 1."""
        return max([1, *(after - before - 1 for before, after in pairwise(self.recent[key]))])

    def stepped(self, key):
        """Record a step of an optimizer. Return whether it ends an iteration."""
        self.created(key)
        self.steps += 1
        self.recent[key] = [*self.recent[key][-2:], self.steps]

        # Those that have not stepped yet are the rarest, then those with the longest period.
        periods = {
            counted: (len(recent) == 1, self.period(counted))
            for counted, recent in self.recent.items()
            if self.steps - recent[-1] < 3 * self.period(counted)
        }
        rarest = [counted for counted in periods if periods[counted] == max(periods.values())]

        if self.ending is None:
            if key in rarest:
                self.ending = key
        elif self.ending not in rarest:
            self.ending = key if key in rarest else rarest[-1]
            self.changes += 1
        return key == self.ending


@dataclass
class Iteration:
    """One training iteration.

    losses: scalars that backward was called on, before scaling. samples: number of samples in the
    batches of DataLoaders. data_s: seconds of waiting for them. events: other things that happened,
    such as eval().
    """

    losses: list = field(default_factory=list)
    samples: int = 0
    data_s: float = 0.0
    events: set = field(default_factory=set)
