"""Apply a technique's diff to a script of another shape, place by place.

`merge` aligns texts; here statements are aligned by what they do. The diff of a technique, from its
parent to itself, replaces, wraps, inserts and deletes statements beside the places of `anatomy`. A
script's own arguments stay. What cannot be applied exactly is refused with the place it needs.
"""

import ast
import difflib
import re
import textwrap

from Utils.base.errors import UserError
from Utils.scripts import anatomy, arguments, elsewhere
from Utils.scripts.anatomy import ROLES, Misfit, dump, short

# Of every model, whoever made it; other attributes are those of GPT.
OF_MODULES = {"parameters", "to", "compile"}
OF_PARALLEL = {"register_comm_hook", "no_sync"}  # of DistributedDataParallel
FIRST = ("seed", "precision")  # of the setup: what would follow them comes first


def apply(source, before, after, name):
    """Return a script's source with the diff of a technique. Raises Misfit.

    before, after: source of the technique's parent, and of the technique. name: of the technique.
    """
    try:
        return Graft(source, before, after).done()
    except Misfit as misfit:
        return elsewhere.apply(source, name, misfit)


class Graft:
    """The diff from a parent to a technique, applied to another script."""

    def __init__(self, source, before, after):
        self.before, self.after = anatomy.read(before, "parent"), anatomy.read(after, "technique")
        self.script = anatomy.read(source, "base")
        if self.before.body is self.before.loop.body:
            self.after.body = self.after.loop.body
        self.undefined = anatomy.undefined(self.script.tree)

    def done(self):
        self._check_owners()
        self._definitions()
        for block in ("setup", "body"):
            self._block(block)
        self._imports()
        if missing := anatomy.undefined(self.script.tree) - self.undefined:
            raise Misfit(f"needs {' and '.join(f'`{name}`' for name in sorted(missing))}")
        return self.script.text

    def _rewrite(self, first, last, lines):
        """Replace lines of the script, first to last, counted from 1, last included."""
        old = self.script.lines
        text = "\n".join([*old[: first - 1], *lines, *old[last:]]) + "\n"
        try:
            self.script = anatomy.read(text, "base")
        except UserError as error:
            raise Misfit(f"does not parse after the change: {error}") from None

    def _check_owners(self):
        """Refuse code that uses what only our model or batches have."""
        old = {dump(n) for n in ast.walk(self.before.tree)}
        new = [n for n in ast.walk(self.after.tree) if dump(n) not in old]
        batches, ours = (s.dump(*s.image("batches")) for s in (self.script, self.before))
        for node in new:
            if isinstance(node, ast.Name) and node.id in ("TokenBatches", "StreamedBatches"):
                self._need(batches == ours, "`batches = TokenBatches(args)`")
            if not isinstance(node, ast.Attribute):
                continue
            owner, attribute = ast.unparse(node.value), node.attr
            if owner == "batches" or attribute == "init_process_group":
                shared = "" if owner == "batches" else ", which ranks can share"
                self._need(batches == ours, f"`batches = TokenBatches(args)`{shared}")
            if owner == "model" and attribute in OF_PARALLEL:
                self._need("DistributedDataParallel" in self.script.text, "DistributedDataParallel")
            elif owner == "model" and attribute not in OF_MODULES:
                self._need(self._model_is_ours(), f"`model.{attribute}` of GPT in Utils.model")
            if owner == "trials":
                raise Misfit("tries batches of a script of the ladder, not of this one")
        if any(isinstance(n, ast.Call) and ast.unparse(n.func) == "model" for n in new):
            nodes = self.before.image("forward")
            same = self.script.dump(*self.script.image("forward")) == self.before.dump(*nodes)
            self._need(same, f"`{short(nodes[0])}` in the loop")

    def _need(self, condition, place):
        if not condition:
            raise Misfit(f"needs {place}")

    def _model_is_ours(self):
        made = any("GPT(" in ast.unparse(node) for node in self.script.image("model"))
        imports = map(ast.unparse, self.script.imports)
        return made and any(re.match("from Utils.model import.*GPT", text) for text in imports)

    # At the top of the file ---------------------------------------------------------------------

    def _definitions(self):
        old, new = self.before.definitions, self.after.definitions
        for _, i1, i2, j1, j2 in _changes(old, new, self.before, self.after):
            place = None
            for node in old[i1:i2]:
                place = self._remove_definition(node)
            known = {getattr(node, "name", None) for node in self.script.definitions} - {None}
            for node in new[j1:j2]:
                if getattr(node, "name", None) in known:
                    raise Misfit(f"the script has another `{node.name}`")
            if j1 < j2:
                after = [*map(dump, old[i2 : i2 + 1])]
                nodes = [n for n in self.script.definitions if dump(n) in after]
                place = place or _first_line((nodes or [self.script.main])[0], self.script)
                lines = [*_text(self.after, new[j1:j2]).splitlines(), "", ""]
                self._rewrite(place, place - 1, lines)

    def _remove_definition(self, node):
        """Remove a function of the parent from the script. Return the line where it was."""
        name = getattr(node, "name", "")
        same = [n for n in self.script.definitions if dump(n) == dump(node)]
        if not same:
            raise Misfit(f"needs the function `{name}` of its parent{self._handed_in(name)}")
        first, last = _first_line(same[0]), same[0].end_lineno
        lines = self.script.lines
        while last < len(lines) and not lines[last].strip():
            last += 1
        self._rewrite(first, last, [])
        return first

    def _handed_in(self, name):
        for node in ast.walk(self.before.main):
            if isinstance(node, ast.keyword) and ast.unparse(node.value) == name:
                return f", handed to the model as {node.arg}="
        return ""

    def _imports(self):
        """Import what the new code uses, and remove what only the old code used."""
        used, bound = anatomy.loaded(self.script.tree), anatomy.bound(self.script.tree)
        order = self.after.imports
        for place, node in enumerate(order):
            names = anatomy.bound(node)
            if not names & used or names <= bound:
                continue
            known = {dump(n): n for n in self.script.imports}
            above = [known[dump(n)] for n in order[:place] if dump(n) in known]
            below = [known[dump(n)] for n in order[place + 1 :] if dump(n) in known]
            if above or not below:
                line = (above or self.script.imports)[-1].end_lineno
                self._rewrite(line + 1, line, [ast.unparse(node)])
            else:
                blank = order[place + 1].lineno - node.end_lineno > 1
                line = below[0].lineno
                self._rewrite(line, line - 1, [ast.unparse(node), ""][: 1 + blank])
        removed = {*map(dump, self.before.imports)} - {*map(dump, order)}
        for node in reversed(self.script.imports):
            unused = not anatomy.bound(node) & anatomy.loaded(self.script.tree)
            if unused and dump(node) in removed:
                self._rewrite(node.lineno, node.end_lineno, [])

    # In the main function -----------------------------------------------------------------------

    def _block(self, block):
        old, new = getattr(self.before, block), getattr(self.after, block)
        for tag, i1, i2, j1, j2 in _changes(old, new, self.before, self.after):
            if tag == "insert":
                self._insert(block, old, i1, new[j1:j2])
            else:
                self._replace(block, old[i1:i2], new[j1:j2])

    def _insert(self, block, old, place, added):
        self._refuse_repeated(added)
        before, after = old[place - 1 : place] if place else [], old[place : place + 1]
        if before and (image := self._image(before[0], old)):
            line, indent = image[-1].end_lineno, self.script.indent(image[-1])
        elif after and (image := self._image(after[0], old)):
            line = _first_line(image[0], self.script) - 1
            indent = self.script.indent(image[0])
        elif block == "setup" and (not before or self.before.role(before[0]) in FIRST):
            statements = [*self.script.setup, self.script.measured]
            first = next(n for n in statements if not anatomy.is_text(n))
            line, indent = first.lineno - 1, self.script.indent(first)
        else:
            raise Misfit(f"needs {self._named((before or after)[0])}")
        self._rewrite(line + 1, line, self._lines(added, indent))

    def _refuse_repeated(self, added):
        """Refuse what the script does by itself."""
        calls = {ast.unparse(n.func) for n in ast.walk(self.script.main) if isinstance(n, ast.Call)}
        for node in added:
            value = getattr(node, "value", None)
            if not isinstance(value, ast.Call):
                continue
            called = ast.unparse(value.func)
            wraps = isinstance(node, ast.Assign) and value.args
            if wraps and dump(value.args[0]) == dump(node.targets[0]) and called in calls:
                raise Misfit(f"the script has {called} already")

    def _image(self, node, old):
        """Return the statements of the script that correspond to one of the parent, in order."""
        role = self.before.role(node)
        if role == "model":
            return self._of_model({self.before.dump(n) for n in old if n is not node})
        if role:
            return self.script.image(role)
        text = self.before.dump(node)
        for block in (self.script.setup, self.script.body, self.script.loop.body):
            if found := [n for n in block if self.script.dump(n) == text]:
                return found
        return []

    def _of_model(self, others):
        """Return the statements that make the model and change it, up to the optimizer.

        others: dumps of statements of techniques.
        """
        if not (found := [*self.script.image("model")]):
            return []
        for node in self.script.setup[self.script.setup.index(found[-1]) + 1 :]:
            if self.script.role(node) == "optimizer" or self.script.dump(node) in others:
                break
            targets = getattr(node, "targets", [getattr(node, "value", node)])
            if any(_root(self.script.dump(t)) == "model" for t in targets):
                found.append(node)
        return found

    def _replace(self, block, removed, added):
        """Replace statements of the parent, each where its counterpart in the script stands."""
        roles = [self.before.role(node) for node in removed]
        replaced = {*roles}
        if roles == ["precision"] and not self.script.image("precision"):
            if "allow_tf32" in self.script.text:
                raise Misfit("the script sets allow_tf32 already")
            seed = self.before.image("seed")
            return self._insert("setup", [*seed, *removed], len(seed), added)
        images = [
            self.script.image("model") if role == "model" else self._image(node, removed)
            for node, role in zip(removed, roles, strict=True)
        ]
        for node, image in zip(removed, images, strict=True):
            if not image:
                raise Misfit(f"needs {self._named(node)}")
        indent = self.script.indent(images[0][0])
        lines, waiting = [], []
        for node in added:
            role = self.after.role(node)
            if role is None or role not in roles:
                waiting.append(node)
                continue
            place = roles.index(role)
            lines += self._lines(waiting, indent) if waiting else []
            lines += self._changed(removed[place], node, images[place], role, indent)
            roles[place], waiting = None, []
        if waiting:
            lines += self._lines(waiting, indent)
        for node, image, role in zip(removed, images, roles, strict=True):
            same = self.script.dump(*image) == self.before.dump(node)
            if not same and (role is not None or self.before.role(node) is None):
                raise Misfit(f"needs `{short(node)}`, and has `{short(image[0])}`")
        nodes = [node for image in images for node in image]
        own = self.script.block_of(nodes[0])
        if any(node not in own for node in nodes):
            raise Misfit(f"needs {self._named(removed[-1])} in the same block as the forward pass")
        first, last = own.index(nodes[0]), own.index(nodes[-1])
        for node in own[:first] + own[last + 1 :]:
            if node.lineno <= nodes[-1].end_lineno and node.end_lineno >= nodes[0].lineno:
                raise Misfit(f"needs `{short(node)}` on a line of its own")
        if own[first : last + 1] != nodes:
            foreign = next(n for n in own[first : last + 1] if n not in nodes)
            ends = f"{self._named(removed[0])} and {self._named(removed[-1])}"
            raise Misfit(f"`{short(foreign)}` stands between {ends}")
        alone = "step" in replaced and "backward" not in replaced
        if alone and (not first or self.script.role(own[first - 1]) != "backward"):
            raise Misfit("needs `optimizer.step()` straight after `loss.backward()`")
        self._rewrite(_first_line(nodes[0], self.script), nodes[-1].end_lineno, lines)

    def _named(self, node):
        """Return a place of the parent in words."""
        role = self.before.role(node)
        return ROLES[role] if role else f"`{short(node)}`"

    def _changed(self, old, new, image, role, indent):
        """Return the lines of a changed statement, from the script's own one."""
        if self.script.dump(*image) == self.after.dump(new):
            raise Misfit("the script has this already")
        if self.script.dump(*image) == self.before.dump(old):
            return self._lines([new], indent)
        if isinstance(new, ast.With) and self.after.dump(*new.body) == self.before.dump(old):
            return self._wrapped(new, image, indent)
        if role == "log":
            names = self.script.names | {"loss": self._logged(image[0])}
            return self._lines([new], indent, names)
        if role in ("optimizer", "model"):
            merge = arguments.optimizer if role == "optimizer" else arguments.model
            comments, own = self._own_lines(image)
            both = (self.before, old), (self.after, new)
            return [*comments, *merge(self.script, image, "\n".join(own), *both)]
        raise Misfit(f"needs `{short(old)}`, and has `{short(image[0])}`")

    def _wrapped(self, new, image, indent):
        """Return the lines of statements within a technique's `with`; zero_grad() stays outside."""
        header = ast.unparse(new.items[0].context_expr)
        called = header.split("(")[0]
        if any(called in ast.unparse(node) for node in self.script.loop.body):
            raise Misfit(f"the script has {called} already")
        texts = (n for node in image for n in ast.walk(node) if isinstance(n, ast.Constant))
        if any(isinstance(n.value, str) and n.end_lineno > n.lineno for n in texts):
            raise Misfit("a text of several lines stands in the forward pass")
        inside = list(image)
        while len(inside) > 1 and self.script.role(inside[-1]) == "zero":
            inside.pop()
        both = [line for lines in self._own_lines(inside) for line in lines]
        rest = self.script.lines[inside[-1].end_lineno : image[-1].end_lineno]
        start = f"{indent}with {anatomy.renamed(header, self.script.names).strip()}:"
        deeper = indent + ("\t" if "\t" in indent else "    ")
        own = [deeper + line.removeprefix(indent) if line.strip() else line for line in both]
        return [start, *own, *rest]

    def _logged(self, node):
        """Return the tensor that a statement logs."""
        logged = node.value.args[0] if node.value.args else None
        if isinstance(logged, ast.Call) and isinstance(logged.func, ast.Attribute):
            if logged.func.attr in ("item", "detach") and not logged.args:
                logged = logged.func.value
        elif isinstance(logged, ast.Call) and ast.unparse(logged.func) == "float":
            logged = logged.args[0]
        if not isinstance(logged, ast.Name | ast.Attribute | ast.Subscript):
            raise Misfit(f"needs {ROLES['log']}, and has `{short(node)}`")
        return logged

    def _own_lines(self, nodes):
        """Return the comments above statements of the script, and their lines."""
        first = _first_line(nodes[0], self.script)
        lines, start = self.script.lines, nodes[0].lineno - 1
        return lines[first - 1 : start], lines[start : nodes[-1].end_lineno]

    def _lines(self, nodes, indent, names=None):
        """Return the lines of statements of the technique, with the names of the script."""
        text = anatomy.renamed(_text(self.after, nodes), names or self.script.names)
        return textwrap.indent(text, indent).splitlines()


def _changes(old, new, before, after):
    """Return the opcodes that are no match, the last first: earlier places then stay."""
    texts = [before.dump(node) for node in old], [after.dump(node) for node in new]
    matcher = difflib.SequenceMatcher(None, *texts, autojunk=False)
    return [change for change in reversed(matcher.get_opcodes()) if change[0] != "equal"]


def _text(script, nodes):
    """Return the source of consecutive statements with the comments above, not indented."""
    first, last = _first_line(nodes[0], script), nodes[-1].end_lineno
    return textwrap.dedent("\n".join(script.lines[first - 1 : last])) + "\n"


def _first_line(node, script=None):
    """Return the first line of a statement, with its decorators and, of a script, comments."""
    line = min([node.lineno, *(n.lineno for n in getattr(node, "decorator_list", ()))])
    while script and line > 1 and script.lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return line


def _root(text):
    """Return the name at the root of a dump, as of model.to(...)."""
    found = re.search(r"Name\(id='(\w+)'\)", text)
    return found and found[1]
