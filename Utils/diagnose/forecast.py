"""Forecast of a technique's peak memory."""

import gc
import hashlib
import math
import multiprocessing
import os
import pickle
import re
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import wait
from statistics import median

import numpy as np
from tabulate import tabulate

from Utils.base import errors, paths, results
from Utils.base.errors import Unsupported, UserError
from Utils.base.sizes import VOCABULARY
from Utils.base.units import GIB
from Utils.corpus import tokenize
from Utils.device import devices
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA, ImaginedGPU
from Utils.diagnose import fakes
from Utils.diagnose.allocations import KINDS, PHASES, Recording
from Utils.harness.settings import Settings, batch_multiple, check_need

# On a CPU: what a run takes beside its tensors, such as code that is loaded and products' buffers;
# measured, docs/LOG.md says how.
LIBRARIES_BYTES = 118 * 2**20


@dataclass
class Forecast:
    """A technique at one shape on one device.

    peak, kinds: bytes, those of each kind at the peak; tensors: bytes, the peak of tensors alone.
    phase: where in a step the peak falls.
    largest_batch: that fits; next_bytes: what one more (or the next that it takes) would need.
    reason: why there are no figures.
    """

    technique: str
    peak: int = 0
    tensors: int = 0
    kinds: dict = field(default_factory=dict)
    phase: str = ""
    largest_batch: int = 0
    next_bytes: int = 0
    reason: str = ""


def prime_batch(at_least, *sizes):
    """A prime number of sequences that divides none of the sizes, those that a tensor can have
    beside the batch: so what it divides is in proportion to the batch."""
    candidate = max(97, at_least)
    while any(candidate % n == 0 for n in range(2, math.isqrt(candidate) + 1)) or any(
        size % candidate == 0 for size in sizes
    ):
        candidate += 1
    return candidate


def apart(function, tasks):
    """What function(*task) returns for each of the tasks, in order; None where it was killed.

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


def forecasts(techniques, flags, device, args, budget):
    """A Forecast of each of the techniques.

    flags: those of the scripts, but for the batch size. args: Settings, of which the shape and the
    model are asked. budget: bytes that a batch may need.
    """
    config = args.config
    sizes = config.n_layer, config.n_head, config.n_embd, args.seq_len, VOCABULARY
    batches = [prime_batch(args.batch_size, *sizes)]
    if args.batch_size == 1:  # which can take other operations than several sequences
        batches.append(1)
    tasks = [
        (t, [*flags, f"--batch-size={B * batch_multiple(t.needs)}"], device)
        for t in techniques
        for B in batches
    ]
    answers = iter(recordings(tasks))
    on_host = isinstance(device, CPU)
    return [
        forecast(t.name, [next(answers) for _ in batches], args.batch_size, budget, on_host)
        for t in techniques
    ]


def recordings(tasks):
    """What `fakes.recording` says of each of the tasks, its arguments. Tracing gives the same each
    time and takes seconds, so what it has given is kept, until something that decides it changes.
    """
    shared = _shared_parts(tasks[0][1]) if tasks else []
    files = [_file(shared, *task) for task in tasks]
    found = [_kept(file) for file in files]
    missing = [index for index, one in enumerate(found) if one is None]
    if len(missing) > 1:  # here, once; one alone imports by itself, and copies fewer pages of ours
        _import(any("compile" in tasks[index][0].code for index in missing))
    answers = apart(_recording, [tasks[index] for index in missing])
    for index, answer in zip(missing, answers, strict=True):
        found[index] = answer
        if isinstance(answer, Recording):
            _keep(answer, files[index])
    return found


def _recording(*task):

    return fakes.recording(*task)


def _import(compiler):
    """Imports what recordings need. All of it stays, so the collector need not look it through."""
    gc.disable()
    import Utils.diagnose.fakes  # noqa: F401

    if compiler:
        import torch._dynamo.backends.common
        import torch._inductor.decomposition  # noqa: F401
    gc.enable()


def _shared_parts(flags):
    """Of all that decides a Recording what is the same for every technique, as strings."""
    parts = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name[:5] == "TORCH"]
    for package in ("torch", "bitsandbytes", "torchao"):
        with suppress(PackageNotFoundError):
            parts.append(version(package))
    parts += paths.sources("base", "corpus", "device", "harness", "diagnose")
    dataset = next((flag.partition("=")[2] for flag in flags if flag.startswith("--dataset=")), "")
    if dataset != "synthetic":
        with suppress(UserError):  # of which the script itself will speak
            parts.append(tokenize.token_file(dataset)[0].name)
    return parts


def _file(shared, technique, flags, device):
    """Where a technique's Recording is kept, by all that decides it."""
    given = dict(flag.split("=", 1) for flag in flags)  # of a flag given twice the last counts
    parts = [*shared, technique.name, technique.code, type(device).__name__]
    shape = ("--model", "--seq-len", "--batch-size", "--dataset", "--bucket-mb")
    parts += [f"{name}={given.get(name)}" for name in shape]
    parts += [str(getattr(device, name, "")) for name in ("capability", "architecture")]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return paths.CACHE / "forecasts" / f"{technique.name}-{key}.pickle"


