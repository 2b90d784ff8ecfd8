"""Rooms of the project that import-linter and ruff cannot see: folders, files, commands.

The contracts of import-linter, in pyproject.toml, hold that imports run one way; ruff refuses an
import in a function that does not say why.
"""

import ast
import itertools
import re

from Utils.base import paths
from Utils.scripts import ladder

MOST_LINES = 400
PACKAGES = ("Utils", "tools")
FILES = sorted(itertools.chain(*(paths.ROOT.glob(f"{name}/**/*.py") for name in PACKAGES)))


def test_layers_folder_says_what_it_holds_and_what_it_may_import():
    rooms = [path for path in FILES if path.name == "__init__.py" and path.parts[-3] in PACKAGES]
    assert len(rooms) > 15
    for path in rooms:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        holds, _, may_import = docstring.partition("\n\n")
        assert holds and may_import, path


def test_layers_script_imports_the_model_the_data_and_the_loop():
    for technique in ladder.techniques().values():
        if technique.at_top_level:
            imports = re.findall(r"^ *(?:from|import) ((?:Utils|tools)\S*)", technique.code, re.M)
            assert {*imports} <= {"Utils.model", "Utils.data", "Utils.run"}, technique.name


def test_layers_file_can_be_read_in_one_sitting():
    assert not [path for path in FILES if path.read_text().count("\n") > MOST_LINES]
