"""The places of a training script: imports, definitions, setup, loop; and the names it gives them.

Places are found in the syntax tree, so a script may name and format things as it likes.
"""

import ast
import builtins
import re
import textwrap
import tokenize
from dataclasses import dataclass, field
from io import StringIO

from Utils.base.errors import UserError

GUIDE = "docs/YOUR_MODEL.md shows the lines"
ROLES = {  # of statements before the loop and in it, in words
    "seed": "`torch.manual_seed(...)`",
    "precision": "`torch.set_float32_matmul_precision(...)`",
    "batches": "`batches = ...` before the loop",
    "model": "`model = ...` before the loop",
    "optimizer": "`optimizer = torch.optim...` before the loop",
    "forward": "the forward pass before `loss.backward()`",
    "backward": "`loss.backward()`",
    "step": "`optimizer.step()`",
    "zero": "`optimizer.zero_grad()`",
    "log": "`run.log(loss.item())`",
}
NAMED = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler


class Misfit(Exception):
    """A diff that does not apply: the place that it needs, in words."""


@dataclass
class Script:
    """A parsed script.

    names: by args, model, optimizer, run, batches, loss, idx and targets, which are the names in
        our scripts, the node of the script's expression where it is another one.
    setup: statements of the function before `with Run(...)`. body: of the loop, those around
        `loss.backward()`.
    """

    text: str
    tree: ast.Module
    main: ast.FunctionDef
    measured: ast.With
    loop: ast.For
    setup: list
    body: list
    names: dict = field(default_factory=dict)

    @property
    def lines(self):
        return self.text.splitlines()

    @property
    def docstring(self):
        """Return the node of the docstring, or None."""
        first = self.tree.body[0] if self.tree.body else None
        return first if is_text(first) else None

    @property
    def imports(self):
        """Return the imports at the top of the file."""
        return [n for n in self.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]

    @property
    def definitions(self):
        """Return all else at the top: functions, classes, constants; without the main function and
        what starts it."""
        started = next((n for n in self.tree.body if _starts(n)), None)
        others = (self.docstring, self.main, started, *self.imports)
        return [n for n in self.tree.body if n not in others]

    def dump(self, *nodes):
        """Return the dump of statements, with the script's names replaced by those of ours."""
        text = "\n".join(dump(node) for node in nodes)
        for ours, own in self.names.items():
            text = text.replace(dump(own), f"Name(id='{ours}')")
        return text

    def role(self, node):
        """Return the role of a statement, a key of ROLES, or None."""
        call = _method_call(node)
        name = call.func.attr if call else None
        if name == "log" and self.dump(call.func.value) == "Name(id='run')":
            return "log"
        direct = {"manual_seed": "seed", "set_float32_matmul_precision": "precision"}
        direct |= {"backward": "backward", "zero_grad": "zero"}
        if name in direct:
            return direct[name]
        subjects = [call.func.value, *call.args] if name == "step" else []
        if any(self.dump(subject) == "Name(id='optimizer')" for subject in subjects):
            return "step"
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for role in ("batches", "model", "optimizer"):
                if self.mentions(node.value, role):
                    continue  # wraps what is there
                if any(self.dump(target) == f"Name(id='{role}')" for target in targets):
                    return role
        in_forward = node in self.body[: self.last_forward] and self.mentions(node, "model")
        return "forward" if in_forward and name not in ("train", "eval") else None

    @property
    def last_forward(self):
        """Return the number of statements of the loop before `loss.backward()`."""
        return next((n for n, node in enumerate(self.body) if _is_backward(node)), 0)

    def mentions(self, node, name):
        """Tell whether a node reads one of our names."""
        return f"Name(id='{name}')" in self.dump(node)

    def image(self, role):
        """Return the statements of a role, in order.

        model: with those that only change it, up to the optimizer. forward: all from the first to
        loss.backward().
        """
        if role == "forward":
            before = self.body[: self.last_forward]
            roles = [self.role(node) for node in before]
            return before[roles.index("forward") :] if "forward" in roles else []
        in_loop = role in ("backward", "step", "zero", "log")
        for block in (self.body, self.loop.body) if in_loop else (self.setup,):
            if found := [node for node in block if self.role(node) == role]:
                return found
        return []

    def indent(self, node):
        """Return the blanks or tabs in front of a statement."""
        return re.match(r"\s*", self.lines[node.lineno - 1])[0]

    def block_of(self, node):
        """Return the list of statements that a statement of the setup or the loop stands in."""
        return next(b for b in (self.body, self.loop.body, self.setup) if node in b)


def dump(node):
    """Return the dump of a syntax tree, the same for reading and writing a name."""
    return re.sub(r", ctx=\w+\(\)", "", ast.dump(node))


