"""The Makefile: what it passes on, what it lists; and settings, their values and bounds."""

import argparse
import os
import re
import sys

import pytest

from tests.helpers import checkouts, processes
from Utils.base import command_line, paths
from Utils.base.command_line import RUN_SETTINGS, SETTINGS, Parser
from Utils.base.gpt2_sizes import CONFIGS
from Utils.scripts import ladder

TARGETS = [name for targets in command_line.targets().values() for name in targets]
TECHNIQUES = ladder.tracked()


def make(*words, folder=paths.ROOT, path=""):
    # Not what this run itself was given, as in `make test PYTHON=python3`.
    environment = {"PATH": path + os.environ["PATH"], "HOME": os.environ["HOME"]}
    return processes.run("make", *words, cwd=folder, env=environment)


def refusal(*words, **options):
    """Return the line with which make refuses words. A second one is make's own."""
    done = make(*words, **options)
    line, _ = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout == ""
    return line


@pytest.fixture
def python(tmp_path):
    """An interpreter that prints its arguments, a line each."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\nprintf \'%s\\n\' "$@" "USED=$USED."\n')
    path.chmod(0o755)
    return f"PYTHON={path}"


# Target, settings with two blanks between, and what the command has.
COMMANDS = r"""
table | RESULTS_FILE=/tmp/it's a $HOME (1).csv  PRICE=2 | -m Utils.commands table
tf32 | STEPS=7  DATASET=a\b;c&d | tensorFloat32.py
cuda_graphs | SEED=3 | -m beyond.launching.cuda_graphs
all | GPUS=1 2 | -m Utils.commands suite ladder --announced
train | WITH=a b  GPUS=2 | -m torch.distributed.run --standalone
smoke | SEED=1 | suite BATCH_SIZE=4 SEQ_LEN=128 DATASET=synthetic
smoke | SEED=1 | --model=gpt2-tiny --steps=5 --warmup=3 --rounds=1 --results-file=.cache/smoke/
"""


@pytest.mark.parametrize("line", COMMANDS.splitlines()[1:])
def test_settings_are_passed_on_as_they_are(line, python):
    """README: "a tiny model: which of the seven run here?"; smoke writes to a file of its own."""
    target, settings, command = line.split(" | ")
    settings = settings.split("  ")
    words = make("-s", target, *settings, python).stdout.splitlines()
    assert command in " ".join(words) and {*settings, python} <= {*words}


@pytest.fixture
def folder(tmp_path):
    """A folder with the Makefile, whose name a shell needs quotes for."""
    folder = tmp_path / "it's a copy"
    checkouts.copy(folder, "Makefile", "requirements.txt", ":(glob)*.py")
    return folder


def test_every_target_is_made_whatever_files_there_are(folder):
    for name in (*TARGETS, *TECHNIQUES):
        (folder / name).touch()
    for name in ("run:1", "a;b"):
        (folder / name).mkdir()
    (folder / "idea:2.py").write_text("Parent: no_optimization")
    for name in TARGETS:
        done = make("-n", "PYTHON=python3", "DEVICE=cpu", name, folder=folder)
        assert done.returncode == 0 and len(done.stdout) > 20, (name, done)
        assert "up to date" not in done.stdout and "Nothing" not in done.stdout, name


def test_make_clean_deletes_caches_alone(folder):
    for name in (".cache/a", "a/__pycache__/b", ".venv/__pycache__/c", "results/d"):
        (folder / name).mkdir(parents=True)
    assert make("clean", "PYTHON=python3", folder=folder).returncode == 0
    assert {*folder.glob("*/*/")} == {folder / ".venv/__pycache__", folder / "results/d"}


def test_environment_of_a_path_with_a_blank_is_behind_a_link(folder):
    """COMMANDS: "(if the path has a blank, in /var/tmp, with a link to it)"."""
    lines = make("-n", "doctor", folder=folder).stdout.splitlines()
    venv = re.search(r"python3 -m venv (/var/tmp/venv-\d+-\d+) ", lines[1])[1]
    assert any(line.startswith(f"[ -e .venv ] || ln -s {venv} .venv;") for line in lines)
    assert lines[-1].startswith(f"{venv}/bin/python -m tools.doctor")


def test_environment_without_ensurepip_is_one_line(folder, tmp_path):
    """As python3 ends on Debian without python3-venv. README: "`PYTHON=python3 make all` uses
    your torch".
    """
    stub = tmp_path / "python3"
    ends = 'echo "not created\nensurepip is not available"; exit 1'
    stub.write_text(f'#!/bin/sh\n[ "$2" = venv ] || exit 0\n{ends}\n')
    stub.chmod(0o755)
    line = refusal("doctor", folder=folder, path=f"{tmp_path}:")
    assert line.endswith("PYTHON=python3")
    assert line.startswith("python3 has no ensurepip; install python3-venv, or")


def test_help_names_every_target_and_variable():
    """README: "`make help` lists all commands"; it does so without the environment."""
    shown = make("help").stdout
    assert len(shown.splitlines()) <= 70
    assert {*TARGETS, *map(str.upper, SETTINGS)} <= {*shown.replace(",", "").split()}
    shown += make("help", "T=all").stdout
    assert max(map(len, shown.splitlines())) <= 100
    for name in (*TARGETS, *TECHNIQUES):
        assert f"\n  {name} " in shown, name
    words = " ".join(shown.split())
    for name, setting in SETTINGS.items():
        assert f"\n  {name.upper()}=" in shown and f" {setting.help}" in words, name
    assert ", ".join(CONFIGS).replace(", gpt2-xl", " or gpt2-xl") in SETTINGS["model"].help


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("tabel", "the nearest is table"),
        ("tests", "the nearest is test"),
        ("z'; echo z; '", "see make help"),
    ],
)
def test_target_that_is_misspelt_has_its_nearest(name, nearest):
    """A folder has that name, or none; nothing of it is run."""
    assert refusal(name) == f"make {name}: no such command; {nearest}"


def test_setting_of_another_command_is_reported_once(python, capsys, monkeypatch):
    """COMMANDS: "A setting that a command does not use is one line on stderr"."""
    words = ["ROUNDS=4", "SEED=1", "PLOTSPREFIX=a", "PRICE=2"]
    for used, said in (
        ("PYTHON PLOTSPREFIX", "suite: SEED=1, PRICE=2: no effect on this command\n"),
        ("", ""),
    ):
        monkeypatch.setenv("USED", used)
        # The last one is a flag of the Makefile.
        args = Parser("suite", "", *RUN_SETTINGS).parse_args([*words, "--seed=2"])
        assert (args.rounds, args.seed) == (4, 2) and capsys.readouterr().err == said
        assert "USED" not in os.environ  # a process that it starts is silent

    # The target that the user names may speak, neither one that it makes nor one of several.
    words = make("-s", "all", python).stdout.split("USED=")
    assert words[1].startswith("PYTHON DEVICE_NAME PLOTSPREFIX.") and words[2].startswith(".")
    assert "USED=PYTHON" not in make("-s", "table", "diff", python).stdout


def test_setting_that_is_wrong_is_one_line_of_make_before_anything_is_measured():
    """COMMANDS: "A misspelt one is an error"."""
    line = refusal("all", "STEP=20", f"PYTHON={sys.executable}")
    assert line == "suite: error: STEP=20: no such variable; the nearest is STEPS"
    line = refusal("train", "GPUS=2; echo z", "PYTHON=echo")
    assert line == "train: error: GPUS is not a whole number"


def test_setting_from_the_environment_has_no_effect_and_make_says_so(monkeypatch, capsys):
    """COMMANDS: "a variable of the environment has no effect". One of the command line is in the
    environment too.
    """
    monkeypatch.setenv("MAKELEVEL", "1")
    monkeypatch.setenv("STEPS", "20")
    monkeypatch.setenv("PRICE", "3")  # a setting of another command
    parser = Parser("suite", "", *RUN_SETTINGS)
    assert parser.parse_args(["STEPS=20"]).steps == 20 and not capsys.readouterr().err
    assert parser.parse_args(["STEPS=5"]).warmup == 2
    assert parser.parse_args([]).steps == 50
    line = "suite: STEPS=20: no effect from the environment; give it after make"
    assert capsys.readouterr().err.startswith(line)


# A setting, its text, and its value. Results are read as float64, so 2^53 + 1 is refused.
VALUES = """\
precision | 2% | 0.02
precision | 100% | refused
steps | 1 | 1
steps | 0 | refused
steps | 9007199254740993 | refused
warmup | 0 | 0
batch_size | auto | auto
min_seconds | inf | refused
seed | 9007199254740992 | 9007199254740992
rounds | 100001 | refused
price |  | None
json | 0 |
"""


@pytest.mark.parametrize("line", VALUES.splitlines())
def test_setting_has_a_value_in_its_bounds(line):
    name, text, value = map(str.strip, line.split("|"))
    try:
        parsed = str(SETTINGS[name].parse(text))
    except argparse.ArgumentTypeError:
        parsed = "refused"
    assert parsed == value
