"""A recipe as code: lines for loops of one's own, and a script."""

import hashlib
import re
import tomllib
from pathlib import Path

from Utils.analysis import tables
from Utils.base import ladder, paths
from Utils.base.errors import UserError
from Utils.base.ladder import BASELINE

LINES = Path(__file__).with_name("lines.toml")
MARK = "Written by `make recipe`"
OTHER_FILE = "RECIPE=... names another file"
LIBRARIES = (  # title; the call whose arguments are set, their key in LINES; the key of other lines
    ("PyTorch", None, None, "pytorch"),
    ("Hugging Face Trainer", "TrainingArguments", "arguments", "hugging"),
    ("Lightning", "Trainer", "trainer", "lightning"),
)


def lines_of(techniques, batch=None):
    """The techniques as lines of code, by library: {library: list of lines}.

    batch: of a technique that chose its own. A technique that `LINES` does not know, as one's own,
    is shown by its diff.
    """
    known = tomllib.loads(LINES.read_text())
    found = {}
    for library, call, arguments, lines in LIBRARIES:
        has = [t for t in techniques if {arguments, lines} & {*known.get(t, ())}]
        replaced = {name for t in has for name in known[t].get("replaces", ())}
        inside, around = [], []
        for name in techniques:
            own = known.get(name, {})
            if name in replaced:
                continue
            if arguments in own:
                inside.append(f"    {own[arguments]},  # {name}")
            if lines in own:
                around += [f"# {name}", *own[lines].strip().splitlines()]
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
        text = "\n".join([*block, *around]) or "# nothing: as it comes"
        found[library] = text.replace("{batch}", str(batch or "...")).splitlines()
    return found


def _digest(code):
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def script(entry, described):
    """The recipe as a script, its docstring with the evidence. A string."""
    kind = "forecast" if entry["forecast"] else "measured"
    ratio = tables.ratio_text(entry["speedup"]) or "not known"
    digest = _digest(entry["code"])
    why = [f"- {name}: {text}" for name, text in entry["evidence"].items()]
    doc = [
        f"{entry['name']}, made by merging the diffs of its techniques.",
        "",
        f"{MARK}, which writes it anew as long as its code is not changed ({digest}).",
        f"{kind.capitalize()}: {ratio}, against {BASELINE}",
        f"({described}).",
        *(["", *why] if why else []),
        "",
    ]
    return f'"""{chr(10).join(doc)}"""{entry["code"]}'


def write(path, text):
    """Writes a recipe's script. Raises UserError where something else is there, or a recipe that
    someone has changed."""
    try:
        if path.exists():
            doc, code = ladder.split(path.read_text())
            written = re.search(rf"^{MARK}.*\((\w+)\)", doc, re.MULTILINE)
            if not written:
                raise UserError(f"{path}: is no recipe, and stays", OTHER_FILE)
            if written[1] != _digest(code):
                raise UserError(f"{path}: was changed, and stays", OTHER_FILE)
        if path.is_relative_to(paths.CACHE):  # elsewhere a folder that is not there is a slip
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', '') or 'is no text'}") from None


def run_line(path):
    """The command that runs a recipe's script from the project's folder."""
    path = path.resolve()
    if path.is_relative_to(paths.ROOT):
        path = path.relative_to(paths.ROOT)
    return f"{'' if len(path.parts) == 1 else 'PYTHONPATH=. '}python {path}"
