"""The checks: commands on the virtual GPU, and tests of their outcomes.

A check returns a Line of the table. It has no problems if all is well.
"""

import json
import re
from pathlib import Path

from tools.virtual_gpu.peaks import EXPECTED, Line
from tools.virtual_gpu.processes import KEPT, Command
from Utils.base.command_line import as_flags
from Utils.base.paths import ROOT
from Utils.scripts import ladder

LADDER = list(ladder.repository().group("ladder").scripts)
OTHER_CARDS = ("a100", "l4", "3050", "t4", "5090", "b200")
STEPS, WARMUP = 14, 5
# To save time, do not try twenty kernels for each product; the check of max_autotune does.
ATEN = {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN"}
TINY = ("gpt2-tiny", 4, 128)
FULL = ("gpt2", 16, 1024)
# With empty caches its peak would include the memory of trials, which no forecast has.
TRIES = "max_autotune"


def check(machine, command, name, problems_of):
    """Return the Line of a command, with the problems that `problems_of` yields for its Outcome.

    The last problem is followed by the end of the output.
    """
    outcome = machine.run(command)
    problems = list(problems_of(outcome))
    if problems:
        last_line = outcome.output.strip().rpartition("\n")[2]
        problems[-1] += f": {last_line[:200] or 'no output'}"
    return Line(name, problems, seconds=outcome.seconds)


def _flags(shape, steps=STEPS, **more):
    """Return the flags of a run. shape: (model, batch size, tokens a sequence)."""
    model, batch_size, seq_len = shape
    values = {"device": "cuda", "model": model, "batch_size": batch_size, "seq_len": seq_len}
    values |= {"steps": steps, "warmup": WARMUP, "min_seconds": 0}
    return as_flags(values | more)


def run_name(name, shape, profile):
    """Return the name of a technique's Line."""
    return f"{name}, {profile}, {shape[0]} {shape[1]}x{shape[2]}"


def script(name, shape, profile="h100", steps=STEPS, **variables):
    """Return the Command of a technique at a shape."""
    command = ladder.get(name).command
    if len(command) == 1:
        command = [str(Path(command[0]).relative_to(ROOT))]
    return Command((*command, *_flags(shape, steps)), profile, variables)


# The doctor, and each technique -------------------------------------------------------------------


def doctor(machine, profile):
    """Return (Line, status by technique) of `make doctor` on a card whose operators compute."""
    command = Command(("make", "doctor", "JSON=1", "DEVICE=cuda"), profile, emulated=True)
    report = {"techniques": []}

    def problems_of(outcome):
        text = re.search(r"^\{.*?^\}$", outcome.output, re.MULTILINE | re.DOTALL)
        if outcome.traceback or not text:
            yield "no JSON"
            return

        report.update(json.loads(text[0]))
        for finding in report["findings"]:
            if finding["topic"] in ("device", "driver", "gpu") and finding["state"] != "ok":
                yield f"{finding['topic']}: {finding['what']}"

    line = check(machine, command, f"doctor, {profile}", problems_of)
    return line, {row["technique"]: row["status"] for row in report["techniques"]}


def technique(machine, name, shape, profile, statuses):
    """Check a technique: its status and its steps.

    The status is the doctor's, and steps have the expected synchronizations. Caches are filled
    first if it tries kernels.
    """
    expected = "unsupported" if statuses.get(name) == "unsupported" else "ok"
    facts = {"technique": name, "profile": profile, "model": shape[0], "seq_len": shape[2]}

    def problems_of(outcome):
        row = outcome.row
        facts["status"] = row.get("status", "killed" if outcome.code < 0 else "no row")
        facts["peak_mib"] = row.get("peak_memory_mib", "")
        facts["reserved_mib"] = row.get("reserved_memory_mib", "")
        facts.update({key: row.get(key, "") for key in ("batch_size", "torch")})

        if outcome.traceback or facts["status"] != expected:
            yield f"{facts['status']}, the doctor says {statuses.get(name)}"
        elif expected == "ok":
            yield from _steps(name, shape[0], outcome, facts)

    if name == TRIES:
        machine.run(script(name, shape, profile, WARMUP + 1))
    line = check(machine, script(name, shape, profile), run_name(name, shape, profile), problems_of)
    line.facts = facts
    return line


def _steps(name, model, outcome, facts):
    """Add the counts of a step to `facts`, and yield a problem if they are not as expected."""
    if float(outcome.row["record"]["device"]["capability"]) < 8:  # no bfloat16
        name = ladder.FLOAT16.get(name, name)
    expected = EXPECTED["ladder"] | EXPECTED.get(name, {})
    synchronizations = expected["synchronizations"]
    if isinstance(synchronizations, dict):
        synchronizations = synchronizations[model]

    steps = outcome.per_step(WARMUP)
    facts["launches"], facts["synchronizations"], facts["pageable_copies"] = steps[-1]
    counts = {step[1:] for step in steps}
    if counts != {(synchronizations, expected["pageable_copies"])}:
        yield f"synchronizations and pageable copies of a step are {sorted(counts)}"


def switches(machine):
    """Check the switches on the baseline, run as a user's script.

    A switch allocates, launches and waits like the script of its name, if that has no flash
    attention. The baseline sets the precision that tensorFloat32 would; compiled, a switch still
    returns the logits in float32.
    """
    names = ("no_optimization", "brainFloat16")
    settings = ("STEPS=9", "WARMUP=3", "ROUNDS=1", "MIN_SECONDS=0")
    arguments = " ".join(_flags(TINY, 40, results_file=KEPT / "rows_of_its_own.csv"))
    suite = ("make", "all", "BASE=no_optimization.py", f"ARGS={arguments}", *settings)

    def problems_of(outcome):
        peaks = {re.split("[+/]", r["technique"])[-1]: r["peak_memory_mib"] for r in outcome.runs}
        steps = {outcome.per_step(-1, counts)[0] for counts in outcome.processes}
        for name in names:
            expected = machine.run(script(name, TINY))
            peak_mib = float(expected.row["peak_memory_mib"])
            step = expected.per_step(-1)[0]
            if abs(float(peaks.get(name) or 0) / peak_mib - 1) > 0.02:
                yield f"{name}: a peak of {peaks.get(name)} MiB, not {peak_mib}"
            if step not in steps:
                yield f"{name}: no step of {step} among {sorted(steps)}"

    return check(machine, Command(suite), "switches of an own script", problems_of)


# What may go wrong --------------------------------------------------------------------------------


def failures(machine):
    """Yield the Lines on failures of a user's machine."""
    # Too little memory
    yield _out_of_memory(machine, "h100", ("gpt2", 64, 1024), "try BATCH_SIZE=32")
    yield _out_of_memory(machine, "3050", ("gpt2", 4, 1024), "try BATCH_SIZE=1")

    # A busy or throttled GPU, and a poor NVML
    yield _graded(machine, "another process", "tainted", "(pid 1", VIRTUAL_GPU_OTHER="1")
    yield _graded(machine, "throttled", "tainted", "thermal", VIRTUAL_GPU_NVML="throttled")
    yield _graded(machine, "a desktop on the card", "clean", "", VIRTUAL_GPU_NVML="desktop")
    yield _graded(machine, "NVML that tells little", "clean", "", VIRTUAL_GPU_NVML="poor")
    yield _graded(machine, "NVML that is broken", "clean", "", VIRTUAL_GPU_NVML="broken")


def gpu_check(machine):
    """Check `make gpu-check`: the seven scripts, and the tests of a GPU that can pass here."""
    left_out = [name for names in EXPECTED["gpu_tests"].values() for name in names]
    options = " ".join(f"--deselect tests/test_gpu.py::{name}" for name in left_out)

    def problems_of(outcome):
        yield from re.findall(r"^(?:FAILED|ERROR|SKIPPED) .*", outcome.output, re.MULTILINE)
        if outcome.code or "GPU tests passed, scripts passed" not in outcome.output:
            yield f"exit code {outcome.code}"

    command = Command(("make", "gpu-check"), variables=ATEN | {"PYTEST_ADDOPTS": options})
    return check(machine, command, "make gpu-check", problems_of)


def _out_of_memory(machine, profile, shape, advice):
    def problems_of(outcome):
        end = outcome.row.get("status"), outcome.code, advice in outcome.row.get("note", "")
        if end != ("out_of_memory", 1, True) or outcome.traceback:
            yield f"{end}"

    command = script("no_optimization", shape, profile)
    return check(machine, command, f"out of memory, {profile}", problems_of)


def _graded(machine, title, grade, reason, **variables):
    def problems_of(outcome):
        clocks = "during the run"  # in reasons that come from the host's load
        reasons = [text for text in outcome.quality.get("reasons", []) if clocks not in text]
        if outcome.code or (grade == "tainted") != bool(reasons) or reason not in " ".join(reasons):
            yield f"{outcome.quality.get('grade')}, {reasons}"

    command = script("no_optimization", TINY, steps=60, **variables)
    return check(machine, command, title, problems_of)
