"""Functions in processes that are forked from this one."""

import gc
import multiprocessing
import os
from contextlib import suppress
from multiprocessing.connection import wait


def in_processes(function, tasks):
    """Return function(*task) of each of the tasks, in order; None where it was killed.

    Each runs in a process of its own, forked from this one: imports are paid for once, and nothing
    that it sets outlives it. As many at once as there are cores.
    """
    context = multiprocessing.get_context("fork")

    def answer(task, connection):
        gc.disable()  # once the mode of torch's fakes has been left, a collection has crashed
        with connection, suppress(KeyboardInterrupt):  # the parent reports it
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
