"""The checks: commands on the virtual GPU, and tests of their outcomes.

A check returns a Line of the table. It has no problems if all is well.
"""

import json
import re
from pathlib import Path

from tools.virtual_gpu.peaks import EXPECTED, Line
from tools.virtual_gpu.processes import Command
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
# Cards, batches that do not fit, and the advice then
TOO_LARGE = (("h100", 64, "try BATCH_SIZE=32"), ("3050", 4, "try BATCH_SIZE=1"))
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


def run_name(name, shape, profile):
    """Return the name of a technique's Line."""
    return f"{name}, {profile}, {shape[0]} {shape[1]}x{shape[2]}"


def script(name, shape, profile="h100", steps=STEPS):
    """Return the Command of a technique. shape: (model, batch size, tokens a sequence)."""
    model, batch_size, seq_len = shape
    values = {"device": "cuda", "model": model, "batch_size": batch_size, "seq_len": seq_len}
    values |= {"steps": steps, "warmup": WARMUP, "min_seconds": 0}

    command = ladder.get(name).command
    if len(command) == 1:
        command = [str(Path(command[0]).relative_to(ROOT))]
    return Command((*command, *as_flags(values)), profile)


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
    if facts["profile"] == "t4":  # it has no bfloat16
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


# make gpu-check, and what may go wrong -----------------------------------------------------------


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


def out_of_memory(machine, profile, batch_size, advice):
    """Check that the baseline ends with advice on a card with too little memory for a batch."""

    def problems_of(outcome):
        end = outcome.row.get("status"), outcome.code, advice in outcome.row.get("note", "")
        if end != ("out_of_memory", 1, True) or outcome.traceback:
            yield f"{end}"

    command = script("no_optimization", ("gpt2", batch_size, 1024), profile)
    return check(machine, command, f"out of memory, {profile}", problems_of)
