"""Forecasts of techniques on devices that need not be here: settings, memory and time."""

import math
import tomllib
from dataclasses import dataclass

from Utils.base import command_line
from Utils.base.errors import Unsupported, UserError, naming
from Utils.base.units import GIB
from Utils.device import auto_shape, datasheets
from Utils.device.cuda import ImaginedGPU
from Utils.forecast import step_time
from Utils.forecast.forecast_device import datasheet_of, device_of
from Utils.forecast.peak_memory import MemoryForecast, memory_forecasts
from Utils.forecast.time_range import TimeForecast, time_forecast
from Utils.harness import batch_units
from Utils.harness.settings import Settings, check_need, parse_args
from Utils.harness.step_work import precision_of
from Utils.scripts import bases, ladder

ANY_MEMORY = 2**40  # bytes


@dataclass(frozen=True)
class StepForecast:
    """A technique's step on a device. device: name or key. label: of the technique. tokens: of a
    step. reason: why it does not run there."""

    device: str
    technique: str
    label: str
    tokens: int
    memory: MemoryForecast
    time: TimeForecast | None
    reason: str

    def hours(self, tokens):
        """Return the hours of training on so many tokens, and the ends of their range."""
        steps = tokens / self.tokens
        ends = self.time.seconds, self.time.low, self.time.high
        return [steps * seconds / 3600 for seconds in ends]


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


def on_base(base, techniques, values, device):
    """Return the scripts of a base's ladder, and their Settings with its model, batch and unit.

    Raises UserError where a batch of its own is not known.
    """
    owned = bases.owns(base.source)
    outline = None
    if bases.OWN_DATA in owned:
        outline = batch_units.remembered(base.name, bases.digest(base.source))
        if outline is None:
            problem = f"{base.name} has not run yet, and its batches are its own"
            raise UserError(problem, f"make adopt SCRIPT={base.path}")
        values = values | {"batch_size": outline["batch_size"], "dataset": "synthetic"}
    args = settings(values, device)
    args.base, args.unit = base.name, base.unit
    if bases.OWN_MODEL in owned:
        args.model = base.name
    if outline:
        args.seq_len = outline["seq_len"]
    return bases.ladder_of(base, techniques), args


def on_this_device(techniques, args, entry, budget):
    """Return the StepForecasts of techniques on the device of args. entry: its Datasheet or None.
    budget: usable bytes."""
    labels = bases.labels([technique.name for technique in techniques])
    memories = memory_forecasts(techniques, args, budget)
    tasks = zip(labels, techniques, memories, strict=True)
    return [
        _step_forecast(args.hardware.name, label, technique, memory, args, entry)
        for label, technique, memory in tasks
    ]


def _step_forecast(device, label, technique, memory, args, entry, reason=""):
    reason = memory.reason or reason
    time = None
    if entry and not reason:
        time = time_forecast(memory.kernels, entry, precision_of(technique.needs))
    return StepForecast(
        device, technique.name, label, args.batch_size * args.seq_len, memory, time, reason
    )


def on_every_device(names, values):
    """Yield the settings of each technique with its StepForecasts on all devices of the table.

    values: settings; their batch is 8x1024 where it is "auto".
    """
    usual = {"batch_size": 8, "seq_len": 1024}
    values = values | {name: n for name, n in usual.items() if values[name] == "auto"}
    device = ImaginedGPU("an imagined GPU", ANY_MEMORY)
    args = settings(values | {"device": "cuda"}, device)
    techniques = techniques_of(names)
    memories = memory_forecasts(techniques, args, ANY_MEMORY)
    for technique, memory in zip(techniques, memories, strict=True):
        forecasts = []
        for key, entry in datasheets.datasheets().items():
            reason = _obstacle(technique, memory, args, entry)
            label = technique.name
            forecasts.append(_step_forecast(key, label, technique, memory, args, entry, reason))
        yield args, forecasts


def _obstacle(technique, memory, args, entry):
    """Return why a technique does not run on a device of the table, or ""."""
    budget = auto_shape.usable_bytes(entry.memory_bytes)
    too_large = f"needs {memory.peak / GIB:.1f} of {budget / GIB:.1f} GiB"
    return unsupported(technique, entry, args) or (too_large if memory.peak > budget else "")


def unsupported(technique, entry, args):
    """Return which needs of a technique a device of the table lacks, or ""."""
    args = Settings(**vars(args) | {"hardware": device_of(entry.key)})
    reasons = []
    for need in technique.needs:
        try:
            check_need(need, args)
        except Unsupported as reason:
            reasons.append(str(reason))
    return "; ".join(reasons)


def milliseconds_by_kind(technique, args):
    """Return the forecast milliseconds of a step by kind of work, or {} where there is none.

    args: settings of a command. It forks, so no device may be in use.
    """
    device = device_of(args.device)
    args = settings({name: getattr(args, name) for name in command_line.defaults()}, device)
    entry = datasheet_of(device)
    if entry is None:
        return {}
    kernels = memory_forecasts([technique], args, device.memory_bytes)[0].kernels
    return step_time.by_kind(kernels, entry) if kernels else {}


def prices(path):
    """Return dollars an hour by device, from a TOML file of `key = price`. Raises UserError."""
    with naming(path), open(path, "rb") as file:
        try:
            table = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path}: {error}", "write lines such as a100 = 1.79") from None
    for key, price in table.items():
        try:
            datasheets.find(key)
        except UserError as error:
            raise UserError(f"{path}: {error.message}", error.remedy) from None
        if type(price) not in (int, float) or not 0 <= price < math.inf:
            raise UserError(f"{path}: {key} = {price!r} is not a price in dollars an hour")
    return {datasheets.find(key).key: float(price) for key, price in table.items()}
