"""Recordings of techniques, each made in a subprocess."""

import gc
import multiprocessing
import os
from contextlib import suppress
from multiprocessing.connection import wait

from Utils.base import errors
from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.forecast import fake_run


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


def recordings(tasks, dataset):
    """Return `fake_run.recording` of each of the tasks, its arguments."""
    with suppress(UserError):  # which the script itself will raise
        token_cache.load_tokens(dataset)  # once for all processes
    if any("compile" in technique.code for technique, *_ in tasks):
        import_compiler()
    return in_processes(fake_run.recording, tasks)


def import_compiler():
    """Import what torch.compile needs once, for all processes that are forked."""
    # Here: seconds, for techniques that compile alone.
    import torch._dynamo.backends.common
    import torch._inductor.decomposition  # noqa: F401
