"""Doctor's questions to torch, answered in a process of their own."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

from Utils.base import errors, ladder
from Utils.diagnose import findings, judgement
from Utils.diagnose.findings import Finding
from Utils.diagnose.probes import REQUIREMENTS
from Utils.diagnose.torch_probes import INSIDE, WITHOUT_DEVICE


def inside(args, answers):
    """What has to be asked of torch. Each answer is a line of JSON, at once, so that a crash loses
    only what would have followed; in front of them goes the name of what is asked."""

    def say(kind, what):
        print(json.dumps({kind: what}), file=answers, flush=True)

    say("asking", "torch")
    try:
        import Utils.run  # noqa: F401  with it comes all that a script imports
    except Exception as error:
        what = f"scripts cannot be started: {type(error).__name__}: {errors.first_line(error)}"
        remedy = f"{REQUIREMENTS}; or leave out PYTHON=, and an environment is made"
        say("finding", asdict(Finding("torch", what, "fault", remedy, ("run",))))
        return
    here = SimpleNamespace(args=args)
    for probe in INSIDE:
        if hasattr(args, "hardware") or probe in WITHOUT_DEVICE:
            say("asking", probe.__name__.replace("_", " "))
            for finding in findings.ask(probe, here):
                say("finding", asdict(finding))
    if hasattr(args, "hardware"):
        say("asking", "techniques")
        for finding in findings.ask(techniques, args, lambda row: say("row", asdict(row))):
            say("finding", asdict(finding))


def techniques(args, say):
    known = ladder.techniques()
    for technique in known.values():
        say(judgement.judge(technique, known.get(technique.parent), args))
    return []
