"""Two sides in turns: what a side may be, what is left of a killed command, what is concluded."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import yaml

from tests.helpers import sides as fixture
from tests.helpers.checkouts import git, state
from tests.helpers.own_scripts import script
from tests.helpers.rows import REPOSITORY, records_in, rows_of
from tools.pair import __main__ as pair_command
from tools.pair import environments, verdict
from tools.pair.verdict import FAILED, OTHER, SLOWER, UNDECIDED, Judgement, exit_code
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.draw import ratio_charts
from Utils.launch import suite_runner, turn_taking
from Utils.results import rows_file, study

NO_FILES = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's tree without files
SETTINGS = ("STEPS=6", "WARMUP=2", "MODEL=gpt2-tiny", "ROUNDS=4")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository in place of ours, with a commit that is 30% slower, and then the old one."""
    folder = fixture.repository(tmp_path / "repository")
    monkeypatch.setattr(suite_runner, "ladder_of_device", lambda args: REPOSITORY)
    monkeypatch.setattr(paths, "ROOT", folder)
    fixture.use_cache(monkeypatch, tmp_path)
    fixture.change(folder, "MS, LOSS = 100", "MS, LOSS = 130")
    fixture.change(folder, "MS, LOSS = 130", "MS, LOSS = 100")
    return folder


def test_pair_of_commits_finds_the_slower_one_and_changes_nothing(repository, tmp_path, capsys):
    """COMPARE: "Rows have the suite `pair` [...] no other command shows them"."""
    (repository / "untracked.txt").write_text("mine")
    before = state(repository)
    assert pair_command.main("A=main~2", "B=main~1", *SETTINGS) == SLOWER
    assert state(repository) == before

    said = capsys.readouterr().out
    assert said.endswith("exit code 4: a script is slower in B by more than SLOWER\n")
    line = r"fused_optimizer 0\.768x \(0\.76\S+ slower (99|100)\.\d+ 1(29|30)\.\d+ .* fused_optim"
    assert re.search(f"{line}izer 1.0 1.3 1,000 1,300 identical", re.sub(r"[\\|\s]+", " ", said))
    assert "Slower in B by more than 3.0%: fused_optimizer." in said
    assert (tmp_path / "plots" / "pair.png").exists()

    texts = rows_file.read_as_texts("results.csv")
    rows = {"{suite} {technique},{parent},{change} {commit}".format(**row) for row in texts}
    _, b, a, *_ = git(repository, "log", "--format=%h", "--abbrev=7").split()
    of_b = f"pair fused_optimizer@B,fused_optimizer@A,main~1 {b}"
    assert rows == {f"pair fused_optimizer@A,, {a}", of_b}
    records = records_in(tmp_path)
    assert [record["side"]["name"] for record in records[:4]] == ["A", "B", "B", "A"]
    folders = [folder for record in records for folder in record["folders"]]
    assert len({*folders}) == 2  # caches apart, and kept from round to round

    with pytest.raises(UserError, match="hold only pairs or peers"):
        study.choose(rows_file.read("results.csv"))
    rows_file.append("results.csv", rows_of("no_optimization", [1] * 4))
    assert {*rows_file.read("results.csv").suite} == {"ladder"}


def test_pair_of_all_that_was_killed_goes_on_where_it_was(repository, monkeypatch, capsys):
    """COMPARE: "After a kill the same command continues"; "`B=.` is the files as they
    are"; "`T=all` measures the scripts that both sides have".
    """
    (repository / "my_idea.py").write_text(fixture.SCRIPT)
    words = "A=main~2", "B=.", "T=all", "MARKDOWN=1", *SETTINGS
    real = turn_taking.run

    def killed(*words):
        raise SystemExit

    runs = iter([real, real, killed, *[real] * 6])
    monkeypatch.setattr(turn_taking, "run", lambda *words: next(runs)(*words))
    with pytest.raises(SystemExit):
        pair_command.main(*words)
    assert pair_command.main(*words) == 0
    said = capsys.readouterr()
    assert "my_idea: left out, as A='main~2' lacks it" in said.err
    assert "resuming: 4 of 16 runs" in said.err and "no detectable difference" in said.out
    assert "Slower in B by more than 3.0%: none." in said.out
    assert rows_file.read("results.csv", with_pairs=True).run_id.nunique() == 16


