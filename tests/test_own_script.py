"""A user's training script, unchanged: its steps, its losses, its rows, the switches.

Each run is a fork of this process, which has paid for the imports.
"""

import inspect
import platform
import re
import sys
from argparse import Namespace
from itertools import chain
from unittest import mock

import pytest
import torch

from tests.helpers import forked, processes
from tests.helpers.own_scripts import (
    CALLED,
    PACKAGES,
    fork_runs,
    in_fork,
    script,
    with_namesakes,
)
from tests.helpers.refusal import refused
from tests.helpers.rows import records_in
from tools.own_script import (
    model_switches,
    own_runs,
    script_patch,
    switches,
    user_code,
    watch,
)
from tools.own_script.inspection import Inspection
from tools.own_script.optimizer_steps import StepEnds
from tools.own_script.source_edits import Edit
from tools.own_script.switch_names import ORDER
from Utils.base import paths
from Utils.base.child import Ended
from Utils.base.command_line import RUN_SETTINGS, USER_SCRIPT_SETTINGS, Parser
from Utils.results import rows_file

COPIES = """
    copied = copy.deepcopy(model)
    assert list(copied.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(loss_of(copied.eval()), loss_of(model.eval()), atol=0.02, rtol=0)
    model.train()
"""
SEQUENTIAL = "nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))"
PLAIN = script()
COMPILED = f"{SEQUENTIAL}; model.forward = torch.compile(model.forward, backend='aot_eager')"

# A model to which every switch applies.
CAPTIONS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
class Captions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.see = torch.nn.Conv2d(1, 16, 2, stride=2)
        self.tell = GPT2LMHeadModel(GPT2Config(
            vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0,
            embd_pdrop=0, resid_pdrop=0, attn_implementation="eager", use_cache=False))
    def forward(self, images, labels):
        seen = self.see(images.view(-1, 1, 4, 4)).flatten(2).transpose(1, 2)
        return self.tell(inputs_embeds=seen, labels=labels[:, None].expand(-1, 4)).loss
"""


@pytest.fixture(scope="module", autouse=True)
def prepared():
    """Compile here what the forks need."""
    forked.prepare_compiler()


def runs_of(text, arguments=""):
    """Return the OwnRuns of a script that a command names."""
    parser = Parser("", "", *RUN_SETTINGS, *USER_SCRIPT_SETTINGS, "timeout")
    args = parser.parse_args([f"BASE={text}", f"ARGS={arguments}"])
    return own_runs.OwnRuns(own_runs.find(args.base, args), args)


def losses_of(run):
    """Return the losses of the steps of a run that is to go well."""
    assert run.rows and run.returncode == 0 and not run.stderr, run.stderr
    return [float(row["loss"]) if row["loss"] else None for row in run.rows]


class Own:
    """A script, run under a watch in forks. Its folder is the test's."""

    def __init__(self, source, folder, arguments=""):
        file = folder / "train.py"
        file.write_text(source)
        self.runs = runs_of(file, arguments)

    def inspect(self):
        self.runs.inspect()
        return self.runs.inspection

    def run(self, *techniques, steps=7):
        """Run it with switches. Return a CompletedProcess, with its rows and all records."""
        script = own_runs.OwnScript(self.runs, techniques)
        folder = self.runs.folder
        file = folder / "results.csv"
        rows_file.initialize(file)
        size = file.stat().st_size
        flags = [f"--steps={steps}", "--warmup=3", "--min-seconds=0", f"--results-file={file}"]
        done = in_fork([*script.command, *flags], script.environment())
        done.rows = rows_file.read_as_texts(file, size)
        done.records = records_in(folder)
        return done

    def losses(self, *techniques, **options):
        """Return the losses of the steps of a run that is to go well."""
        return losses_of(self.run(*techniques, **options))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return Own in this test's folder; torch.compile generates no C++."""
    fork_runs(monkeypatch, tmp_path)
    return lambda source=PLAIN, arguments="log.txt": Own(source, tmp_path, arguments)


def ends_of(steps):
    """Return the text of steps, a letter an optimizer, with blanks for those that end none."""
    optimizers = {name: torch.optim.SGD([torch.ones(1)]) for name in steps}
    ends = StepEnds()
    ends.waiting.update(optimizers.values())
    return "".join(name if ends.stepped(optimizers[name]) else " " for name in steps)


