"""Training scripts as a user writes them, and the process that measures one."""

import inspect
import os
import sys
from types import SimpleNamespace

import torch

from tests.helpers import forked
from tests.helpers.stand_ins import answer
from tools.own_script import measured_process
from tools.own_script.user_code import OURS, ROOT, SITE_PACKAGES
from Utils.base.child import Ended

IMPORTS = """
import copy, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, x):
        return self.scale * self.layers(x)
    def loss(self, x, y):
        return nn.functional.cross_entropy(self.scale * self.layers(x), y)
"""
# Prints its losses to the last bit, and the number of compiled graphs.
TRAINING = """
def loss_of(model):
    return LOSS

torch.manual_seed(7)
model = MODEL
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(512, 16), torch.randint(4, (512,)))
log = open(sys.argv[1], "w")
for x, y in DataLoader(data, batch_size=16, shuffle=True):
    loss = loss_of(model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    print(loss.item().hex(), graphs, file=log, flush=True)
    AFTER_STEP
"""
CALLED = "nn.functional.cross_entropy(model(x), y)"
PACKAGES = ("tools", "Utils", "beyond", "tests")


def script(model="Net()", loss=CALLED, after=""):
    source = IMPORTS + NET + TRAINING
    for word, text in (("MODEL", model), ("LOSS", loss), ("AFTER_STEP", after)):
        source = source.replace(word, text)
    return source


def in_fork(command, environment):
    """Start a measured process as a fork. Return its CompletedProcess."""

    def main():
        os.environ |= environment
        # A process of its own has no tests and scripts.
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None) or ""
            is_library = SITE_PACKAGES in file
            if file.startswith(ROOT) and not is_library and not file.startswith(OURS):
                del sys.modules[name]
                inspect._filesbymodname.pop(name, None)
        torch.set_float32_matmul_precision("highest")  # a script that ran here may have set it
        sys.argv = command
        measured_process.main()

    return forked.call(main)


def with_namesakes(folder, packages):
    """Write modules by names of ours into a folder. Return a script that imports them.

    packages: those that have an __init__.py.
    """
    for package in PACKAGES:
        (folder / package).mkdir()
        (folder / package / "helper.py").write_text(f"NAME = {package!r}")
        if package in packages:
            (folder / package / "__init__.py").touch()
    (folder / "tools" / "net.py").write_text(IMPORTS + NET)

    imports = "from tools.net import Net\n"
    for package in PACKAGES:
        imports += f"from {package} import helper; assert helper.NAME == {package!r}\n"
    return script().replace(NET, imports)


def run_forks(techniques, flags, suite, minutes, progress):
    """Run scripts as `turn_taking.run` does, but one after the other."""
    codes = {}
    for technique in techniques:
        environment = technique.environment(SUITE_ID=suite)
        done = in_fork([*technique.command, *flags], environment)
        codes[technique.name] = done.returncode
        print(done.stderr, end="", file=sys.stderr)
    return codes, False


def fork_runs(monkeypatch, folder):
    """Let all runs be forks, their files lie in a folder, and graphs run without C++.

    Whether a change trains the same is not judged. Ceilings take no time: on a machine as busy as
    with tests, each inspection would measure them again, for seconds.
    """
    monkeypatch.setattr("tools.own_script.own_runs.FOLDER", folder / "own_scripts")
    answers = {
        "tools.own_script.training_check.TrainingCheck.judge": None,
        "Utils.device.measured_ceilings.file_of": folder / "own_scripts" / "ceilings.json",
        "Utils.device.measured_ceilings.matmul_tflops": 1.0,
        "Utils.device.measured_ceilings.bandwidth_gb_s": 1.0,
    }
    answer(monkeypatch, answers)
    monkeypatch.setattr("tools.own_script.model_switches.BACKEND", "aot_eager")

    def run(command, environment, timeout):
        done = in_fork(command[1:], environment)
        return Ended(done.returncode, errors=done.stderr)

    monkeypatch.setattr("tools.own_script.own_runs.child", SimpleNamespace(run=run))
    monkeypatch.setattr("Utils.launch.turn_taking.run", run_forks)
