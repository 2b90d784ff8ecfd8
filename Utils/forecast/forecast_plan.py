"""Forecasts of techniques on devices that need not be here: settings, memory and time."""

import math
import re
import tomllib
from dataclasses import dataclass, replace

from Utils.base import command_line
from Utils.base.errors import Unsupported, UserError, naming
from Utils.base.units import GIB, MIB
from Utils.device import capabilities, datasheets, device_choice, measured_ceilings
from Utils.device.cuda import CUDA, ImaginedGPU
from Utils.device.datasheets import Datasheet
from Utils.forecast import step_time
from Utils.forecast.peak_memory import (
    MemoryForecast,
    in_processes,
    memory_forecast,
    memory_forecasts,
    recordings,
)
from Utils.forecast.step_time import TimeForecast, time_forecast
from Utils.harness.settings import Settings, check_need, parse_args
from Utils.harness.step_work import precision_of
from Utils.scripts import ladder

ANY_MEMORY = 2**40  # bytes
NOT_FORECAST = "not forecast"  # the time of a kernel without a rule
UNITS = {"": 1, "mb": 10**6, "mib": MIB, "gb": 10**9, "gib": GIB}


@dataclass(frozen=True)
class StepForecast:
    """A technique's step on a device. device: name or key. tokens: of a step. reason: why it does
    not run there."""

    device: str
    technique: str
    tokens: int
    memory: MemoryForecast
    time: TimeForecast | None
    reason: str

    def hours(self, tokens):
        """Return the hours of training on so many tokens, and the ends of their range."""
        steps = tokens / self.tokens
        ends = self.time.seconds, self.time.low, self.time.high
        return [steps * seconds / 3600 for seconds in ends]


def memory_size(text):
    """Return the bytes of "10GiB", "24 GB" or "8e9". Raises UserError."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in UNITS or not float(match[1]):
        remedy = "give it as 10GiB (2^30), 10GB (10^9) or 1e10, in bytes"
        raise UserError(f"--memory {text}: not a size", remedy)
    return int(float(match[1]) * UNITS[match[2]])


def device_of(name, memory=None):
    """Return the device to forecast for: one of the table of datasheets, a GPU of so many bytes, or
    as `device_choice` knows it. Raises UserError where there is no such device here.

    This process asks no GPU for anything: it could then fork no more.
    """
    if not re.match("auto$|cpu$|mps$|cuda", name):  # it names a row of the table
        entry = datasheets.find(name)
        size = memory or entry.memory_bytes
        return ImaginedGPU(entry.names[0], size, entry.capability, entry.architecture)
    if memory and name.startswith("cuda"):
        return ImaginedGPU("an imagined GPU", memory)

    def facts_of_gpu():
        """Return the facts of a GPU, None for another device, the UserError for a missing one."""
        try:
            device = device_choice.choose(name)
        except UserError as error:
            return error
        if isinstance(device, CUDA):
            return device.name, device.memory_bytes, device.capability, device.architecture

    (facts,) = in_processes(facts_of_gpu, [()])
    if isinstance(facts, UserError):
        remedy = "MEMORY=80GiB imagines one" if "cuda" in name else facts.remedy
        raise UserError(facts.message, remedy)
    return ImaginedGPU(*facts) if facts else device_choice.choose(name)


def datasheet_of(device, ceilings):
    """Return the Datasheet that times are forecast from, None where nothing is known of a device.

    ceilings: measured here, which take the place of the table's; or None.
    """
    listed = datasheets.named(device.name)
    if not ceilings:
        return listed
    rates = ceilings["matmul_tflops"] | ceilings["emulated_tflops"]
    columns = {key: rates.get(key, 0.0) for key in ("float32", "tf32", "bfloat16", "float16")}
    columns |= {"bandwidth": ceilings["bandwidth_gb_s"], "process": datasheets.MEASURED}
    if listed:
        return replace(listed, **columns)
    columns |= {"tf32": 0.0, "memory": device.memory_bytes / datasheets.SOLD, "sms": 1, "l2": 1}
    columns |= {"watts": math.inf, "capability": (0, 0), "source": "make ceilings"}
    return Datasheet("here", (device.name,), **columns)


def settings(values, device):
    """Return the Settings of a script on a device. values: of a command's flags, by name."""
    flags = command_line.as_flags(values | {"rounds": 1, "round": 0})
    args = parse_args("", flags, "forecast", hardware=device)
    args.argv = [*flags, f"--seq-len={args.seq_len}"]
    return args