@pytest.mark.parametrize("uv", ["", "/bin/uv"])
def test_pair_installs_an_environment_once(uv, tmp_path, monkeypatch, capsys):
    """COMPARE: "It takes about 6 GB if torch brings CUDA's packages"."""
    monkeypatch.setattr(environments.shutil, "which", lambda name: uv)
    asked = "torch==2.11.0", "https://index", tmp_path / "environments"
    commands = []

    def call(command):
        commands.append(command)
        if len(commands) == 2:
            raise SystemExit  # killed while it installs

    monkeypatch.setattr(environments, "output_of", call)
    with pytest.raises(SystemExit):
        environments.python_with(*asked)
    python = environments.python_with(*asked)
    assert environments.python_with(*asked) == python and len(commands) == 4
    *_, create, install = commands
    assert create[0] == (uv or sys.executable) and "--extra-index-url=https://index" in install
    assert {"torch==2.11.0", "torchao", "numpy==2.4.6"} <= {*install}
    assert "6 GB" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        ("B=main", "a pair has two sides; as in make pair A=main B=HEAD"),
        ("A=~nouser B=main", "A='~nouser': not an environment, a requirement or a rev"),
        ("A=main B=torch==2.11", "A is of the kind revision, B is of the kind requirement"),
        ("A=--output=x B=main", "A='--output=x': not an environment, a req"),
        ("A=main B=a\nc", r"B='a\nc': not an env"),
        ("A=torch== B=torch==2", "A='torch==': Expected "),
        ("A=main B=old", "B='old': its turn protocol is none; choose a revision with protocol 2"),
        ("A=main B=main T=mine", "A='main': has no script mine"),
        ("A=main B=broken", "B='broken': NameError: name 'never' is not defined"),
    ],
)
def test_pair_refuses_a_side_in_one_line(words, said, repository):
    fixture.change(repository, "import json", "never; import json", "no_optimization.py")
    git(repository, "branch", "broken")
    fixture.change(repository, "PROTOCOL = ", "NUMBER = ", "Utils/harness/turn_pipe.py")
    git(repository, "branch", "old")
    git(repository, "reset", "-q", "--hard", "main~2")
    with pytest.raises(UserError) as error:
        pair_command.main(*words.split(" "), *SETTINGS)
    assert str(error.value).startswith(said) and "\n" not in str(error.value)
    assert not rows_file.has_rows("results.csv")


def test_pair_judges_equal_sides_as_equal_and_a_slow_optimizer_as_slower():
    """COMPARE: "4 if something is"; of 40 pairs of equal sides one at most says so.

    An optimizer step that is 10% of the time and takes twice as long is found in six rounds.
    """
    equal = [fixture.comparison(fixture.noisy(number, 1.0))[0] for number in range(40)]
    assert sum(exit_code(sides, 0.03) == SLOWER for sides in equal) <= 1
    assert sum(sides.ratios["x"].is_different for sides in equal) <= 6
    slower = [fixture.comparison(fixture.noisy(number, 1.1))[0] for number in range(5)]
    assert {exit_code(sides, 0.03) for sides in slower} == {SLOWER}
    assert {exit_code(sides, 0.2) for sides in slower} == {0}


def test_pair_finds_a_changed_loss_by_equivalence():
    losses = np.random.default_rng(0).normal(5, 0.1, (6, 1))
    for difference, text in (
        (0.001, "+0.0010 (+0.0010 to +0.0010), same"),
        (0.05, "+0.0500 (+0.0500 to +0.0500), worse, model changed"),
    ):
        sides, summary = fixture.comparison(fixture.noisy(0, 1.0), losses + [0, difference])
        assert verdict.columns([Judgement(sides, summary.study)])["loss, B - A"] == [text]


