"""Adding a technique: `make new`, and what a new script asks of tests and pages."""

import os
import shutil
import sys

import pytest

from tests.helpers import checkouts, processes
from tools.new_technique import skeleton
from Utils.base import paths
from Utils.scripts import ladder

TRACKED = ladder.tracked()


def test_new_copies_any_script_and_leaves_its_docstring_to_fill_in(tmp_path, monkeypatch):
    for folder in ("beyond/memory", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "beyond" / "memory" / "__init__.py").touch()
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    monkeypatch.setattr("Utils.base.paths.ROOT", tmp_path)

    for name in TRACKED:
        skeleton.write(f"memory/of_{name}", name)
    for child in ladder.techniques(tmp_path).values():
        parent = TRACKED[child.parent]
        assert child.name == f"of_{parent.name}"
        assert (child.needs, child.code) == (parent.needs, parent.code)
        assert child.stated_parity == parent.stated_parity
        assert child.doc.count(skeleton.TO_FILL_IN) == 5 and {*child.facts} == {*ladder.FACTS}


def test_new_test_to_fill_in_fails_if_losses_differ_or_a_weight_is_not_trained(train):
    module = {}
    exec(
        skeleton.TEST.format(fill_in="", folder="", parent=ladder.BASELINE, name="my_idea"), module
    )
    test = module["test_it_trains_as_its_parent_does"]
    runs = {name: train(ladder.BASELINE) for name in (ladder.BASELINE, "my_idea")}
    test(runs.get)

    child = runs["my_idea"]
    last_loss = child.logged.pop()
    with pytest.raises(AssertionError):
        test(runs.get)
    child.logged.append(last_loss)
    child.first["ln_f.bias"] = child.model.ln_f.bias
    with pytest.raises(AssertionError, match="ln_f.bias is not trained"):
        test(runs.get)


# Tests that look at every script, as far as they train none and open no browser.
CONTRIBUTION = """
make new T=memory/smaller_epsilon PARENT=fused_optimizer PYTHON="$PYTHON"
sed -i 's/fused=True)/fused=True, eps=1e-7)/' beyond/memory/smaller_epsilon.py
cp fused_optimizer.py my_idea.py
git add beyond tests
make readme lint PYTHON="$PYTHON"
"$PYTHON" -m pytest -q -p no:cacheprovider -m "not slow and not timing" \
    tests/test_beyond_smaller_epsilon.py tests/test_docs.py tests/test_layers.py \
    tests/test_ladder.py tests/test_ladders.py tests/test_recipe.py
git checkout docs/gpus.png  # its pixels depend on the fonts of the machine
"""
IDEAS = """
make new T=my_idea PARENT=no_optimization PYTHON="$PYTHON"
make new T=memory/second_idea PARENT=fused_optimizer PYTHON="$PYTHON"
make test PYTHON="$PYTHON" WORKERS=2
"""
TOUCHED = """\
 M README.md
A  beyond/memory/smaller_epsilon.py
 M docs/TECHNIQUES.md
A  tests/test_beyond_smaller_epsilon.py
?? my_idea.py
"""


@pytest.fixture
def run(tmp_path):
    """Function that runs lines of bash, which have to go well, in a clone of this repository."""
    checkouts.clone(tmp_path)

    def run(lines):
        environment = os.environ | {"MAKEFLAGS": "", "PYTHON": sys.executable}
        done = processes.run("bash", "-ec", lines, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]

    return run


@pytest.mark.slow
def test_new_technique_asks_for_a_script_a_test_and_make_readme(run, tmp_path):
    """CONTRIBUTING: "Adding one is a script, a test and `make readme`; no table or list needs an
    entry". Beside it stands one that git does not track.
    """
    run(CONTRIBUTION)
    assert checkouts.git(tmp_path, "status", "--porcelain") == TOUCHED


@pytest.mark.slow
def test_fast_tests_pass_beside_scripts_that_git_does_not_track(run):
    """CONTRIBUTING: "tests and pages see only scripts that git tracks"."""
    run(IDEAS)