@pytest.mark.parametrize(
    "steps, ends",
    [
        ("aaaaaa", "aaaaaa"),
        ("dgdgdgdg", " g g g g"),
        ("dddddgdddddg", "     g     g"),
        ("ddggdgdggdgddgg", "  g  g g  g  g "),  # regularizers
        ("a" * 18 + "bbbba", " " * 15 + "aaa bbb "),  # the second phase of two
    ],
)
def test_step_ends_with_one_optimizer_of_several(steps, ends):
    """YOUR_SCRIPT: "A **step** ends when all optimizers have stepped"."""
    assert ends_of(steps) == ends


@pytest.mark.parametrize(
    "steps, reason",
    [
        ("a" * 16 + "bbbbccccdddd", "another optimizer takes over every 4 steps"),
        ("dg" * 5 + "d" * 16, "after 5 steps its optimizers no longer step as before"),
    ],
)
def test_step_that_cannot_be_told_is_refused(steps, reason):
    with pytest.raises(user_code.Ended, match=reason):
        ends_of(steps)


CLIENTS = """
import itertools, torch
model = torch.nn.Linear(16, 4)
loader = torch.utils.data.DataLoader(torch.randn(120, 16), batch_size=64)
batches = itertools.cycle(loader)
def train_client():
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(5):
        optimizer.zero_grad()
        model(next(batches)).sum().backward()
        optimizer.step()
while True:
    train_client()
"""


def test_script_of_many_optimizers_is_counted_in_one_go(own):
    """Only the first epoch is fetched, batches of 64 and 56 samples."""
    rows = own(CLIENTS).run(steps=12).rows
    assert len(rows) == 12 and rows[0]["batch_size"] == "64"
    assert rows[0]["note"].startswith("2 steps with validation or the like left out")

    (row,) = own(CLIENTS.replace("range(5)", "range(1)")).run("brainFloat16").rows
    assert row["note"].startswith("optimizers are made every few steps")


@pytest.mark.parametrize(
    "model, techniques, plain_model, graphs",
    [("Net()", [], "Net()", "0"), (SEQUENTIAL, ["torch_compile"], COMPILED, "1")],
)
def test_script_losses_and_graphs_are_plain_pythons(
    own, tmp_path, model, techniques, plain_model, graphs
):
    """YOUR_SCRIPT: "Your script runs as with plain Python [...] with its own arguments"."""
    losses = own(script(model), "watched.txt").losses(*techniques, steps=12)[:11]
    (tmp_path / "plain.py").write_text(script(plain_model))
    forked.python(tmp_path / "plain.py", tmp_path / "plain.txt")
    watched = (tmp_path / "watched.txt").read_text()
    plain = (tmp_path / "plain.txt").read_text()
    assert watched.splitlines() == plain.splitlines()[:11]
    assert watched.split() == list(chain(*((loss.hex(), graphs) for loss in losses)))


VALIDATES = """
    if optimizer.state[model.scale]["step"] % 5 == 4:
        with torch.no_grad():
            next(iter(DataLoader(data, batch_size=64)))
"""


def test_script_rows_leave_out_validation_and_count_the_samples_of_training(own):
    """YOUR_SCRIPT: "Steps with a rare event (in fewer than a third of the steps), such as
    validation or saving, are left out of the times. A row's note says how many"; "**Samples** are
    counted from the batches of a DataLoader"; a hash "is part of the commit column".
    """
    rows = own(script(after=VALIDATES)).run(steps=12).rows
    assert {(row["batch_size"], row["unit"]) for row in rows} == {("16", "samples")}
    assert [row["step"] for row in rows if row["phase"] == "warmup"] == [*"01249"]
    assert rows[0]["note"].startswith("2 steps with validation or the like left out")
    assert re.search(r"\+[0-9a-f]{7}", rows[0]["commit"])
    assert all(float(row["data_ms"]) > 0 for row in rows)


