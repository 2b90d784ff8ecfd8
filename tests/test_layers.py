"""Rooms of the project that import-linter and ruff cannot see: folders, files, commands.

DESIGN: "`rm -r tools` leaves `make all`, `make NAME`, `table`, `plots`, `ablate`, `recipe`,
`report`, `diff` and `compare` as they were".

The contracts of import-linter, in pyproject.toml, hold that imports run one way; ruff refuses an
import in a function that does not say why.
"""

import re
import shutil

import pytest

from tests.helpers import checkouts, processes
from Utils.base import paths
from Utils.results import rows_file
from Utils.scripts import ladder

MOST_LINES = 400
PACKAGES = ("Utils", "tools")
FILES = sorted(path for name in PACKAGES for path in paths.ROOT.glob(f"{name}/**/*.py"))


def test_layers_script_imports_the_model_the_data_and_the_loop():
    for technique in ladder.techniques().values():
        if technique.at_top_level:
            imports = re.findall(r"^ *(?:from|import) ((?:Utils|tools)\S*)", technique.code, re.M)
            assert {*imports} <= {"Utils.model", "Utils.data", "Utils.run"}, technique.name


def test_layers_file_can_be_read_in_one_sitting():
    assert not [path for path in FILES if path.read_text().count("\n") > MOST_LINES]


@pytest.mark.slow
def test_core_runs_without_tools(tmp_path):
    core = tmp_path / "project"
    checkouts.copy(core)
    shutil.rmtree(core / "tools")
    checkouts.commit(core)

    for words in (
        ("all", *checkouts.TINY, "ROUNDS=2"),
        ("baseline", *checkouts.TINY),
        ("table", "ALL=1"),
        ("plots",),
        ("ablate", "T=tensorFloat32", *checkouts.TINY, "ROUNDS=2", "RESULTS_FILE=ablation.csv"),
        ("recipe",),
        ("report",),
        ("diff", "T=flash_attention"),
        ("compare", "A=results.csv", "B=ablation.csv"),
    ):
        checkouts.make(core, *words)
    suites = {row["suite"] for row in rows_file.read_as_texts(core / "ablation.csv")}
    assert suites == {"ladder"}  # the first rung alone on the baseline is the ladder's
    assert (core / "plots" / "speedup.png").exists() and (core / "report.html").exists()

    words = ("-m", "Utils.commands", "suite", "BASE=train.py")
    done = processes.python(*words, cwd=core, PYTHONPATH="")
    line = "suite: error: BASE=train.py: needs tools/own_script, which is not here\n"
    assert (done.returncode, done.stderr) == (2, line)
