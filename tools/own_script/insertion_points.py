"""Places in a user's script at which lines are added: after an import, after a model is made."""

import ast
import functools
import os
import re
import sys
import traceback
from pathlib import Path

from tools.own_script import user_code

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def after_import(file):
    """Return (whether the name torch is bound there, place) after the first import of torch."""
    imports = [s for s in _tree(file).body if isinstance(s, ast.Import | ast.ImportFrom)]
    for statement in imports:
        names = [statement.module] if isinstance(statement, ast.ImportFrom) else []
        names = names or [alias.asname or alias.name for alias in statement.names]
        if any(str(name).partition(".")[0] == "torch" for name in names):
            return isinstance(statement, ast.Import), _after(file, statement)
    return False, "before the model is made"


def after_model(module):
    """Return (expression of a module, place after the statement that makes it), ("", "") if none.

    The outermost function counts that has the module in a variable, or in an attribute of self. A
    module that none has is `self` at the end of its own __init__.
    """
    outermost = "", ""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not user_code.is_of_user(file):
            continue
        members = dict(getattr(frame.f_locals.get("self"), "__dict__", {}))
        expressions = [name for name, value in frame.f_locals.items() if value is module]
        expressions += [f"self.{name}" for name, value in members.items() if value is module]
        for expression in expressions:
            statement = _assignment(expression, file, frame.f_code.co_firstlineno, line)
            if statement:
                outermost = expression, _after(file, statement)
    if outermost[0]:
        return outermost

    init = getattr(type(module).__init__, "__code__", None)
    if init and user_code.is_of_user(init.co_filename):
        return "self", _after(init.co_filename, _scope(init.co_filename, init.co_firstlineno))
    return outermost


def _assignment(expression, file, first_line, line):
    """Return the last statement before a line of a function that assigns a variable, or None.

    An attribute is assigned anywhere in the file, first to something else than None.
    """
    is_attribute = "." in expression
    nodes = ast.walk(_tree(file)) if is_attribute else _within(_scope(file, first_line))
    assignments = []
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = getattr(node, "targets", None) or [node.target]
            is_none = isinstance(node.value, ast.Constant | None)
            names = [ast.unparse(name) for target in targets for name in ast.walk(target)]
            if expression in names and not is_none and (is_attribute or node.lineno < line):
                assignments.append(node)
    if assignments:
        return (min if is_attribute else max)(assignments, key=lambda node: node.lineno)


def _scope(file, first_line):
    """Return the function that begins at a line, or the module."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, SCOPES[:2]):
            lines = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
            if min(lines) == first_line:
                return node
    return _tree(file)


def _within(scope):
    """Yield the nodes of a scope without those of functions and classes in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, SCOPES):
            yield node
            yield from _within(node)


def _after(file, statement):
    return f"after {os.path.basename(file)}:{statement.end_lineno}"


@functools.cache
def _tree(file):
    return ast.parse(Path(file).read_bytes())


def variable(expression):
    """Return an expression as one name."""
    return re.sub(r"\W", "_", expression)