def written(node):
    """Return the source of an expression, with double quotes where it has no others."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def is_text(node):
    """Tell whether a statement is a docstring."""
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant and isinstance(node.value.value, str)


def _method_call(node):
    """Return the call `a.b(...)` that a statement consists of, or None."""
    call = node.value if isinstance(node, ast.Expr) else None
    attribute = call.func if isinstance(call, ast.Call) else None
    return call if isinstance(attribute, ast.Attribute) else None


def _is_backward(node):
    return (call := _method_call(node)) is not None and call.func.attr == "backward"


def _starts(node):
    """Tell whether a statement at the top is `if __name__ == "__main__"`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def read(source, name):
    """Return the Script of a text. name: of the file, for messages. Raises UserError."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if getattr(error, "lineno", None) else ""
        raise UserError(f"{name}{line}: {getattr(error, 'msg', error)}") from None
    main, measured, block = _measured(tree)
    if measured is None:
        raise UserError(f"{name}: has no `with Run(args, model, optimizer) as run:`", GUIDE)
    run, call = measured.items[0].optional_vars, measured.items[0].context_expr
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)][:3]
    loops = (n for n in ast.walk(measured) if isinstance(n, ast.For))
    loop = next((n for n in loops if _steps(n.iter, run)), None)
    if run is None or loop is None or len(arguments) < 3:
        raise UserError(f"{name}: has no `for ... in run.steps(batches):`", GUIDE)
    if not any("run_script" in ast.unparse(node) for node in tree.body if _starts(node)):
        raise UserError(f"{name}: does not end with `run_script(main, __doc__)`", GUIDE)
    names = dict(zip(("args", "model", "optimizer"), arguments, strict=True))
    names |= {"run": run, "batches": _steps(loop.iter, run).args[0]}
    body, backward = _around_backward(loop.body)
    if isinstance(backward, ast.Name | ast.Attribute | ast.Subscript):
        names["loss"] = backward
    target = loop.target
    if ast.unparse(loop.iter).startswith("enumerate(") and isinstance(target, ast.Tuple):
        target = target.elts[-1]
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        names |= dict(zip(("idx", "targets"), target.elts, strict=True))
    names = {ours: own for ours, own in names.items() if dump(own) != f"Name(id='{ours}')"}
    setup = block[: block.index(measured)]
    script = Script(source, tree, main, measured, loop, setup, body, names)
    logs = (n for n in ast.walk(loop) if isinstance(n, ast.Expr))
    if not any(script.role(node) == "log" for node in logs):
        raise UserError(f"{name}: the loop has no `run.log(loss.item())`", GUIDE)
    return script


def _measured(tree):
    """Return the function with `with Run(...) as run`, that statement, and its block."""
    for main in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        for block in blocks(main):
            for node in (n for n in block if isinstance(n, ast.With)):
                call = node.items[0].context_expr
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Run"):
                    return main, node, block
    return None, None, None


def blocks(node):
    """Yield the lists of statements within a node."""
    for child in ast.walk(node):
        for part in ("body", "orelse", "finalbody"):
            block = getattr(child, part, None)
            if isinstance(block, list):
                yield block


def _steps(node, run):
    """Return the call of run.steps within an expression, or None."""
    steps = f"{ast.unparse(run)}.steps" if run is not None else None
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call) and n.args)
    return next((call for call in calls if ast.unparse(call.func) == steps), None)


def _around_backward(body):
    """Return the block of the loop that holds `loss.backward()`, and the loss."""
    for block in [body, *(b for node in body for b in blocks(node))]:
        for node in filter(_is_backward, block):
            return block, node.value.func.value
    return body, None


def renamed(text, names):
    """Return a technique's text, not indented, with the names of another script.

    names: of that Script. Attributes and keywords keep their names.
    """
    names = {ours: written(node) for ours, node in names.items()}
    tokens = list(tokenize.generate_tokens(StringIO(text).readline))
    changes, depth = [], 0
    for number, token in enumerate(tokens):
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        if token.type != tokenize.NAME or token.string not in names:
            continue
        keyword = depth and tokens[number + 1].string == "="
        if not keyword and (number == 0 or tokens[number - 1].string != "."):
            changes.append((token.start, token.end, names[token.string]))
    lines = text.splitlines(keepends=True)
    for (row, start), (_, end), new in reversed(changes):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + new + line[end:]
    return "".join(lines)


def loaded(tree):
    """Return all names that a file reads."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def bound(tree):
    """Return all names that a file binds anywhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, NAMED):
            names.add(node.name)
    return names - {None}  # an `except` may have no name


def undefined(tree):
    """Return the names that a file reads and nothing binds."""
    return loaded(tree) - bound(tree) - set(dir(builtins)) - {"__file__", "__name__", "__doc__"}


def short(node):
    """Return a statement in a few words; of a with statement, its first one."""
    while isinstance(node, ast.With):
        node = node.body[0]
    return textwrap.shorten(ast.unparse(node), 60, placeholder=" ...")
