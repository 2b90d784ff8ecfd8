"""README's commands, in an environment of requirements.txt alone."""

import importlib.metadata
import json
import re
import shlex

import pytest

from tests.helpers import checkouts
from Utils.base import paths

MORE = {  # words for a command, by its target
    "all": (*checkouts.TINY, "MINUTES=0.2"),  # one round
    "smoke": checkouts.TINY,
    "forecast": checkouts.TINY[:1],
    "submit": ("RESULTS_FILE=results/NVIDIA_H200/2026-11-26/results.csv",),  # clean rows
}
CHECKS = ("test", "test-all")  # they install what is missing
WITHOUT = """
import json, os, sys

class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in json.loads(os.environ["WITHOUT_MODULES"]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing)
"""
TRAIN = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(parser.parse_args().epochs * 40):
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def commands():
    """Return the words of each `make` command of README, without `make`."""
    text = (paths.ROOT / "README.md").read_text()
    blocks = "\n".join(re.findall(r"(?ms)^```sh\n(.*?)^```", text))
    lines = re.findall(r"(?m)^make [^#\n]*", blocks) + re.findall(r"`(make [^`]*)`", text)
    words = [shlex.split(line)[1:] for line in lines]
    # The test has a time of its own.
    commands = [tuple(word for word in command if "MINUTES=" not in word) for command in words]
    return [command for command in dict.fromkeys(commands) if command[0] not in CHECKS]


def modules_of_tests():
    """Return the modules that only requirements-test.txt brings."""
    lines = (paths.ROOT / "requirements-test.txt").read_text().splitlines()
    packages = {line.partition("==")[0] for line in lines if "==" in line}
    modules = importlib.metadata.packages_distributions().items()
    return [module for module, names in modules if {*names} <= packages]


@pytest.mark.slow
def test_readme_commands_need_no_package_of_the_tests(tmp_path):
    project = tmp_path / "project"
    checkouts.copy(project)
    checkouts.commit(project)
    home = tmp_path / "home"
    for script in (home / "mine" / "train.py", project / "train.py"):
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(TRAIN)
    (home / "sitecustomize.py").write_text(WITHOUT)
    modules = modules_of_tests()
    assert {"pytest", "playwright", "transformers"} <= {*modules}

    variables = {
        "HOME": str(home),
        "PYTHONPATH": str(home),
        "WITHOUT_MODULES": json.dumps(modules),
    }
    ran = commands()
    assert ("site",) in ran and ("all",) in ran
    for command in ran:
        words = [word.replace("~", str(home)) for word in command]
        checkouts.make(project, *words, *MORE.get(command[0], ()), **variables)