def _kept(file):
    try:
        found = pickle.loads(file.read_bytes())
        return found if isinstance(found, Recording) else None
    except Exception:  # whatever a damaged file may raise; it is made again
        return None


def _keep(recording, file):
    part = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # then it is traced again
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(pickle.dumps(recording))
            part.replace(file)
        finally:  # of a full disk nothing is left
            part.unlink(missing_ok=True)


def forecast(name, recordings, batch, budget, on_host=False):
    """The Forecast of a technique at a batch size from its recordings at a prime's and, where there
    is one, at its own; each may be the reason why there is none, or None."""
    for found in recordings:
        if not isinstance(found, Recording):
            return Forecast(name, reason=found or "cannot be forecast: its process was killed")
    line, own = recordings[0], recordings[-1]
    try:
        check_need(f"batch multiple of {line.multiple}", Settings(batch_size=batch))
    except Unsupported as error:
        return Forecast(name, reason=str(error))
    if own.batch != batch:
        own = own.at(batch)
    total = own.live.sum(axis=1)
    beside = own.held() - total + LIBRARIES_BYTES if on_host else np.zeros_like(total)
    top = int((total + beside).argmax())
    kinds = dict(zip(KINDS, map(int, own.live[top]), strict=True))
    if on_host:
        kinds["libraries, heap"] = int(beside[top])
    extra = int(beside[top])
    largest = line.largest_batch(budget - extra)
    following = int(line.at(largest + line.multiple).live.sum(axis=1).max()) + extra
    phase = PHASES[own.phase[top]]
    peaks = sum(kinds.values()), int(total.max())
    return Forecast(name, *peaks, kinds, phase, largest, following)


