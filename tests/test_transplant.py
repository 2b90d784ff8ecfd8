"""Techniques on scripts of another shape: what a person would have written by hand."""

import ast
import textwrap
from argparse import Namespace

import pytest

from Utils.analysis import attribution
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.launch import suite_runner
from Utils.scripts import anatomy, bases, ladder, transplant
from Utils.scripts.transplant import Misfit

KNOWN = ladder.techniques()
STRANGER = """
import torch
from torch import nn, optim
from Utils.run import Run, run_script


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


def train(settings):
    net = Net()
    net.to(settings.device)
    opt = optim.AdamW(net.parameters(), 3e-4, weight_decay=0.1)
    with Run(settings, net, opt) as measured:
        for step, batch in enumerate(measured.steps([{"x": torch.zeros(4, 8)}] * 9)):
            opt.zero_grad()
            x = batch["x"].to(settings.device)
            y = net(x)
            error = (y - x).square().mean()  # a loss of its own
            error.backward()
            opt.step()
            measured.log(error.item())


if __name__ == "__main__":
    run_script(train, __doc__)
"""


def applied(source, *names):
    for name in names:
        before, after = (KNOWN[n].path.read_text() for n in (KNOWN[name].parent, name))
        source = transplant.apply(source, before, after, name)
    return source


def reason(source, *names):
    with pytest.raises(Misfit) as misfit:
        applied(source, *names)
    return str(misfit.value)


def changes(source, *names):
    """Return the lines that techniques remove and add, as `diff` marks them."""
    new, old = applied(source, *names).splitlines(), source.splitlines()
    gone = [f"-{line.strip()}" for line in old if line not in new]
    return gone + [f"+{line.strip()}" for line in new if line not in old]


def same(a, b):
    """Tell whether two scripts are the same but for docstring, comments and blank lines."""
    trees = [ast.parse(text) for text in (a, b)]
    return ast.dump(ast.Module(trees[0].body[1:], [])) == ast.dump(
        ast.Module(trees[1].body[1:], [])
    )


@pytest.mark.parametrize("name", [n for n in KNOWN if n not in ("no_optimization", "larger_batch")])
def test_every_technique_on_the_baseline_is_its_own_script(name):
    baseline = KNOWN["no_optimization"].path.read_text()
    made = applied(baseline, *ladder.line(name)[1:])
    assert same(made, KNOWN[name].path.read_text())


def test_the_ladder_on_a_script_with_names_of_its_own():
    assert changes(STRANGER, "tensorFloat32") == ['+torch.set_float32_matmul_precision("high")']
    text = applied(STRANGER, "brainFloat16")
    region = """
            x = batch["x"].to(settings.device)
            with torch.autocast(settings.device.type, dtype=torch.bfloat16):
                y = net(x)
                error = (y - x).square().mean()  # a loss of its own
            error.backward()
"""
    assert region in text
    assert "    net.to(settings.device)\n    net = torch.compile(net)\n    opt =" in applied(
        STRANGER, "torch_compile"
    )
    assert changes(STRANGER, "fused_optimizer") == [
        "-opt = optim.AdamW(net.parameters(), 3e-4, weight_decay=0.1)",
        "+opt = optim.AdamW(net.parameters(), 3e-4, weight_decay=0.1, fused=True)",
    ]
    eight = applied(STRANGER, "8bit_optimizer")
    assert "from bitsandbytes.optim import AdamW8bit" in eight
    call = next(
        n for n in ast.walk(ast.parse(eight)) if isinstance(n, ast.Call) and "8bit" in ast.dump(n)
    )
    assert ast.unparse(call) == (
        "AdamW8bit(net.parameters(), 0.0003, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-08)"
    )
    assert "measured.log(error.detach())" in applied(STRANGER, "asynchronous_logging")


