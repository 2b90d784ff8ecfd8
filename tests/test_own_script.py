"""A training script of the user's, unchanged: its steps, its losses, its files, the switches.

Each run is a fork of this process, which has paid for the imports.
"""

import json
import platform
import subprocess
import sys
import timeit
from argparse import Namespace
from copy import copy
from functools import partial
from itertools import chain, combinations
from pathlib import Path

import pytest
import torch
from pandas import DataFrame
from torch.optim import optimizer as torch_optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tests.helpers import forked
from tests.helpers.own_scripts import CALLED, PACKAGES, in_fork, script, with_namesakes
from tests.helpers.rows import rows_of
from tools.own_script import model_switches, own_runs, user_code, watch
from tools.own_script.switch_names import LADDER, ORDER, REPLACES
from tools.own_script.watch import Iterations
from Utils.base import paths
from Utils.base.command_line import OF_A_RUN, Parser
from Utils.base.errors import UserError
from Utils.results import rows_file, selection
from Utils.scripts import ladder

COPIES = """
    copied = copy.deepcopy(model)
    assert list(copied.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(loss_of(copied.eval()), loss_of(model.eval()), atol=0.02, rtol=0)
    model.train()
"""
SEQUENTIAL = "nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))"
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
    """Import and compile here what the forks need."""
    import lightning  # noqa: F401  each of these takes seconds
    import transformers
    from bitsandbytes import optim  # noqa: F401

    transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1))
    forked.prepare_compiler()


def find(text, arguments=""):
    asked = Namespace(folder="", base_python="", args=arguments, writes="")
    return own_runs.find(str(text), asked)


class Own:
    """A script, run under a watch in forks. Its folder is the test's."""

    def __init__(self, source, folder, arguments=""):
        file = source if isinstance(source, Path) else folder / "train.py"
        if file != source:
            file.write_text(source)
        self.runs = own_runs.OwnRuns(find(file, arguments), folder / "results.csv")

    def run(self, *techniques, steps=7):
        """Run it with switches. Return its answer; said is what the terminal got."""
        script = own_runs.OwnScript(self.runs, techniques)
        flags = [f"--steps={steps}", "--warmup=3", "--min-seconds=0"]
        done = in_fork([*script.command, *flags], script.environment(SUITE_ID="look"))
        (path,) = (self.runs.folder / "answers").glob("*.json")
        answer = json.loads(path.read_text()) | {"said": done.stderr}
        path.unlink()
        return answer

    def losses(self, *techniques, **options):
        """Return the losses of the steps of a run that is to go well."""
        answer = self.run(*techniques, **options)
        assert (answer["status"], answer["reason"]) == ("ok", "")
        return [row["loss"] for row in answer["rows"]]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return Own in this test's folder; torch.compile generates no C++."""
    monkeypatch.setattr(own_runs, "FOLDER", tmp_path / "own_scripts")
    monkeypatch.setattr(model_switches, "BACKEND", "aot_eager")
    return lambda source, arguments="": Own(source, tmp_path, arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ("a" * 6, "a" * 6),
        ("dg" * 4, " g" * 4),  # a GAN
        ("dddddg" * 4, "     g" * 4),  # five steps of a critic
        ("dg" * 3 + "d" * 6, " g" * 3 + "  dddd"),  # g no longer steps
        ("dddddg" * 2 + "d" * 16, "     g" * 2 + " " * 14 + "dd"),  # three of its periods
    ],
)
def test_the_optimizer_that_steps_most_rarely_ends_an_iteration(steps, ends):
    iterations = Iterations()
    for name in sorted(set(steps)):
        iterations.created(name)
    ended = [name if iterations.stepped(name) else " " for name in steps]
    settled = len(steps) // 3  # before, it is not known
    assert "".join(ended)[settled:] == ends[settled:]


