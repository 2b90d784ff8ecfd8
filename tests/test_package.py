"""The package stepladder: its lists of packages, its command, and its wheel outside the clone."""

import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile

import pytest
from packaging.requirements import Requirement

from tests.helpers import checkouts, processes
from tools.installed import __main__ as installed
from tools.own_script import python_choice
from Utils.base import paths
from Utils.base.child import Ended
from Utils.base.errors import UserError
from Utils.results import rows_file

OF_CLONE = {
    "torch",
    "triton",
    "safetensors",
    "vl-convert-python",
}  # a user's, or of the clone alone
START = "import sys, stepladder; sys.exit(stepladder.main())"
SCRIPT = """
import sys, torch
assert sys.argv[1:] == ["--lr", "a b"], sys.argv
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100_000):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_package_has_ranges_around_the_versions_of_requirements():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    ranges = map(Requirement, sum(extras, project["dependencies"]))
    specifiers = {each.name: each.specifier for each in ranges}
    lines = (paths.ROOT / "requirements.txt").read_text().splitlines()
    pins = [Requirement(line.partition("#")[0]) for line in lines if not line.startswith("#")]
    assert {pin.name for pin in pins} == specifiers.keys() | OF_CLONE
    for pin in pins:
        version = str(pin.specifier).removeprefix("==")
        assert pin.name in OF_CLONE or version in specifiers[pin.name], pin


@pytest.mark.parametrize(
    "words, problem",
    [
        ("tabel", "tabel: neither a file nor a command; the nearest is table"),
        ("train", "train: needs a clone of the repository; run make train there"),
        ("--minute 3 train.py", "--minute: no such option; the nearest is --minutes"),
    ],
)
def test_command_refuses_words_in_one_line(words, problem):
    with pytest.raises(UserError) as raised:
        installed.main(*words.split())
    assert str(raised.value) == problem


def test_command_gives_a_script_all_words_after_it(tmp_path, monkeypatch):
    """YOUR_SCRIPT: "all words after it are the script's"; "The script starts in the current
    folder".
    """
    ran = []
    monkeypatch.setattr(installed, "run", lambda name, words: ran.append([name, *words]) or 0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").touch()
    installed.main("--python", "p", "--writes", "sub/train.py", "--python", "a b")
    settings = ["--base-python", "p", "--writes", f"FOLDER={tmp_path}"]
    base = "BASE=sub/train.py"
    assert ran == [["all", *settings, base, "ARGS=--python 'a b'"], ["recipe", base]]


@pytest.mark.parametrize("number", range(4))
def test_python_is_the_first_that_has_torch(number, monkeypatch, capsys):
    """YOUR_SCRIPT: "otherwise the first of these that has torch"."""
    places = {"VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda", "PATH": "/bin"}
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    monkeypatch.setattr(paths, "VERSION", "1.0.0")
    chosen = ["/venv/bin/python", "/conda/bin/python", sys.executable, "/bin/python3"][number]
    run = lambda command: Ended(int(command[0] != chosen))  # noqa: E731
    monkeypatch.setattr(python_choice.child, "run", run)
    assert python_choice.default_python.__wrapped__() == chosen
    assert bool(capsys.readouterr().err) == (number == 3)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """An environment whose path has a blank, with the wheel and the packages of this one."""
    folder = tmp_path_factory.mktemp("a package")
    processes.command("-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    venv.create(folder / "venv", with_pip=False)
    [site_packages] = folder.glob("venv/lib/*/site-packages")
    with zipfile.ZipFile(*folder.glob("*.whl")) as wheel:
        wheel.extractall(site_packages)
    (site_packages / "main.pth").write_text(sysconfig.get_path("purelib"))
    return folder


@pytest.fixture
def run(package, tmp_path):
    """Function of words with which stepladder goes well in a repository with a blank.

    It returns what was printed.
    """
    work = tmp_path / "my work"
    work.mkdir()
    checkouts.git(work, "init", "-q")
    before = checkouts.state(package)
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

    def run(*words):
        command = [package / "venv/bin/python", "-c", START, *words]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and "Traceback" not in done.stderr, (words, done.stderr)
        return done.stdout

    yield run
    assert checkouts.state(package) == before  # it may be read-only
    assert {path.name for path in work.iterdir()} <= {".git", "train.py", "stepladder"}


@pytest.mark.slow
def test_wheel_starts_every_command(run):
    for name in installed.COMMANDS:
        assert "make " not in run(name, "--help"), name


@pytest.mark.slow
def test_wheel_measures_scripts_outside_the_clone(run, tmp_path):
    work = tmp_path / "my work"
    (work / "train.py").write_text(SCRIPT)
    printed = run("--minutes", "2", "--without=torch_compile", "train.py", "--lr", "a b")
    assert printed.startswith(f"{work}/stepladder: results, charts and patches\n")
    assert "stepladder/plots/train/" in printed and "make " not in printed

    run("all", *checkouts.TINY, "DATASET=synthetic", "T=no_optimization tensorFloat32")
    for command in ("table", "recipe", "report", "field-report", "diff T=tensorFloat32"):
        run(*command.split())
    assert (work / "stepladder" / "report.html").exists()
    rows = rows_file.read_as_texts(work / "stepladder" / "results.csv")
    assert {row["commit"].partition("+")[0] for row in rows} == {"1.0.0"}
    assert {"train", "train+tensorFloat32", "tensorFloat32"} <= {row["technique"] for row in rows}
    assert checkouts.git(work, "status", "--porcelain") == "?? train.py\n"
