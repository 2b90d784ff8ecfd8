"""Edits of a user's source: a statement after another one, an argument of a call.

Positions are those of Python's ast, as byte offsets. All other bytes of a file stay as they are.
"""

import ast
import re
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

OF_TORCH = re.compile(r"from \.*torch\b|import (.*, )?torch\b")  # an import
BOM = b"\xef\xbb\xbf"
SPACE_OR_COMMENT = re.compile(rb"[ \t]*(#[^\r\n]*)?")
# Brackets around an argument and a comma, after spaces and comments.
AFTER_ARGUMENT = re.compile(rb"(?:(?:[\s\\]|#[^\r\n]*+)*+[,)])*+")


class NoPlace(Exception):
    """Why a change has no place in a source."""


class Edit(NamedTuple):
    """A change of a file: its bytes from start to end are replaced by a text.

    order: sorts edits at one place.
    """

    file: str
    start: int
    end: int
    text: str
    order: int = 1


class Location(NamedTuple):
    """Where an expression is, as in `code.co_positions`: lines from 1, columns in bytes."""

    line: int
    end_line: int
    column: int
    end_column: int


class Source:
    """A parsed file. Raises NoPlace if it is not Python in UTF-8."""

    def __init__(self, file, content):
        self.file = file
        self.content = content
        try:
            content.decode()
            self.tree = ast.parse(content)
        except (ValueError, SyntaxError):
            raise NoPlace("its file is not Python in UTF-8") from None

        lines = content.splitlines(keepends=True)
        self.line_starts = [*accumulate(map(len, lines), initial=0)]
        if content.startswith(BOM):
            self.line_starts[0] = len(BOM)
        self.newline = "\r\n" if b"\r\n" in content else "\n"
        self.quote = "'" if content.count(b"'") > content.count(b'"') else '"'

    @classmethod
    def read(cls, file):
        """Return the Source of a file. Raises NoPlace."""
        try:
            return cls(file, Path(file).read_bytes())
        except OSError:
            raise NoPlace("its file cannot be read") from None

    def span(self, node):
        """Return the byte offsets (start, end) of a node."""
        start = self.line_starts[node.lineno - 1] + node.col_offset
        return start, self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node):
        """Return the source of a node."""
        start, end = self.span(node)
        return self.content[start:end].decode()

    def call_at(self, location):
        """Return the ast.Call at a Location. Raises NoPlace."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                lines = node.lineno, node.end_lineno
                if [*lines, node.col_offset, node.end_col_offset] == [*location]:
                    return node
        raise NoPlace("no call of it is written")

    def statement_at(self, location):
        """Return the innermost statement around a Location. Raises NoPlace."""
        line, _, column, _ = location
        innermost = None
        for node in ast.walk(self.tree):  # an outer statement comes before those within it
            if isinstance(node, ast.stmt):
                end = node.end_lineno, node.end_col_offset
                if (node.lineno, node.col_offset) <= (line, column) < end:
                    innermost = node
        if innermost is None:
            raise NoPlace("no statement made it")
        return innermost

    def after(self, statement, code):
        """Return the Edit that adds code after a statement, in lines of the same indentation.

        Raises NoPlace if the statement is not alone on its lines.
        """
        start, end = self.span(statement)
        indentation = self.content[self.line_starts[statement.lineno - 1] : start]
        line_end = SPACE_OR_COMMENT.match(self.content, end).end()
        if indentation.strip() or self.content[line_end : line_end + 1] not in b"\r\n":
            raise NoPlace("its statement shares a line with others")
        return self._added(line_end, indentation.decode(), code)

    def after_imports(self, code, order=2):
        """Return the Edit that adds code at the top level, after the imports that have torch's.

        Without such imports it follows the first ones, then a docstring.
        """
        count = self._imports()
        if not count:
            start = self.line_starts[0]
            edit = self._added(start, "", code, order)
            return edit._replace(text=edit.text.removeprefix(self.newline) + self.newline)
        _, end = self.span(self.tree.body[count - 1])
        line_end = SPACE_OR_COMMENT.match(self.content, end).end()
        return self._added(line_end, "", code, order)

    def imports(self, names):
        """Return the Edits that import modules of these names, if they are not yet imported."""
        imported = {
            alias.name.split(".")[0]
            for statement in self.tree.body[: self._imports()]
            if isinstance(statement, ast.Import)
            for alias in statement.names
            if not alias.asname
        }
        return [
            self.after_imports(f"import {name}", order=0) for name in names if name not in imported
        ]

    def _imports(self):
        """Return the number of statements after which code is added."""
        body = self.tree.body
        kinds = ast.Import, ast.ImportFrom
        imports = [index for index, node in enumerate(body) if isinstance(node, kinds)]
        with_torch = [index for index in imports if OF_TORCH.match(ast.unparse(body[index]))]
        docstring = [0] if ast.get_docstring(self.tree) is not None else []
        count = next(iter(with_torch or imports or docstring), -1) + 1

        # The rest of these imports, and of the line.
        while 0 < count < len(body):
            shares_line = body[count].lineno == body[count - 1].end_lineno
            if count not in imports and not shares_line:
                break
            count += 1
        return count

    def _added(self, offset, indentation, code, order=1):
        """Return the Edit that adds lines of code after the line that ends at an offset."""
        lines = code.replace('"', self.quote).split("\n")
        indented = [self.newline + (indentation + line if line else "") for line in lines]
        return Edit(self.file, offset, offset, "".join(indented), order)

    def with_argument(self, call, name, value):
        """Return the Edits that give a call a keyword argument. value: its text.

        Raises NoPlace if other ones could be in conflict.
        """
        is_starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        present = {keyword.arg: keyword.value for keyword in call.keywords}
        if is_starred or None in present:
            raise NoPlace("its call has *args or **options")

        if name not in present:
            return self._appended(call, f"{name}={value}")
        if not isinstance(present[name], ast.Constant):
            raise NoPlace(f"its call sets {name}")
        return [Edit(self.file, *self.span(present[name]), value)]

    def _appended(self, call, argument):
        """Return the Edits that append an argument to a call, in the layout of its last one."""
        _, call_end = self.span(call)
        last = max([*call.args, *call.keywords], key=self.span)
        start, end = self.span(last)
        if isinstance(last, ast.GeneratorExp) and end == call_end:  # its brackets are the call's
            opened = Edit(self.file, start, start, "(")
            return [opened, Edit(self.file, end - 1, end - 1, f"), {argument}")]

        # After the argument may come brackets around it and a comma.
        position = AFTER_ARGUMENT.match(self.content, end, call_end - 1).end()
        has_comma = self.content[:position].endswith(b",")

        line_start = self.line_starts[last.lineno - 1]
        indentation = self.content[line_start:start].decode()
        has_line = not indentation.strip()  # to itself
        separator = self.newline + indentation if has_line else " "
        text = separator + argument
        if not has_comma:
            text = "," + text
        elif has_line:
            position = SPACE_OR_COMMENT.match(self.content, position).end()
            text += ","
        return [Edit(self.file, position, position, text)]


def targets_of(statement):
    """Return the expressions that an assignment assigns to, those in tuples too."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    single = []
    for target in targets:
        single += target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return single if isinstance(statement, ast.Assign | ast.AnnAssign) else []


def value_of(expression, frame):
    """Return what an expression is in a frame, None if it has to call something."""
    if any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(expression)):
        return None
    try:
        return eval(ast.unparse(expression), frame.f_globals, frame.f_locals)
    except Exception:  # a name has no value any more
        return None
