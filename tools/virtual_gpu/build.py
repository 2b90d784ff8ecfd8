"""Build of the virtual GPU: an environment with torch's CUDA build, and three libraries.

The environment is a folder beside .venv with the packages of requirements.txt and
requirements-test.txt. Makefile builds two libraries from driver/, which replace libcuda.so.1 and
libnvidia-ml.so.1. The third is the emulation, which not all processes load.
"""

import os
import sys
from pathlib import Path

from packaging.requirements import Requirement

from tools.pair import environments
from Utils.base.child import output_of
from Utils.base.errors import UserError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = ("requirements.txt", "requirements-test.txt")


def environment(torch):
    """Return the Python of the environment for one torch, and create it if it is missing.

    === excludes 2.13.0+cpu, which == would accept if an index offers it. make builds the libraries
    if a source is newer.

    torch: "" for that of requirements.txt, a version such as "2.11", or "newest". Raises UserError.
    """
    folder = ROOT / (".venv-virtual-gpu" + (f"-{torch}" if torch else ""))
    version = torch or environments.version(environments.pinned(REQUIREMENTS)["torch"])
    version += ".0" * (version.count(".") == 1)
    changed = Requirement("torch" if torch == "newest" else f"torch==={version}")
    lines = environments.requirements(changed, REQUIREMENTS)
    python = environments.installed("torch's CUDA build", lines, folder)

    # Libraries, beside the packages that they are built with
    code = "import torch; print(torch.version.cuda or '', torch.__path__[0], sep='\\n')"
    cuda, packages = output_of([python, "-c", code]).splitlines()
    if not cuda:
        raise UserError(f"{folder.name} has a torch without CUDA", "remove it, name another")
    variables = {
        "OUT": folder / "virtual_gpu",
        "PACKAGES": Path(packages).parent,
        "PYTHON": sys.executable,
    }
    words = [f"{name}={os.path.relpath(path, ROOT)}" for name, path in variables.items()]
    output_of(["make", "--silent", "-C", ROOT, "-f", HERE / "Makefile", *words])
    return Path(python)
