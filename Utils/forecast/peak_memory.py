"""Forecasts of techniques' peak memory, from recordings made in subprocesses."""

import gc
import math
import multiprocessing
import os
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from sympy import nextprime

from Utils.base import errors
from Utils.base.errors import Unsupported, UserError
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.corpus import token_cache
from Utils.forecast import fake_run
from Utils.forecast.fake_run import KINDS, PHASES, Recording
from Utils.forecast.kernel_work import StepKernels
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


def in_processes(function, tasks):
    """Return function(*task) of each of the tasks, in order; None where it was killed.

    Each runs in a process of its own, forked from this one: imports are paid for once, and nothing
    that a script sets outlives it. As many at once as there are cores.
    """
    context = multiprocessing.get_context("fork")

    def answer(task, connection):
        gc.disable()  # once the mode of the fakes has been left, a collection has crashed in torch
        with connection, errors.one_line("forecast"):
            connection.send(function(*task))

    waiting = list(enumerate(tasks))
    running = {}  # index of the task and process, by the end of its pipe
    answers = [None] * len(tasks)
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            index, task = waiting.pop(0)
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=answer, args=(task, writer), daemon=True)
            process.start()
            writer.close()
            running[reader] = index, process
        for reader in wait(list(running)):
            index, process = running.pop(reader)
            with reader, suppress(EOFError):  # it ended without an answer
                answers[index] = reader.recv()
            process.join()
    return answers


def import_compiler():
    """Import what torch.compile needs once, for all processes that are forked."""
    # Here: seconds, for techniques that compile alone.
    import torch._dynamo.backends.common
    import torch._inductor.decomposition  # noqa: F401


def memory_forecasts(techniques, args, budget, fitting=False):
    """Return a MemoryForecast for each of the techniques.

    args: of `forecast_plan.settings`. budget: bytes that a batch may need. fitting: take the
    largest power of two that fits each in place of the batch of args.
    """
    batch = None if fitting else args.batch_size
    groups = recordings(techniques, args, with_single=batch == 1)
    return [memory_forecast(group, batch, budget, args.hardware) for group in groups]


def recordings(techniques, args, with_single):
    """Return a list of Recordings, or reasons for none, of each of the techniques: at a prime batch
    and, with_single, at one sequence, which may run other operations than several."""
    config = args.config
    # A prime that divides no other size: a tensor's size that it divides grows with the batch.
    sizes = config.n_layer, config.n_head, config.n_embd, args.seq_len, VOCABULARY
    prime = nextprime(max(97, args.batch_size) - 1)
    while any(size % prime == 0 for size in sizes):
        prime = nextprime(prime)
    batches = [prime, 1] if with_single else [prime]
    tasks = []
    for technique in techniques:
        for batch in batches:
            flag = f"--batch-size={batch * batch_multiple(technique.needs)}"
            tasks.append((technique, [*args.argv, flag], args.hardware))
    with suppress(UserError):  # which the script itself will raise
        token_cache.load_tokens(args.dataset)  # once for all processes
    if any("compile" in technique.code for technique in techniques):
        import_compiler()
    answers = in_processes(fake_run.recording, tasks)
    return [answers[n : n + len(batches)] for n in range(0, len(answers), len(batches))]


def memory_forecast(recordings, batch, budget, device):
    """Return the MemoryForecast of a technique at a batch size, from its recordings at a prime
    batch and optionally at 1. A recording may be a reason for none, or None; batch None stands for
    the largest power of two that fits. device: of Utils.device, for its workspaces."""
    for recording in recordings:
        if not isinstance(recording, Recording):
            return MemoryForecast(reason=recording or "cannot be forecast: its process was killed")
    prime = recordings[0]
    fixed = fake_run.workspaces(device)
    largest = prime.largest_batch(budget - fixed)
    if batch is None and not largest:
        return MemoryForecast(reason="does not fit at any batch")
    batch = batch or 2 ** int(math.log2(largest))
    try:
        check_need(f"batch multiple of {prime.multiple}", Settings(batch_size=batch))
    except Unsupported as error:
        return MemoryForecast(reason=str(error), largest_batch=largest)
    recording = recordings[-1 if batch == 1 else 0]
    exact = recording.at(batch)
    top = int(exact.total.argmax())
    kinds = dict(zip(KINDS, map(int, exact.live[top]), strict=True))
    kinds["activations"] += fixed
    return MemoryForecast(
        peak=sum(kinds.values()),
        kinds=kinds,
        phase=PHASES[exact.phase[top]],
        largest_batch=largest,
        next_bytes=int(prime.at(largest + prime.multiple).total.max()) + fixed,
        kernels=recording.work.kernels_at(batch // prime.multiple),
        batch=batch,
    )
