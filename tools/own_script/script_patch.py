"""Unified diffs of a user's files: written from edits, and applied to copies by `git apply`.

Their paths are from the top of the script's git repository, without one from the script's folder.
"""

import difflib
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from Utils.base import child, paths
from Utils.base.errors import UserError, naming

LINES = re.compile(r"[^\n]*\n|[^\n]+")


def top_of(file):
    """Return the folder that a patch of a script has its paths from."""
    folder = Path(file).absolute().parent
    return Path(paths.git("-C", str(folder), "rev-parse", "--show-toplevel") or folder)


def diffs(edits, top):
    """Return the unified diffs of the files that Edits change."""
    texts = []
    for file in sorted({edit.file for edit in edits}):
        name = Path(file).relative_to(top).as_posix()
        if " " in name:
            name += "\t"  # which ends it

        content = Path(file).read_bytes()
        changed = edited(content, [edit for edit in edits if edit.file == file])
        before, after = (LINES.findall(text.decode()) for text in (content, changed))
        for text in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
            is_complete = text.endswith("\n")
            texts.append(text if is_complete else f"{text}\n\\ No newline at end of file\n")
    return "".join(texts)


def edited(content, edits):
    """Return the content of a file with Edits, of which equal ones count once."""
    in_order = sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.order))
    for edit in reversed(in_order):
        content = content[: edit.start] + edit.text.encode() + content[edit.end :]
    return content


def patched_files(patch, script):
    """Return the texts by path that a patch makes of the files of a script. Raises UserError."""
    top = top_of(script)
    names = _git_apply(patch, top, "--numstat", "-z").split("\0")
    names = [name.split("\t")[2] for name in names if name]

    with tempfile.TemporaryDirectory() as copy, naming(patch):
        for name in names:
            file = top / name
            if ".." in Path(name).parts or not file.is_file():
                raise UserError(f"{patch}: {file} is not a file below {top}")
            target = Path(copy, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        _git_apply(patch, copy)

        texts = {}
        for name in names:
            target = Path(copy, name)
            if not target.is_file():
                raise UserError(f"{patch}: deletes {name}; a patch changes files")
            texts[os.path.realpath(top / name)] = target.read_bytes().decode(errors="replace")
    return texts


def _git_apply(patch, folder, *options):
    """Return what `git apply` prints of a patch in a folder. Raises UserError."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(Path(folder).parent)
    command = ["git", "apply", "--whitespace=nowarn", *options, os.path.abspath(patch)]
    done = child.run(command, environment, cwd=folder)
    if done.code:
        first_line, _, _ = done.errors.removeprefix("error: ").partition("\n")
        raise UserError(f"{patch}: {first_line}")
    return done.output


def apply_command(patch, top):
    """Return the command that applies a patch."""
    top, patch = shlex.quote(str(top)), shlex.quote(os.path.abspath(patch))
    if shutil.which("git"):
        return f"git -C {top} apply {patch}"
    return f"patch -p1 -d {top} -i {patch}"
