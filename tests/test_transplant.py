"""Techniques on scripts of another shape: what a person would have written by hand."""

import ast
import textwrap

import pytest

from Utils.base import anatomy, bases, ladder, paths, transplant
from Utils.base.errors import UserError
from Utils.base.transplant import Misfit

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


def test_what_is_not_there_is_named():
    assert "handed to the model as attention=" in reason(STRANGER, "flash_attention")
    assert 'attn_implementation="eager"' in reason(STRANGER, "flash_attention")
    assert reason(STRANGER, "padded_vocabulary") == "needs `vocab_size=50_257` handed to the model"
    assert reason(STRANGER, "prefetching_loader") == "needs `batches = TokenBatches(args)`"
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
    assert "raise Unsupported('flash_attention: needs" in refused.code
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
