"""All answers of doctor: of the host's probes, and of torch's in a subprocess."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

from Utils.base import paths
from Utils.doctor.findings import Finding, TechniqueStatus, ask
from Utils.doctor.host_probes import HOST_PROBES, REQUIREMENTS
from Utils.scripts import ladder

PATIENCE_S = 60  # a cold import of torch and its packages from a slow disk takes half of it
REINSTALL = f"{REQUIREMENTS}, with --force-reinstall; or omit PYTHON=, and .venv is created"
TORCH = Finding("torch", "cannot be imported", "asking", REINSTALL, ("run",))
UNASKED = "not checked"


def examine(args):
    """Return Findings, and the TechniqueStatus of each technique."""
    answers = [answer for probe in HOST_PROBES for answer in ask(probe, args)]
    answers += ask_torch(args)
    findings = [answer for answer in answers if isinstance(answer, Finding)]
    rows = {row.technique: row for row in answers if isinstance(row, TechniqueStatus)}
    with suppress(OSError):  # a probe has reported it
        for name in ladder.techniques():
            rows.setdefault(name, TechniqueStatus(name, "unsupported", UNASKED))
    faults = [finding for finding in findings if finding.state == "fault"]
    return findings, [overlay(row, faults) for row in rows.values()]


def overlay(row, faults):
    """Return a TechniqueStatus, unsupported where a fault takes away what it needs."""
    for fault in faults:
        supported = row.status != "unsupported" or row.reason == UNASKED
        if supported and {"run", *row.needs} & {*fault.blocks}:
            reason = f"{fault.topic}: {fault.what}"
            return replace(row, status="unsupported", reason=reason, remedy=fault.remedy)
    return row


def ask_torch(args):
    """Return the answers that `torch_side` prints.

    If its process has crashed or hangs, the Finding announced last becomes a fault.
    """
    settings = json.dumps(vars(args), default=str)
    output, problem = run_python("-m", "Utils.doctor.torch_side", settings)
    kinds = {kind.__name__: kind for kind in (Finding, TechniqueStatus)}
    answers = []
    announced = TORCH
    for line in output.splitlines():
        if not line.startswith('{"'):
            continue  # output of a library
        ((kind, fields),) = json.loads(line).items()
        answer = kinds[kind](**fields)
        if isinstance(answer, Finding) and answer.state == "asking":
            announced = answer
        else:
            answers.append(answer)
    if problem:
        crash = f"{announced.what}: {problem}"
        answers.append(replace(announced, state="fault", what=crash))
    return answers


def run_python(*arguments, seconds=PATIENCE_S):
    """Run Python in a subprocess. Return its output, and its problem in one line or ""."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=paths.environment(),
        start_new_session=True,  # so that it can be ended with all that it has started
        text=True,
        errors="replace",
    )
    try:
        output, log = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        return output, f"did not answer within {seconds} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode < 0:
        return output, f"killed by {signal.Signals(-process.returncode).name}"
    if process.returncode > 0:
        return output, log.strip().split("\n")[-1] or f"exit code {process.returncode}"
    return output, ""
