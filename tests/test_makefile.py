"""The Makefile: what it passes on, what it lists, and settings that are wrong."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers import processes
from tools.calibration.known import changed, copy_project
from Utils.base import command_line, paths
from Utils.base.command_line import OF_A_RUN, SETTINGS, Parser
from Utils.base.gpt2_sizes import CONFIGS
from Utils.scripts import ladder

TARGETS = [name for targets in command_line.targets().values() for name in targets]
TECHNIQUES = ladder.tracked()


def make(*words, folder=paths.ROOT, **variables):
    # Not what this run itself was given, as in `make test PYTHON=python3`.
    variables = {"MAKEFLAGS": "", "MAKEOVERRIDES": "", "PYTHON": ""} | variables
    environment = {name: value for name, value in (os.environ | variables).items() if value}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(["make", *words], **options)


@pytest.fixture
def python(tmp_path):
    """An interpreter that prints its arguments, a line each."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    path.chmod(0o755)
    return f"PYTHON={path}"


@pytest.mark.parametrize(
    ("target", "settings", "command"),
    [
        ("table", ("RESULTS_FILE=/tmp/it's a $HOME (1).csv", "PRICE=2"), "-m Utils.commands table"),
        ("compare", ("A=a b.csv:H100 2.11", "B=b.csv"), "-m Utils.commands compare"),
        ("tf32", ("STEPS=7", "DATASET=a\\b;c&d"), "tensorFloat32.py"),
        ("cuda_graphs", ("SEED=3",), "-m beyond.launching.cuda_graphs"),
        ("all", ("GPUS=1 2",), "-m Utils.commands suite ladder --announced"),
        ("train", ("WITH=a b", "GPUS=2"), "-m torch.distributed.run --standalone"),
    ],
)
def test_settings_are_passed_on_as_they_are(target, settings, command, python):
    words = make("-s", target, *settings, python).stdout.splitlines()
    first, *_ = command.split()
    assert " ".join(words[words.index(first) :]).startswith(command)
    assert {*settings, python} <= {*words}


def test_every_target_is_made_whatever_files_there_are(tmp_path):
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    for technique in TECHNIQUES.values():
        if technique.at_top_level:
            shutil.copy(technique.path, tmp_path)
    for name in (*TARGETS, *TECHNIQUES):
        (tmp_path / name).touch()
    for name in TARGETS:
        done = make("-n", "PYTHON=python3", "DEVICE=cpu", name, folder=tmp_path)
        assert done.returncode == 0 and len(done.stdout) > 20, (name, done)
        assert "up to date" not in done.stdout and "Nothing" not in done.stdout, name


def test_the_reference_is_three_suites_whose_rounds_follow_one_another(python):
    """Those of the ablation count for the ladder too."""
    words = ["-n", "reference", "DEVICE=cpu", "PYTHON=python3"]
    larger = "BATCH_SIZE=4 SEQ_LEN=256 STEPS=13 WARMUP=3"
    begin = "python3 -m Utils.commands suite"
    lines = make(*words).stdout
    assert f"{begin} ladder --announced ROUNDS=4 {larger}" in lines
    assert f"{begin} ablation --announced ROUNDS=4 ROUND=4 {larger}" in lines
    assert f"{begin} beyond --announced ROUNDS=4 BATCH_SIZE=4 SEQ_LEN=64 STEPS=20" in lines
    assert "BATCH_SIZE" not in make("-n", "reference", "DEVICE=cuda", "PYTHON=python3").stdout
    assert make(*words, "PART=beyond").stdout.count(begin) == 1


def test_the_reference_is_measured_from_a_commit(tmp_path, python):
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "my_idea.py").touch()
    done = make("reference", "DEVICE=cpu", python, folder=tmp_path)
    assert done.returncode == 2 and "uncommitted changes" in done.stderr and done.stdout == ""


@pytest.fixture
def folder(tmp_path):
    """A copy of the project in a folder whose name a shell needs quotes for."""
    folder = tmp_path / "it's a copy"
    folder.mkdir()
    return copy_project(folder, "no_optimization")


