"""Commands on a user's script: adopt, all, ablate and profile, its ladders and its rows.

Runs are forks, one after the other; the script's optimizer and model refuse what a test says.
"""

import json
from argparse import Namespace
from contextlib import nullcontext
from unittest import mock

import pytest

from tests.helpers import forked
from tests.helpers.own_scripts import fork_runs, script
from tests.helpers.refusal import refused
from tests.helpers.rows import records_in
from tools.own_script import __main__ as adopt
from tools.own_script import own_suite
from tools.own_script.inspection import InspectedSwitch, Inspection
from tools.own_script.switch_names import LADDER, ORDER
from tools.profile import __main__ as profile_command
from Utils.analysis.intervals import Ratio
from Utils.base import paths
from Utils.commands.__main__ import main as command
from Utils.launch import suite_runner
from Utils.results import rows_file

FORWARD = "    def forward(self, x):\n"
REFUSES_AUTOCAST = FORWARD + "        assert not torch.is_autocast_enabled('cpu'), 'no autocast'\n"
HAS_TF32 = "import torch\ntorch.set_float32_matmul_precision('high')\n"
KILLED_IF_FUSED = "if optimizer.defaults['fused']: os.kill(os.getpid(), 9)"
SETTINGS = ("STEPS=6", "WARMUP=3", "DEVICE=cpu", "ARGS=log.txt", "WRITES=1")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function of a command that runs it on train.py, in forks; it returns the exit code."""
    forked.prepare_compiler()
    fork_runs(monkeypatch, tmp_path)
    # Many CPUs emulate bfloat16, some have TF32.
    monkeypatch.setattr("Utils.device.capabilities.precision", lambda device: "bfloat16")
    monkeypatch.setattr("Utils.device.capabilities._cpu_has", lambda feature: False)
    base = [f"BASE={tmp_path / 'train.py'}", f"RESULTS_FILE={tmp_path / 'results.csv'}"]
    return lambda main, *words: main(*words, *base, *SETTINGS)


def rows_in(folder):
    """Return the first row of each technique in results.csv, without the name train, by name."""
    rows = {}
    for row in rows_file.read_as_texts(folder / "results.csv"):
        rows.setdefault(row["technique"].removeprefix("train"), row)
    return rows


def places(rows):
    """Return the status, suite, parent and change of rows, without the name train."""
    columns = ("status", "suite", "parent", "change")
    return {
        name: " ".join(" ".join(row[c].removeprefix("train") for c in columns).split())
        for name, row in rows.items()
    }


ENDED = """train 0 ok
train 0 ok
train 1 ok
train+brainFloat16 0 unsupported
train+brainFloat16+torch_compile 0 unsupported
train+brainFloat16+torch_compile+flash_attention 0 unsupported
train+brainFloat16+torch_compile+fused_optimizer 0 unsupported
train+tensorFloat32 0 unsupported
train+torch_compile 0 ok
train+torch_compile 1 ok
train+torch_compile+fused_optimizer 0 failed"""


def test_suite_goes_on_without_switches_that_break(run, tmp_path, capfd):
    """YOUR_SCRIPT: "A row is `unsupported` if [...] the script has it already (the note names the
    line), [...] or the script raises an error with it"; "New files stay, and are listed at the
    end".
    """
    source = "import os\n" + script(after=KILLED_IF_FUSED)
    source = source.replace("import torch\n", HAS_TF32, 1).replace(FORWARD, REFUSES_AUTOCAST)
    (tmp_path / "train.py").write_text(source)
    assert run(command, "suite", "ROUNDS=2") == 1

    rows = rows_in(tmp_path)
    after_bf16 = "+brainFloat16+torch_compile"
    assert places(rows) == {
        "": "ok own",
        "+tensorFloat32": "unsupported own +tensorFloat32",
        "+brainFloat16": "unsupported own +brainFloat16",
        after_bf16: "unsupported own +brainFloat16 +torch_compile",
        f"{after_bf16}+flash_attention": f"unsupported own {after_bf16} +flash_attention",
        f"{after_bf16}+fused_optimizer": f"unsupported own {after_bf16} +fused_optimizer",
        "+torch_compile": "ok own +torch_compile",
        "+torch_compile+fused_optimizer": "failed own +torch_compile +fused_optimizer",
    }
    assert rows["+tensorFloat32"]["note"] == "already in your script (train.py:5)"
    reason = "the script raises AssertionError: no autocast (train.py:15)"
    assert rows["+brainFloat16"]["note"] == reason
    printed = capfd.readouterr().err
    assert "resuming" not in printed and printed.count("flash_attention: unsupported") == 1
    assert printed.endswith(f"new files of train: {tmp_path / 'log.txt'}\n")

    records = records_in(tmp_path)
    ended = sorted("{technique} {round} {status}".format(**record) for record in records)
    assert ended == ENDED.splitlines()
    assert all(record["command"] == [record["technique"], "log.txt"] for record in records)


def test_suite_measures_the_patch_of_its_recipe(run, tmp_path, monkeypatch):
    """YOUR_SCRIPT: "At the end it measures the patch"."""
    techniques = ["brainFloat16", "fused_optimizer"]
    name = "+".join(["train", *techniques])
    recipe = Namespace(name=name, techniques=techniques, speedup=Ratio(2, 1.9, 2.1))
    monkeypatch.setattr(
        "Utils.analysis.recommendation.recommend",
        lambda summary: Namespace(fastest=recipe, headline=""),
    )
    source = script()
    (tmp_path / "train.py").write_text(source)
    assert run(command, "suite", "WITHOUT=torch_compile", "MINUTES=2") == 0
    assert places(rows_in(tmp_path))["+patch"] == "ok own +patch"
    assert (tmp_path / "train.py").read_text() == source

    losses = {}
    for row in rows_file.read_as_texts(tmp_path / "results.csv"):
        losses.setdefault(row["technique"], []).append(row["loss"])
    assert losses["train+patch"][:6] == losses[name][:6] != losses["train"][:6]
    patch = (tmp_path / "patches" / "train.patch").read_text()
    assert "+optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)\n" in patch
    records = {record["technique"]: record for record in records_in(tmp_path)}
    digest = paths.digest(patch[patch.index("---") :])
    assert records["train+patch"]["patch"] == {"digest": digest, "switched": name}


@pytest.mark.slow
def test_ablation_prints_a_table_and_draws_a_chart(run, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("tools.own_script.own_suite.LADDER", ("brainFloat16", "torch_compile"))
    (tmp_path / "train.py").write_text(script())
    assert run(command, "ablate", f"PLOTSPREFIX={tmp_path}/") == 0
    assert places(rows_in(tmp_path)).keys() >= {"+brainFloat16+torch_compile", "+torch_compile"}
    assert (tmp_path / "ablation.png").exists()
    assert "on the scripts before it" in capfd.readouterr().out


LOOK = """  model      Net, called at train.py:18
  optimizer  AdamW, made at train.py:22
  loader     made at train.py:25, 1 worker
  loader     made at train.py:32, 0 workers
  a step     16 samples, 4.51e-05 GFLOP
  the loss   the sum of 1 backward a step