@pytest.mark.parametrize(
    "backward, factor",
    [
        ("(loss / 4).backward(retain_graph=True); (loss / 4).backward()", 0.5),
        ("loss[None].expand(2).backward(torch.ones(2))", None),
    ],
)
def test_script_loss_is_the_sum_of_what_backward_is_called_on(own, backward, factor):
    """YOUR_SCRIPT: "The **loss** of a step is the sum of what `backward` was called on"."""
    plain = own().losses()
    losses = own(PLAIN.replace("loss.backward()", backward), "log2.txt").losses()
    assert losses[0] == (factor and factor * plain[0])


SET_BY_HAND = """gradients = torch.autograd.grad(loss, model.parameters())
    for p, p.grad in zip(model.parameters(), gradients): pass"""
IN_TURN = "model.requires_grad_(); loss_of(model).backward(); model.requires_grad_(False)"


@pytest.mark.parametrize("backward", [SET_BY_HAND, IN_TURN])
def test_script_gradients_are_measured_at_its_step(own, backward):
    source = script("nn.Linear(16, 65_536)").replace("loss.backward()", backward)
    assert own(source).run().records[-1]["memory"]["gradients_mib"] == pytest.approx(4.25, abs=0.1)


# A model without forward, whose method the loop calls.
AGENT = """
import torch
class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(64, 4), torch.nn.Linear(64, 1)
    def value_of(self, x):
        return self.actor(x).logsumexp(1).mean() + self.critic(x).pow(2).mean()
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
for step in range(400):
    loss = agent.value_of(torch.randn(64, 64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def patched(source, done, techniques):
    """Return a script with the edits that a run with switches has left."""
    own_script = done.records[-1]["own_script"]
    edits = []
    for technique in techniques:
        of_switch, without_place = own_script["edits"][technique]
        assert of_switch and not without_place, (technique, without_place)
        edits += [Edit(*edit) for edit in of_switch]
    text = script_patch.edited(source.encode(), edits).decode()
    text = text.replace("torch.compile(", "torch.compile(backend='aot_eager', model=")
    return text.replace(".compile()", ".compile(backend='aot_eager')")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, batch",
    [
        ("language_model", (8, "samples")),
        ("vision", (16, "samples")),
        ("gan", (1, "steps")),
        ("lightning_module", (16, "samples")),
        ("agent", (1, "steps")),
    ],
)
def test_patch_of_switches_does_the_same_as_they(own, tmp_path, name, batch):
    """YOUR_SCRIPT: "The patch does what the switches did"."""
    example = paths.ROOT / "examples" / f"{name}.py"
    source = example.read_text() if example.exists() else AGENT
    run = own(source, "")
    inspection = run.inspect()
    row = inspection.row
    assert (row["batch_size"], row["unit"]) == batch

    switches = inspection.switches
    techniques = [n for n in ORDER if not switches[n].refusal and n != "cuda_graphs"]
    assert {"brainFloat16", "torch_compile"} < {*techniques}
    for some in [*zip(techniques), ("brainFloat16", "torch_compile")]:
        (tmp_path / "train.py").write_text(source)
        done = run.run(*some)
        expected = pytest.approx(losses_of(done), rel=1e-4)
        assert own(patched(source, done, some), "").losses() == expected, some


# Outputs that are a named tuple, and a dict in it.
OUTPUTS = (
    script(loss=CALLED.replace("model(x)", "model(x).y['y']"))
    .replace("return", "return collections.namedtuple('Out', 'y')({'y':", 1)
    .replace("self.layers(x)\n", "self.layers(x)})\n", 1)
    .replace("import copy", "import collections, copy")
)


@pytest.mark.parametrize(
    "source, techniques",
    [
        (script(after=COPIES), ("brainFloat16", "torch_compile")),
        (script(loss="model.loss(x, y)", after=COPIES), ("brainFloat16",)),
        (OUTPUTS, ("brainFloat16",)),
    ],
)
def test_switches_leave_copies_of_a_module_and_the_types_of_outputs(own, source, techniques):
    """Tensors in an output are in float32."""
    assert own(source).losses(*techniques)


def test_switch_covers_the_first_step_of_a_model_without_forward(own):
    run = own(script(loss="model.loss(x, y)"))
    losses = run.losses(steps=4)
    run.runs.inspection = Inspection(methods=[["Net", "loss"]])
    run.runs.write_spec()
    with_switch = run.losses("brainFloat16", steps=4)
    assert with_switch == pytest.approx(losses, rel=0.02) and with_switch[0] != losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["torch_compile", "cuda_graphs"])
def test_switches_combine_without_replaced_ones(own, left_out):
    run = own(CAPTIONS + script("Captions()", "model(x, y)"))
    thrown = {*ORDER} - {left_out, "float16"}  # needs a GPU
    assert run.losses(*thrown, steps=5) == pytest.approx(run.losses(steps=5), abs=0.02)


@pytest.mark.parametrize("packages", [PACKAGES, ()])
def test_script_imports_modules_of_its_folder_by_names_of_ours(own, tmp_path, packages):
    """YOUR_SCRIPT: "a package named `tools`, `Utils` or `tests`, it gets yours, never ours"."""
    plain = own().losses()
    run = own(with_namesakes(tmp_path, packages), "log2.txt")
    assert run.losses() == plain
    losses = run.losses("brainFloat16", "torch_compile", "fused_optimizer")
    assert losses == pytest.approx(plain, rel=0.05) and losses != plain


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_switches_of_precision_have_no_effect_on_other_types(own, dtype):
    x = f"model(x.to(torch.{dtype}))"
    run = own(script(f"Net().to(torch.{dtype})", CALLED.replace("model(x)", x)))
    inspection = run.inspect()
    assert inspection.record["limits"]["precision"] == dtype
    reason = f"no effect: its matrix products are in {dtype}"
    for technique in ("tensorFloat32", "brainFloat16"):
        assert inspection.switches[technique].refusal == reason
        (row,) = run.run(technique).rows
        assert row["note"] == f"{technique}: {reason}"


def called_with(x):
    """Return a script whose model is called with an expression of x."""
    return script(loss=CALLED.replace("(x)", f"({x})"))


SETS_PRECISION = 'import torch\ntorch.set_float32_matmul_precision("highest")\n'
TRAINS_AN_IMAGE = called_with("x * image").replace(
    "optimizer = torch.optim.AdamW(model.parameters(),",
    "image = torch.ones(16, requires_grad=True)\n"
    "model.requires_grad_(False)\noptimizer = torch.optim.AdamW([image],",
)


@pytest.mark.parametrize(
    "source, switches, refusal",
    [
        (
            SETS_PRECISION + PLAIN,
            "tensorFloat32",
            "your script sets this precision itself (train.py:2)",
        ),
        (
            called_with("nn.functional.scaled_dot_product_attention(*3 * [x[None]])[0]"),
            "flash_attention",
            "already in your script: it calls scaled_dot_product_attention",
        ),
        (
            called_with("(torch.softmax(x[None] @ x[None].mT, -1) @ x)[0]"),
            "flash_attention",
            "needs an edit: replace the attention by scaled_dot_product_attention",
        ),
        (
            called_with("x.view(16, 2, 8).softmax(-1).flatten(1)"),
            "flash_attention",
            "it has no attention",
        ),
        (
            TRAINS_AN_IMAGE,
            "brainFloat16 torch_compile channels_last",
            "no module that is called holds a trained parameter",
        ),
    ],
)
def test_switch_is_refused_for_what_the_script_does(own, source, switches, refusal):
    inspected = own(source, "a.txt").inspect().switches
    for name in switches.split():
        assert inspected[name].refusal == refusal


LOADER = """
import time
class Loader(DataLoader):
    def __init__(self, items, **options):
        super().__init__(dataset=items, **options)
