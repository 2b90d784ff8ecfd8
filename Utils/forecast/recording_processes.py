"""Recordings of techniques, each made in a subprocess and kept in the cache."""

import gc
import hashlib
import multiprocessing
import os
import pickle
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import wait

from Utils.base import errors, files, paths
from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.forecast.memory_recording import Recording


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

    waiting, running, answers = list(enumerate(tasks)), {}, [None] * len(tasks)
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            index, task = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=answer, args=(task, theirs), daemon=True)
            process.start()
            theirs.close()
            running[ours] = index, process
        for ours in wait(list(running)):
            index, process = running.pop(ours)
            with ours, suppress(EOFError):  # it ended without an answer
                answers[index] = ours.recv()
            process.join()
    return answers


def recordings(tasks):
    """Return `fakes.recording` of each of the tasks, its arguments. Tracing gives the same each
    time and takes seconds, so what it has given is kept, until something that decides it changes.
    """
    dataset = _given(tasks[0][1]).get("--dataset", "synthetic")
    shared = _shared_parts(dataset)
    files = [_file(shared, *task) for task in tasks]
    found = [kept(file) for file in files]
    missing = [index for index, one in enumerate(found) if one is None]
    if len(missing) > 1:  # here, once; one alone imports by itself, and copies fewer pages of ours
        with suppress(UserError):  # which the script itself will raise
            token_cache.load_tokens(dataset)
        prepare(any("compile" in tasks[index][0].code for index in missing))
    answers = in_processes(_recording, [tasks[index] for index in missing])
    for index, answer in zip(missing, answers, strict=True):
        found[index] = answer
        if isinstance(answer, Recording):
            keep(answer, files[index])
    return found


def _recording(*task):
    from Utils.forecast import fake_run  # here: seconds, where all is kept from before

    return fake_run.recording(*task)


def prepare(compiler):
    """Import what recordings need, the compiler too or not, once for all processes that are forked.
    All of it stays, so the collector need not look it through."""
    gc.disable()
    import Utils.forecast.fake_run  # noqa: F401  here: seconds, where all is kept from before

    if compiler:
        # Here: seconds, for techniques that compile alone.
        import torch._dynamo.backends.common
        import torch._inductor.decomposition  # noqa: F401
    gc.enable()


def _shared_parts(dataset):
    """Return the strings that decide a Recording and are the same for every technique."""
    parts = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name[:5] == "TORCH"]
    for package in ("torch", "bitsandbytes", "torchao"):
        with suppress(PackageNotFoundError):
            parts.append(version(package))
    parts += paths.sources("base", "scripts", "corpus", "device", "results", "harness", "forecast")
    if dataset != "synthetic":
        with suppress(UserError):  # which the script itself will raise
            parts.append(token_cache.token_file(dataset)[0].name)
    return parts


def _given(flags):
    return dict(flag.split("=", 1) for flag in flags)  # of a flag given twice the last counts


def _file(shared, technique, flags, device):
    """Return the file that keeps a technique's Recording, by all that decides it."""
    given = _given(flags)
    parts = [*shared, technique.name, technique.code, type(device).__name__]
    shape = ("--model", "--seq-len", "--batch-size", "--dataset")
    parts += [f"{name}={given.get(name)}" for name in shape]
    parts += [str(getattr(device, name, "")) for name in ("capability", "architecture")]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return paths.CACHE / "forecasts" / f"{technique.name}-{key}.pickle"


def kept(file):
    """Return the object that a file keeps, or None."""
    with suppress(Exception):  # whatever a damaged file may raise; it is made again
        return pickle.loads(file.read_bytes())
    return None


def keep(answer, file):
    """Write an object to a file of the cache, whole or not at all."""
    with suppress(UserError), files.written_whole(file) as target:  # without, it is made again
        target.write(pickle.dumps(answer))
