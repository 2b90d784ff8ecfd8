"""Changed copies of the baseline, and runs, whose results are known beforehand."""

from tests.helpers.rows import rows_of
from Utils.base import paths

# Steps sleep until they have lasted 80 ms, so that other processes hardly change their time.
WAIT = (
    ("import torch\n", "import time\n\nimport torch\n"),
    ("(batches):\n", "(batches):\n            end = time.perf_counter() + 0.08\n"),
    (
        "            loss.backward()\n            optimizer.step()\n",
        "            time.sleep(max(0, end - time.perf_counter()))\n",
    ),
)
DELAY = """            while time.perf_counter() < begun + 1.03 * spent:
                pass
"""
# Pairs of a text of the baseline and the text that replaces it, by script. Others change nothing.
COPIES = {
    "three_percent_longer": (
        ("import torch\n", "import time\n\nimport torch\n"),
        ("in run.steps(batches):\n", "in run.steps(batches):\n"
         "            begun = time.perf_counter()\n"),
        ("the step\n", f"the step\n            spent = time.perf_counter() - begun\n{DELAY}"),
    ),
    "wrong_mask": (("diagonal=1", "diagonal=2"),),
    "dropped_bias": (("    optimizer =", "    model.h[0].mlp.c_fc.bias = None\n    optimizer ="),),
    "scaled_loss": (("loss.backward()", "loss = loss * 1.01\n            loss.backward()"),),
}  # fmt: skip


def changed(*changes, parent="Parent: no_optimization"):
    """Return the baseline's source as another script, with each old text replaced by the new."""
    source = (paths.ROOT / "no_optimization.py").read_text().replace("Parent: none", parent)
    for old, new in changes:
        if old not in source:
            raise ValueError(f"the baseline has no {old!r}")
        source = source.replace(old, new)
    return source


def switched_runs(*steps_ms, **columns):
    """Return runs of a user's script: train, with TF32, with that and torch.compile, with graphs.

    cuda_graphs takes the place of torch_compile. steps_ms: of each run.
    """
    tf32 = "train+tensorFloat32"
    compiled = f"{tf32}+torch_compile"
    graphs = {"parent": compiled, "change": "+cuda_graphs-torch_compile"}
    places = {"train": {}, tf32: {}, compiled: {}, f"{tf32}+cuda_graphs": graphs}
    return [
        rows_of(name, steps, base="train", **place | columns)
        for (name, place), steps in zip(places.items(), steps_ms, strict=True)
    ]
