"""Environments with another version of one package."""

import shutil
import sys
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from Utils.base import files, paths
from Utils.base.child import output_of
from Utils.base.errors import UserError, first_line
from Utils.base.units import GIB

SIZE = "about 6 GB where torch brings CUDA's packages, otherwise 1.5 GB"
FOLLOWS_TORCH = {"triton", "torchao"}  # CPU builds of torch do not declare the first


def python_with(text, index_url, folder):
    """Return the Python of an environment with our requirements, one of them replaced.

    It is installed in a folder once. One that a killed process left is installed anew. Raises
    UserError.

    text: a requirement, such as torch==2.11.0.
    index_url: an index to search beside the usual one, or "".
    """
    try:
        lines = requirements(Requirement(text))
    except InvalidRequirement as error:
        raise UserError(first_line(error)) from None
    key = "\n".join([sys.version, index_url, *lines])
    folder = folder / paths.digest(key)
    python = str(folder / "bin" / "python")
    complete = folder / "requirements.txt"
    if complete.exists():
        return python

    shutil.rmtree(folder, ignore_errors=True)
    free = shutil.disk_usage(paths.ROOT).free / GIB
    print(f"installing {text} in {folder}: {SIZE}; {free:.0f} GiB are free", file=sys.stderr)
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "--python", python, "--index-strategy=unsafe-best-match"]
    if not uv:
        install = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    if index_url:
        install.append(f"--extra-index-url={index_url}")
    create = [uv, "venv", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    output_of([*create, str(folder)])
    output_of([*install, "--quiet", *lines])
    files.write(complete, "\n".join(lines))
    return python


def requirements(changed):
    """Return the lines of requirements.txt with one changed, and what pins it without a version."""
    name = canonicalize_name(changed.name)
    lines = [str(changed)]
    for line in (paths.ROOT / "requirements.txt").read_text().splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        requirement = Requirement(text)
        other = canonicalize_name(requirement.name)
        is_related = other in needs(name) or name in needs(other)
        if is_related or (name == "torch" and other in FOLLOWS_TORCH):
            requirement.specifier = type(requirement.specifier)()
        if other != name:
            lines.append(str(requirement))
    return lines


def needs(name):
    """Return the names of the packages that an installed package needs."""
    try:
        lines = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return set()
    return {canonicalize_name(Requirement(line).name) for line in lines if "extra ==" not in line}