switches     brainFloat16, torch_compile, fused_optimizer
  not tensorFloat32: TF32: no effect expected on this device
  not float16: float16 needs a GPU; on a CPU bfloat16 is the 16-bit type
  not flash_attention: it has no attention
  not cuda_graphs: CUDA graphs: no effect on this device
  not gradient_checkpointing: needs a model of transformers; in another one it is an edit
  not channels_last: the model has no Conv2d
  not cudnn_benchmark: cuDNN runs on NVIDIA GPUs
waits        on a CPU, copies to the host cannot be seen; other waits:
  train.py:32: .item(), 2 times a step
  train.py:31: .item(), 1 time a step
"""


def test_adopt_prints_what_it_saw_the_switches_and_the_waits(run, tmp_path, capsys):
    """YOUR_SCRIPT: "It prints what it saw, which switches will be tried, the lines that wait for
    the GPU".
    """
    source = script(after="DataLoader(data); loss.item(), loss.item()")
    (tmp_path / "train.py").write_text(source.replace("shuffle=True", "num_workers=1"))
    run(adopt.main)
    headline, _, below = capsys.readouterr().out.partition("\n")
    assert headline.startswith("train on ") and below.startswith(LOOK)
    assert below.endswith("next: make all BASE=train ARGS=log.txt WRITES=1\n")
    assert not (tmp_path / "results.csv").exists()


def test_profile_of_a_users_script_is_its_page_with_lines_of_its_code(run, tmp_path, capsys):
    """YOUR_SCRIPT: "`make profile BASE=train` shows where the time of a step goes"."""
    wide = "nn.Sequential(nn.Linear(16, 200_000), nn.ReLU(), nn.Linear(200_000, 4))"
    (tmp_path / "train.py").write_text(script(model=wide))  # its update is far from the threshold
    run(profile_command.main)
    printed = capsys.readouterr().out
    assert "forecast" not in printed
    assert "train.py:31: .item(), 1 time a step" in printed
    assert "is the optimizer: fused_optimizer (train.py:22)\n" in printed

    summary = json.loads((tmp_path / "profiles" / "train.json").read_text())
    assert summary["profile"]["kinds"]["idle"]["parts"]["data"] > 0
    assert (tmp_path / "profiles" / "train.trace.json.gz").exists()
    assert not (tmp_path / "results.csv").exists()


def runs_of(*refused, precision="bfloat16"):
    """Return stand-ins of OwnRuns after an inspection that refused some switches."""
    switches = {name: InspectedSwitch("no" * (name in refused), ()) for name in ORDER}
    inspection = Inspection(switches=switches, precision=precision)
    return Namespace(base=Namespace(name="train"), inspection=inspection)


def assert_lines(ladder, expected):
    """Compare suite, name, parent and change of scripts with lines without the name train."""
    lines = [f"{x.suite} {x.name} {x.parent} {x.change}".replace("train", "") for x in ladder]
    assert [line.split() for line in lines] == [line.split() for line in expected.splitlines()]


REPLACING = """own None
own +torch_compile +torch_compile
own +torch_compile+fused_optimizer +torch_compile +fused_optimizer
own +fused_optimizer+cuda_graphs +torch_compile+fused_optimizer +cuda_graphs-torch_compile"""
IN_FLOAT16 = """own None
own +brainFloat16 +brainFloat16
own +float16 +float16
own +float16+flash_attention +float16 +flash_attention
own +float16+fused_optimizer +float16 +fused_optimizer
own +float16+fused_optimizer+channels_last +float16+fused_optimizer +channels_last"""
NO_BFLOAT16 = runs_of("brainFloat16", "flash_attention", precision="float16")
EMULATED = """own None
own +brainFloat16 +brainFloat16
own +fused_optimizer +fused_optimizer"""


@pytest.mark.parametrize(
    "techniques, runs, expected",
    [
        ("torch_compile cuda_graphs fused_optimizer", runs_of(), REPLACING),
        (
            "brainFloat16 float16 flash_attention fused_optimizer channels_last",
            NO_BFLOAT16,
            IN_FLOAT16,
        ),
        ("brainFloat16 fused_optimizer", runs_of(precision="float32"), EMULATED),
    ],
)
def test_ladder_has_each_switch_on_those_before_it(techniques, runs, expected):
    """YOUR_SCRIPT: "brainFloat16 ([float16] [...] without bfloat16) [...] each on top of those
    before it that took effect".
    """
    assert_lines(own_suite.ladder_of(runs, techniques.split(), []), expected)


ABLATION = """own None
own +brainFloat16 +brainFloat16
own +brainFloat16+torch_compile +brainFloat16 +torch_compile
own +brainFloat16+torch_compile+fused_optimizer +brainFloat16+torch_compile +fused_optimizer
ablation +torch_compile+fused_optimizer +brainFloat16+torch_compile+fused_optimizer -brainFloat16
ablation +torch_compile +torch_compile
ablation +brainFloat16+fused_optimizer +brainFloat16+torch_compile+fused_optimizer -torch_compile
ablation +fused_optimizer +fused_optimizer"""


def test_ablation_has_each_switch_alone_and_the_last_without_it():
    ablated, ladder = own_suite.ablation_of(runs_of("tensorFloat32", "flash_attention"))
    assert ablated == "train+brainFloat16+torch_compile+fused_optimizer"
    assert_lines(ladder, ABLATION)
    with refused("no switch of the ladder has an effect on train"):
        own_suite.ablation_of(runs_of(*LADDER))


def test_suite_names_choose_the_switches(monkeypatch, tmp_path):
    """YOUR_SCRIPT: "`WITHOUT="torch_compile"` leaves some out"."""
    monkeypatch.setattr("tools.own_script.own_runs.inspected", lambda args: nullcontext(runs_of()))
    monkeypatch.setattr("tools.own_script.own_suite.TrainingCheck.judge", lambda *_: None)
    interrupted = mock.Mock(return_value=suite_runner.Outcome(130))
    monkeypatch.setattr("Utils.launch.suite_runner.run", interrupted)
    words = ["suite", "BASE=train.py", f"RESULTS_FILE={tmp_path / 'r.csv'}"]
    for more in ([], ["everything", "WITHOUT=torch_compile"]):
        assert command(*words, *more) == 130
    chosen = [{script.technique for script in call.args[0]} for call in interrupted.mock_calls]
    assert chosen == [{*LADDER, ""} - {"float16"}, {*ORDER, ""} - {"float16", "torch_compile"}]