def test_a_call_of_several_lines_stays_one():
    call = """optim.AdamW(
        [{"params": net.layer.weight, "weight_decay": 0.1}, {"params": net.layer.bias}],
        lr=3e-4,
        betas=(0.9, 0.98),
    )"""
    long = STRANGER.replace("optim.AdamW(net.parameters(), 3e-4, weight_decay=0.1)", call)
    assert changes(long, "fused_optimizer") == ["+fused=True,"]


def test_a_loss_within_a_dict():
    text = STRANGER.replace("error.", 'losses["all"].').replace(
        "error = (y - x).square().mean()", 'losses = {"all": (y - x).square().mean()}'
    )
    assert 'measured.log(losses["all"].detach())' in applied(text, "asynchronous_logging")
    scaled = applied(text, "float16_grad_scaler")
    assert 'scaler.scale(losses["all"]).backward()' in scaled and "scaler.step(opt)" in scaled


def test_a_sharded_optimizer_keeps_the_class_and_arguments_of_the_script():
    wrapped = applied(STRANGER, "fused_optimizer", "zero_redundancy")
    call = """    opt = ZeroRedundancyOptimizer(
        net.parameters(), torch.optim.AdamW, lr=3e-4, weight_decay=0.1, fused=True
    )
"""
    assert call in wrapped


def test_what_is_not_there_is_named():
    assert "handed to the model as attention=" in reason(STRANGER, "flash_attention")
    assert 'attn_implementation="eager"' in reason(STRANGER, "flash_attention")
    assert reason(STRANGER, "padded_vocabulary") == "needs `vocab_size=50_257` handed to the model"
    assert "needs `batches = TokenBatches(args)`, or" in reason(STRANGER, "prefetching_loader")
    assert "`model.h` of GPT" in reason(STRANGER, "gradient_checkpointing")
    sgd = STRANGER.replace("AdamW(net.parameters(), 3e-4,", "SGD(net.parameters(), 3e-4,")
    assert "the script has torch.optim.SGD" in reason(sgd, "8bit_optimizer")
    assert "fused=True" in applied(sgd, "fused_optimizer")
    own = STRANGER.replace("optim.AdamW(net", "net.configure(net")
    assert "needs an optimizer of torch.optim" in reason(own, "fused_optimizer")


def test_what_is_there_already_is_not_added_twice():
    for name in ("brainFloat16", "torch_compile", "fused_optimizer", "tensorFloat32"):
        assert "already" in reason(applied(STRANGER, name), name)


def test_statements_between_backward_and_step_stay_together():
    clipped = STRANGER.replace(
        "            opt.step()",
        "            nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n            opt.step()",
    )
    assert "brainFloat16" and "autocast" in applied(clipped, "brainFloat16")
    # Scaled gradients would have to be unscaled before they are clipped.
    assert "clip_grad_norm_" in reason(clipped, "float16_grad_scaler")
    assert "scaler.scale(error).backward()" in applied(STRANGER, "float16_grad_scaler")


def test_tabs_stay_tabs():
    tabs = STRANGER.replace("    ", "\t")
    text = applied(tabs, "brainFloat16", "torch_compile", "fused_optimizer")
    assert "\t\t\twith torch.autocast(" in text and "\n\t\t\t\ty = net(x)\n" in text
    assert "\n\tnet = torch.compile(net)\n\topt =" in text


def test_zero_grad_may_stand_anywhere():
    between = STRANGER.replace("            opt.zero_grad()\n", "").replace(
        "            error.backward()", "            opt.zero_grad()\n            error.backward()"
    )
    text = applied(between, "brainFloat16")
    assert (
        """
                error = (y - x).square().mean()  # a loss of its own
            opt.zero_grad()
            error.backward()
"""
        in text
    )
    assert "scaler.step(opt)" in applied(between, "float16_grad_scaler")


