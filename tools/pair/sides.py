"""The two sides of a pair: what they are, their files, and their Python.

A side is an environment, a requirement or a git revision. Revisions are unpacked, and environments
installed, in FOLDER; only complete ones are used again.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.pair import environments
from Utils.base import paths
from Utils.base.errors import UserError, naming
from Utils.harness import turn_pipe

FOLDER = paths.CACHE / "pair"
SIGNS = ("==", "<", ">", "~=")  # of requirements
PROTOCOL = re.compile(r"^PROTOCOL = (\d+)", re.MULTILINE)
INSTALLED = """
from importlib.metadata import distributions
print(*sorted({f"{d.metadata['Name']}=={d.version}" for d in distributions()}))
"""


@dataclass(frozen=True)
class Side:
    """One side of a pair.

    name: A or B.
    text: the setting's value.
    root: folder of the files that run.
    commit: column of its rows.
    packages: "name==version" of all that its Python has.
    """

    name: str
    text: str
    root: Path
    commit: str
    python: str
    packages: tuple

    def __str__(self):
        return f"{self.name}={self.text}"

    @property
    def torch(self):
        """The version of torch. Raises UserError without one."""
        for package in self.packages:
            if package.startswith("torch=="):
                return package.removeprefix("torch==")
        raise UserError(f"{self}: {self.python} has no torch")

    @property
    def record(self):
        """Fields of the records of its runs."""
        digest = hashlib.sha256(" ".join(self.packages).encode()).hexdigest()[:16]
        side = {"name": self.name, "text": self.text, "commit": self.commit, "packages": digest}
        return {"side": side}


def kind_of(text):
    """Return environment, requirement or revision."""
    if (Path(text).expanduser() / "bin" / "python").exists():
        return "environment"
    return "requirement" if any(sign in text for sign in SIGNS) else "revision"


def sides_of(args, repository=None):
    """Return the Sides that args.a and args.b name, A and B.

    Raises UserError, also if they are not of one kind.

    repository: folder of a user's script, None for our own.
    """
    texts = {"A": args.a.strip(), "B": args.b.strip()}
    for name, text in texts.items():
        if not text:
            raise UserError(f"{name} names no side", "for example A=main B=HEAD")
    kinds = {name: kind_of(text) for name, text in texts.items()}
    if kinds["A"] != kinds["B"]:
        problem = ", ".join(f"{name} is of the kind {kind}" for name, kind in kinds.items())
        raise UserError(problem, "give two sides of one kind")
    if repository and kinds["A"] == "requirement":
        problem = "BASE needs two environments of yours, as its requirements are not known here"
        raise UserError(problem, "for example A=~/envs/old B=~/envs/new")

    sides = []
    for name, text in texts.items():
        root, commit = repository or paths.ROOT, paths.commit()
        python = os.path.expanduser(args.base_python) or sys.executable
        if kinds[name] == "environment":
            python = str(Path(text).expanduser().absolute() / "bin" / "python")
        elif kinds[name] == "requirement":
            python = environments.python_with(text, args.index_url, FOLDER / "environments")
        else:
            root, commit = files_of(root, text, f"{name}={text!r}")
        side = Side(name, text, root, commit, python, installed(python, f"{name}={text}"))
        print(f"{side}: torch {side.torch}, commit {commit or 'unknown'}", file=sys.stderr)
        sides.append(side)
    return sides


def installed(python, setting):
    """Return the packages that a Python has, as Side.packages. Raises UserError."""
    try:
        return tuple(environments.call([python, "-I", "-c", INSTALLED]).split())
    except UserError as error:
        raise UserError(f"{setting}: {error}") from None


def files_of(repository, text, setting):
    """Return the folder with the files of a revision, and its short commit. Raises UserError.

    repository: a folder in it. Nothing is registered or changed there. "." stands for its files as
    they are.
    """
    top = top_of(repository)
    if not top:
        raise UserError(f"{setting}: {repository} is in no git repository")
    if text == ".":
        return Path(top), paths.commit(top)
    name = f"{text}^{{commit}}"
    verify = ("rev-parse", "--verify", "--quiet", "--end-of-options", name)
    commit = paths.git("-C", top, *verify)
    if not commit:
        raise UserError(f"{setting}: is no folder of an environment, and no revision in {top}")

    folder = FOLDER / "revisions" / commit
    if not folder.exists():
        with naming(folder, "set CACHE_DIR to another folder"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                unpacked = Path(scratch) / "files"
                unpacked.mkdir()
                archive = f"{scratch}/archive.tar"
                environments.call(["git", "-C", top, "archive", f"--output={archive}", commit])
                environments.call(["tar", "-x", "-f", archive, "-C", str(unpacked)])
                unpacked.rename(folder)
    return folder, commit[:7]


def top_of(folder):
    """Return the top folder of the git repository in which a folder is, "" if it is in none."""
    return paths.git("-C", str(folder), "rev-parse", "--show-toplevel")


def check_protocol(side):
    """Raise UserError if the runs of a side and this launcher do not understand each other."""
    file = side.root / Path(turn_pipe.__file__).relative_to(paths.ROOT)
    number = PROTOCOL.search(file.read_text()) if file.exists() else None
    if number is None or int(number[1]) != turn_pipe.PROTOCOL:
        protocol = f"protocol {number[1]}" if number else "a protocol without number"
        problem = f"{side}: its runs take turns by {protocol}, not by {turn_pipe.PROTOCOL}"
        raise UserError(problem, "only revisions with the same number can be compared")