def transposed(batch):
    time.sleep(0.1)
    return torch.stack([x for x, _ in batch], 1), torch.stack([y for _, y in batch])
"""


@pytest.mark.parametrize(
    "options, samples",
    [
        ("batch_size=4, collate_fn=transposed", "4"),
        ("batch_size=4, collate_fn=transposed, num_workers=2", "4"),
        ("batch_size=None", "16"),  # the first dimension
    ],
)
def test_script_samples_are_the_indices_of_a_batch(own, options, samples):
    """YOUR_SCRIPT: "the indices of each batch, whatever `collate_fn` returns"; "If a
    note says that the script waits for data".
    """
    source = called_with("x.T").replace("def loss_of", LOADER + "def loss_of")
    source = source.replace(
        "DataLoader(data, batch_size=16, shuffle=True", f"Loader(data, {options}"
    )
    row = own(source).run().rows[0]
    assert row["batch_size"] == samples
    assert "waits for data" in row["note"] or not options.endswith("transposed")


# All optimizers of torch, types and gradients that some of them have, steps in backward, a thread.
UNUSUAL = """
import sys, threading
import torch
torch.manual_seed(0)
cases = []
for kind in vars(torch.optim).values():
    for dtype in (torch.float32, torch.float64, torch.complex64):
        for sparse in (False, True):
            table = torch.nn.Embedding(8, 4, sparse=sparse, dtype=dtype)
            def loss(table=table):
                value = table(torch.arange(4)).abs().square().sum()
                value.backward()
                return value
            try:
                optimizer = kind(table.parameters(), lr=0.01)
                optimizer.step(loss)
            except (TypeError, RuntimeError, ValueError, AssertionError):
                continue
            cases.append((optimizer, loss, table.weight))