def test_what_is_logged_stays():
    script = STRANGER.replace("error.item()", "float(total)")
    assert "measured.log(total.detach())" in applied(script, "asynchronous_logging")
    script = STRANGER.replace("error.item()", "error.detach()")
    assert "already" in reason(script, "asynchronous_logging")
    script = STRANGER.replace("error.item()", "{'loss': error}")
    assert "needs `run.log(loss.item())`" in reason(script, "asynchronous_logging")


def test_comments_of_the_script_stay():
    script = STRANGER.replace("    opt = ", "    # of the paper\n    opt = ")
    script = script.replace(
        "            y = net(x)", "            # the forward pass\n            y = net(x)"
    )
    assert "    # of the paper\n    opt = optim.AdamW(" in applied(script, "fused_optimizer")
    assert "                # the forward pass\n                y = net(x)" in applied(
        script, "brainFloat16"
    )


@pytest.mark.parametrize(
    "own, words",
    [
        ('torch.set_float32_matmul_precision("medium")', "and has `torch.set_float32"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "sets allow_tf32 already"),
    ],
)
def test_a_precision_that_the_script_chose_stays(own, words):
    line = "    net = Net()\n"
    assert words in reason(STRANGER.replace(line, f"    {own}\n{line}"), "tensorFloat32")


def test_batches_that_add_up_are_under_autocast_one_by_one():
    script = STRANGER.replace(
        """            x = batch["x"].to(settings.device)
            y = net(x)
            error = (y - x).square().mean()  # a loss of its own
            error.backward()
""",
        """            for x in batch["x"].to(settings.device).chunk(2):
                error = (net(x) - x).square().mean()
                error.backward()
""",
    )
    assert """
                with torch.autocast(settings.device.type, dtype=torch.bfloat16):
                    error = (net(x) - x).square().mean()
                error.backward()
""" in applied(script, "brainFloat16")
    assert "measured.log(error.detach())" in applied(script, "asynchronous_logging")
    assert "in the same block" in reason(script, "float16_grad_scaler")


def test_the_model_file_of_another_repository():
    """A script around nanoGPT's model.py: its model makes the optimizer, and its forward pass is
    like ours."""
    script = STRANGER.replace("from torch import nn, optim", "from model import GPT, GPTConfig")
    script = script[: script.index("class Net")] + script[script.index("def train") :]
    script = script.replace("net = Net()", "net = GPT(GPTConfig(vocab_size=50304, bias=True))")
    optimizer = "net.configure_optimizers(0.1, 3e-4, (0.9, 0.95), settings.device.type)"
    script = script.replace("optim.AdamW(net.parameters(), 3e-4, weight_decay=0.1)", optimizer)
    assert "net = torch.compile(net)" in applied(script, "torch_compile")
    assert "the script has net.configure_optimizers" in reason(script, "fused_optimizer")
    assert "of GPT in Utils.model" in reason(script, "gradient_checkpointing")


def test_a_loader_gets_workers_and_copies_that_nobody_waits_for():
    loader = "DataLoader(data, batch_size=8)"
    script = f"from torch.utils.data import DataLoader\n{STRANGER}"
    script = script.replace("    opt = ", f"    feed = {loader}\n    opt = ").replace(
        '[{"x": torch.zeros(4, 8)}] * 9', "feed"
    )
    workers = 'num_workers=2, pin_memory=settings.device.type == "cuda"'
    assert changes(script, "prefetching_loader") == [
        f"-feed = {loader}",
        '-x = batch["x"].to(settings.device)',
        f"+feed = {loader[:-1]}, {workers})",
        '+x = batch["x"].to(settings.device, non_blocking=True)',
    ]
    own = script.replace("batch_size=8", "batch_size=8, num_workers=4")
    assert "num_workers already" in reason(own, "prefetching_loader")


def test_checkpoints_of_transformers_are_switched_on():
    source = (paths.ROOT / "examples" / "causal_lm.py").read_text()
    new = applied(source, "torch_compile", "gradient_checkpointing").splitlines()
    place = new.index("    model = torch.compile(model)")
    assert new[place - 1].startswith("    model.gradient_checkpointing_enable(")


