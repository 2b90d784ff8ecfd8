"""The bytes of a step's tensors, operation by operation."""

from dataclasses import dataclass, field, replace

import numpy as np

from Utils.forecast.kernel_work import Work

KINDS = ("weights", "gradients", "optimizer state", "activations")  # the last: all other tensors
PHASES = ("forward", "backward", "update")


@dataclass
class Recording:
    """The bytes that would be allocated after each operation of a step.

    batch: sequences a step, a prime times multiple, which is what the batch must be a multiple of.
    live: int64 (operations, KINDS), bytes. phase: (operations,), indices of PHASES.
    growing: (operations,), bytes of the activations that are in proportion to the batch.
    work: what the step computes, at the prime.
    """

    batch: int
    multiple: int
    live: np.ndarray
    phase: np.ndarray
    growing: np.ndarray
    work: Work = field(default_factory=Work)

    def at(self, batch):
        """Return the Recording at another batch size.

        The same operations run at any batch size. Each tensor's size is constant or proportional to
        the batch, a prime that divides no constant, so one recording gives all batch sizes.
        """
        grown = self.growing * batch // self.batch
        live = self.live.copy()
        live[:, -1] += grown - self.growing
        return replace(self, batch=batch, live=live, growing=grown)

    @property
    def total(self):
        """Bytes of all tensors, (operations,)."""
        return self.live.sum(axis=1)

    def largest_batch(self, size):
        """Return the largest batch with a peak of at most `size` bytes, or 0."""
        room = size - (self.total - self.growing)
        if (room < 0).any():
            return 0
        grows = self.growing > 0
        most = (room[grows] * self.batch // self.growing[grows]).min()
        return int(most) // self.multiple * self.multiple
