"""The checks: commands on the virtual GPU, and tests of their outcomes.

A check returns a Line of the table. It has no problems if all is well.
"""

import json
import re
from pathlib import Path

from tools.virtual_gpu.peaks import EXPECTED, Line
from tools.virtual_gpu.processes import run
from Utils.base.command_line import as_flags
from Utils.base.paths import ROOT
from Utils.scripts import ladder

LADDER = list(ladder.repository().group("ladder").scripts)
OTHER_CARDS = ("a100", "l4", "3050", "t4", "5090", "b200")
STEPS, WARMUP = 14, 5
TINY = ("gpt2-tiny", 4, 128)
FULL = ("gpt2", 16, 1024)
# Cards, batches that do not fit, and the advice then
TOO_LARGE = (("h100", 64, "try BATCH_SIZE=32"), ("3050", 4, "try BATCH_SIZE=1"))
# With empty caches its peak would include the memory of trials, which no forecast has.
TRIES = "max_autotune"


def line_of(outcome, problems):
    """Return the Line of a command. Its last problem is followed by the end of the output."""
    if problems:
        last_line = outcome.output.strip().rpartition("\n")[2]
        problems[-1] += f": {last_line[:200] or 'no output'}"
    return Line(problems, outcome.seconds)


def script(name, shape, steps=STEPS):
    """Return the arguments of a technique. shape: (model, batch size, tokens a sequence)."""
    model, batch_size, seq_len = shape
    values = {"device": "cuda", "model": model, "batch_size": batch_size, "seq_len": seq_len}
    values |= {"steps": steps, "warmup": WARMUP, "min_seconds": 0}

    command = ladder.get(name).command
    if len(command) == 1:
        command = [str(Path(command[0]).relative_to(ROOT))]
    return [*command, *as_flags(values)]


# The doctor, and each technique -------------------------------------------------------------------


def doctor(python, profile):
    """Return (Line, status by technique) of `make doctor` on a card whose operators compute."""
    outcome = run(python, ["make", "doctor", "JSON=1", "DEVICE=cuda"], profile, emulated=True)
    text = re.search(r"^\{.*?^\}$", outcome.output, re.MULTILINE | re.DOTALL)
    report = {"findings": [], "techniques": []}
    problems = []
    if outcome.traceback or not text:
        problems.append("no JSON")
    else:
        report = json.loads(text[0])

    for finding in report["findings"]:
        if finding["topic"] in ("device", "driver", "gpu") and finding["state"] != "ok":
            problems.append(f"{finding['topic']}: {finding['what']}")
    line = line_of(outcome, problems)
    return line, {row["technique"]: row["status"] for row in report["techniques"]}


def technique(python, name, shape, profile, statuses):
    """Check a technique: its status and its steps.

    The status is the doctor's, and steps have the expected synchronizations. Caches are filled
    first if it tries kernels.
    """
    if name == TRIES:
        run(python, script(name, shape, WARMUP + 1), profile)
    outcome = run(python, script(name, shape), profile)
    row = outcome.row
    facts = {
        "technique": name,
        "profile": profile,
        "model": shape[0],
        "seq_len": shape[2],
        "status": row.get("status", "killed" if outcome.code < 0 else "no row"),
        "peak_mib": row.get("peak_memory_mib", ""),
        "reserved_mib": row.get("reserved_memory_mib", ""),
        "batch_size": row.get("batch_size", ""),
        "torch": row.get("torch", ""),
    }

    problems = []
    expected = "unsupported" if statuses.get(name) == "unsupported" else "ok"
    if outcome.traceback or facts["status"] != expected:
        problems.append(f"{facts['status']}, the doctor says {statuses.get(name)}")
    elif expected == "ok":
        # Synchronizations and pageable copies; a T4 has no bfloat16
        rung = ladder.FLOAT16.get(name, name) if profile == "t4" else name
        expected = EXPECTED["ladder"] | EXPECTED.get(rung, {})
        synchronizations = expected["synchronizations"]
        if isinstance(synchronizations, dict):
            synchronizations = synchronizations[shape[0]]

        steps = outcome.steps[WARMUP:]
        facts["launches"], facts["synchronizations"], facts["pageable_copies"] = steps[-1]
        counts = {step[1:] for step in steps}
        if counts != {(synchronizations, expected["pageable_copies"])}:
            problem = f"synchronizations and pageable copies of a step are {sorted(counts)}"
            problems.append(problem)

    line = line_of(outcome, problems)
    line.facts = facts
    return line


# make gpu-check, and what may go wrong -----------------------------------------------------------


def gpu_check(python):
    """Check `make gpu-check`: the seven scripts, and the tests of a GPU that can pass here."""
    left_out = [name for names in EXPECTED["gpu_tests"].values() for name in names]
    outcome = run(
        python,
        ["make", "gpu-check"],
        PYTEST_ADDOPTS=" ".join(f"--deselect tests/test_gpu.py::{name}" for name in left_out),
        # To save time, do not try twenty kernels for each product; the check of max_autotune does.
        TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS="ATEN",
    )
    problems = re.findall(r"^(?:FAILED|ERROR|SKIPPED) .*", outcome.output, re.MULTILINE)
    if outcome.code or "GPU tests passed, scripts passed" not in outcome.output:
        problems.append(f"exit code {outcome.code}")
    return line_of(outcome, problems)


def out_of_memory(python, profile, batch_size, advice):
    """Check that the baseline ends with advice on a card with too little memory for a batch."""
    outcome = run(python, script("no_optimization", ("gpt2", batch_size, 1024)), profile)
    end = outcome.row.get("status"), outcome.code, advice in outcome.row.get("note", "")
    is_right = end == ("out_of_memory", 1, True) and not outcome.traceback
    problems = [] if is_right else [f"{end}"]
    return line_of(outcome, problems)