def test_a_setting_of_transformers_stands_for_flash_attention():
    source = (paths.ROOT / "examples" / "causal_lm.py").read_text()
    text = applied(source, "flash_attention")
    assert text == source.replace('"eager" is', "KEPT").replace(
        'attn_implementation="eager"', 'attn_implementation="sdpa"'
    ).replace("KEPT", '"eager" is')


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("with Run(settings, net, opt) as measured:", "if settings:", "has no `with Run("),
        ("measured.steps(", "zip(", "has no `for ... in run.steps(batches):`"),
        ("measured.log(error.item())", "pass", "has no `run.log(loss.item())`"),
        ("    run_script(train, __doc__)", "    train(None)", "does not end with `run_script("),
        ("error.backward()", "error.backward(", "line "),
    ],
)
def test_a_script_without_our_loop_is_refused_in_one_line(old, new, words):
    with pytest.raises(UserError) as error:
        anatomy.read(STRANGER.replace(old, new), "my_model.py")
    assert str(error.value).startswith("my_model.py") and words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    monkeypatch.setattr(bases, "FOLDER", tmp_path / "bases")
    path = tmp_path / "elsewhere" / "stranger.py"
    path.parent.mkdir()
    path.write_text(f'"""A base.\n\nUnit:   rows\nNeeds:  bfloat16\n"""{STRANGER}')
    return path


def test_a_ladder_goes_on_without_what_does_not_apply(stranger):
    base = bases.find(str(stranger))
    scripts = bases.ladder_of(base, ladder.group("ladder"))
    names = [script.name for script in scripts]
    assert names[:3] == [
        "stranger",
        "stranger+tensorFloat32",
        "stranger+tensorFloat32+brainFloat16",
    ]
    whole = "stranger+tensorFloat32+brainFloat16+torch_compile"
    assert names[3:] == [whole, *(f"{whole}+{n}" for n in names_after(whole))]
    refused = scripts[4]
    assert "raise Unsupported('needs" in refused.code
    last = scripts[5]
    assert last.parent == whole and last.facts.texts["Unit"] == "rows"
    assert last.needs == ("bfloat16", "tf32", "compile")
    # Files beside the base are found from the merged script.
    assert f"sys.path.insert(0, {str(stranger.parent)!r})" in last.code
    assert same(
        last.path.read_text().replace(
            f"import sys\n\nsys.path.insert(0, {str(stranger.parent)!r})", ""
        ),
        f'"""."""{applied(STRANGER, *last.name.split("+")[1:])}',
    )


def test_why_a_technique_does_not_apply(stranger):
    base = bases.find(str(stranger))
    refusals = {
        bases.last(script.name): bases.refusal(script)
        for script in bases.ladder_of(base, ladder.group("everything"))
    }
    assert refusals["zero_redundancy"] == "builds on distributed_data_parallel"
    assert "it builds on padded_vocabulary, which" in refusals["fused_cross_entropy"]
    assert refusals["padded_vocabulary"] == "needs `vocab_size=50_257` handed to the model"
    with pytest.raises(Misfit, match="^flash_attention: needs the function"):
        bases.made(base, ["flash_attention", "fused_optimizer"])


def test_a_technique_that_fails_is_left_out_of_those_that_follow(stranger, monkeypatch):
    base, seen = bases.find(str(stranger)), []

    def run(scripts, args, say, identity=None):
        assert base.source in identity
        seen.append(([bases.last(script.name) for script in scripts], args.rounds))
        names.extend(script.name for script in scripts)
        return suite_runner.Outcome(0)

    def status_of(outcome, path):
        return {name: "failed" if "brainFloat16" in name else "ok" for name in names}

    names = []
    monkeypatch.setattr(suite_runner, "run", run)
    monkeypatch.setattr(suite_runner, "status_of", status_of)
    args = Namespace(rounds=3, precision=None, results_file=None)
    suite_runner.run_base(base, ladder.group("ladder"), args, print)
    assert [rounds for _, rounds in seen] == [1, 1, 3]
    assert names.count("stranger+tensorFloat32+brainFloat16+torch_compile") == 1
    final = names[-len(seen[-1][0]) :]
    assert "stranger+tensorFloat32+brainFloat16" in final  # its row says why
    assert "stranger+tensorFloat32+torch_compile+fused_optimizer" in final


