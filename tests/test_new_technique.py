"""Adding a technique: `make new`, and what a new script asks of tests and pages."""

import ast
import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers import processes
from tools.new_technique import skeleton
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.scripts import ladder

ROOT = paths.ROOT
TRACKED = ladder.tracked()
IDEA = "fused=True)", "fused=True, eps=1e-7)"
# Tests that look at every script.
READING = [
    "tests/test_docs.py",
    "tests/test_layers.py",
    "tests/test_ladder.py",
    "tests/test_recipe.py::test_known_effects_give_the_known_recipe[harmful-expected6]",
    "tests/test_reference.py::test_every_folder_is_complete_and_its_page_is_made_of_its_rows",
    "tests/test_ablation.py::test_the_plan_runs_each_rung_alone_and_the_whole_without_each",
    "tests/test_recipe.py::test_every_technique_has_lines_or_says_that_there_is_no_switch",
    "tests/test_recipe.py::test_lines_are_of_scripts_and_have_known_keys",
    "tests/test_pretraining.py::test_loop_merges_every_technique_or_says_why_not",
    "tests/test_variants.py::test_a_diff_that_does_not_apply_alone_says_what_it_needs",
    "tests/test_variants.py::test_every_variant_of_every_script_is_python_or_says_why_not",
    "tests/test_makefile.py::test_every_target_is_made_whatever_files_there_are",
    "tests/test_makefile.py::test_help_lists_every_target_technique_and_variable",
    "tests/test_hardware.py::test_no_other_file_names_torch_cuda",
]
# Of these files, tests that train, open a browser or read no script.
SLOWER = [
    "tests/test_docs.py::test_parts_are_written_between_their_marks",
    "tests/test_docs.py::test_no_table_is_wider_than_a_page_of_github",
    "tests/test_ladder.py::test_it_runs_or_says_why_not",
    "tests/test_ladder.py::test_its_losses_fall_together_with_the_baselines",
    "tests/test_ladder.py::test_a_script_of_a_folder_runs_by_its_own_command",
    "tests/test_ladder.py::test_a_technique_without_effect_on_this_device_says_so",
]


@pytest.mark.parametrize(
    ("target", "parent", "message"),
    [
        ("", "fused_optimizer", "T= is the name of the new script; as in make new T=my_idea"),
        ("muon", "fused_optimizer", "T=muon: beyond/costs/muon.py has that name"),
        ("my-idea", "fused_optimizer", "T=my-idea: a name has letters, digits and underscores"),
        ("my_idea.py", "fused_optimizer", "T=my_idea.py: a name has letters"),
        ("table", "fused_optimizer", "T=table: a word of the Makefile"),
        ("none", "fused_optimizer", "T=none: a word of the Makefile"),
        ("random", "fused_optimizer", "T=random: would hide Python's module random"),
        ("plot_results", "fused_optimizer", "plot_results.py exists"),
        ("ideas/my_idea", "fused_optimizer", "no beyond/ideas; choose attention, combined, "),
        ("../my_idea", "fused_optimizer", "no beyond/..; choose attention"),
        ("memory/memory", "fused_optimizer", "tests/test_beyond_memory.py exists"),
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
        facts = ladder.facts(doc)
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


def test_the_test_to_fill_in_fails_if_losses_differ_or_a_weight_is_not_trained(train):
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
        names = paths.git("ls-files", "-z").split("\0")
        for name in names:
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        self.run("git", "init", "--quiet")
        self.run("git", "add", "--all")
        author = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        self.run("git", *author, "commit", "--quiet", "--message=x")

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
        deselected = [f"--deselect={name}" for name in SLOWER]
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return self.run(sys.executable, *pytest, *READING, *names, *deselected)

    def change(self, script):
        """Change one line of a script."""
        source = (self.folder / script).read_text()
        assert source.count(IDEA[0]) == 1
        (self.folder / script).write_text(source.replace(*IDEA))


@pytest.mark.slow
def test_an_idea_asks_for_nothing_and_a_technique_for_a_script_a_test_and_make_readme(tmp_path):
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
