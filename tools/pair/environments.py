"""Environments with another version of one package."""

import shutil
import sys
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from Utils.base import files, paths
from Utils.base.child import output_of
from Utils.base.errors import UserError, first_line
from Utils.base.units import GIB

SIZE = "about 6 GB with CUDA's packages, otherwise 1.5 GB"
FOLLOWS_TORCH = {"triton", "torchao"}  # CPU builds of torch do not declare the first


def python_with(text, index_url, folder):
    """Return the Python of an environment with our requirements, one of them replaced.

    It is installed in a folder of `folder` once. Raises UserError.

    text: a requirement, such as torch==2.11.0.
    index_url: an index to search beside the usual one, or "".
    """
    try:
        lines = requirements(Requirement(text))
    except InvalidRequirement as error:
        raise UserError(first_line(error)) from None
    key = "\n".join([sys.version, index_url, *lines])
    return installed(text, lines, folder / paths.digest(key), index_url)


def installed(title, lines, folder, index_url=""):
    """Return the Python of the environment in a folder, by uv if it is there, otherwise by pip.

    It is installed if its requirements are others, or if a killed process left it. Raises
    UserError.

    lines: its requirements.
    """
    python = str(folder / "bin" / "python")
    complete = folder / "requirements.txt"
    requirements_text = "\n".join(lines)
    if complete.exists() and complete.read_text() == requirements_text:
        return python

    shutil.rmtree(folder, ignore_errors=True)
    free = shutil.disk_usage(paths.ROOT).free / GIB
    print(f"installing {title} in {folder}: {SIZE}; {free:.0f} GiB are free", file=sys.stderr)
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "--python", python, "--index-strategy=unsafe-best-match"]
    if not uv:
        install = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    if index_url:
        install.append(f"--extra-index-url={index_url}")
    create = [uv, "venv", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    output_of([*create, str(folder)])
    output_of([*install, "--quiet", *lines])
    files.write(complete, requirements_text)
    return python


def requirements(changed, names=("requirements.txt",)):
    """Return the lines of files with one requirement replaced and its dependents unpinned.

    If the version is the pinned one, all pins stay.

    names: files of requirements.
    """
    pins = pinned(names)
    name = canonicalize_name(changed.name)
    before = pins.pop(name, None)
    is_other = before is None or version(changed) != version(before)

    lines = [str(changed)]
    for dependent, requirement in pins.items():
        is_related = dependent in needs(name) or name in needs(dependent)
        if is_other and (is_related or (name == "torch" and dependent in FOLLOWS_TORCH)):
            requirement.specifier = SpecifierSet()
        lines.append(str(requirement))
    return lines


def pinned(names):
    """Return the Requirements of files by the names of their packages."""
    text = "\n".join((paths.ROOT / name).read_text() for name in names)
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    pins = [Requirement(line) for line in lines if line]
    return {canonicalize_name(pin.name): pin for pin in pins}


def version(requirement):
    """Return the version of a requirement such as torch==2.13.0 or torch===2.13.0."""
    return str(requirement.specifier).strip("=")


def needs(name):
    """Return the names of the packages that an installed package needs."""
    try:
        lines = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return set()
    return {canonicalize_name(Requirement(line).name) for line in lines if "extra ==" not in line}