@pytest.mark.slow
def test_a_compiled_script_runs_where_the_path_has_a_blank(folder):
    loss = "torch.nn.functional.cross_entropy"
    script = changed((f"loss={loss}", f"loss=torch.compile({loss})"))
    (folder / "compiled_loss.py").write_text(script)
    settings = ["MODEL=gpt2-tiny", "STEPS=2", "WARMUP=1", "BATCH_SIZE=1", "SEQ_LEN=16"]
    settings += ["DATASET=synthetic", "DEVICE=cpu", f"PYTHON={sys.executable}"]
    variables = {"CACHE_DIR": "", "TORCHINDUCTOR_CACHE_DIR": "", "TRITON_CACHE_DIR": ""}
    before = {*Path(tempfile.gettempdir()).glob("kernels-*")}
    done = make("compiled_loss", *settings, folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    (kernels,) = {*Path(tempfile.gettempdir()).glob("kernels-*")} - before
    assert list(kernels.rglob("*.so"))
    shutil.rmtree(kernels)


def test_where_the_path_has_a_blank_the_environment_is_behind_a_link(folder):
    (folder / "requirements.txt").touch()
    lines = make("-n", "doctor", folder=folder).stdout.splitlines()
    venv = re.search(r"python3 -m venv (/var/tmp/venv-\d+-\d+) ", lines[1])[1]
    assert f"[ -e .venv ] || ln -s {venv} .venv" in lines
    assert lines[-1].startswith(f"{venv}/bin/python -m tools.doctor")


def test_without_ensurepip_one_line_says_what_to_install(folder, tmp_path):
    """As python3 ends on Debian without python3-venv."""
    said = "The virtual environment was not created\nensurepip is not available"
    stub = tmp_path / "python3"
    stub.write_text(f'#!/bin/sh\n[ "$2" = venv ] || exit 0\necho "{said}"\nexit 1\n')
    stub.chmod(0o755)
    (folder / "requirements.txt").touch()
    done = make("doctor", folder=folder, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 2 and done.stdout == ""
    line, end = done.stderr.splitlines()
    assert line.startswith("python3 has no ensurepip; install python3-venv, or")
    assert "PYTHON=python3" in line and end.startswith("make: ***")


def test_help_lists_every_target_technique_and_variable():
    shown = make("help", f"PYTHON={sys.executable}").stdout
    for name in (*TARGETS, *TECHNIQUES):
        assert re.search(rf"^  {re.escape(name)} ", shown, re.MULTILINE), name
    for name, setting in SETTINGS.items():
        default = "" if setting.default is None else setting.default
        line = rf"^  {name.upper()}={re.escape(str(default))} +{re.escape(setting.help)}$"
        assert re.search(line, shown, re.MULTILINE), name
    assert all(name in SETTINGS["model"].help for name in CONFIGS)
    assert make("help").stdout == shown  # without the environment, which it does not make


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["STEP=20"], "STEP=20: no such variable, the nearest is STEPS"),
        (["steps=20"], "steps=20: no such variable, the nearest is STEPS"),
        (["STEPS=abc"], "STEPS=abc: 'abc' is not a whole number from 1 up"),
        (["PART=all"], "PART=all: 'all' is not ladder, ablation or beyond"),
        (["STEPS=4"], "STEPS=4: a warm-up of 5 steps of 4 leaves no step to time"),
        (["WARMUP=60"], "WARMUP=60: a warm-up of 60 steps of 50 leaves no step to time"),
        (["MODEL=gpt5"], "MODEL=gpt5: choose gpt2-tiny"),
        (["SEQ_LEN=2048"], "SEQ_LEN=2048: gpt2 takes 1024 tokens at most"),
        (["RESULTS_FILE=/nowhere/a.csv"], "/nowhere/a.csv: No such file or directory"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_measured(words, message):
    done = make("all", *words, f"PYTHON={sys.executable}")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"suite: error: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 2  # with make's own


def test_a_script_by_make_and_by_hand_has_the_same_settings():
    parser = Parser("script", "", *OF_A_RUN)
    by_make = ["STEPS=20", "BATCH_SIZE=4", "RESULTS_FILE=a=c.csv", "PRICE=3", "MODEL=", "PYTHON=x"]
    by_hand = ["--steps", "20", "--batch-size=4", "--results-file", "a=c.csv"]
    assert parser.parse_args(by_make) == parser.parse_args(by_hand)


def test_a_setting_from_the_environment_has_no_effect_and_make_says_so(monkeypatch, capsys):
    """One that was given on the command line is in the environment too."""
    monkeypatch.setenv("MAKELEVEL", "1")
    monkeypatch.setenv("STEPS", "20")
    monkeypatch.setenv("PRICE", "3")  # of another command
    parser = Parser("suite", "", *OF_A_RUN)
    assert parser.parse_args([]).steps == 50
    line = "suite: STEPS=20: no effect from the environment; give it after make"
    assert capsys.readouterr().err.startswith(line)
    for word in ("STEPS=20", "--steps=20"):
        assert parser.parse_args([word]).steps == 20
    monkeypatch.delenv("MAKELEVEL")
    parser.parse_args([])
    assert capsys.readouterr().err == ""


def test_a_command_that_does_not_exist_is_one_line():
    done = processes.python("-m", "Utils.commands", "tables")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("tables: error: there is no such command; choose ablate, ")


@pytest.mark.parametrize("name", ["", "0", "1"])
def test_a_switch_is_on_at_1(name):
    assert bool(Parser("doctor", "", "json").parse_args([f"JSON={name}"]).json) == (name == "1")
    assert Parser("doctor", "", "json").parse_args(["--json"]).json
