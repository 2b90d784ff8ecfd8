"""Forecast peak memory and step time, on a device that need not be here.

    python -m Utils.commands.forecast [TECHNIQUE ... | ladder | everything] [--device h100] [flags]

A step of the real script runs on fake tensors, which have no memory. Its allocations and operations
are recorded. A device of the table of datasheets is named by its key; `all` stands for each of
them. --against published prints how the forecast of time compares with published figures.
"""

import subprocess
import sys
from dataclasses import replace
from unittest.mock import patch

from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, UserError, one_line
from Utils.base.units import GIB
from Utils.device import datasheets
from Utils.forecast import forecast_table, outlook_text, published_check, time_range
from Utils.forecast.forecast_table import gib
from Utils.scripts import bases, ladder


def parsed(argv):
    """Return the flags of this command, a Namespace."""
    parser = command_line.Parser("forecast", __doc__)
    parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="else the ladder")
    command_line.add_settings(parser)
    help = "of the device: 24GiB, 24GB (10^9) or bytes; else what it has"
    parser.add_argument("--memory", default="", help=help)
    tokens = command_line.finite("a number of tokens, as in 1e10", zero=False, word="")
    parser.add_argument("--tokens", type=tokens, help="with --device all: number to train on")
    parser.add_argument("--prices", default="", help="a TOML file of dollars an hour by device")
    choices = ["", "published"]
    parser.add_argument("--against", default="", choices=choices, help="compare with them")
    command_line.add_extra(parser, "base")
    parser.add_argument("--write", action="store_true", help="with --against: make it anew")
    return parser.parse_args(argv)


def settings_in(args):
    """Return the settings of a run among the flags of a command, a dict."""
    return {name: getattr(args, name) for name in command_line.defaults()}


def chosen_of(names):
    """Return the techniques of these names and groups, each once."""
    groups = (ladder.group(name) or [ladder.get(name)] for name in names)
    return [*{technique.name: technique for group in groups for technique in group}.values()]


def settings(given, device):
    """Return the settings of a run on a device, and the flags of its scripts."""
    from Utils.harness.settings import parse_args  # here: seconds, which the check does without

    flags = command_line.as_flags(given | {"rounds": 1, "round": 0})
    with patch("Utils.device.device_choice.choose", lambda wanted, *ranks: device):
        args = parse_args("", flags, "forecast")
    return args, [*flags, f"--seq-len={args.seq_len}"]


def unsupported(technique, entry, args):
    """Return why a technique does not run on a device of the table, or ""."""
    from Utils.forecast.peak_memory import device_of  # here: seconds, which the check does without
    from Utils.harness.settings import Settings, check_need

    args, reasons = Settings(**vars(args) | {"hardware": device_of(entry.key, None)}), []
    for need in technique.needs:
        try:
            check_need(need, args)
        except Unsupported as reason:
            reasons.append(str(reason))
    return "; ".join(reasons)


def entry_of(device):
    """Return the Datasheet for times, or None: of the table, or of ceilings measured here."""
    from Utils.device import measured_ceilings  # here: seconds, which the check does without

    if found := measured_ceilings.ceilings(device):
        return time_range.measured_entry(device.name, found, device.memory_bytes)
    return datasheets.named(device.name)


def by_kind(technique, args):
    """Return the forecast milliseconds of a step by kind of work, or {} where there is none.

    args: settings of a command. It forks, so no device may be in use.
    """
    from Utils.forecast import peak_memory, step_time  # here: seconds, which the check does without

    device = peak_memory.device_of(args.device, None)
    settled, flags = settings(settings_in(args), device)
    if (entry := entry_of(device)) is None:
        return {}
    one = peak_memory.forecasts([technique], flags, device, settled, device.memory_bytes)[0]
    return {} if one.reason else step_time.by_kind(*one.kernels, entry)


def on_base(base, chosen, given):
    """Return the scripts of a base's ladder, the settings with its batch, its model in words, and
    the length of a batch of its own, else None.

    Raises UserError where a batch of its own is not known.
    """
    from Utils.harness import batch_units  # here: seconds, which the check does without

    scripts, owned, length = bases.ladder_of(base, chosen), bases.owns(base.source), None
    words = base.name if bases.OWN_MODEL in owned else given["model"]
    if bases.OWN_DATA in owned:
        known = batch_units.remembered(base.name, bases.digest(base.source))
        if known is None:
            problem = f"{base.name} has not run yet, and its batches are its own"
            raise UserError(problem, f"make adopt SCRIPT={base.path}")
        given = given | {"batch_size": known["batch_size"], "dataset": "synthetic"}
        length = known["seq_len"]
    return scripts, given, words, length