def test_the_ladder_of_a_base_goes_without_what_is_left_out(stranger, monkeypatch):
    names = []

    def run(scripts, args, say, identity=None):
        names.extend(bases.last(script.name) for script in scripts)
        return suite_runner.Outcome(0)

    monkeypatch.setattr(suite_runner, "run", run)
    monkeypatch.setattr(suite_runner, "status_of", lambda outcome, path: {})
    wanted = {"names": [], "without": "brainFloat16 8bit_optimizer"}
    args = Namespace(rounds=1, precision=None, results_file=None, base=str(stranger), **wanted)
    base, techniques, without = suite_runner.asked(args)
    suite_runner.run_base(base, techniques, args, print, without)
    flash = names.pop(3)
    assert flash == "flash_attention"  # refused, with a row that says why
    assert names == ["stranger", "tensorFloat32", "torch_compile", "fused_optimizer"]
    assert bases.made(base, names[1:]).name == "+".join(names)
    args.without = "nothing_known"
    with pytest.raises(UserError, match="no technique 'nothing_known'"):
        suite_runner.asked(args)
    with pytest.raises(UserError, match="of a base; cp no_optimization.py examples/my_base.py"):
        suite_runner.asked(Namespace(names=[], base="", without="brainFloat16"))


def test_an_ablation_of_a_base_runs_each_technique_alone_and_left_out(stranger):
    whole, scripts = attribution.plan_of_base(bases.find(str(stranger)))
    names = [script.name for script in scripts]
    assert whole == "stranger+tensorFloat32+brainFloat16+torch_compile+fused_optimizer"
    assert {"stranger", "stranger+fused_optimizer", "stranger+8bit_optimizer", whole} <= {*names}
    assert "stranger+tensorFloat32+torch_compile+fused_optimizer" in names
    assert len(names) == len({*names})
    pairs = attribution.names_of("torch_compile", whole)
    assert pairs == {
        "alone": ("stranger", "stranger+torch_compile"),
        "ladder": (
            "stranger+tensorFloat32+brainFloat16",
            "stranger+tensorFloat32+brainFloat16+torch_compile",
        ),
        "last": ("stranger+tensorFloat32+brainFloat16+fused_optimizer", whole),
    }


def names_after(whole):
    return [n for n in KNOWN if KNOWN[n].at_top_level and n not in whole and KNOWN[n].parent]


def test_a_base_is_found_again_by_its_name(stranger):
    assert bases.find(str(stranger)).path == stranger
    assert bases.find("stranger").path == stranger
    assert bases.find("vision").path == paths.ROOT / "examples" / "vision.py"
    assert bases.split("stranger+tensorFloat32") == ("stranger", ["tensorFloat32"])
    assert bases.split("stranger") == ("stranger", [])
    for ours in ("no_optimization", "flash_attention", "no_optimization+flash_attention", "a+b"):
        assert bases.split(ours) is None
    for text, words in (
        ("nowhere", "no nowhere.py"),
        (str(stranger.parent / "gone.py"), "No such file"),
        ("./flash_attention.py", "is a technique of the ladder"),
    ):
        with pytest.raises(UserError, match=words):
            bases.find(text)


def test_a_docstring_is_not_needed(stranger):
    stranger.write_text(textwrap.dedent(STRANGER))
    base = bases.find(str(stranger))
    assert base.unit == "samples"
    assert bases.made(base, ["tensorFloat32"]).code.count("import torch") == 1
