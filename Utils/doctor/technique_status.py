"""Check which techniques run on this device, by the checks of their own runs."""

from Utils.base.errors import Unsupported, UserError
from Utils.device import capabilities
from Utils.device.capabilities import Emulated, WithoutEffect
from Utils.doctor.findings import TechniqueStatus
from Utils.harness.settings import check_need
from Utils.scripts import ladder

INSTEAD = {  # for an unmet need: another need, and the technique to use where it is met
    "bfloat16": ("float16", "make all runs float16_grad_scaler and its children instead"),
    "float16": ("bfloat16", "brainFloat16 computes in 16 bits there"),
}


def techniques(args):
    """Yield a TechniqueStatus for each technique."""
    scripts = ladder.techniques()
    for script in scripts.values():
        yield judge(script, scripts.get(script.parent), args)


def judge(technique, parent, args):
    """Return the TechniqueStatus of a technique, by the checks that its own run would make.

    parent: the technique that it names as such, or None. args: Settings, with device and shape.
    A need without effect here counts against the technique that adds it, not against those that
    inherit it; one that is emulated is emulated in all of them.
    """
    needs = [need.removeprefix("package ") for need in technique.needs]
    status = "runs"
    notes = []
    for need in technique.needs:
        try:
            note = check_need(need, args)
        except (Unsupported, UserError) as error:  # the first of them ends the run
            remedy = instead(need, args.hardware)
            return TechniqueStatus(technique.name, "unsupported", str(error), remedy, needs)
        if note:
            notes.append(str(note))
        inherited = parent is not None and need in parent.needs
        if isinstance(note, Emulated):
            status = "emulated"
        elif isinstance(note, WithoutEffect) and status == "runs" and not inherited:
            status = "runs without effect"
    return TechniqueStatus(technique.name, status, "; ".join(dict.fromkeys(notes)), needs=needs)


def instead(need, device):
    """Return the remedy for an unmet need, or "" without one on this device."""
    alternative, remedy = INSTEAD.get(need, (None, ""))
    return remedy if alternative and capabilities.has(alternative, device) else ""
