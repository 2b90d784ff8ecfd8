"""Memory of the gradients of a script whose gradients may be unusual."""

from functools import partial

from Utils.harness import memory_kinds


class WatchedGradients(memory_kinds.GradientWatch):
    """A GradientWatch that an unusual gradient switches off."""

    hooks = ()

    def __init__(self, model, observe):
        super().__init__(model)
        self.observe = partial(observe, "memory of gradients")

    def __enter__(self):
        self.observe(super().__enter__)

    def _measure(self, complete):
        self.observe(super()._measure, complete)
