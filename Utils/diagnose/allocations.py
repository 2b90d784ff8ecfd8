"""What a step would allocate, operation by operation, and what a host's malloc would hold of it."""

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

KINDS = ("weights", "gradients", "optimizer state", "activations")  # the last: all other tensors
PHASES = ("forward", "backward", "update")


@dataclass
class Recording:
    """What would have been allocated, after each operation.

    batch: sequences a step, a prime times multiple, which is what the batch must be a multiple of.
    live: int64 (operations, KINDS), bytes. phase: (operations,), indices of PHASES.
    growing: (operations,), bytes of the activations that are in proportion to the batch.
    blocks: (operation before which, key, bytes, or 0 where it is freed), in order.
    """

    batch: int
    multiple: int
    live: np.ndarray
    phase: np.ndarray
    growing: np.ndarray
    blocks: list

    def at(self, batch):
        """The Recording at another batch size.

        The same operations run at any batch size, and each tensor's size is a constant or a
        multiple of it: of a prime that divides no constant. So one recording gives all others.
        """
        prime, grown = self.batch // self.multiple, self.growing * batch // self.batch
        live = self.live.copy()
        live[:, -1] += grown - self.growing
        blocks = [
            (at, key, size if size % prime else size * batch // self.batch)
            for at, key, size in self.blocks
        ]
        return Recording(batch, self.multiple, live, self.phase, grown, blocks)

    def largest_batch(self, size):
        """The largest batch whose peak is no more than so many bytes, or 0."""
        room = size - (self.live.sum(axis=1) - self.growing)
        if (room < 0).any():
            return 0
        grows = self.growing > 0
        most = (room[grows] * self.batch // self.growing[grows]).min()
        return int(most) // self.multiple * self.multiple

    def held(self):
        """(operations,), bytes that the allocator of a host would hold for its blocks."""
        heap, held, done = Heap(), np.zeros(len(self.live), dtype=np.int64), 0
        for at, key, size in self.blocks:
            held[done:at], done = heap.held(), at
            heap.allocate(key, size) if size else heap.free(key)
        held[done:] = heap.held()
        return held


class Heap:
    """What glibc's malloc holds of a host's memory, which is what a process is seen to take.

    A block below a threshold comes out of the heap, the smallest gap that it fits into, else its
    top; a gap stays resident, and only the top shrinks. Larger blocks are mapped by themselves. The
    threshold follows the mapped blocks that were freed, up to 32 MiB: mallopt(3), on
    M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
    """

    def __init__(self):
        self.threshold, self.mapped = 128 * 2**10, 0
        self.top = self.end = 0  # where used blocks end, and where resident memory does
        self.used, self.gaps, self.ends = {}, [], {}  # gaps: (size, start), sorted; ends: of gaps

    def held(self):
        return self.end + self.mapped

    def allocate(self, key, size):
        if size >= self.threshold:
            self.mapped += size
            self.used[key] = None, size
            return
        size += 16
        at = bisect_left(self.gaps, (size + 96, 0))
        if at < len(self.gaps):
            gap, start = self.gaps.pop(at)
            del self.ends[start + gap]
            self._leave(start + size, gap - size)
        else:
            start, self.top = self.top, self.top + size
            self.end = max(self.end, self.top)
        self.used[key] = start, size

    def free(self, key):
        start, size = self.used.pop(key)
        if start is None:
            self.mapped -= size
            if size <= 32 * 2**20:
                self.threshold = max(self.threshold, size)
            return
        for gap in [gap for gap in self.gaps if gap[1] + gap[0] == start or gap[1] == start + size]:
            self.gaps.remove(gap)
            del self.ends[sum(gap)]
            start, size = min(start, gap[1]), size + gap[0]
        if start + size < self.top:
            self._leave(start, size)
            return
        self.top = start
        if self.end - self.top > 2 * self.threshold:
            self.end = self.top

    def _leave(self, start, size):
        insort(self.gaps, (size, start))
        self.ends[start + size] = size