def one_device(names, given, memory, base=None):
    from Utils.device import auto_shape  # here: seconds, which the check does without
    from Utils.device.cpu import CPU
    from Utils.forecast import peak_memory
    from Utils.harness.step_work import precision_of

    chosen = chosen_of(names or ["ladder"])
    memory = peak_memory.size(memory) if memory else None
    device = peak_memory.device_of(given["device"], memory)
    model, length = given["model"], None
    if base:
        chosen, given, model, length = on_base(base, chosen, given)
    args, flags = settings(given, device)
    args.model, args.seq_len = model, length or args.seq_len
    unit = base.unit if base else "tokens"
    shape = f"{args.batch_size}x{args.seq_len}".removesuffix("x1" if length == 1 else "")
    memory = memory or device.memory_bytes
    budget = auto_shape.usable_bytes(memory)
    usable = f"GiB (2^30 bytes), {gib(budget)} usable of {gib(memory)}"
    print(f"Estimates for {device.name}: {args.model}, {shape} {unit} a step, {usable}")
    if isinstance(device, CPU):
        print("Memory of tensors; the process adds its libraries and what malloc keeps.")
    print()
    found = peak_memory.forecasts(chosen, flags, device, args, budget)
    names = [technique.name for technique in chosen]
    labels = dict(zip(names, bases.labels(names), strict=True))
    found = [replace(one, technique=labels[one.technique]) for one in found]
    peaks = {labels.get(name, name): peak for name, peak in peak_memory.measured(args).items()}
    print(forecast_table.table(found, peaks, budget))
    print(*["", *forecast_table.advice(found, args, budget)], sep="\n")
    if (entry := entry_of(device)) is None:
        known = ", ".join(datasheets.datasheets())
        print(f"\nNo forecast of time without a datasheet or make ceilings; DEVICE= knows {known}")
        return
    looked = [
        time_range.outlook(one.technique, *one.kernels, entry, precision_of(technique.needs))
        for technique, one in zip(chosen, found, strict=True)
        if not one.reason
    ]
    if not looked:
        return
    tokens = args.batch_size * args.seq_len
    measured = {labels.get(name, name): s for name, s in time_range.measured(args).items()}
    origin = "ceilings measured here" if entry.process == datasheets.MEASURED else entry.source
    print(f"\nForecast of time, from {origin}:\n")
    memory = {one.technique: one for one in found}
    root = base.name if base else outlook_text.BASELINE
    print(outlook_text.table(looked, memory, measured, tokens, root, unit))
    if max(one.factor for one in looked) > 1:
        print("\nRanges are wider where no published figure is of that chip at that precision.")


def all_devices(names, given, tokens, prices):
    names = ["fused_optimizer"] if names in ([], ["ladder"]) else names
    for technique, one, args in of_any_memory(names, given):
        print(f"Forecast of {technique.name}: {args.model}, {args.batch_size}x{args.seq_len}\n")
        if one.reason:
            print(one.reason)
            continue
        lines = by_device(technique, one, args, tokens, prices)
        print(outlook_text.devices(lines, bool(prices)), end="\n\n")


def of_any_memory(names, given):
    """Yield techniques with their forecasts and settings on a GPU of any memory.

    given: settings; their batch is 8x1024 where it is "auto".
    """
    from Utils.device.cuda import ImaginedGPU  # here: seconds, which the check does without
    from Utils.forecast import peak_memory

    usual = {"batch_size": 8, "seq_len": 1024}
    given = given | {name: n for name, n in usual.items() if given[name] == "auto"}
    device = ImaginedGPU("an imagined GPU", 2**40)
    args, flags = settings(given | {"device": "cuda"}, device)
    chosen = chosen_of(names)
    found = peak_memory.forecasts(chosen, flags, device, args, 2**40)
    yield from ((*pair, args) for pair in zip(chosen, found, strict=True))


def by_device(technique, one, args, tokens, prices):
    """Yield the lines of `outlook_text.devices` for a technique and its forecast `one`."""
    from Utils.device import auto_shape  # here: seconds, which the check does without
    from Utils.harness.step_work import precision_of

    tokens_a_step = args.batch_size * args.seq_len
    for key, entry in datasheets.datasheets().items():
        budget = auto_shape.usable_bytes(entry.memory_bytes)
        reason = unsupported(technique, entry, args)
        if not reason and one.peak > budget:
            reason = f"needs {one.peak / GIB:.1f} of {budget / GIB:.1f} GiB"
        looked = hours = None
        if not reason:
            precision = precision_of(technique.needs)
            looked = time_range.outlook(one.technique, *one.kernels, entry, precision)
            ends = looked.seconds, looked.low, looked.high
            hours = tokens and [tokens / tokens_a_step * seconds / 3600 for seconds in ends]
        yield key, reason, looked, tokens_a_step, hours, prices.get(key)


def against_published(write):
    """Print the check against published figures. write: make it and the constants anew."""
    if write:
        command = [sys.executable, "-m", "tests.calibration"]
        if subprocess.run(command, cwd=paths.ROOT).returncode:
            raise UserError("the calibration failed", "see its error above")
    print("Forecast, each source left out of the fit, beside what was published:\n")
    print(published_check.report())


def main(argv=None):
    args = parsed(argv)
    given, base = settings_in(args), bases.asked(args.base)
    if args.against:
        return against_published(args.write)
    prices = time_range.prices(args.prices) if args.prices else {}
    if base and args.device == "all":
        raise UserError("BASE and DEVICE=all do not go together", "name one device")
    if args.device == "all":
        return all_devices(args.names, given, args.tokens, prices)
    if datasheets.names_one(args.device):
        datasheets.find(args.device)  # before what takes seconds
    if args.tokens or prices:
        raise UserError("--tokens and --prices need --device all")
    return one_device(args.names, given, args.memory, base)


if __name__ == "__main__":
    with one_line("forecast"):
        main()