WORTH = 0.1  # of the peak: a kind that is less is not worth a line of advice
ADVICE = 5  # lines at most
UNITS = {"": 1, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": GIB}


def size(text):
    """Bytes, of 10GiB, 24 GB or 8e9. Raises UserError."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in UNITS or not float(match[1]):
        raise UserError(f"--memory {text}: give it as 10GiB (2^30), 10GB (10^9) or 1e10, in bytes")
    return int(float(match[1]) * UNITS[match[2]])


def measured(path, args):
    """By technique, the median measured peak of the runs at this model and shape on a device like
    this, of the same type by its record, or of the same name: (bytes, those of tensors, which only
    a run on a CPU tells apart, or None)."""
    rows = results.check(path, writable=False) if path.exists() else []
    shape = {"status": "ok", "step": "0", "model": args.model}
    shape |= {"batch_size": str(args.batch_size), "seq_len": str(args.seq_len)}
    rows = [row for row in rows if all(row[key] == value for key, value in shape.items())]
    records = results.records(path, [row["run_id"] for row in rows])
    # A GPU imagined has tensors on the CPU, and is none.
    on_gpu = isinstance(args.hardware, CUDA)
    kinds = ("cuda", "rocm") if on_gpu else (args.device.type,)
    found = {}
    for row in rows:
        device = records.get(row["run_id"], {}).get("device", {})
        if device.get("type") in kinds or row["device"] == args.hardware.name:
            tensors = records.get(row["run_id"], {}).get("memory", {}).get("tensors_mib")
            peaks = float(row["peak_memory_mib"] or "nan"), tensors
            found.setdefault(row["technique"], []).append(peaks)
    medians = {}
    for technique, peaks in found.items():
        known = [[one for one in column if one] for column in zip(*peaks, strict=True)]
        medians[technique] = tuple(median(column) * 2**20 if column else None for column in known)
    return medians


def gib(size):
    return f"{size / GIB:.2f}"


def table(found, peaks, budget):
    """found: Forecasts. peaks: measured ones, of `measured`. budget: usable bytes."""
    kinds = next((list(one.kinds) for one in found if one.kinds), [])
    lines = []
    for one in found:
        if one.reason:
            continue
        line = [one.technique, *(gib(size) for size in one.kinds.values()), gib(one.peak)]
        dominant = max(one.kinds, key=one.kinds.get)
        line += [one.phase, f"{dominant} {one.kinds[dominant] / one.peak:.0%}"]
        line += ["yes" if one.peak <= budget else "no"]
        line += [one.largest_batch, gib(one.next_bytes)]
        peak, tensors = peaks.get(one.technique, (None, None))
        if peak:
            line += [gib(peak), f"{one.peak / peak - 1:+.1%}"]
        if tensors:
            line += [gib(tensors), f"{one.tensors / tensors - 1:+.1%}"]
        lines.append(line)
    headers = ["technique", *kinds, "peak", "falls in the", "mostly"]
    headers += ["fits", "largest batch", "the next needs", "measured", "error"]
    headers += ["of tensors", "error"]
    text = [tabulate(lines, headers, tablefmt="github", disable_numparse=True)] if lines else []
    text += [f"{one.technique}: {one.reason}" for one in found if one.reason]
    return "\n".join(text)


def advice(found, args, budget):
    """At most five lines, of figures of the table: what holds the first technique back, and which
    of the others takes less of it."""
    known = [one for one in found if not one.reason]
    if not known:
        return []
    own, others = known[0], known[1:]
    shape = f"{args.batch_size}x{args.seq_len}"
    if own.peak <= budget:
        lines = [f"{own.technique} fits at {shape}: {gib(budget - own.peak)} GiB are left"]
    else:
        lines = [f"{own.technique} does not fit at {shape}: {gib(own.peak - budget)} GiB too much"]
    lines[0] += f"; its largest batch is {own.largest_batch}"
    for kind in sorted(own.kinds, key=own.kinds.get, reverse=True):
        share = own.kinds[kind] / own.peak
        if share < WORTH:
            continue
        line = f"{kind}: {share:.0%} of that peak, {gib(own.kinds[kind])} GiB"
        lower = [one for one in others if one.peak < own.peak and one.kinds[kind] < own.kinds[kind]]
        if lower:
            least = sorted(lower, key=lambda one: one.kinds[kind])[:3]
            with_less = (f"{one.technique} ({gib(one.kinds[kind])})" for one in least)
            lines.append(f"{line}; less with {', '.join(with_less)}")
        elif not others:
            lines.append(f"{line}; T=all and T=everything show which technique takes less")
    batches = {one.technique: one.largest_batch for one in known}
    most = max(batches, key=batches.get)
    if batches[most] > batches[own.technique]:
        lines.append(f"{most} takes the largest batch of these: {batches[most]}")
    return lines[:ADVICE]


def device_of(wanted, memory):
    """The device to forecast for, as `hardware` knows it, without this process asking a GPU for
    anything: it could then fork no more. memory: bytes, or None for what the device has.

    Raises UserError where there is no such device here, and its memory is not given.
    """
    facts = apart(_facts, [(wanted,)])[0]
    if isinstance(facts, str):
        if not wanted.startswith("cuda") or memory is None:
            hint = "; MEMORY=80GiB imagines one" if wanted.startswith("cuda") else ""
            raise UserError(facts + hint)
        facts = "an imagined GPU", memory, (9, 0), ""
    if facts:
        return ImaginedGPU(facts[0], memory or facts[1], *facts[2:])
    return devices.choose(wanted)


def _facts(wanted):
    """Of a GPU of that name: its name, memory, capability and architecture; None for another
    device; what is wrong with the name where there is none."""
    try:
        device = devices.choose(wanted)
    except UserError as error:
        return str(error)
    if isinstance(device, CUDA):
        return device.name, device.memory_bytes, device.capability, device.architecture