@pytest.mark.parametrize("kind, code", [("other", OTHER), ("neither trained", UNDECIDED)])
def test_pair_claims_nothing_of_a_side_that_trains_something_else(kind, code):
    """SAME_TRAINING: "ends with 5 for the first and with 3 for the second"."""
    result, summary = fixture.comparison(fixture.noisy(0, 0.9))
    training = {"kind": kind, "reasons": ["4 samples a step for 8"]}
    result.figures_b["x"] = replace(result.figures_b["x"], training=training)
    assert exit_code(result, 0.03) == code
    columns = verdict.columns([Judgement(result, summary.study)])
    assert columns["verdict on B"] == ["not the same"]
    axes = ratio_charts.two_sides(result, columns).axes[0]
    assert {line.get_marker() for line in axes.lines} == {"None"}  # no point


def test_pair_says_when_it_cannot_say():
    """COMPARE: "3 if there is no interval, as after one round". Disturbed runs count."""
    disturbed, _ = fixture.comparison(fixture.noisy(0, 1.1), grade="tainted")
    assert exit_code(disturbed, 0.03) == SLOWER
    one_round, _ = fixture.comparison(fixture.noisy(0, 1.1, rounds=1))
    assert exit_code(one_round, 0.03) == UNDECIDED
    one_round.figures_b["x"] = replace(one_round.figures_b["x"], status="unsupported")
    assert exit_code(one_round, 0.03) == FAILED


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's repository with train.py, whose last commit drops a bias."""
    folder = fixture.users_repository(tmp_path, monkeypatch, script())
    fixture.change(folder, "nn.Linear(32, 4)", "nn.Linear(32, 4, bias=False)", "train.py")
    return folder


@pytest.mark.slow
def test_pair_runs_a_users_script_of_two_revisions(own, tmp_path, capfd):
    """COMPARE: "your repository is not changed"."""
    git(own, "branch", "empty", git(own, "commit-tree", "-m", "", NO_FILES).strip())
    before = state(own)
    pair_command.main("A=main~1", "B=main", *fixture.OWN)
    assert state(own) == before and "identical" not in capfd.readouterr().out

    sides = "{suite} {base} {technique},{parent} {side[text]}"
    records = {sides.format(**record) for record in records_in(tmp_path)}
    assert records == {"pair train train@A, main~1", "pair train train@B,train@A main"}

    for a, b, problem in (
        ("torch==2.12", "torch==2.13", "BASE needs two of your environments"),
        ("empty", "main", "A='empty': has no file /train.py"),
    ):
        with pytest.raises(UserError, match=problem):
            pair_command.main(f"A={a}", f"B={b}", *fixture.OWN)


@pytest.mark.slow
def test_pair_runs_a_users_script_in_two_environments(own, tmp_path, capfd):
    for name in ("old", "new"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").symlink_to(sys.executable)
    pair_command.main("A=old", "B=new", *fixture.OWN)
    said = capfd.readouterr()
    assert "identical" in said.out and "mine/log.txt" in said.err


@pytest.mark.parametrize(
    "code, ends, said",
    [
        (0, 0, ""),
        (2, 2, ""),
        (3, 0, "::warning::"),
        (4, 4, "::error::slower by more"),
        (5, 5, "::error::"),
    ],
)
def test_pair_workflow_ends_a_job_as_the_command_does(code, ends, said, tmp_path):
    """COMPARE: "The table is in the job's summary"."""
    workflow = yaml.safe_load((paths.ROOT / ".github/workflows/pair.yml").read_text())
    job = workflow["jobs"]["pair"]
    variables = dict.fromkeys(job["env"], "") | {"TOOL": "tool", "BASE": "train.py", "ARGS": "-n 1"}
    variables |= {"PATH": os.environ["PATH"], "GITHUB_STEP_SUMMARY": "../summary.md"}
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / "tool").mkdir()
    python.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
    python.chmod(0o755)

    command = ["bash", "-e", "-c", job["steps"][-1]["run"]]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (ends, "") and said in done.stdout
    summary = (tmp_path / "summary.md").read_text()
    assert f"-m tools.pair A= B= BASE={tmp_path}/code/train.py ARGS=-n 1 T= " in summary
