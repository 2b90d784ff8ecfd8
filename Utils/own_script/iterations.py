"""The optimizer whose step ends a training iteration."""

MISSED = 3  # of its periods, after which an optimizer no longer counts


class Iterations:
    """Tells which optimizer step ends an iteration: one of the optimizer that steps most rarely.

    A GAN has two optimizers and one iteration for a step of each, or for five steps of one and one
    of the other. One that has not stepped for three of its periods does not count until it steps
    again. Its period is measured in iterations of the others, and 1 until it has stepped.

    ending: key of the optimizer whose steps end iterations, None before the first. changes: how
    often it was replaced.
    """

    def __init__(self):
        self.ending = None
        self.changes = 0
        self.steps = {}  # by key, since the last change
        self.totals = {}  # by key
        self.totals_at_step = {}  # of all, when each stepped last
        self.periods = {}

    def created(self, key):
        """Count an optimizer from here on."""
        if key not in self.totals:
            self.steps[key] = 0
            self.totals[key] = 0
            self.periods[key] = 1
            self.totals_at_step[key] = dict(self.totals)

    def left_out(self, key):
        """Count an optimizer no more, since another one steps it."""
        for by_key in (self.steps, self.totals, self.periods, self.totals_at_step):
            by_key.pop(key, None)

    def stepped(self, key):
        """Note a step of an optimizer. Return whether it ends an iteration."""
        self.created(key)
        self.periods[key] = max(1, self._iterations_without(key))
        self.totals[key] += 1
        self.steps[key] += 1
        self.totals_at_step[key] = dict(self.totals)
        active = [name for name in self.totals if self._counts(name)]
        fewest = min(self.steps[name] for name in active)
        rarest = [name for name in active if self.steps[name] == fewest]
        if self.ending not in rarest:
            if self.ending is not None:
                self.changes += 1
                self.steps = dict.fromkeys(self.steps, 0)
            if key in rarest:
                self.ending = key
                return True
            self.ending = rarest[-1] if self.ending is not None else None
        return key == self.ending

    def _counts(self, key):
        return self._iterations_without(key) < MISSED * self.periods[key]

    def _iterations_without(self, key):
        """Return the iterations of the other optimizers since this one stepped last."""
        before = self.totals_at_step[key]
        steps = [self.totals[name] - before.get(name, 0) for name in self.totals if name != key]
        return min((number for number in steps if number), default=0)
