"""Merge the changed arguments of a call into the call of another script, which keeps its own."""

import ast
import re

from Utils.scripts.anatomy import ROLES, Misfit, dump, short

FUSED = {f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD", "Adagrad")}
KERNEL_CHOICES = {"fused", "foreach"}  # arguments of torch's optimizers that no other library has
POSITIONAL = ("params", "lr", "betas", "eps", "weight_decay")  # of AdamW
WIDTH = 100


def model(script, image, text, old, new):
    """Return the lines of the script's statements with the arguments that a technique changes.

    image: the statements, and text: their lines. old, new: the parent and the technique, each a
    pair of a Script and its statement. Raises Misfit.
    """
    pairs = [pair for pair in _chain(old[1].value, new[1].value) if dump(pair[0]) != dump(pair[1])]
    for mine, its in pairs:
        before, after = _keywords(old[0], mine), _keywords(new[0], its)
        if before.keys() != after.keys():
            raise Misfit(f"needs `{short(mine)}`")
        if len(mine.args) != len(its.args):
            name = mine.func.attr if isinstance(mine.func, ast.Attribute) else mine.func.id
            call, changed = (f"{name}({', '.join(map(ast.unparse, n.args))})" for n in (mine, its))
            if call not in text:
                dot = "." * isinstance(mine.func, ast.Attribute)
                raise Misfit(f"needs `{dot}{call}` where the model is made")
            text = text.replace(call, changed)
        for name, value in before.items():
            if value == after[name]:
                continue
            pattern = re.compile(rf"\b{name}(\s*=\s*){re.escape(value)}(?=\s*[,)])")
            if not pattern.search(text):
                raise Misfit(f"needs `{name}={value}` handed to the model")
            text = pattern.sub(rf"{name}\g<1>{after[name]}", text)
    return text.splitlines()


def optimizer(script, image, text, old, new):
    """Return the lines of the script's optimizer with a technique's class and arguments.

    As for `model`. A script's own arguments stay.
    """
    call, mine, its = image[-1].value, old[1].value, new[1].value
    if not isinstance(call, ast.Call):
        raise Misfit(f"needs {ROLES['optimizer']}")
    if not isinstance(mine, ast.Call) or not isinstance(its, ast.Call):
        raise Misfit(f"needs `{short(old[1])}`")
    kind, own, function = resolved(script, call.func), _keywords(script, call), call.func
    before, after = _keywords(old[0], mine), _keywords(new[0], its)
    positional = [ast.get_source_segment(script.text, argument) for argument in call.args]
    if dump(mine.func) != dump(its.func):
        if kind != resolved(old[0], mine.func):
            raise Misfit(f"takes the place of {ast.unparse(mine.func)}, and the script has {kind}")
        function = its.func
        own = {n: value for n, value in own.items() if n not in KERNEL_CHOICES - after.keys()}
        own |= {name: after[name] for name in after if name not in {*before, *own}}
        for name in POSITIONAL[: len(call.args)]:
            own.pop(name, None)
        if added := its.args[len(mine.args) :]:  # they take the places of the script's own
            own = dict(zip(POSITIONAL[1:], positional[1:], strict=False)) | own
            positional = positional[:1] + [ast.get_source_segment(new[0].text, n) for n in added]
    else:
        if kind not in FUSED:
            raise Misfit(f"needs an optimizer of torch.optim, and the script has {kind}")
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        if all(own.get(name) == value for name, value in changed.items()):
            what = ", ".join(f"{name}={value}" for name, value in changed.items())
            raise Misfit(f"the script has {what} already")
        own = {name: value for name, value in own.items() if name not in KERNEL_CHOICES} | changed
    parts = positional + [f"{n}={value}" if n else f"**{value}" for n, value in own.items()]
    indent = script.indent(image[-1])
    target = getattr(image[-1], "target", None) or image[-1].targets[0]
    start = f"{indent}{ast.unparse(target)} = {ast.unparse(function)}("
    lines = [f"{start}{', '.join(parts)})"]
    if len(lines[0]) > WIDTH:
        lines = [start, f"{indent}    {', '.join(parts)}", f"{indent})"]
    if max(map(len, lines)) > WIDTH:
        lines = [start, *(f"{indent}    {part}," for part in parts), f"{indent})"]
    return lines


def resolved(script, function):
    """Return the full name of what is called, by the script's imports."""
    first, dot, rest = ast.unparse(function).partition(".")
    for node in script.imports:
        for alias in node.names:
            if (alias.asname or alias.name) == first:
                parent = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                return f"{parent}{alias.name}{dot}{rest}"
    return ast.unparse(function)


def _keywords(script, call):
    """Return the keywords of a call: {name: value as it is written}."""
    return {k.arg: ast.get_source_segment(script.text, k.value) for k in call.keywords}


def _chain(old, new):
    """Yield the pairs of calls at the same place in a chain `a(...).b(...)`, the last first."""
    while isinstance(old, ast.Call) and isinstance(new, ast.Call):
        chained = isinstance(old.func, ast.Attribute) and isinstance(old.func.value, ast.Call)
        if not chained or [*map(dump, old.args)] != [*map(dump, new.args)]:
            yield old, new
        old, new = (getattr(call.func, "value", None) for call in (old, new))