@pytest.mark.parametrize(
    ("model", "techniques", "plain_model"),
    [
        ("Net()", [], ""),
        ("torch.compile(Net(), backend='aot_eager')", [], ""),
        (f"torch.compile({SEQUENTIAL}, backend='aot_eager')", [], ""),
        (SEQUENTIAL, ["torch_compile"], COMPILED),
    ],
)
def test_losses_and_graphs_are_plain_pythons(own, tmp_path, model, techniques, plain_model):
    losses = own(script(model), "watched.txt").losses(*techniques, steps=12)[:11]
    (tmp_path / "plain.py").write_text(script(plain_model or model))
    forked.python(tmp_path / "plain.py", tmp_path / "plain.txt")
    lines = [(tmp_path / f"{name}.txt").read_text().splitlines() for name in ("watched", "plain")]
    assert lines[0] == lines[1][:11]
    assert losses == [float.fromhex(line.split()[0]) for line in lines[0]]
    assert {line.split()[1] for line in lines[0]} == {str(int(model != "Net()"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend", "techniques", "batch"),
    [
        ("language_model", "aot_eager", ("flash_attention", "torch_compile"), (8, "samples")),
        ("vision", "aot_eager", ("brainFloat16", "channels_last"), (16, "samples")),
        ("gan", "inductor", ("torch_compile", "fused_optimizer"), (1, "steps")),
        ("lightning_module", "aot_eager", ("brainFloat16", "fused_optimizer"), (16, "samples")),
    ],
)
def test_an_example_is_measured_with_switches(own, monkeypatch, name, backend, techniques, batch):
    monkeypatch.setattr(model_switches, "BACKEND", backend)
    run = own(paths.ROOT / "examples" / f"{name}.py")
    base = run.run()
    losses = [row["loss"] for row in base["rows"]]
    assert (base["rows"][0]["batch_size"], base["rows"][0]["unit"]) == batch
    for technique in techniques:
        assert run.losses(technique) == pytest.approx(losses, rel=5e-3)


RUNGS = [name for name in LADDER if name not in ("float16", "flash_attention")]


@pytest.mark.slow
@pytest.mark.parametrize("technique", RUNGS)
def test_switches_give_the_losses_of_our_scripts(own, tmp_path, monkeypatch, technique):
    """The scripts of the optimizers have flash attention as well, whose rounding is another."""
    flags = ["--model=gpt2-tiny", "--batch-size=4", "--seq-len=4", "--device=cpu"]
    flags += ["--dataset=synthetic", "--steps=9", "--warmup=3"]
    results = tmp_path / "ours.csv"
    ours = [*flags, f"--results-file={results}"]
    forked.run([ladder.get(technique)], ours, generate=lambda technique: False)
    losses = [row["loss"] for row in rows_file.read(results).to_dict("records")][:5]

    arguments = " ".join([*flags, f"--results-file={tmp_path / 'watched.csv'}"])
    run = own(paths.ROOT / "no_optimization.py", arguments)
    rungs = RUNGS[: RUNGS.index(technique) + 1]
    thrown = [name for name in rungs if name not in REPLACES.get(technique, ())]
    rel = 1e-6 if technique in ("tensorFloat32", "brainFloat16") else 2e-4
    answer = run.run(*thrown, steps=5)
    assert [row["loss"] for row in answer["rows"]] == pytest.approx(losses, rel=rel)

    monkeypatch.setattr(user_code, "sys", Namespace(modules={}))
    assert answer["version"] == user_code.version(vars(run.runs.base))  # without our modules


@pytest.mark.parametrize(
    ("loss", "techniques"),
    [(CALLED, ("brainFloat16", "torch_compile")), ("model.loss(x, y)", ("brainFloat16",))],
)
def test_a_module_with_switches_is_copied_as_it_is(own, loss, techniques):
    own(script(loss=loss, after=COPIES), "log.txt").losses(*techniques)


def test_a_model_called_by_a_method_alone_has_its_switches_from_the_first_step(own):
    run = own(script(loss="model.loss(x, y)"), "log.txt")
    losses = run.losses(steps=4)
    run.runs.look = {"record": {"own_script": {"models": [["Net.loss", "train.py:20"]]}}}
    run.runs.write_spec()
    with_switch = run.losses("brainFloat16", steps=4)
    assert with_switch == pytest.approx(losses, rel=0.02) and with_switch[0] != losses[0]


def test_a_backward_with_a_gradient_given_has_no_loss(own):
    source = script().replace("loss.backward()", "loss[None].expand(2).backward(torch.ones(2))")
    assert own(source, "log.txt").losses() == [None] * 7


@pytest.mark.slow
def test_every_pair_of_switches_combines_or_is_a_replacement(own):
    """All are thrown at once, but for what takes the place of others. float16 needs a GPU."""
    run = own(CAPTIONS + script("Captions()", "model(x, y)"), "log.txt")
    losses = run.losses()
    names = [name for name in ORDER if name != "float16"]
    replaced = ({"fused_optimizer", "torch_compile"}, {"8bit_optimizer", "cuda_graphs"})
    thrown = [[name for name in names if name not in left_out] for left_out in replaced]
    thrown += [["fused_optimizer", "cuda_graphs"], ["torch_compile", "8bit_optimizer"]]
    for techniques in thrown:
        assert run.losses(*techniques, steps=5) == pytest.approx(losses[:5], abs=0.02)
    pairs = {frozenset(pair) for pair in combinations(names, 2)}
    combined = {frozenset(pair) for techniques in thrown for pair in combinations(techniques, 2)}
    replacements = {frozenset((name, old)) for name in REPLACES for old in REPLACES[name]}
    assert pairs - combined <= replacements


@pytest.mark.parametrize("packages", [PACKAGES, ("Utils", "tests"), ()])
def test_a_script_imports_its_own_modules_by_names_of_ours(own, tmp_path, packages):
    plain = own(script(), "plain.txt").losses()
    run = own(with_namesakes(tmp_path, packages), "log.txt")
    assert run.losses() == plain
    losses = run.losses("brainFloat16", "torch_compile", "8bit_optimizer")
    assert losses == pytest.approx(plain, rel=0.05) and losses != plain


PARSER = "from argparse import ArgumentParser\nArgumentParser().parse_args(['--data'])"
CAUGHT = "try:\n    open('log.txt', 'a')\nexcept:\n    open('log.txt', 'w')\n"
TWO_DEVICES = """from torch import nn, optim, ones
model, far = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
optim.SGD([*model.parameters(), *far.parameters()])
model(ones(2)).sum().backward()
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_package", "needs no_such_package; install it beside the pinned torch: "),
        (PARSER, "ends early: train.py: error: unrecognized arguments: --data"),
        ("raise SystemExit('no data here')", "ends early: no data here"),
        ("raise ValueError('a bad batch')", "ValueError: a bad batch (train.py:1)"),
        ("print('done')", "ends without a step of an optimizer of torch.optim"),
        (script(after="break"), "ends after 1 steps"),
        (TWO_DEVICES, "trains on several devices"),
        (CAUGHT, "opens log.txt for writing, which exists; delete or move it, or allow"),
    ],
)
def test_a_refusal_is_one_line(own, tmp_path, source, reason):
    (tmp_path / "log.txt").write_text("old\n")
    answer = own(source, "new.txt").run()
    assert answer["status"] == "refused"
    assert answer["said"].startswith("train.py: ")
    assert reason in answer["said"]
    assert answer["said"].count("\n") == 1
    assert (tmp_path / "log.txt").read_text() == "old\n"


@pytest.mark.parametrize("text", ["torchrun train.py", "-m no.such.module", "train.ipynb", "no.py"])
def test_what_is_no_script_is_refused(own, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.ipynb").write_text("{}")
    with pytest.raises(UserError):
        find(text)


def test_a_script_is_known_by_the_name_of_its_rows(own, tmp_path):
    names = {
        tmp_path / "train.py": "train",
        tmp_path / "other" / "train": "other/train",
        tmp_path / "torch_compile.py": f"{tmp_path.name}/torch_compile",  # a name of ours
    }
    for path, name in names.items():
        path.parent.mkdir(exist_ok=True)
        path.touch()
        assert (find(path).name, find(path).is_module) == (name, False)
        assert find(name) == find(path)

        rows = [rows_of(base, [1, 1, 1], base=base) for base in ("train", name)]
        selected, _ = selection.select(DataFrame(chain(*rows)), base=str(path))
        assert {*selected.base} == {name}


def test_a_killed_launcher_leaves_nothing_and_a_killed_look_is_told(own, monkeypatch):
    runs = own("").runs
    left_over = own_runs.FOLDER / "runs" / f"{platform.node()}-{2**22 + 1}-a"  # no such process
    left_over.mkdir()
    assert own("").runs.folder.exists() and runs.folder.exists() and not left_over.exists()
    runs.args = Parser("", "", *OF_A_RUN).parse_args([])
    ended = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: ended)
    with pytest.raises(UserError, match="killed by SIGKILL"):
        runs.look_at()


@pytest.mark.slow
def test_the_measured_process_needs_few_packages():
    blocked = {"pandas", "scipy", "matplotlib", "tqdm", "tiktoken", "pynvml", "seaborn"}
    code = f"import sys; sys.modules |= dict.fromkeys({blocked})\n"
    code += "from tools.own_script import measured_process"
    subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, check=True)


def costs():
    """Print the microseconds that watching adds to a step, a backward and a batch.

    They are those of a core that takes 16 us for the step itself.
    """
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter])
    backward = partial(parameter.sum().backward, retain_graph=True)
    data = torch.utils.data.DataLoader(torch.zeros(100, 1))
    loops = [(optimizer.step, 100), (backward, 100), (lambda: list(data), 1)]

    places = [(torch_optimizer, "_global_optimizer_pre_hooks"), (torch.autograd, "backward")]
    places += [(torch_optimizer, "_global_optimizer_post_hooks"), (_BaseDataLoaderIter, "__next__")]
    states = [[copy(getattr(*place)) for place in places]]
    watch.Watch("", lambda: None, lambda iteration: None).install()
    states.append([getattr(*place) for place in places])

    fastest = [[1.0] * len(loops) for _ in states]
    for _ in range(200):  # by turns, as the machine's speed changes
        for state, seconds in zip(states, fastest, strict=True):
            for place, value in zip(places, state, strict=True):
                setattr(*place, value)
            for i, (loop, n) in enumerate(loops):
                seconds[i] = min(seconds[i], timeit.timeit(loop, number=n))

    unit = max(100e-6, fastest[0][0] / 16)
    print(json.dumps([(w - u) / unit for u, w in zip(*fastest, strict=True)]))


@pytest.mark.slow
@pytest.mark.timing
def test_watching_costs_microseconds():
    step, backward, batch = json.loads(forked.call(costs).stdout)
    assert 0 < step < 20 and 0 < backward < 10 and 0 < batch < 10


def half_precision():
    """Train in float16 with two backward passes a step, the second step overflowing.

    Print, for each, the largest error of the gradients, whether the weights moved, and the scale.
    """
    watching = watch.Watch("", lambda: None, lambda iteration: None)
    switch = model_switches.Float16(watching)
    watching.switches = [switch]
    watching.install()

    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    plain = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 16)

    for overflows in (0.0, 1.0, 0.0):
        optimizer.zero_grad()
        for _ in range(2):
            model(inputs).square().mean().backward()
        plain.load_state_dict(model.state_dict())
        (expected,) = torch.autograd.grad(2 * plain(inputs).square().mean(), [plain.weight])
        error = (model.weight.grad - expected).abs().max().item()
        switch.overflow.fill_(overflows)
        optimizer.step()
        print(json.dumps([error, not torch.equal(model.weight, plain.weight), switch.scale.item()]))


def test_float16_hides_its_scale_and_leaves_out_steps_that_overflow():
    steps = [json.loads(line) for line in forked.call(half_precision).stdout.splitlines()]
    errors, moved, scales = zip(*steps, strict=True)
    assert max(errors) < 2e-3  # gradients are about 1, of float16's 11 bits
    assert moved == (True, False, True)
    assert scales == (65536, 32768, 32768)
