"""Adding a technique: `make new`, and what a new script asks of tests and pages."""

import ast
import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers import checkouts, processes
from tools.new_technique import skeleton
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.scripts import ladder

ROOT = paths.ROOT
TRACKED = ladder.tracked()
IDEA = "fused=True)", "fused=True, eps=1e-7)"
# Tests that look at every script, as far as they train none and open no browser.
READING = [
    "test_docs",
    "test_layers",
    "test_ladder",
    "test_ladders",
    "test_variants",
    "test_recipe",
]


@pytest.mark.parametrize(
    ("target", "parent", "message"),
    [
        ("", "fused_optimizer", "T= is the name of the new script; as in make new T=my_idea"),
        ("muon", "fused_optimizer", "T=muon: beyond/costs/muon.py has that name"),
        ("my-idea", "fused_optimizer", "T=my-idea: a name has letters, digits and underscores"),
        ("none", "fused_optimizer", "T=none: a word of the Makefile"),
        ("random", "fused_optimizer", "T=random: would hide Python's module random"),
        ("plot_results", "fused_optimizer", "plot_results.py exists"),
        ("ideas/my_idea", "fused_optimizer", "no beyond/ideas; choose attention, combined, "),
        ("memory/data", "fused_optimizer", "tests/test_beyond_data.py exists"),
        ("my_idea", "nonsense", "no technique 'nonsense'; choose no_optimization, "),
    ],
)
def test_new_refuses_a_name_that_cannot_be(target, parent, message):
    with pytest.raises(UserError) as error:
        skeleton.write(target, parent)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_new_copies_any_script_and_leaves_its_docstring_to_fill_in(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    for folder in ("beyond/memory", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "beyond" / "memory" / "__init__.py").touch()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)

    for name, parent in TRACKED.items():
        script, test = skeleton.write(f"memory/of_{name}", name)
        doc, code = ladder.split(script.read_text())
        facts = ladder.docstring_facts(doc)
        assert (facts["parent"], facts["needs"], code) == (name, parent.needs, parent.code)
        assert {*facts["facts"]} == {*ladder.FACTS}
        child = ladder.Technique(script.stem, script, doc, code, **facts)
        assert child.stated_parity == parent.stated_parity
        assert doc.count(skeleton.TO_FILL_IN) == 5
        ast.parse(test.read_text())
    sources = f"src=['{ROOT}']"  # where ruff looks for the project's own modules
    for command in (["check"], ["format", "--check"]):
        done = processes.python("-m", "ruff", *command, ".", "--config", sources, cwd=tmp_path)
        assert done.returncode == 0, done.stdout


def test_new_test_to_fill_in_fails_if_losses_differ_or_a_weight_is_not_trained(train):
    texts = {"folder": "memory", "parent": "fused_optimizer", "name": "my_idea"}
    module = {}
    exec(skeleton.TEST.format(fill_in=skeleton.TO_FILL_IN, **texts), module)
    test = module["test_it_trains_as_its_parent_does"]
    runs = {"fused_optimizer": train("fused_optimizer"), "my_idea": train("fused_optimizer")}
    test(runs.get)

    child = runs["my_idea"]
    child.logged[-1] += 0.1
    with pytest.raises(AssertionError):
        test(runs.get)
    child.logged[-1] -= 0.1
    child.first["ln_f.bias"] = child.model.ln_f.bias
    with pytest.raises(AssertionError, match="ln_f.bias is not trained"):
        test(runs.get)


class Checkout:
    """A checkout of the tracked files as they are here, all of them committed."""

    def __init__(self, folder):
        self.folder = folder
        checkouts.copy(folder)
        checkouts.commit(folder)

    def run(self, *words):
        """Run a command in it, which has to go well. Return what it prints."""
        variables = {"MAKEFLAGS": "", "MAKEOVERRIDES": "", "CACHE_DIR": str(paths.CACHE)}
        variables |= {"PYTHONPATH": str(self.folder)}
        options = {"env": os.environ | variables, "capture_output": True, "text": True}
        done = subprocess.run(words, cwd=self.folder, **options)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        return done.stdout

    def make(self, *words):
        return self.run("make", *words, f"PYTHON={sys.executable}")

    def test(self, *names):
        files = [f"tests/{name}.py" for name in READING]
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not timing"]
        return self.run(sys.executable, *pytest, *files, *names)

    def change(self, script):
        """Change one line of a script."""
        source = (self.folder / script).read_text()
        assert source.count(IDEA[0]) == 1
        (self.folder / script).write_text(source.replace(*IDEA))


@pytest.mark.slow
def test_new_technique_asks_for_a_script_a_test_and_make_readme(tmp_path):
    """One that git does not track, copied by hand, and one that is contributed, by `make new`."""
    checkout = Checkout(tmp_path)
    shutil.copy(ROOT / "fused_optimizer.py", tmp_path / "my_idea.py")
    checkout.change("my_idea.py")

    script, test = "beyond/memory/smaller_epsilon.py", "tests/test_beyond_smaller_epsilon.py"
    said = checkout.make("new", "T=memory/smaller_epsilon", "PARENT=fused_optimizer")
    assert f"git add {script} {test}" in said
    assert max(map(len, said.splitlines())) <= 100
    checkout.change(script)
    checkout.run("git", "add", script, test)
    checkout.make("readme")

    checkout.make("lint")
    outcome = checkout.test(test)
    assert "smaller_epsilon" in (tmp_path / "docs" / "TECHNIQUES.md").read_text()
    assert " passed" in outcome and "failed" not in outcome
    # The chart's pixels depend on the fonts of the machine.
    touched = checkout.run("git", "status", "--porcelain", "--", ".", ":!docs/gpus.png")
    assert touched.splitlines() == [
        " M README.md",
        f"A  {script}",
        " M docs/TECHNIQUES.md",
        f"A  {test}",
        "?? my_idea.py",
    ]
