"""`make all BASE=` and `make ablate BASE=`: the ladder of a user's script, and its rows."""

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.helpers import forked
from tests.helpers.own_scripts import PACKAGES, in_fork, script, with_namesakes
from tests.helpers.rows import records_in
from tools.own_script import model_switches, own_runs, own_suite
from tools.own_script.switch_names import LADDER, ORDER, REPLACES
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.commands.__main__ import main as command
from Utils.launch import suite_runner, turn_taking
from Utils.results import rows_file

FORWARD = "    def forward(self, x):\n"
REFUSES_AUTOCAST = FORWARD + "        assert not torch.is_autocast_enabled('cpu'), 'no autocast'\n"
KILLED_IF_FUSED = "if optimizer.defaults['fused']: os.kill(os.getpid(), 9)"
SETTINGS = ("STEPS=6", "WARMUP=3", "DEVICE=cpu", "ARGS=log.txt", "WRITES=1")


def run_forks(techniques, flags, suite, minutes, progress):
    """Run scripts as `turn_taking.run` does, but one after the other."""
    codes = {}
    for technique in techniques:
        environment = technique.environment(SUITE_ID=suite)
        done = in_fork([*technique.command, *flags], environment)
        codes[technique.name] = done.returncode
    return codes, False


@pytest.fixture
def make_script(tmp_path, monkeypatch):
    """Return a function of replaced texts that writes train.py, whose runs are forks."""
    forked.prepare_compiler()
    monkeypatch.setattr(own_runs, "FOLDER", tmp_path / "own_scripts")
    monkeypatch.setattr(model_switches, "BACKEND", "aot_eager")
    monkeypatch.setattr(turn_taking, "run", run_forks)
    look = Namespace(run=lambda command, env, **options: in_fork(command[1:], env))
    monkeypatch.setattr(own_runs, "subprocess", look)

    def make_script(*changes, after=""):
        source = script(after=after)
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        (tmp_path / "train.py").write_text(f"import os\n{source}")
        return tmp_path / "train.py"

    return make_script


def run(name, path, *words):
    """Run a command on a user's script. Return its exit code."""
    results = f"RESULTS_FILE={path.parent / 'results.csv'}"
    return command(name, f"BASE={path}", results, *SETTINGS, *words)


def places(folder):
    """Return the status, suite, parent and change of each technique in results.csv.

    The name train, of the script itself, is left out of all names.
    """
    texts = {}
    for row in rows_file.text_rows(folder / "results.csv"):
        columns = [row[name] for name in ("technique", "status", "suite", "parent", "change")]
        technique, *place = [text.removeprefix("train") for text in columns]
        texts[technique] = " ".join(filter(None, place))
    return texts


@pytest.mark.slow
def test_suite_goes_on_without_switches_that_break(make_script):
    path = make_script((FORWARD, REFUSES_AUTOCAST), after=KILLED_IF_FUSED)
    assert run("suite", path, "WITHOUT=tensorFloat32 8bit_optimizer", "ROUNDS=2") == 1

    after_bf16 = "own +brainFloat16+torch_compile"
    assert places(path.parent) == {
        "": "ok own",
        "+brainFloat16": "unsupported own +brainFloat16",
        "+brainFloat16+torch_compile": "unsupported own +brainFloat16 +torch_compile",
        "+brainFloat16+torch_compile+flash_attention": f"unsupported {after_bf16} +flash_attention",
        "+brainFloat16+torch_compile+fused_optimizer": f"unsupported {after_bf16} +fused_optimizer",
        "+torch_compile": "ok own +torch_compile",
        "+torch_compile+flash_attention": "unsupported own +torch_compile +flash_attention",
        "+torch_compile+fused_optimizer": "failed own +torch_compile +fused_optimizer",
    }

    rows = rows_file.read(path.parent / "results.csv")
    rounds = rows[rows.status == "ok"].groupby("technique", observed=True)["round"].unique()
    assert {name: sorted(numbers) for name, numbers in rounds.items()} == {
        "train": [0, 1],
        "train+torch_compile": [0, 1],
    }


