"""Forecast of a technique's peak memory."""

import math
from dataclasses import dataclass, field

from Utils.base.errors import Unsupported
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.forecast.fake_run import KINDS, PHASES, Recording
from Utils.forecast.kernel_work import StepKernels
from Utils.forecast.recording_processes import recordings
from Utils.harness.settings import Settings, batch_multiple, check_need


@dataclass(frozen=True)
class MemoryForecast:
    """The memory of a technique's step at one shape.

    peak, kinds: bytes of all tensors at the peak, and of each kind.
    phase: of a step, the one with the peak.
    largest_batch: that fits; next_bytes: the peak at the next valid batch.
    reason: for a missing forecast.
    kernels, batch: of the step.
    """

    peak: int = 0
    kinds: dict = field(default_factory=dict)
    phase: str = ""
    largest_batch: int = 0
    next_bytes: int = 0
    reason: str = ""
    kernels: StepKernels | None = None
    batch: int = 0


def prime_batch(at_least, *sizes):
    """Return a prime batch that divides none of the other sizes of a tensor: then a tensor whose
    size it divides is proportional to the batch."""
    candidate = max(97, at_least)
    while any(candidate % n == 0 for n in range(2, math.isqrt(candidate) + 1)) or any(
        size % candidate == 0 for size in sizes
    ):
        candidate += 1
    return candidate


def memory_forecasts(techniques, args, budget, fitting=False):
    """Return a MemoryForecast for each of the techniques.

    args: of `forecast_plan.settings`. budget: bytes that a batch may need. fitting: take the
    largest power of two that fits each in place of the batch of args.
    """
    config = args.config
    sizes = config.n_layer, config.n_head, config.n_embd, args.seq_len, VOCABULARY
    batches = [prime_batch(args.batch_size, *sizes)]
    if args.batch_size == 1:  # one sequence may run other operations than several
        batches.append(1)
    tasks = []
    for technique in techniques:
        for batch in batches:
            flag = f"--batch-size={batch * batch_multiple(technique.needs)}"
            tasks.append((technique, [*args.argv, flag], args.hardware))
    answers = recordings(tasks, args.dataset)
    size = len(batches)
    groups = [answers[start : start + size] for start in range(0, len(answers), size)]
    batch = None if fitting else args.batch_size
    return [memory_forecast(group, batch, budget) for group in groups]


def memory_forecast(recordings, batch, budget):
    """Return the MemoryForecast of a technique at a batch size, from its recordings at a prime
    batch and optionally at 1. A recording may be a reason for none, or None; batch None stands for
    the largest power of two that fits."""
    for recording in recordings:
        if not isinstance(recording, Recording):
            return MemoryForecast(reason=recording or "cannot be forecast: its process was killed")
    prime = recordings[0]
    largest = prime.largest_batch(budget)
    if batch is None and not largest:
        return MemoryForecast(reason="does not fit at any batch")
    batch = batch or 2 ** int(math.log2(largest))
    try:
        check_need(f"batch multiple of {prime.multiple}", Settings(batch_size=batch))
    except Unsupported as error:
        return MemoryForecast(reason=str(error))
    exact = recordings[-1 if batch == 1 else 0].at(batch)
    top = int(exact.total.argmax())
    kinds = dict(zip(KINDS, map(int, exact.live[top]), strict=True))
    return MemoryForecast(
        peak=sum(kinds.values()),
        kinds=kinds,
        phase=PHASES[exact.phase[top]],
        largest_batch=largest,
        next_bytes=int(prime.at(largest + prime.multiple).total.max()),
        kernels=prime.work.at(batch // prime.multiple).kernels(),
        batch=batch,
    )
