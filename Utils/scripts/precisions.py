"""Precisions of the repository's scripts on devices without bfloat16, or that emulate it."""

from dataclasses import dataclass, replace

from Utils.base.errors import UserError
from Utils.scripts import diffs

BFLOAT16 = "brainFloat16"  # the script that adds bfloat16
FLOAT16 = {  # for each script of the ladder with bfloat16, its replacement in float16
    "brainFloat16": "float16_grad_scaler",
    "torch_compile": "float16_compile",
    "flash_attention": "float16_attention",
    "fused_optimizer": "float16_fused_optimizer",
    "8bit_optimizer": "float16_8bit_optimizer",
}


@dataclass(frozen=True)
class Precision:
    """How the repository's scripts run on a device whose best precision is not bfloat16."""

    message: str  # before a suite
    note: str  # for runs whose script has bfloat16
    misfit: str  # why a script has no code in this precision
    replaced: dict[str, str]  # scripts with bfloat16, and those that their children extend here
    emulates: bool = False  # the script that adds bfloat16 stays in the ladder


PRECISIONS = {
    "float16": Precision(
        message="this GPU has no bfloat16: scripts in float16 take the place of those that need it",
        note="in float16",
        misfit="needs bfloat16: its diff has no place in float16",
        replaced=FLOAT16,
    ),
    "float32": Precision(
        message="this CPU emulates bfloat16: brainFloat16 runs once, for two steps, and the "
        "scripts after it run without it",
        note="in float32",
        misfit="bfloat16 is emulated here",
        replaced={BFLOAT16: "tensorFloat32"},
        emulates=True,
    ),
}


def variant(script, rung, replacement, parent, precision):
    """Return a script in another precision: its code with the diff from a rung to its replacement.

    rung: the last script on the line of the script that is replaced.
    parent: the parent of the script in that precision.
    """
    code = None
    misfit = parent.misfit
    try:
        code = diffs.merge(script.code, rung.code, replacement.code)
    except UserError as without_git:
        misfit = str(without_git)
    added = [need for need in script.needs if need not in rung.needs]
    _, _, reason = script.facts["Needs"].partition("; ")

    if not misfit and reason.startswith(precision.note):
        misfit = f"needs bfloat16: {reason}"
    if not misfit and (code is None or _has_bfloat16(code)):
        misfit = precision.misfit
    return replace(
        script,
        code=code or script.code,
        parent=parent.name,
        needs=(*replacement.needs, *added),
        misfit=misfit,
        note=precision.note,
    )


def _has_bfloat16(code):
    return any("bfloat16" in line.partition("#")[0] for line in code.splitlines())
