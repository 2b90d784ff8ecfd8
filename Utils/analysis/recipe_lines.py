"""A recipe as code: lines for other training loops, and a script."""

import hashlib
import re
import tomllib
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError
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
        has = [t for t in techniques if {arguments, lines} & {*known.get(t, ())}]
        replaced = {name for t in has for name in known[t].get("replaces", ())}
        inside, around = [], []
        for name in techniques:
            entry = known.get(name, {})
            if name in replaced:
                continue
            if arguments in entry:
                inside.append(f"    {entry[arguments]},  # {name}")
            if lines in entry:
                around += [f"# {name}", *entry[lines].strip().splitlines()]
            if name in has:
                continue
            if name not in known and library == "PyTorch":
                diff = ladder.diff(ladder.get(name), ladder.get(ladder.get(name).parent))
                around += [f"# {name}, which is", *(f"#   {line}" for line in diff[2:])]
            elif name not in known:
                around.append(f"# {name}: no switch is known; its diff is above")
            else:
                around.append(f"# {name}: no switch; in the model's or the loop's own code")
        block = [f"{call}(", *inside, ")"] if inside else []
        text = "\n".join([*block, *around]) or "# nothing to change"
        by_library[library] = text.replace("{batch}", str(batch or "...")).splitlines()
    return by_library


def _digest(code):
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def script(recipe, described):
    """Return a Recipe as a script with the evidence in its docstring, a string."""
    ratio = recipe.speedup.with_verdict or "not known"
    doc = [
        f"{recipe.name}, made by merging the diffs of its techniques.",
        "",
        f"{MARK}, which overwrites it unless its code was changed ({_digest(recipe.code)}).",
        f"Measured: {ratio}, against {recipe.base}",
        f"({described}).",
    ]
    if recipe.evidence:
        doc += ["", *(f"- {name}: {reason}" for name, reason in recipe.evidence.items())]
    return f'"""{chr(10).join(doc)}"""{recipe.code}'


def write(path, text):
    """Write a recipe's script. Raises UserError rather than overwrite another file, or a recipe
    that someone has changed."""
    try:
        if path.exists():
            doc, code = ladder.split(path.read_text())
            written = re.search(rf"^{MARK}.*\((\w+)\)", doc, re.MULTILINE)
            if not written:
                raise UserError(f"{path}: exists and is no recipe", OTHER_FILE)
            if written[1] != _digest(code):
                raise UserError(f"{path}: was changed by hand", OTHER_FILE)
        if path.is_relative_to(paths.CACHE):  # elsewhere a missing folder is a typing error
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', '') or 'is not text'}") from None


def run_line(path):
    """Return the command that runs a recipe's script from the project's folder."""
    path = path.resolve()
    if path.is_relative_to(paths.ROOT):
        path = path.relative_to(paths.ROOT)
    return f"{'' if len(path.parts) == 1 else 'PYTHONPATH=. '}python {path}"
