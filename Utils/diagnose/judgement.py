"""Whether a script runs on this device, by the checks that its own run would make."""

from __future__ import annotations

import ast
import importlib.util
import re
from contextlib import suppress
from functools import cache

from Utils.base import errors, paths
from Utils.base.errors import Unsupported
from Utils.device import checks
from Utils.device.checks import Emulated, WithoutEffect
from Utils.diagnose.verdicts import Row
from Utils.harness.settings import Settings

REMEDIES = {  # for a need: another that has to be met, and what then does instead
    "tf32": ("float16", "float16_grad_scaler is the way to tensor cores there"),
    "bfloat16": ("float16", "float16_grad_scaler is the way to 16 bits there"),
    "float16": ("bfloat16", "brainFloat16 is the way to 16 bits there"),
}


@cache
def declarations(source):
    """What a script says that it needs, in the order in which it runs: (method, arguments) of every
    call args.require...(...), with those that are in what it takes from Utils. Arguments are None
    where they are not written out. Raises SyntaxError where it is no Python."""
    tree = ast.parse(source)
    taken = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("Utils."):
            for alias in node.names:
                taken[alias.asname or alias.name] = _definition(node.module, alias.name)
    found = []
    for call in _calls(tree):
        if isinstance(call.func, ast.Name) and taken.get(call.func.id):
            for inner in _calls(taken[call.func.id]):
                found += _required(inner)
        found += _required(call)
    return found


def _calls(tree):
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _required(call):
    if re.match(r"args\.require\w*$", ast.unparse(call.func)):
        try:
            yield call.func.attr, tuple(map(ast.literal_eval, call.args))
        except ValueError:
            yield call.func.attr, None


@cache
def _definition(module, name):
    """The syntax tree of a class or function of Utils, or None."""
    for node in _tree(paths.ROOT.joinpath(*module.split(".")).with_suffix(".py")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    return None


@cache
def _tree(path):
    return ast.parse(path.read_text())


def _not_installed(source):
    """The modules that a script imports before anything else, and that are not there."""
    for node in ast.parse(source).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                yield name.split(".")[0]


def judge(technique, parent, args):
    """The Row of a technique on a device, by the checks that its own run would make.

    parent: the technique that it names as such, or None. args: Settings, with device and shape.
    A need without effect here is held against the technique that brings it in, not against those
    that inherit it; one that is emulated is emulated in all of them.
    """

    try:
        source = technique.path.read_text()
        declared, missing = declarations(source), list(_not_installed(source))
    except SyntaxError as error:
        return Row(technique.name, "unsupported", f"no Python: line {error.lineno}: {error.msg}")
    except (OSError, ValueError) as error:
        return Row(technique.name, "unsupported", f"cannot be read: {errors.first_line(error)}")
    inherited = []
    with suppress(Exception):
        inherited = declarations(parent.path.read_text())
    needs, lacks, notes, status = [], [], [], "runs"
    against = [
        (f"imports {name}, which is not installed", f"pip install {name}") for name in missing
    ]
    trial = Settings(**vars(args))
    for method, values in declared:
        if values is None:
            notes.append(f"what it hands to {method} is not written out, and was not checked")
            continue
        trial.needs, trial.notes = [], []
        try:
            getattr(trial, method)(*values)
        except Unsupported as error:
            lacks.append(values[0] if method == "require" else method)
            against.append((str(error), _instead(lacks[-1], args.hardware)))
        except Exception as error:  # as it would in the run
            against.append((f"{type(error).__name__}: {errors.first_line(error)}", ""))
        needs += trial.needs
        for note in trial.notes:
            notes.append(str(note))
            if isinstance(note, Emulated):
                status = "emulated"
            elif isinstance(note, WithoutEffect) and (method, values) not in inherited:
                status = "runs without effect" if status == "runs" else status
    if against:  # the first of them ends the run
        return Row(technique.name, "unsupported", *against[0], needs, lacks)
    return Row(technique.name, status, "; ".join(dict.fromkeys(notes)), "", needs, lacks)


def _instead(need, device):
    """The remedy for a need that is not met, where there is one on this device; else ""."""

    other, remedy = REMEDIES.get(need, (None, ""))
    with suppress(Unsupported):
        if remedy:
            checks.check(other, device)
            return remedy
    return ""
