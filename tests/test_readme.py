"""README's commands, in an environment of requirements.txt alone; and the notebook."""

import importlib.metadata
import json
import re
import shlex

import nbclient
import nbformat
import pytest

from tests.helpers import checkouts
from Utils.base import paths

MORE = {  # words for a command, by its target
    "all": (*checkouts.TINY, "MINUTES=0.2"),  # one round
    "smoke": checkouts.TINY,
    "forecast": checkouts.TINY[:1],
    "submit": ("RESULTS_FILE=results/NVIDIA_H200/2026-11-26/results.csv",),  # clean rows
}
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
    # The test has a time of its own. Those that test install what is missing.
    commands = [tuple(word for word in command if "MINUTES=" not in word) for command in words]
    return [
        command for command in dict.fromkeys(commands) if command[0] not in ("test", "test-all")
    ]


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
    baseline = (project / "no_optimization.py").read_text()
    idea = baseline.replace("Parent: none", "Parent: no_optimization")
    (project / "my_idea.py").write_text(idea)
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


NOTEBOOK = paths.ROOT / "examples" / "colab_t4.ipynb"
SETTINGS = """
REPOSITORY, GUESS = "", 1.0
MODEL, STEPS, ROUNDS = "gpt2-tiny", 8, 2
SCRIPTS = "no_optimization tensorFloat32"
OWN_SCRIPT, ARGS = "examples/vision.py", ""
WITHOUT = "brainFloat16 torch_compile flash_attention fused_optimizer"
MORE = "DEVICE=cpu BATCH_SIZE=2 SEQ_LEN=32 WARMUP=2 DATASET=synthetic"
RESULTS, PLOTS = "{folder}/results.csv", "{folder}/"
"""


def executed(notebook, folder):
    """Execute a notebook in a folder. Return what each cell printed."""
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(folder)}})
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(out.get("text", out.output_type) for out in cell.outputs) for cell in cells]


@pytest.mark.slow
def test_notebook_cells_run_and_show_what_they_say(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert len(notebook.cells) == 10 and not any(cell.get("outputs") for cell in notebook.cells)
    notebook.cells[1].source = SETTINGS.format(folder=tmp_path)
    texts = executed(notebook, NOTEBOOK.parent)
    _, _, doctor, diff, _, table, charts, own, report = texts
    assert "scripts run here" in doctor and "fused=True" in diff
    assert "2 rounds" in table and "You guessed 2.0x" in table
    assert charts.count("display_data") == 2
    assert "+tensorFloat32" in own and "tensorFloat32" in report
