"""Training scripts as a user writes them, and the process that measures one."""

import sys

from tools.own_script import measured_process

from . import forked

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
    return (
        (IMPORTS + NET + TRAINING)
        .replace("MODEL", model)
        .replace("LOSS", loss)
        .replace("AFTER_STEP", after)
    )


def in_fork(command, environment):
    """Start a measured process as a fork. Return its CompletedProcess."""

    def main():
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("beyond", "tests"):  # a process of its own has not these
                del sys.modules[name]
        sys.argv = command
        measured_process.main()

    return forked.call(main, variables=environment)


def with_namesakes(folder, packages):
    """Write train.py, with modules of its own by names of ours, into a folder. Return its path.

    packages: those that have an __init__.py.
    """
    for package in PACKAGES:
        (folder / package).mkdir()
        (folder / package / "helper.py").write_text(f"NAME = {package!r}")
        if package in packages:
            (folder / package / "__init__.py").touch()
    (folder / "tools" / "net.py").write_text(IMPORTS + NET)
    names = "".join(
        f"from {name} import helper; assert helper.NAME == {name!r}\n" for name in PACKAGES
    )
    source = script().replace(NET, f"{names}from tools.net import Net\n")
    (folder / "train.py").write_text(source)
    return folder / "train.py"
