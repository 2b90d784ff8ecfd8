"""Doctor's questions to torch, answered in a subprocess."""

from __future__ import annotations

import json
from dataclasses import asdict

from Utils.base import errors, ladder
from Utils.diagnose import findings
from Utils.diagnose.findings import Finding
from Utils.diagnose.probes import REQUIREMENTS


def inside(args, answers):
    """Write the answers of torch to a file, each a line of JSON, at once: a crash then loses later
    answers only. The name of a check precedes its answers."""

    def say(kind, what):
        print(json.dumps({kind: what}), file=answers, flush=True)

    say("asking", "torch")
    try:  # here, as it imports torch: what is wrong with that is a finding
        import Utils.run  # noqa: F401  with it comes all that a script imports
        from Utils.diagnose import device_probes, judgement, run_probes, toolchain_probes
    except Exception as error:
        what = f"scripts cannot be started: {type(error).__name__}: {errors.first_line(error)}"
        remedy = f"{REQUIREMENTS}; or omit PYTHON=, and .venv is created"
        say("finding", asdict(Finding("torch", what, "fault", remedy, ("run",))))
        return

    def ask(*probes):
        for probe in probes:
            say("asking", probe.__name__.replace("_", " "))
            for finding in findings.ask(probe, args):
                say("finding", asdict(finding))

    def techniques(args):
        known = ladder.techniques()
        for technique in known.values():
            say("row", asdict(judgement.judge(technique, known.get(technique.parent), args)))
        return ()

    ask(device_probes.torch_build, device_probes.driver, device_probes.device)
    if hasattr(args, "hardware"):  # else there is no device
        ask(device_probes.gpu, device_probes.threads, toolchain_probes.compilers)
        ask(run_probes.corpus, run_probes.step, techniques)