weight = torch.nn.Parameter(torch.ones(3))
inside = torch.optim.SGD([weight], lr=0.1)
def step_inside(parameter):
    inside.step()
    inside.zero_grad()
weight.register_post_accumulate_grad_hook(step_inside)
def in_a_thread():
    other = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(other.parameters())
    other(torch.ones(2)).sum().backward()
    optimizer.step()
log = open(sys.argv[1], "w")
for step in range(20):
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    for optimizer, loss, _ in cases:
        optimizer.zero_grad()
        optimizer.step(loss)
    weight.square().sum().backward()
    thread.join()
    total = sum(weights.abs().sum().item() for *_, weights in cases)
    print(len(cases), total.hex(), weight, file=log, flush=True)
"""


def test_script_with_unusual_optimizers_is_watched_and_left_as_it_is(own, tmp_path):
    assert own(UNUSUAL, "watched.txt").inspect().failures == []
    watched = (tmp_path / "watched.txt").read_text().splitlines()
    forked.python(tmp_path / "train.py", tmp_path / "plain.txt")
    assert (tmp_path / "plain.txt").read_text().splitlines()[: len(watched)] == watched
    assert len(watched) >= 5 and int(watched[0].split()[0]) > 30


def test_inspection_ends_after_the_timeout(own):
    runs = own("import time; time.sleep(60)").runs
    runs.args.timeout = 0.02
    with refused("has taken 0 steps of 6 in TIMEOUT=0.02"):
        runs.inspect()


def test_script_import_from_a_folder_above_is_named_with_the_variable(own, tmp_path):
    """The nearest folder of that name has no such module."""
    for folder in ("models", "a/models", "a/b"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "models" / "net.py").touch()
    said = Own("from models.net import (\n    net)", tmp_path / "a" / "b").run().stderr
    assert said.endswith(f"models lies in {tmp_path}: export PYTHONPATH={tmp_path}:$PYTHONPATH\n")


# Asks a terminal for its size, and leaves a child of its own and one of a child that has ended.
LEAVES = """
import os, shutil, subprocess
assert os.popen("stty size").read() == "24 80\\n"
size = os.terminal_size((80, 24))
assert os.get_terminal_size() == shutil.get_terminal_size((99, 9)) == size
assert not any(map(os.isatty, range(3))) and os.read(0, 1) == b""
log = open("pids", "w")
print(subprocess.Popen(["sleep", "60"], start_new_session=True).pid, file=log, flush=True)
if os.fork() == 0:
    os.setsid()
    print(subprocess.Popen(["sleep", "60"]).pid, file=log, flush=True)
    os._exit(0)
