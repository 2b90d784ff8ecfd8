"""Precisions of the repository's scripts on devices without bfloat16, or that emulate it."""

import re
from dataclasses import dataclass, replace

from Utils.scripts import diffs

BFLOAT16 = "brainFloat16"  # the script that adds bfloat16
FLOAT16 = {  # for each script of the ladder with bfloat16, its replacement in float16
    "brainFloat16": "float16_grad_scaler",
    "torch_compile": "float16_compile",
    "flash_attention": "float16_attention",
    "fused_optimizer": "float16_fused_optimizer",
    "8bit_optimizer": "float16_8bit_optimizer",
}
WITHOUT_BFLOAT16 = {BFLOAT16: "tensorFloat32"}  # where bfloat16 is emulated


@dataclass(frozen=True)
class Precision:
    """How the repository's scripts run on a device whose best precision is not bfloat16."""

    message: str  # before a suite
    note: str  # of a run whose script has bfloat16
    replaced: dict[str, str]  # scripts with bfloat16, and those that their children extend here
    rungs: dict[str, str]  # rungs of the ladder, and the scripts that take their places
    unfit: re.Pattern  # code without a place in this precision
    misfit: str  # why a script cannot run; {line!r} is the line without a place


PRECISIONS = {
    "float16": Precision(
        message="this GPU has no bfloat16: scripts in float16 take the place of those that need it",
        note="in float16",
        replaced=FLOAT16,
        rungs=FLOAT16,
        unfit=re.compile(r"bfloat16|clip_grad|\.step\(\)"),  # gradients are still scaled there
        misfit="needs bfloat16: in float16 its diff has no place at {line!r}",
    ),
    "float32": Precision(
        message="this CPU emulates bfloat16: brainFloat16 runs once, for two steps, and the "
        "scripts after it run without it",
        note="in float32",
        replaced=WITHOUT_BFLOAT16,
        rungs={},
        unfit=re.compile("bfloat16"),
        misfit="bfloat16 is emulated here",
    ),
}


def merged(script, parent, changed, precision):
    """Return a script in another precision: its diff, from its parent, on the parent there.

    changed: the scripts in that precision, by name.
    """
    new_parent = changed[precision.replaced.get(parent.name, parent.name)]
    code = diffs.merge(new_parent.code, parent.code, script.code)
    added = [need for need in script.needs if need not in parent.needs]
    misfit = new_parent.misfit or _misfit(script, parent, new_parent, code, precision)
    return replace(
        script,
        code=code or script.code,
        parent=new_parent.name,
        needs=(*new_parent.needs, *added),
        misfit=misfit,
        note=precision.note,
    )


def _misfit(script, parent, new_parent, code, precision):
    """Return why a script's diff has no place in another precision, or "".

    code: that of the script in the other precision; None if the merge failed.
    """
    _, _, reason = script.facts["Needs"].partition("; ")
    if reason.startswith(precision.note):
        return f"needs bfloat16: {reason}"

    # Name the first line that does not fit, or that the merge cannot place.
    script_lines = _stripped_lines(script)
    parent_lines = _stripped_lines(parent)
    added = [line for line in script_lines if line not in parent_lines]
    unfit = [line for line in added if precision.unfit.search(line.partition("#")[0])]
    if not unfit and code is None:
        kept = script_lines + _stripped_lines(new_parent)
        unfit = [line for line in parent_lines if line not in kept] or added
    return precision.misfit.format(line=unfit[0]) if unfit else ""


def _stripped_lines(script):
    return [line.strip() for line in script.code.splitlines()]
