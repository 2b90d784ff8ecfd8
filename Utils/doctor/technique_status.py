"""Check which techniques run on this device, by the checks of their own runs."""

from Utils.base.errors import Unsupported, UserError
from Utils.device import capabilities
from Utils.device.capabilities import Emulated, WithoutEffect
from Utils.doctor.findings import TechniqueStatus
from Utils.harness.settings import check_need
from Utils.scripts import ladder


def techniques(args):
    """Return a TechniqueStatus for each technique."""
    with ladder.on_device(capabilities.has("bfloat16", args.hardware)):
        scripts = ladder.techniques()
    return [judge(script, scripts.get(script.parent), args) for script in scripts.values()]


def judge(technique, parent, args):
    """Return the TechniqueStatus of a technique, by the checks that its own run would make.

    parent: the technique that it names as such, or None. args: Settings, with device and shape.
    A need without effect here counts against the technique that adds it, not against those that
    inherit it; one that is emulated is emulated in all of them.
    """
    needs = [need.removeprefix("package ") for need in technique.needs]
    status = "runs"
    notes = list(filter(None, [technique.note]))
    for need in technique.needs:
        try:
            note = check_need(need, args)
        except (Unsupported, UserError) as error:  # the first of them ends the run
            in_bfloat16 = need == "float16" and capabilities.has("bfloat16", args.hardware)
            remedy = "brainFloat16 computes in 16 bits there" if in_bfloat16 else ""
            return TechniqueStatus(technique.name, "unsupported", str(error), remedy, needs)
        if note:
            notes.append(str(note))
        inherited = parent is not None and need in parent.needs
        if isinstance(note, Emulated):
            status = "emulated"
        elif isinstance(note, WithoutEffect) and status == "runs" and not inherited:
            status = "runs without effect"
    if technique.misfit:
        return TechniqueStatus(technique.name, "unsupported", technique.misfit, needs=needs)
    return TechniqueStatus(technique.name, status, "; ".join(dict.fromkeys(notes)), needs=needs)
