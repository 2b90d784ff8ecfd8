"""Check which techniques run on this device, by the checks of their own runs."""

import ast
import importlib.util
from contextlib import suppress

from Utils.base import errors
from Utils.base.errors import Unsupported, UserError
from Utils.device import capabilities
from Utils.device.capabilities import Emulated, WithoutEffect
from Utils.doctor.doctor_advice import Row
from Utils.harness.settings import check_need

REMEDIES = {  # for an unmet need: another need, and the technique to use where it is met
    "bfloat16": ("float16", "float16_grad_scaler computes in 16 bits there"),
    "float16": ("bfloat16", "brainFloat16 computes in 16 bits there"),
}


def _not_installed(source):
    """Yield the modules that a script imports at its top and that are not installed."""
    for node in ast.parse(source).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                yield name.split(".")[0]


def judge(technique, parent, args):
    """Return the Row of a technique on a device, by the checks that its own run would make.

    parent: the technique that it names as such, or None. args: Settings, with device and shape.
    A need without effect here counts against the technique that adds it, not against those that
    inherit it; one that is emulated is emulated in all of them.
    """
    try:
        missing = list(_not_installed(technique.path.read_text()))
    except SyntaxError as error:
        return Row(technique.name, "unsupported", f"no Python: line {error.lineno}: {error.msg}")
    except (OSError, ValueError) as error:
        return Row(technique.name, "unsupported", f"cannot be read: {errors.first_line(error)}")
    inherited = parent.needs if parent else ()
    lacks, notes, status = [], [], "runs"
    against = [(f"imports {n}, which is not installed", f"pip install {n}") for n in missing]
    for need in technique.needs:
        try:
            note = check_need(need, args)
        except Unsupported as error:
            lacks.append(need.removeprefix("package "))
            against.append((str(error), _instead(need, args.hardware)))
            continue
        except UserError as error:
            return Row(technique.name, "unsupported", str(error), "", technique.needs)
        if note:
            notes.append(str(note))
        if isinstance(note, Emulated):
            status = "emulated"
        elif status == "runs" and isinstance(note, WithoutEffect) and need not in inherited:
            status = "runs without effect"
    needs = [need.removeprefix("package ") for need in technique.needs]
    if against:  # the first of them ends the run
        return Row(technique.name, "unsupported", *against[0], needs, lacks)
    return Row(technique.name, status, "; ".join(dict.fromkeys(notes)), "", needs, lacks)


def _instead(need, device):
    """Return the remedy for an unmet need, or "" without one on this device."""
    other, remedy = REMEDIES.get(need, (None, ""))
    with suppress(Unsupported):
        if remedy:
            capabilities.check(other, device)
            return remedy
    return ""
