"""DESIGN: "`rm -r tools` leaves `make all`, `make NAME`, `table`, `plots`, `ablate`, `recipe`,
`report`, `diff` and `compare` as they were".
"""

import importlib
import shutil
import sys

import pytest

from tests.helpers import checkouts, forked
from Utils.base import paths
from Utils.results import rows_file


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


def forget_tools():
    """Import every command anew, as if there were no package tools."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("Utils", "tools"):
            del sys.modules[name]
    sys.modules["tools"] = None
    for path in paths.ROOT.glob("Utils/commands/[!_]*.py"):
        importlib.import_module(f"Utils.commands.{path.stem}")


def test_core_is_imported_without_tools_and_names_the_tool_that_base_needs(tmp_path):
    words = ("suite", "BASE=train.py", f"RESULTS_FILE={tmp_path}/results.csv")
    done = forked.python("Utils.commands", *words, before=forget_tools)
    line = "suite: error: BASE=train.py: needs tools/own_script, which is not here\n"
    assert (done.returncode, done.stderr) == (2, line)