"""
LEFT = """
import psutil
left = filter(psutil.pid_exists, map(int, open("pids").read().split()))
states = [psutil.Process(pid).status() for pid in left]
raise SystemExit(f"{len(open('pids').readlines())} left {set(states) - {'zombie'}}")
"""


def test_script_has_the_size_of_a_terminal_and_leaves_no_process(own):
    """YOUR_SCRIPT: "`stty size` and `get_terminal_size` answer 24 lines of 80 columns"; "Processes
    that a run has started end with it, on Linux in another session too".
    """
    assert own(LEAVES + PLAIN).losses()
    assert "ends early: 2 left set()" in own(LEFT).run().stderr


TRAIN = """import threading, multiprocessing, torch
def train():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.sum().backward()
    torch.optim.SGD([weight]).step()
"""
IN_A_THREAD = f"{TRAIN}x = threading.Thread(target=train); x.start(); x.join()"
IN_A_PROCESS = f"{TRAIN}x = multiprocessing.Process(target=train); x.start(); x.join()"
BY_HAND = "import torch\nw = torch.ones(2, requires_grad=True)\nwhile True: w.sum().backward()"
PARSER = "from argparse import ArgumentParser\nArgumentParser().parse_args(['--data'])"
CAUGHT = "try:\n    open('log.txt', 'a')\nexcept:\n    open('log.txt', 'w')\n"
TWO_DEVICES = """from torch import nn, optim, ones
model, far = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
optimizer = optim.SGD([*model.parameters(), *far.parameters()])
model(ones(2)).sum().backward()
"""


REFUSED = {
    "imports no_such, which is not there\n": "import no_such.package",
    f"pip install -c {paths.ROOT}/requirements.txt scikit-image\n": "import skimage",
    "ends early: train.py: error: unrecognized arguments: --data": PARSER,
    "ends early: no data here": "raise SystemExit('no data here')",
    "ValueError: a bad batch (train.py:1)": "raise ValueError('a bad batch. See the\\ndocs')",
    "its optimizer steps in other threads": IN_A_THREAD,
    "its optimizer steps in processes that it starts": IN_A_PROCESS,
    "has made no torch.optim.Optimizer by its 100th backward": BY_HAND,
    "ends without a step of a torch.optim.Optimizer": "print('done')",
    "ends after 1 steps": script(after="break"),
    "trains on several devices": TWO_DEVICES,
    "opens log.txt for writing, which exists; delete or move it, or allow": CAUGHT,
}


@pytest.mark.parametrize("reason, source", REFUSED.items())
def test_script_that_cannot_be_measured_is_refused_in_one_line(own, tmp_path, source, reason):
    """YOUR_SCRIPT: "Refused in one line: several ranks or devices, [...] steps in other threads or
    processes, [...] a hundred backward passes without an optimizer, and a script that ends too
    early".
    """
    (tmp_path / "log.txt").write_text("old\n")
    run = own(source, "new.txt").run()
    assert run.returncode == 2 and not run.rows
    assert run.stderr.startswith("train.py: ")
    assert reason in run.stderr
    assert run.stderr.count("\n") == 1
    assert (tmp_path / "log.txt").read_text() == "old\n"


def test_script_is_not_blamed_for_an_error_of_ours(own, monkeypatch):
    """YOUR_SCRIPT: "An internal error says that your script did not cause it"."""
    monkeypatch.setattr(
        "Utils.harness.settings.check_needs", mock.Mock(side_effect=ValueError("of ours"))
    )
    (row,) = own().run().rows
    assert row["status"] == "failed"
    assert row["note"] == "internal error, not caused by your script: ValueError: of ours"


def test_script_version_is_of_the_text_the_imported_modules_and_the_arguments(
    tmp_path, monkeypatch
):
    """YOUR_SCRIPT: "Rows are compared only if the script's text, the modules imported from its
    folder, and its arguments are the same".
    """
    file, module = tmp_path / "train.py", tmp_path / "model.py"
    monkeypatch.setitem(sys.modules, "model", mock.Mock(__spec__=Namespace(origin=str(module))))
    versions = []

    for text, module_text, arguments in ("aa-", "aa-", "ba-", "bb-", "bb!"):
        file.write_text(text)
        module.write_text(module_text)
        spec = Namespace(folder=str(tmp_path), file=str(file), arguments=[arguments])
        versions.append(user_code.version(spec))
    assert versions[0] == versions[1] and len({*versions}) == 4


def test_script_removes_the_runs_of_a_killed_launcher(own, monkeypatch):
    runs = own("").runs
    left_over = own_runs.FOLDER / "runs" / f"{platform.node()}-{2**22 + 1}-a"  # no such process
    left_over.mkdir()
    assert own("").runs.folder.exists() and runs.folder.exists() and not left_over.exists()
    stopped = "did not answer within 11 s; it is stopped, or in a call of C"
    ends = {"killed by SIGKILL": Ended(-9), stopped: Ended(None, timeout=11)}
    monkeypatch.setattr("tools.own_script.own_runs.child.run", mock.Mock(side_effect=ends.values()))
    for reason in ends:
        with refused(reason):
            runs.inspect()


@pytest.mark.slow
def test_measured_process_needs_few_packages():
    """YOUR_SCRIPT: "your own environment, which needs Python 3.11, torch 2.11 and numpy"."""
    blocked = {"pandas", "scipy", "matplotlib", "tqdm", "tiktoken", "pynvml", "seaborn"}
    code = f"import sys; sys.modules |= dict.fromkeys({blocked})\n"
    code += "from tools.own_script import measured_process"
    processes.command("-c", code)


OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
VALUES = {
    "lr": 0.05,
    "betas": (0.7, 0.8),
    "eps": 0.1,
    "weight_decay": 0.3,
    "momentum": 0.9,
    "lr_decay": 0.1,
    "initial_accumulator_value": 0.2,
    "dampening": 0.1,
}
ALSO = {"nesterov": "momentum", "dampening": "momentum", "decoupled_weight_decay": "weight_decay"}


def weights_after(kind, option):
    """Return a weight after three steps with an option, or the error."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 3))
    options = {name: VALUES.get(name, True) for name in (option, ALSO.get(option, option))}
    try:
        optimizer = kind([weight], **options)
        for _ in range(3):
            optimizer.zero_grad()
            (weight @ torch.randn(3, 2)).square().sum().backward()
            optimizer.step()
    except (Exception, user_code.Ended) as error:
        return error
    return weight.detach()


