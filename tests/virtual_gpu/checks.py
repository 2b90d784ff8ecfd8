"""The checks: each a command or a few on the virtual GPU, and what must hold of the outcome.

A check gives a Line of the table; its problems are empty where all is well.
"""

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from tests.virtual_gpu.processes import Command
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.paths import ROOT
from Utils.base.units import MIB
from Utils.scripts import ladder

EXPECTED = tomllib.loads((Path(__file__).parent / "expected.toml").read_text())
LADDER = [t.name for t in ladder.techniques().values() if t.at_top_level]
OTHER_CARDS = ("a100", "l4", "3050", "t4", "5090", "b200")
STEPS, WARMUP = 14, 5
TINY = ("gpt2-tiny", 4, 128)
FULL = ("gpt2", 16, 1024)
SMALLER = {"3050": ("gpt2", 4, 256), "l4": ("gpt2-medium", 8, 1024)}  # cards, for peaks alone
COUNTERS = ("power_violation_s", "thermal_violation_s", "sw_thermal_slowdown_s")
COUNTERS += ("hw_thermal_slowdown_s", "hw_power_brake_slowdown_s")
FORECAST_ERROR = 0.05  # of the allocator's peak
# Its own kernels are compiled anew each time, and twenty choices for each product would be too:
# those are left to max_autotune.
QUICK = {"all_together": (("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "ATEN"),)}
# With empty caches the memory of its trials would be part of its peak, which no forecast has.
TRIES = ("max_autotune",)
# Bytes per parameter that the first step sent. NCCL's watchdog looks every 0.1 s and frees them
# before or after the peak, by chance; a forecast has them in it.
SENT = {"distributed_data_parallel": 4, "zero_redundancy": 4, "no_sync": 4}
SENT["gradient_compression"] = 2
OTHER_KERNELS = 0.02  # of the device's time that `make profile` may leave unnamed


@dataclass
class Line:
    """A line of the table. facts: what docs/virtual_gpu.csv has of it, where it is a run."""

    name: str
    problems: list = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    seconds: float = 0.0


def script(name, shape, profile="h100", *more, steps=STEPS, **settings):
    """The Command of a technique at a shape: (model, batch size, tokens a sequence)."""
    model, batch_size, seq_len = shape
    command = ladder.get(name).command
    command = (str(Path(command[0]).relative_to(ROOT)),) if len(command) == 1 else tuple(command)
    flags = ("--device", "cuda", "--model", model, "--batch-size", str(batch_size))
    flags += ("--seq-len", str(seq_len), "--steps", str(steps), "--warmup", str(WARMUP))
    flags += ("--min-seconds", "0")  # else a GPU's run has steps enough for ten seconds
    return Command((*command, *flags, *more), profile, **settings)


def suite(techniques, shape, rounds, min_seconds, profile, variables):
    """The Command of some rounds of some techniques."""
    model, batch_size, seq_len = shape
    flags = ("--device", "cuda", "--model", model, "--batch-size", str(batch_size))
    flags += ("--seq-len", str(seq_len), "--steps", str(STEPS), "--warmup", str(WARMUP))
    flags += ("--rounds", str(rounds), "--min-seconds", str(min_seconds))
    command = ("-m", "Utils.commands", "suite", *techniques, *flags)
    return Command(command, profile, tuple(variables.items()))


# What the doctor says, and each technique ---------------------------------------------------------


def doctor(machine, profile):
    """(Line, status by technique) of `make doctor` on a card, whose operators compute."""
    command = Command(("make", "doctor", "JSON=1", "DEVICE=cuda"), profile, emulated=True)
    outcome = machine.run(command)
    line = Line(f"doctor, {profile}", seconds=outcome.seconds)
    told = re.search(r"^\{.*?^\}$", outcome.output, re.MULTILINE | re.DOTALL)
    if outcome.traceback or not told:
        machine.forget(command)
        line.problems.append(f"no JSON: {_last(outcome)}")
        return line, {}
    told = json.loads(told[0])
    line.problems += _missing_names(outcome)
    for one in told["findings"]:
        if one["topic"] in ("device", "driver", "gpu") and one["state"] != "ok":
            line.problems.append(f"{one['topic']}: {one['what']}")
    return line, {one["technique"]: one["status"] for one in told["techniques"]}


def technique(machine, name, shape, profile, told):
    """A technique's status, as the doctor `told`; its steps' synchronizations; its kernels' types;
    and what NVML gave to its record."""
    command, outcome = _run(machine, name, shape, profile)
    line, status = _line(name, shape, profile, outcome)
    runs = told.get(name) != "unsupported"
    if outcome.traceback or status != ("ok" if runs else "unsupported"):
        machine.forget(command)
        line.problems.append(f"{status}, the doctor says {told.get(name)}: {_last(outcome)}")
    if status == "ok" and not line.problems:
        line.problems += _steps(name, shape[0], outcome, line.facts) + _missing_names(outcome)
        if profile == "h100":
            line.problems += _quality(outcome) + _signatures(name, outcome)
    return line


def peak(machine, name, profile):
    """A technique's peak at the shape of a smaller card, of too little memory for some."""
    shape = SMALLER[profile]
    command, outcome = _run(machine, name, shape, profile)
    line, status = _line(name, shape, profile, outcome)
    if outcome.traceback or status not in ("ok", "unsupported", "out_of_memory"):
        machine.forget(command)
        line.problems.append(f"{status}: {_last(outcome)}")
    return line


def _run(machine, name, shape, profile):
    """(Command, Outcome) of a technique, whose caches are full where it tries kernels."""
    variables = QUICK.get(name, ())
    if name in TRIES:
        machine.run(script(name, shape, profile, steps=WARMUP + 1, variables=variables))
    command = script(name, shape, profile, variables=variables)
    return command, machine.run(command)


def _line(name, shape, profile, outcome):
    """(Line, status) of a technique's run."""
    line = Line(f"{name}, {profile}, {shape[0]} {shape[1]}x{shape[2]}", seconds=outcome.seconds)
    row = outcome.row
    status = row.get("status", "killed" if outcome.code < 0 else "no row")
    line.facts = {
        "technique": name,
        "profile": profile,
        "model": shape[0],
        "batch_size": row.get("batch_size", ""),
        "seq_len": shape[2],
        "torch": row.get("torch", ""),
        "status": status,
        "peak_mib": row.get("peak_memory_mib", ""),
        "reserved_mib": row.get("reserved_memory_mib", ""),
    }
    return line, status


def _steps(name, model, outcome, facts):
    expected = EXPECTED["ladder"] | EXPECTED.get(name, {})
    synchronizations, copies = expected["synchronizations"], expected["pageable_copies"]
    if isinstance(synchronizations, dict):
        synchronizations = synchronizations[model]
    steps = outcome.per_step(WARMUP)
    facts["launches"], facts["synchronizations"], facts["pageable_copies"] = steps[-1]
    wrong = {(s, c) for _, s, c in steps} - {(synchronizations, copies)}
    return [
        f"{s} synchronizations, {c} pageable copies a step, not {synchronizations} and {copies}"
        for s, c in sorted(wrong)
    ]


def _quality(outcome):
    quality = outcome.record.get("quality", {})
    problems = [
        f"quality.{name} is {quality.get(name)}, not {value}"
        for name, value in EXPECTED["quality"].items()
        if quality.get(name) != value
    ]
    # Of some milliseconds on a busy machine, so that only a wrong unit shows.
    if not 35 < (quality.get("mean_power_w") or 0) < 3500:
        problems.append(f"quality.mean_power_w is {quality.get('mean_power_w')}, not about 350")
    # Of the context and the allocator; what ran after the last step may have freed or taken some.
    least, reserved = 500, float(outcome.row["reserved_memory_mib"])
    if not least < (quality.get("used_memory_mib") or 0) < 2 * (least + reserved):
        used = quality.get("used_memory_mib")
        problems.append(f"quality.used_memory_mib is {used}, of which torch reserved {reserved}")
    for name in COUNTERS:
        if quality.get(name) != 0:
            problems.append(f"quality.{name} is {quality.get(name)}, not 0")
    return problems


def _missing_names(outcome):
    return sorted(set(re.findall(r"^pynvml has no \w+", outcome.output, re.MULTILINE)))


def _signatures(name, outcome):
    expected = EXPECTED["signatures"].get(name, {})
    if outcome.signatures == expected:
        return []
    return [f"kernels of {outcome.signatures}, not of {expected}"]


def forecast(lines, batch_size, path):
    """Compares peaks at one shape with `make forecast`'s table, the file of its output.

    What ran out of memory has to be said not to fit.
    """
    line = Line("forecast against the allocator")
    rows = [part.strip() for part in path.read_text().splitlines() if part.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    peaks, fits = cells[0].index("peak"), cells[0].index("fits")
    known = {row[0]: (float(row[peaks]), row[fits]) for row in cells[2:] if len(row) > fits}
    for facts in (run.facts for run in lines):
        name = facts["technique"]
        asked = str(facts["batch_size"]) == str(batch_size)  # larger_batch takes another
        if name not in known or not asked:
            continue
        own, fits = known[name]
        facts["forecast_mib"] = round(own * 1024)
        if facts["status"] == "out_of_memory" and fits == "yes":
            line.problems.append(f"{name}: {own:.2f} GiB forecast, which do not fit")
        if facts["status"] == "ok":
            peak = float(facts["peak_mib"]) / 1024
            if forecast_error(facts) > FORECAST_ERROR:
                line.problems.append(f"{name}: {own:.2f} GiB forecast, {peak:.2f} allocated")
    return line


def forecast_error(facts):
    """The share of the allocator's peak by which a forecast differs. facts: of a Line."""
    own, peak = float(facts["forecast_mib"]), float(facts["peak_mib"])
    sent = SENT.get(facts["technique"], 0) * CONFIGS[facts["model"]].parameters() / MIB
    return min(abs(own / peak - 1), abs(own / (peak + sent) - 1))


def kernels(machine, name):
    """The names of a technique's kernels are known to `make profile`."""
    shape = ("MODEL=gpt2-tiny", "BATCH_SIZE=4", "SEQ_LEN=128", "STEPS=8")
    command = Command(("make", "profile", f"T={name}", "DEVICE=cuda", *shape))
    outcome = machine.run(command)
    line = Line(f"kernels of {name}", seconds=outcome.seconds)
    kinds = outcome.profile.get("kinds", {})
    busy = sum(kind["ms"] for word, kind in kinds.items() if word not in ("idle", "data"))
    if outcome.code or not busy:
        machine.forget(command)
        line.problems.append(f"no profile: {_last(outcome)}")
    elif kinds["other"]["ms"] > OTHER_KERNELS * busy:
        line.problems.append(f"{kinds['other']['ms'] / busy:.1%} of the kernels' time is unnamed")
    return line


# What goes wrong ---------------------------------------------------------------------------------


def failures(machine):
    """Lines on what a user's machine may do to a run."""
    yield _out_of_memory(machine, "h100", ("gpt2", 64, 1024), "try --batch-size 32")
    yield _out_of_memory(machine, "3050", ("gpt2", 4, 1024), "try --batch-size 2")
    yield _graded(machine, "another process", "tainted", "(pid 1", VIRTUAL_GPU_OTHER="1")
    yield _graded(machine, "throttled", "tainted", "thermal", VIRTUAL_GPU_NVML="throttled")
    yield _graded(machine, "a desktop on the card", "clean", "", VIRTUAL_GPU_NVML="desktop")
    yield _graded(machine, "NVML that tells little", "clean", "", VIRTUAL_GPU_NVML="poor")
    yield _graded(machine, "NVML that is broken", "clean", "", VIRTUAL_GPU_NVML="broken")
    three = ("no_optimization", "tensorFloat32", "brainFloat16")
    yield _turns(machine, 2, 0, three, TINY)
    yield _turns(machine, 1, 1, three[:2], TINY)
    yield _turns(machine, 1, 0, three[:2], TINY, VIRTUAL_GPU_NVML="container")
    yield _turns(machine, 1, 0, three[:2], ("gpt2", 1, 256), "3050", together=False)
    for name in ("distributed_data_parallel", "fully_sharded"):
        yield _ranks(machine, name)
    yield _lost_rank(machine)


def gpu_check(machine):
    """`make gpu-check`: the seven scripts, and of tests/test_gpu.py what can hold here."""
    left_out = [name for names in EXPECTED["gpu_tests"].values() for name in names]
    options = " ".join(f"--deselect tests/test_gpu.py::{name}" for name in left_out)
    variables = (("PYTEST_ADDOPTS", options), *QUICK["all_together"])
    command = Command(("make", "gpu-check"), variables=variables)
    outcome = machine.run(command)
    line = Line("make gpu-check", seconds=outcome.seconds)
    there = re.findall(r"^def (test_\w+)", (ROOT / "tests/test_gpu.py").read_text(), re.MULTILINE)
    line.problems += [f"tests/test_gpu.py has no {name}" for name in {*left_out} - {*there}]
    told = re.findall(r"^(?:FAILED|ERROR|SKIPPED) .*", outcome.output, re.MULTILINE)
    if outcome.code or told or "GPU tests passed, scripts passed" not in outcome.output:
        machine.forget(command)
        line.problems += told or [f"exit code {outcome.code}: {_last(outcome)}"]
    return line


def _turns(machine, rounds, min_seconds, names, shape, profile="h100", together=True, **variables):
    """Scripts that take turns as live processes, each of which NVML names to the others.

    together: whether the card's memory is large enough for two of them.
    """
    command = suite(names, shape, rounds, min_seconds, profile, variables)
    outcome = machine.run(command)
    words = ["turns", profile, f"{min_seconds} s", *variables.values()]
    line = Line(", ".join(words), seconds=outcome.seconds)
    told = sorted((run["technique"], run["status"]) for run in outcome.runs)
    wanted = sorted((name, "ok") for name in names for _ in range(rounds))
    if outcome.code or outcome.traceback or told != wanted:
        line.problems.append(f"exit code {outcome.code}, {told}: {_last(outcome)}")
    if ("take turns" in outcome.output) != together:
        line.problems.append(f"{'no' if together else 'the scripts take'} turns")
    for run in outcome.runs:
        reasons = [one for one in run["quality"].get("reasons", []) if "on the GPU" in one]
        line.problems += [f"{run['technique']} is tainted: {reason}" for reason in reasons]
    if not min_seconds:
        line.problems += _same_steps(outcome)
    if line.problems:
        machine.forget(command)
    return line


def _same_steps(outcome):
    steps = [run["rows"] for run in outcome.runs]
    problems = [] if {*steps} == {STEPS} else [f"steps: {steps}, not {STEPS} each"]
    expected = EXPECTED["ladder"]["synchronizations"], EXPECTED["ladder"]["pageable_copies"]
    for counts in outcome.processes:
        of_steps = {(s, c) for _, s, c in outcome.per_step(WARMUP, counts)}
        if of_steps != {expected}:
            problems.append(f"synchronizations and pageable copies a step: {sorted(of_steps)}")
    return problems


def _out_of_memory(machine, profile, shape, advice):
    outcome = machine.run(script("no_optimization", shape, profile))
    line = Line(f"out of memory, {profile}", seconds=outcome.seconds)
    told = outcome.row.get("status"), outcome.code, advice in outcome.row.get("note", "")
    if told != ("out_of_memory", 1, True) or outcome.traceback:
        line.problems.append(f"{told}: {_last(outcome)}")
    return line


def _graded(machine, what, grade, reason, **variables):
    command = script("no_optimization", TINY, steps=60, variables=tuple(variables.items()))
    outcome = machine.run(command)
    quality = outcome.record.get("quality", {})
    line = Line(what, seconds=outcome.seconds)
    reasons = [
        one for one in quality.get("reasons", []) if "during the run" not in one
    ]  # a clock's
    if outcome.code or (grade == "tainted") != bool(reasons) or reason not in " ".join(reasons):
        machine.forget(command)
        line.problems.append(f"{quality.get('grade')}, {reasons}: {_last(outcome)}")
    drawn = variables.get("VIRTUAL_GPU_NVML") == "desktop"
    if drawn != bool(quality.get("graphics_processes")):
        line.problems.append(f"graphics_processes: {quality.get('graphics_processes')}")
    return line


TWO = ("GPUS=2", "DEVICE=cuda", "MODEL=gpt2-tiny", "BATCH_SIZE=4", "SEQ_LEN=128")


def _ranks(machine, name):
    command = Command(
        ("make", "ddp", f"T={name}", *TWO, "STEPS=8", "MIN_SECONDS=0"),
        variables=(("VIRTUAL_GPU_DEVICES", "2"),),
    )
    outcome = machine.run(command)
    line = Line(f"{name} on two GPUs", seconds=outcome.seconds)
    told = outcome.row.get("status"), outcome.row.get("world_size"), outcome.rows
    if told != ("ok", "2", 8) or outcome.traceback:
        machine.forget(command)
        line.problems.append(f"{told}: {_last(outcome)}")
    return line


def _lost_rank(machine):
    command = Command(
        ("make", "ddp", "T=distributed_data_parallel", *TWO, "STEPS=1000000"),
        variables=(("VIRTUAL_GPU_DEVICES", "2"),),
        kills=1,
    )
    outcome = machine.run(command)
    line = Line("a rank killed", seconds=outcome.seconds)
    if not outcome.code or outcome.rows or "rank 1" not in outcome.output or outcome.traceback:
        machine.forget(command)
        line.problems.append(f"exit code {outcome.code}, {outcome.rows} rows: {_last(outcome)}")
    return line


def _last(outcome):
    lines = [line for line in outcome.output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
