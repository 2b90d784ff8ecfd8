"""DESIGN: "`rm -r tools` leaves `make all`, `make NAME`, `table`, `plots`, `ablate`, `recipe`,
`report`, `diff`, `compare` and `submit` as they were"."""

import shutil
import subprocess
import sys

import pytest

from Utils.base import paths
from Utils.results import rows_file

H200 = "results/NVIDIA_H200/2026-11-26/results.csv"
SETTINGS = ("MODEL=gpt2-tiny", "STEPS=6", "WARMUP=2", "BATCH_SIZE=2", "SEQ_LEN=16")


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A committed copy of the tracked files, without tools/."""
    folder = tmp_path_factory.mktemp("core") / "project"
    for name in paths.git("ls-files", "-z").split("\0"):
        source = paths.ROOT / name
        if name and source.exists() and not name.startswith(("tools/", "results/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    shutil.copytree(paths.ROOT / "results", folder / "results")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "core"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def make(folder, *words):
    """Run a target there. Return what it printed and its exit code."""
    command = ["make", f"PYTHON={sys.executable}", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout, done.stderr, done.returncode


@pytest.mark.slow
def test_core_runs_without_tools(core):
    for words in (
        ("all", *SETTINGS, "ROUNDS=2"),
        ("baseline", *SETTINGS),
        ("table", "ALL=1"),
        ("plots",),
        ("ablate", "T=tensorFloat32", *SETTINGS, "ROUNDS=2", "RESULTS_FILE=ablation.csv"),
        ("recipe",),
        ("report",),
        ("diff", "T=flash_attention"),
        ("compare", "A=results.csv", "B=ablation.csv"),
        ("submit", f"RESULTS_FILE={H200}"),  # clean runs, whatever disturbs those above
    ):
        out, err, code = make(core, *words)
        assert code == 0, (words, err)
        assert "Traceback" not in out + err, words
    suites = {row["suite"] for row in rows_file.text_rows(core / "ablation.csv")}
    assert suites == {"ladder"}  # the first rung alone on the baseline is the ladder's
    assert (core / "plots" / "speedup.png").exists() and (core / "report.html").exists()


@pytest.mark.slow
def test_base_without_its_tool_is_one_line(core):
    (core / "train.py").write_text("print('a script')\n")
    for target in ("all", "ablate"):
        out, err, code = make(core, target, "BASE=train.py", *SETTINGS)
        lines = [line for line in err.splitlines() if not line.startswith("make")]
        assert code and out == "", target
        expected = "BASE=train.py: needs tools/own_script, which is not here"
        assert len(lines) == 1 and lines[0].endswith(expected), lines
