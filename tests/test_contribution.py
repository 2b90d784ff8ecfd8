"""Adding a technique: what a new script asks of tests and pages."""

import os
import sys

import pytest

from tests.helpers import checkouts, processes

# Tests that look at every script, as far as they train none and open no browser.
CONTRIBUTION = r"""
idea() { sed "s/^Parent: .*/Parent: $1/; s/fused=True)/fused=True, eps=1e-7)/" $1.py > $2.py; }
idea fused_optimizer beyond/memory/smaller_epsilon
printf 'def test_name():\n    assert "smaller_epsilon"\n' > tests/test_beyond_smaller_epsilon.py
cp fused_optimizer.py my_idea.py
git add beyond tests
make readme lint PYTHON="$PYTHON"
"$PYTHON" -m pytest -q -p no:cacheprovider -m "not slow and not timing" \
    tests/test_beyond_smaller_epsilon.py tests/test_docs.py tests/test_layers.py \
    tests/test_ladder.py tests/test_ladders.py tests/test_recipe.py
git checkout docs/gpus.png  # its pixels depend on the fonts of the machine
"""
IDEAS = """
sed 's/^Parent: none/Parent: no_optimization/' no_optimization.py > my_idea.py
sed 's/^Parent: .*/Parent: fused_optimizer/' fused_optimizer.py > beyond/memory/second_idea.py
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
