"""Doctor's questions to torch, answered in a subprocess."""

import json
import sys
from dataclasses import asdict, replace

from Utils.base import errors
from Utils.doctor import findings
from Utils.doctor.host_probes import REQUIREMENTS
from Utils.scripts import bases, ladder


def inside(args, answers):
    """Write the answers of torch to a file, each a line of JSON, at once: a crash then loses later
    answers only. The name of a check precedes its answers."""

    def say(kind, what):
        print(json.dumps({kind: what}), file=answers, flush=True)

    say("asking", "torch")
    try:  # here, as it imports torch: what is wrong with that is a finding
        import Utils.run  # noqa: F401  with it comes all that a script imports
        from Utils.doctor import device_probes, run_probes, technique_status, toolchain_probes
    except Exception as error:
        what = f"scripts cannot be started: {type(error).__name__}: {errors.first_line(error)}"
        remedy = f"{REQUIREMENTS}; or omit PYTHON=, and .venv is created"
        say("finding", asdict(findings.fault("torch", what, remedy, "run")))
        return

    def ask(*probes):
        for probe in probes:
            say("asking", probe.__name__.replace("_", " "))
            for finding in findings.ask(probe, args):
                say("finding", asdict(finding))

    def techniques(args):
        base, scripts = bases.asked(args.base), ladder.group("everything")
        if base:
            sys.path.insert(0, str(base.path.parent))  # whose modules it may import
            scripts = bases.ladder_of(base, scripts)
        known = {script.name: script for script in scripts}
        for script in scripts:
            row = technique_status.judge(script, known.get(script.parent), args)
            if reason := bases.refusal(script):
                row = replace(row, status="unsupported", reason=reason)
            say("row", asdict(replace(row, technique=bases.last(row.technique))))
        return ()

    ask(device_probes.torch_build, device_probes.driver, device_probes.device)
    if hasattr(args, "hardware"):  # else there is no device
        ask(device_probes.gpu, device_probes.threads, toolchain_probes.compilers)
        ask(run_probes.corpus, run_probes.step, techniques)