@pytest.mark.slow
def test_record_has_the_columns_of_its_rows(make_script):
    path = make_script(after=KILLED_IF_FUSED)
    run("suite", path, "WITHOUT=tensorFloat32 brainFloat16 torch_compile 8bit_optimizer")
    rows = {row["run_id"]: row for row in rows_file.text_rows(path.parent / "results.csv")}
    records = records_in(path.parent)
    assert {row["status"] for row in rows.values()} == {"ok", "unsupported", "failed"}
    assert {record["run_id"] for record in records} == rows.keys()
    assert len({record["suite_id"] for record in records}) == 1
    for record in records:
        row = rows[record["run_id"]]
        for name in ("suite", "base", "parent", "change", "technique", "status"):
            assert record[name] == row[name]
        assert record["command"] == [row["technique"], "log.txt"]


def test_ablation_runs_each_switch_alone_and_the_whole_without_it(make_script, tmp_path, capfd):
    # TF32, which the script has, is refused.
    tf32 = "torch.set_float32_matmul_precision('high')"
    path = make_script(("import torch\n", f"import torch\n{tf32}\n"), after=KILLED_IF_FUSED)
    assert run("ablate", path, f"PLOTSPREFIX={tmp_path}/") == 1

    whole = "+brainFloat16+torch_compile+fused_optimizer"
    assert places(tmp_path) == {
        "": "ok own",
        "+brainFloat16": "ok own +brainFloat16",
        "+brainFloat16+torch_compile": "ok own +brainFloat16 +torch_compile",
        whole: "failed own +brainFloat16+torch_compile +fused_optimizer",
        "+torch_compile": "ok ablation +torch_compile",
        "+fused_optimizer": "failed ablation +fused_optimizer",
        "+torch_compile+fused_optimizer": f"failed ablation {whole} -brainFloat16",
        "+brainFloat16+fused_optimizer": f"failed ablation {whole} -torch_compile",
    }
    rows = {row["technique"]: row for row in rows_file.text_rows(tmp_path / "results.csv")}
    assert rows["train+torch_compile"]["parent"] == "train"
    assert (tmp_path / "ablation.png").exists()
    assert "in the ladder, on its parent" in capfd.readouterr().out