def started(kind):
    """Return a Watch with a switch, and the switch, which is on."""
    spec = Namespace(folder="", inspects=False, inspection=Inspection())
    watching = watch.Watch(spec, lambda: None, lambda iteration: None)
    switch = kind(watching)
    watching.switches = [switch]
    switch.start()
    return watching, switch


def compare_fused():
    """Compare each option of each optimizer with its fused form."""
    cases = [(kind, name) for kind in OPTIMIZERS for name in inspect.signature(kind).parameters]
    plain = [weights_after(*case) for case in cases]
    watching, switch = started(switches.FusedOptimizer)
    for (kind, option), weight in zip(cases, plain, strict=True):
        watching.steps.optimizers.clear()
        result = weights_after(kind, option)
        if option == "differentiable":
            assert result.reason == f"the fused form of {kind.__name__} ignores differentiable"
        elif isinstance(weight, torch.Tensor):
            torch.testing.assert_close(result, weight, atol=1e-5, rtol=0)
            assert not switch.ignored()


def test_switch_on_optimizers_honours_each_option_or_ends_the_run():
    """YOUR_SCRIPT: "fused_optimizer is refused if PyTorch's fused implementation would ignore an
    option, such as `differentiable`".
    """
    done = forked.call(compare_fused)
    assert done.returncode == 0, done.stderr


# Trains a weight of 1 in float16, two backward passes a step. The second step overflows. It prints
# the gradient of each step, the weight after it, and the scale.
IN_HALF_PRECISION = """
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for factor in (1, 1e36, 1):
    optimizer.zero_grad()
    for _ in range(2):
        (model(torch.ones(1, 1)).square().sum() / 8 * factor).backward()
    optimizer.step()
    print(model.weight.grad.item(), model.weight.item(), switch.scaler.get_scale())
"""


def half_precision():
    _, switch = started(model_switches.Float16)
    exec(IN_HALF_PRECISION, {"torch": torch, "switch": switch})


def test_switch_float16_hides_its_scale_and_leaves_out_steps_that_overflow():
    lines = ["0.5 0.5 65536.0", "inf 0.5 32768.0", "0.25 0.25 32768.0"]
    assert forked.call(half_precision).stdout.splitlines() == lines
