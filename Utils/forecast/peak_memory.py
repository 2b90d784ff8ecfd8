"""Forecast of a technique's peak memory."""

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

from Utils.base.errors import Unsupported, UserError
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.base.units import GIB, MIB
from Utils.device import datasheets, device_choice
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA, ImaginedGPU
from Utils.forecast.memory_recording import KINDS, PHASES, Recording
from Utils.forecast.recording_processes import in_processes, recordings
from Utils.harness.settings import Settings, batch_multiple, check_need
from Utils.results import rows_file

UNITS = {"": 1, "mb": 10**6, "mib": MIB, "gb": 10**9, "gib": GIB}


@dataclass
class Forecast:
    """A technique at one shape on one device.

    peak, kinds: bytes of all tensors at the peak, and of each kind.
    phase: of a step, the one with the peak.
    largest_batch: that fits; next_bytes: the peak at the next valid batch.
    reason: for a missing forecast.
    kernels: of a step, with the order in which they run.
    """

    technique: str
    peak: int = 0
    kinds: dict = field(default_factory=dict)
    phase: str = ""
    largest_batch: int = 0
    next_bytes: int = 0
    reason: str = ""
    kernels: tuple | None = None


def prime_batch(at_least, *sizes):
    """Return a prime batch that divides none of the other sizes of a tensor: then a tensor whose
    size it divides is proportional to the batch."""
    candidate = max(97, at_least)
    while any(candidate % n == 0 for n in range(2, math.isqrt(candidate) + 1)) or any(
        size % candidate == 0 for size in sizes
    ):
        candidate += 1
    return candidate


def forecasts(techniques, flags, device, args, budget):
    """Return a Forecast for each of the techniques. flags: of the scripts, without the batch size.
    args: Settings with shape and model. budget: bytes that a batch may need."""
    config = args.config
    sizes = config.n_layer, config.n_head, config.n_embd, args.seq_len, VOCABULARY
    batches = [prime_batch(args.batch_size, *sizes)]
    if args.batch_size == 1:  # one sequence may run other operations than several
        batches.append(1)
    tasks = [
        (t, [*flags, f"--batch-size={B * batch_multiple(t.needs)}"], device)
        for t in techniques
        for B in batches
    ]
    answers = iter(recordings(tasks))
    return [
        forecast(t.name, [next(answers) for _ in batches], args.batch_size, budget)
        for t in techniques
    ]


def forecast(name, recordings, batch, budget):
    """Return the Forecast of a technique at a batch size, from its recordings at a prime batch and
    optionally at this one. A recording may be a reason for none, or None."""
    for recording in recordings:
        if not isinstance(recording, Recording):
            return Forecast(name, reason=recording or "cannot be forecast: its process was killed")
    prime, exact = recordings[0], recordings[-1]
    try:
        check_need(f"batch multiple of {prime.multiple}", Settings(batch_size=batch))
    except Unsupported as error:
        return Forecast(name, reason=str(error))
    if exact.batch != batch:
        exact = exact.at(batch)
    top = int(exact.total.argmax())
    kinds = dict(zip(KINDS, map(int, exact.live[top]), strict=True))
    largest = prime.largest_batch(budget)
    following = int(prime.at(largest + prime.multiple).total.max())
    peaks = sum(kinds.values()), kinds, PHASES[exact.phase[top]]
    work = prime.work.at(batch // prime.multiple).kernels()
    return Forecast(name, *peaks, largest, following, kernels=work)


def size(text):
    """Return the bytes of "10GiB", "24 GB" or "8e9". Raises UserError."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in UNITS or not float(match[1]):
        remedy = "give it as 10GiB (2^30), 10GB (10^9) or 1e10, in bytes"
        raise UserError(f"--memory {text}: not a size", remedy)
    return int(float(match[1]) * UNITS[match[2]])


def measured(args):
    """Return the measured peak of tensors in bytes, by technique, at this model and shape on such a
    device: on a GPU the median of the runs. On a CPU a run's peak includes the process's libraries,
    so peaks come from the profiles.
    """
    shape = {name: getattr(args, name) for name in ("model", "batch_size", "seq_len")}
    if isinstance(args.hardware, CPU):
        return _profiled(args, shape)
    path = args.results_file
    rows = rows_file.check(path, writable=False) if path.exists() else []
    shape = {"status": "ok", "step": "0"} | {name: str(value) for name, value in shape.items()}
    rows = [row for row in rows if all(row[key] == value for key, value in shape.items())]
    records = rows_file.records(path, [row["run_id"] for row in rows])
    kinds = ("cuda", "rocm") if isinstance(args.hardware, CUDA) else (args.device.type,)
    peaks = {}
    for row in rows:
        kind = records.get(row["run_id"], {}).get("device", {}).get("type")
        if kind in kinds or row["device"] == args.hardware.name:
            peaks.setdefault(row["technique"], []).append(float(row["peak_memory_mib"] or "nan"))
    return {technique: median(values) * MIB for technique, values in peaks.items()}


def _profiled(args, shape):
    """Return the peaks of tensors in the summaries of `make profile`, by technique, in bytes."""
    peaks = {}
    for file in (args.results_file.parent / "profiles").glob("*.json"):
        with suppress(OSError, ValueError, AttributeError):  # not a summary
            summary = json.loads(file.read_text())
            same = summary.get("device") == args.hardware.name
            if same and all(summary.get(name) == value for name, value in shape.items()):
                peaks[summary["technique"]] = (summary.get("tensors_mib") or float("nan")) * MIB
    return peaks


def device_of(wanted, memory):
    """Return the device to forecast for: one of the table of datasheets, or as `devices` knows it.

    This process asks no GPU for anything: it could then fork no more. memory: bytes, or None for
    what the device has.

    Raises UserError where there is no such device here, and its memory is not given.
    """
    if datasheets.names_one(wanted):
        entry = datasheets.find(wanted)
        facts = entry.names[0], entry.memory_bytes, entry.capability, entry.architecture
    else:
        facts = in_processes(_facts, [(wanted,)])[0]
    if isinstance(facts, UserError):
        if not wanted.startswith("cuda"):
            raise facts
        if memory is None:
            raise UserError(facts.message, "MEMORY=80GiB imagines one")
        facts = "an imagined GPU", memory, (9, 0), ""
    if facts:
        return ImaginedGPU(facts[0], memory or facts[1], *facts[2:])
    return device_choice.choose(wanted)


def _facts(wanted):
    """Return name, memory, capability and architecture of a GPU, None for another device, or the
    UserError for a missing one."""
    try:
        device = device_choice.choose(wanted)
    except UserError as error:
        return error
    if isinstance(device, CUDA):
        return device.name, device.memory_bytes, device.capability, device.architecture
