"""The two sides of a pair: what they are, their files, and their Python.

A side is an environment, a requirement, a git revision, or a change of one script. Revisions
are unpacked, and environments installed, in FOLDER; only complete ones are used again, of a
revision only unchanged files.
"""

import filecmp
import glob
import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tools.own_script import own_runs, script_patch
from tools.pair import environments
from Utils.base import paths
from Utils.base.child import output_of
from Utils.base.errors import UserError, naming
from Utils.base.files import new_folder
from Utils.harness import turn_pipe

FOLDER = paths.CACHE / "pair"
SIGNS = re.compile("==|<|>|~=")  # in requirements
PROTOCOL = re.compile(r"^PROTOCOL = (\d+)", re.MULTILINE)
INSTALLED = """
from importlib.metadata import distributions
versions = {d.metadata["Name"]: d.version for d in distributions()}
print(versions.get("torch", "none"), *sorted(f"{name}=={versions[name]}" for name in versions))
"""


@dataclass(frozen=True)
class Side:
    """One side of a pair.

    name: A or B.
    text: the setting's value.
    root: folder of the files that run.
    columns: commit and torch of its rows.
    record: fields of the records of its runs. One is a digest of all packages of its Python.
    """

    name: str
    text: str
    root: Path
    python: str
    columns: dict
    record: dict


@contextmanager
def errors_of(name, text):
    """Name a side in each UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}={text!r}: {error}") from None


def kind_of(text):
    """Return environment, requirement or revision."""
    if os.path.exists(os.path.expanduser(f"{text}/bin/python")):
        return "environment"
    return "requirement" if SIGNS.search(text) else "revision"


def changes_of(args):
    """Return the texts that name files with changes, patches or a script beside BASE, or [].

    Raises UserError.
    """
    path = os.path.expanduser(args.b)
    matches = sorted(filter(os.path.isfile, glob.glob(path)))
    names = [args.b] if os.path.isfile(path) else matches
    if not names and re.search(r"\*|\.patch$", args.b):
        raise UserError(f"B={args.b}: there is no such file")
    if names and args.a:
        raise UserError(f"B={args.b}: is a change, so A is the script as it is", "leave A out")
    return names


def source_of(path):
    """Return the text of a source, as patches of it are applied to it."""
    return Path(path).read_text("utf-8", errors="replace")


def texts_of(change, script):
    """Return the texts by path that a change makes of the files of a script. Raises UserError.

    change: a patch, or another script in the same folder.
    """
    path = Path(os.path.expanduser(change))
    if path.suffix != ".py":
        return script_patch.patched_files(str(path), script)
    if path.resolve().parent != Path(script).parent:
        raise UserError(f"{change}: is not in the folder of {script}", "give a patch")
    with naming(path):
        return {script: source_of(path)}


def sides_of(args, repository=None):
    """Return the Sides that args.a and args.b name, A and B.

    Raises UserError, also if they are not of one kind.

    repository: folder of a user's script, None for our own.
    """
    texts = {"A": args.a, "B": args.b}
    if not all(texts.values()):
        raise UserError("a pair has two sides", f"as in {paths.COMMAND} pair A=main B=HEAD")
    kind, kind_of_b = map(kind_of, texts.values())
    if kind != kind_of_b:
        raise UserError(f"A is of the kind {kind}, B is of the kind {kind_of_b}", "give one kind")
    if repository and kind == "requirement":
        problem = "BASE needs two of your environments, as its requirements are unknown"
        raise UserError(problem, "for example A=~/envs/old B=~/envs/new")

    sides = []
    for name, text in texts.items():
        root = repository or paths.ROOT
        commit = paths.commit()
        python = own_runs.python_of(args)
        with errors_of(name, text):
            if kind == "environment":
                python = os.path.abspath(os.path.expanduser(f"{text}/bin/python"))
            elif kind == "requirement":
                python = environments.python_with(text, args.index_url, FOLDER / "environments")
            elif text != ".":  # the files as they are
                root, commit = files_of(root, text)
            if not repository:
                check_protocol(root)
            sides.append(_side(name, text, root, commit, python))
    return sides


def sides_of_change(args, root, change, is_patch):
    """Return the Sides of a script as it is, and with a change. Raises UserError.

    root: folder of its files. is_patch: whether the change is one of many that are tried.
    """
    python = own_runs.python_of(args)
    a = _side("A", ".", root, paths.commit(), python, is_patch=is_patch)
    record = {"side": a.record["side"] | {"name": "B", "text": change}}
    return a, replace(a, name="B", text=change, record=record)


def _side(name, text, root, commit, python, **more):
    torch, _, packages = output_of([python, "-I", "-c", INSTALLED]).strip().partition(" ")
    side = {"name": name, "text": text, "packages": paths.digest(packages), **more}
    return Side(name, text, root, python, {"commit": commit, "torch": torch}, {"side": side})


def top_of(folder):
    """Return the top folder of the git repository in which a folder is."""
    return paths.git("-C", str(folder), "rev-parse", "--show-toplevel")


def files_of(repository, revision):
    """Return the folder with the files of a revision, and its short commit. Raises UserError.

    repository: a folder in it. Nothing is registered or changed there.
    """
    find = ["-C", str(repository), "rev-parse", "--verify", "--quiet", "--end-of-options"]
    commit = paths.git(*find, f"{revision}^{{commit}}")
    if not commit:
        raise UserError(f"not an environment, a requirement or a revision in {repository}")

    folder = FOLDER / "revisions" / commit
    with complete(folder) as files:
        unpack(top_of(repository), commit, files)
    return folder, commit[:7]


@contextmanager
def complete(folder):
    """Yield an empty folder, which gets its place once the block has filled it.

    A folder that has the same files already stays; one whose files were changed is replaced.
    """
    with naming(folder, "set CACHE_DIR to another folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder.parent) as scratch:
            files = scratch / "files"
            files.mkdir()
            yield files

            names = [path.relative_to(files) for path in files.rglob("*") if path.is_file()]
            _, changed, missing = filecmp.cmpfiles(folder, files, names, shallow=False)
            if changed or missing or not folder.exists():
                shutil.rmtree(folder, ignore_errors=True)
                files.rename(folder)


def unpack(repository, tree, folder):
    """Write the files of a git tree into an empty folder. Raises UserError."""
    archive = str(folder.with_name("archive.tar"))
    output_of(["git", "-C", repository, "archive", f"--output={archive}", tree])
    output_of(["tar", "-x", "-f", archive, "-C", str(folder)])


def check_protocol(root):
    """Raise UserError if runs of these files and this launcher do not understand each other."""
    file = root / "Utils/harness/turn_pipe.py"
    stated = PROTOCOL.search(file.read_text() if file.exists() else "")
    number = stated[1] if stated else "none"
    if number != f"{turn_pipe.PROTOCOL}":
        problem = f"its turn protocol is {number}"
        raise UserError(problem, f"choose a revision with protocol {turn_pipe.PROTOCOL}")
