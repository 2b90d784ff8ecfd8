"""Calls of a function in processes that are forked from this one."""

import gc
import multiprocessing
import os
from contextlib import suppress
from multiprocessing.connection import wait

from Utils.base.child import end_with
from Utils.base.progress_display import ProgressDisplay


def in_processes(function, tasks, title=None):
    """Return function(*task) for all tasks, in order, with None for a process that was killed.

    title: a progress bar's on a terminal, None for no bar.

    Each call runs in a forked process, so imports are needed once, and nothing that it sets
    remains. There are at most as many processes as cores.
    """
    context = multiprocessing.get_context("fork")
    parent = os.getpid()

    def answer(task, connection):
        end_with(parent)  # its pipe has no reader then, and is never broken
        gc.disable()  # a collection after torch's FakeTensorMode has crashed
        with connection:
            connection.send(function(*task))

    waiting = list(enumerate(tasks))
    running = {}  # index of the task and process, by the end of its pipe
    answers = [None] * len(tasks)
    display = ProgressDisplay(title, len(tasks), is_hidden=not title)

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
            display.update()
    display.close()
    return answers
