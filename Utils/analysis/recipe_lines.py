"""A recipe as code: lines for other training loops, and a script."""

import hashlib
import re
import tomllib
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError, naming
from Utils.scripts import ladder

LINES = Path(__file__).with_name("lines.toml")
MARK = "Written by `make recipe`"
OTHER_FILE = "name another file with RECIPE="
LIBRARIES = (  # title; the call whose arguments are set, their key in LINES; the key of other lines
    ("PyTorch", None, None, "pytorch"),
    ("Hugging Face Trainer", "TrainingArguments", "arguments", "hugging"),
    ("Lightning", "Trainer", "trainer", "lightning"),
)


def lines_of(techniques, batch=None):
    """Return the techniques as lines of code: {library: list of lines}.

    batch: of a technique that chose its batch. A technique missing in `LINES` is shown by its diff.
    """
    known = tomllib.loads(LINES.read_text())
    by_library = {}
    for library, call, arguments, lines in LIBRARIES:
        entries = {name: known.get(name, {}) for name in techniques}
        has = [name for name, entry in entries.items() if {arguments, lines} & entry.keys()]
        for name in has:
            for replaced in known[name].get("replaces", ()):
                entries.pop(replaced, None)
        inside = [f"    {e[arguments]},  # {n}" for n, e in entries.items() if arguments in e]
        text = [f"{call}(", *inside, ")"] if inside else []
        for name, entry in entries.items():
            if lines in entry:
                text += [f"# {name}", *entry[lines].strip().splitlines()]
            elif name not in known and library == "PyTorch":
                diff = ladder.diff(ladder.get(name), ladder.get(ladder.get(name).parent))
                text += [f"# {name}, which is", *(f"#   {line}" for line in diff[2:])]
            elif name not in known:
                text.append(f"# {name}: no switch is known; its diff is above")
            elif name not in has:
                text.append(f"# {name}: no switch; in the model's or the loop's own code")
        text = text or ["# nothing to change"]
        by_library[library] = [line.replace("{batch}", str(batch or "...")) for line in text]
    return by_library


def _digest(code):
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def script(recipe, described):
    """Return a Recipe as a script with the evidence in its docstring, a string."""
    code = recipe.script.code if recipe.script else ""
    doc = [
        f"{recipe.name}, made by merging the diffs of its techniques.",
        "",
        f"{MARK}, which overwrites it unless its code was changed ({_digest(code)}).",
        f"Measured: {str(recipe.speedup) or 'not known'}, against {recipe.base}",
        f"({described}).",
        "",
        *(f"- {name}: {reason}" for name, reason in recipe.switch_on.items()),
    ]
    return f'"""{chr(10).join(doc)}"""{code}'


def write(path, text):
    """Write a recipe's script. Raises UserError rather than overwrite another file, or a recipe
    that someone has changed."""
    with naming(path):
        if path.exists():
            doc, code = ladder.split(path.read_text(errors="replace"))
            written = re.search(rf"^{MARK}.*\((\w+)\)", doc, re.MULTILINE)
            if not written:
                raise UserError(f"{path}: exists and is no recipe", OTHER_FILE)
            if written[1] != _digest(code):
                raise UserError(f"{path}: was changed by hand", OTHER_FILE)
        if path.is_relative_to(paths.CACHE):  # elsewhere a missing folder is a typing error
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run_line(path):
    """Return the command that runs a recipe's script from the project's folder."""
    path = path.resolve()
    if path.is_relative_to(paths.ROOT):
        path = path.relative_to(paths.ROOT)
    return f"{'' if len(path.parts) == 1 else 'PYTHONPATH=. '}python {path}"
