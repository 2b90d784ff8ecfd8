"""What stands for a technique in scripts of other libraries: the same idea, by another switch.

A function of the source that returns the changed source, or raises Misfit.
"""

import ast
import re

from Utils.scripts import anatomy, arguments
from Utils.scripts.anatomy import Misfit

CHECKPOINTING = "gradient_checkpointing_enable"
NOT_REENTRANT = 'gradient_checkpointing_kwargs={"use_reentrant": False}'


def apply(source, name, misfit):
    """Return the source with what stands for a technique. misfit: why its diff does not apply,
    which is raised where nothing stands for it."""
    if name not in STAND_INS:
        raise misfit
    return STAND_INS[name](source, misfit)


def _attention(source, misfit):
    """Choose torch's attention in a model of transformers that has the written-out one."""
    setting = "attn_implementation"
    pattern = re.compile(rf"""(\b_?{setting}\s*=\s*)(["'])eager\2""")
    if pattern.search(source):
        return pattern.sub(r"\1\2sdpa\2", source)
    if "scaled_dot_product_attention" in source:
        raise Misfit("the script has scaled_dot_product_attention already")
    if re.search(rf"\b{setting}\s*=", source):
        raise Misfit(f'{setting} is not "eager"')
    raise Misfit(f'{misfit}, or a model made with {setting}="eager"')


def _checkpointing(source, misfit):
    """Switch on the checkpoints of a model of transformers."""
    script = anatomy.read(source, "base")
    theirs = {
        alias.asname or alias.name
        for node in script.imports
        if ast.unparse(node).split()[1].split(".")[0] == "transformers"
        for alias in node.names
    }
    made = script.image("model")
    if not made or not theirs & anatomy.loaded(made[-1]):
        raise Misfit(f"{misfit}, or a model of transformers")
    if "gradient_checkpointing" in source:
        raise Misfit("the script has gradient_checkpointing already")
    model = ast.unparse(script.names["model"]) if "model" in script.names else "model"
    lines, place = script.lines, made[-1].end_lineno
    lines.insert(place, f"{script.indent(made[-1])}{model}.{CHECKPOINTING}({NOT_REENTRANT})")
    return "\n".join(lines) + "\n"


def _workers(source, misfit):
    """Give workers and pinned memory to a DataLoader, and do not wait for copies."""
    script = anatomy.read(source, "base")
    made = script.image("batches")
    call = made[-1].value if made else None
    if not isinstance(call, ast.Call) or not arguments.resolved(script, call.func).endswith(
        "torch.utils.data.DataLoader"
    ):
        raise Misfit(f"{misfit}, or `... = DataLoader(...)` before the loop")
    if any(keyword.arg == "num_workers" for keyword in call.keywords):
        raise Misfit("the script has num_workers already")
    lines = script.lines
    for node in script.body[: script.last_forward]:
        if script.role(node) == "forward":
            break
        for place in range(node.lineno - 1, node.end_lineno):
            lines[place] = re.sub(r"\.to\(([\w.]+)\)", r".to(\1, non_blocking=True)", lines[place])
    args = ast.unparse(script.names["args"]) if "args" in script.names else "args"
    line, end = lines[call.end_lineno - 1].encode(), call.end_col_offset - 1  # counted in bytes
    before = "\n".join([*lines[: call.end_lineno - 1], line[:end].decode()]).rstrip()
    added = f'num_workers=2, pin_memory={args}.device.type == "cuda"'
    start = before + (" " if before.endswith(",") else ", ")
    return start + "\n".join([f"{added}{line[end:].decode()}", *lines[call.end_lineno :]]) + "\n"


STAND_INS = {
    "flash_attention": _attention,
    "gradient_checkpointing": _checkpointing,
    "prefetching_loader": _workers,
}