@pytest.mark.slow
def test_real_make_measures_a_script_with_modules_of_our_names(tmp_path):
    path = with_namesakes(tmp_path, PACKAGES)
    words = [
        "make",
        "all",
        f"PYTHON={sys.executable}",
        f"BASE={path}",
        f"RESULTS_FILE={tmp_path / 'results.csv'}",
        f"PLOTSPREFIX={tmp_path}/",
        "WITHOUT=tensorFloat32 brainFloat16 flash_attention fused_optimizer",
        *SETTINGS,
    ]

    variables = {"CACHE_DIR": str(paths.CACHE), "COMPILE_BACKEND": "aot_eager"}
    done = subprocess.run(
        words, cwd=paths.ROOT, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert places(tmp_path) == {
        "": "ok own",
        "+torch_compile": "ok own +torch_compile",
        "+torch_compile+8bit_optimizer": "ok own +torch_compile +8bit_optimizer",
    }


def runs_of(*refused, bfloat16=True):
    """Return stand-ins of OwnRuns after a look that refused some switches."""
    switches = {name: {"refusal": "no" * (name in refused), "needs": ()} for name in ORDER}
    look = {"switches": switches, "bfloat16": bfloat16}
    return Namespace(base=Namespace(name="train"), look=look)


def ladder_of(runs, **options):
    """Return (name, parent, change) of the scripts of a ladder, without the name train."""
    scripts = list(own_suite.ladder_of(runs, **options))
    texts = [(script.name, script.parent or "", script.change) for script in scripts]
    return [tuple(text.removeprefix("train") for text in place) for place in texts]


def test_switch_takes_the_place_of_those_that_its_parent_has():
    techniques = ("brainFloat16", "torch_compile", *REPLACES, "fused_optimizer")
    compiled = "+brainFloat16+torch_compile"
    fused = f"{compiled}+fused_optimizer"
    assert ladder_of(runs_of(), techniques=techniques) == [
        ("", "", ""),
        ("+brainFloat16", "", "+brainFloat16"),
        (compiled, "+brainFloat16", "+torch_compile"),
        (fused, compiled, "+fused_optimizer"),
        (f"{compiled}+8bit_optimizer", compiled, "+8bit_optimizer"),
        ("+brainFloat16+fused_optimizer+cuda_graphs", fused, "+cuda_graphs-torch_compile"),
    ]


def test_ladder_is_in_float16_without_bfloat16():
    runs = runs_of("brainFloat16", "flash_attention", bfloat16=False)
    techniques = ("brainFloat16", "float16", "flash_attention", "fused_optimizer", "channels_last")
    half = "+float16"
    assert ladder_of(runs, techniques=techniques) == [
        ("", "", ""),
        ("+brainFloat16", "", "+brainFloat16"),
        (half, "", half),
        (f"{half}+flash_attention", half, "+flash_attention"),
        (f"{half}+fused_optimizer", half, "+fused_optimizer"),
        (f"{half}+fused_optimizer+channels_last", f"{half}+fused_optimizer", "+channels_last"),
    ]


def test_ladder_goes_on_without_what_failed():
    techniques = ("tensorFloat32", "torch_compile", "fused_optimizer")
    assert ladder_of(runs_of(), techniques=techniques, failed={"torch_compile"}) == [
        ("", "", ""),
        ("+tensorFloat32", "", "+tensorFloat32"),
        ("+tensorFloat32+torch_compile", "+tensorFloat32", "+torch_compile"),
        ("+tensorFloat32+fused_optimizer", "+tensorFloat32", "+fused_optimizer"),
    ]


def test_ablation_of_a_script_that_no_switch_fits_is_refused():
    with pytest.raises(UserError, match="no switch of the ladder has an effect on train"):
        own_suite.ablation_of(runs_of(*LADDER))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ladder"], {*LADDER} - {"float16"}),
        ([], {*LADDER} - {"float16"}),
        (["everything", "WITHOUT=torch_compile prefetching_loader"],
         {*ORDER} - {"float16", "torch_compile", "prefetching_loader"}),
    ],
)  # fmt: skip
def test_names_choose_the_switches(monkeypatch, tmp_path, words, expected):
    ladders = []
    monkeypatch.setattr(own_runs, "looked_at", lambda args: nullcontext(runs_of()))

    def interrupted(ladder, args, recorder):
        ladders.append(ladder)
        return suite_runner.Outcome(130)

    monkeypatch.setattr(suite_runner, "run", interrupted)
    assert command("suite", *words, "BASE=train.py", f"RESULTS_FILE={tmp_path / 'r.csv'}") == 130
    (ladder,) = ladders
    assert {script.technique for script in ladder} == expected | {""}


def test_unknown_switch_to_leave_out_is_refused(tmp_path):
    with pytest.raises(UserError, match="WITHOUT=flash: no such switch; choose tensorFloat32"):
        command("suite", "BASE=a.py", "WITHOUT=flash", f"RESULTS_FILE={tmp_path / 'r.csv'}")


def test_suite_is_not_resumed_after_a_change_of_this_tool(monkeypatch, tmp_path):
    folder = shutil.copytree(Path(own_runs.__file__).parent, tmp_path / "own_script")
    monkeypatch.setattr(own_runs, "__file__", str(folder / "own_runs.py"))
    monkeypatch.setattr(own_runs, "FOLDER", tmp_path)
    base = own_runs.Base("train", "train.py", False, "train.py", ".", [], "python", False)
    runs = own_runs.OwnRuns(base, Namespace())
    runs.look = {"version": "abc1234"}
    before = runs.identity(None)
    assert runs.identity(None) == before
    with (folder / "switches.py").open("a") as file:
        file.write("# changed\n")
    assert runs.identity(None) != before