def techniques_of(names):
    """Return the techniques of these names and groups, each once."""
    groups = (ladder.group(name) or [ladder.get(name)] for name in names)
    return [*{technique.name: technique for group in groups for technique in group}.values()]


def on_this_device(techniques, args, entry, budget, fitting=False):
    """Return the StepForecasts of techniques on the device of args. entry: its Datasheet or None.
    budget: usable bytes. fitting: as for `memory_forecasts`."""
    memories = memory_forecasts(techniques, args, budget, fitting)
    pairs = zip(techniques, memories, strict=True)
    return [step_forecast(technique, memory, args, entry) for technique, memory in pairs]


def step_forecast(technique, memory, args, entry, reason="", device=None):
    """Return the StepForecast of a technique on the device of entry. device: its name."""
    reason = reason or memory.reason
    time = None
    if entry and not reason and not memory.kernels.foreign:
        time = time_forecast(memory.kernels, entry, precision_of(technique.needs))
    tokens = memory.batch * args.seq_len
    return StepForecast(device or args.hardware.name, technique.name, tokens, memory, time, reason)


def on_every_device(names, values, batches=()):
    """Yield the settings on each device of the table with lists of StepForecasts, one a technique.

    values: settings. batches: of each list, with the largest that fits and the usual one of the
    baseline; none stands for that of values, or 8 where it is "auto". Each script is recorded once.
    """
    usual = {"batch_size": 8, "seq_len": 1024}
    values = values | {name: n for name, n in usual.items() if values[name] == "auto"}
    recorded = {}  # by whether a device has bfloat16
    for capability in ((7, 5), (9, 0)):
        device = ImaginedGPU("an imagined GPU", ANY_MEMORY, capability)
        args = settings(values | {"device": "cuda"}, device)
        bfloat16 = capabilities.has("bfloat16", device)
        with ladder.on_device(bfloat16):
            techniques = techniques_of(names)
        groups = recordings(techniques, args, with_single=False)
        recorded[bfloat16] = args, techniques, groups
    for key, entry in datasheets.datasheets().items():
        device = device_of(key)
        args, techniques, groups = recorded[capabilities.has("bfloat16", device)]
        config = args.config
        shape = device, config, config.parameters(), None, args.seq_len
        chosen = {*batches, device_choice.auto_shape(*shape)[0]} if batches else {args.batch_size}
        budget = device_choice.usable_bytes(entry.memory_bytes)
        steps = []
        for technique, group in zip(techniques, groups, strict=True):
            reason = unsupported(technique, entry, args)
            largest = memory_forecast(group, min(chosen), budget, device).largest_batch
            forecasts = []
            for batch in sorted(chosen | ({largest} if batches and largest else set())):
                memory = memory_forecast(group, batch, budget, device)
                refusal = reason
                if not reason and memory.peak > budget:
                    refusal = f"needs {memory.peak / GIB:.1f} of {budget / GIB:.1f} GiB"
                forecasts.append(step_forecast(technique, memory, args, entry, refusal, key))
            steps.append(forecasts)
        yield args, steps


def unsupported(technique, entry, args):
    """Return which needs of a technique a device of the table lacks, or ""."""
    args = Settings(**vars(args) | {"hardware": device_of(entry.key)})
    reasons = []
    for need in technique.needs:
        try:
            check_need(need, args)
        except Unsupported as reason:
            reasons.append(str(reason))
    if technique.misfit and not reasons:
        return technique.misfit
    return "; ".join(reasons)


def milliseconds_by_kind(technique, args):
    """Return the forecast milliseconds of a step by kind of work, or {} where there is none.

    args: settings of a command. It forks, so no device may be in use.
    """
    device = device_of(args.device)
    args = settings({name: getattr(args, name) for name in command_line.OF_A_RUN}, device)
    entry = datasheet_of(device, measured_ceilings.ceilings(device))
    if entry is None:
        return {}
    kernels = memory_forecasts([technique], args, device.memory_bytes)[0].kernels
    return step_time.by_kind(kernels, entry) if kernels and not kernels.foreign else {}


def prices(path):
    """Return dollars an hour by device, from a TOML file of `key = price`, which may also say as_of
    and source. Raises UserError."""
    with naming(path), open(path, "rb") as file:
        try:
            table = tomllib.load(file)
            for remark in {"as_of", "source"} & table.keys():
                del table[remark]
            dollars = {datasheets.find(key).key: float(price) for key, price in table.items()}
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: {error}", "write lines such as a100 = 1.79") from None
    for key, price in dollars.items():
        if not 0 <= price < math.inf:
            raise UserError(f"{path}: {key} = {price} is not a price in dollars an hour")
    return dollars
