"""Rooms of the project that import-linter cannot see: files, commands, imports in functions.

The contracts of import-linter, in pyproject.toml, hold that imports run one way.
"""

import ast
import itertools

from Utils.base import paths
from Utils.scripts import ladder

MOST_LINES = 400
PACKAGES = ("Utils", "tools")
# What a script at the top level may import of the project.
OF_A_SCRIPT = {"Utils.model", "Utils.data", "Utils.run"}
OPTIONAL = {
    "bitsandbytes",
    "datasets",
    "huggingface_hub",
    "lightning",
    "pynvml",
    "tiktoken",
    "torchao",
    "transformers",
    "triton",
    "vl_convert",
}
FILES = sorted(itertools.chain(*(paths.ROOT.glob(f"{name}/**/*.py") for name in PACKAGES)))
TREES = {path: ast.parse(path.read_text()) for path in FILES}


def imports(tree):
    """Yield (node, names of modules) of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield node, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            yield node, [node.module]


def test_layers_folder_says_what_it_holds_and_what_it_may_import():
    rooms = [path for path in FILES if path.name == "__init__.py" and path.parts[-3] in PACKAGES]
    assert len(rooms) > 15
    for path in rooms:
        holds, _, may_import = (ast.get_docstring(TREES[path]) or "").partition("\n\n")
        assert holds and may_import, path


def test_layers_script_imports_the_model_the_data_and_the_loop():
    for technique in ladder.techniques().values():
        if technique.at_top_level:
            modules = {names[0] for _, names in imports(ast.parse(technique.code))}
            assert {name for name in modules if name.startswith(PACKAGES)} <= OF_A_SCRIPT, (
                technique.name
            )


def test_layers_file_can_be_read_in_one_sitting():
    assert not [path for path in FILES if path.read_text().count("\n") > MOST_LINES]


def test_layers_command_has_a_main_function_and_no_ending_of_its_own():
    for path in paths.ROOT.glob("Utils/commands/[!_]*.py"):
        text = path.read_text()
        assert "def main(args):" in text and "__name__" not in text, path


def is_explained(node, lines):
    """Return whether a comment is on an import, or above the block of imports that it ends."""
    if any("#" in line for line in lines[node.lineno - 1 : node.end_lineno]):
        return True
    above = node.lineno - 2
    while lines[above].strip().startswith(("import ", "from ")):
        above -= 1
    return "#" in lines[above + 1] or lines[above].strip().startswith("#")


def test_layers_import_inside_a_function_says_what_it_saves():
    unexplained = []
    for path, tree in TREES.items():
        lines = path.read_text().splitlines()
        at_top = {*map(id, tree.body)}
        for node, names in imports(tree):
            is_optional = {name.partition(".")[0] for name in names} <= OPTIONAL
            if id(node) not in at_top and not is_optional and not is_explained(node, lines):
                unexplained.append(f"{path}:{node.lineno}")
    assert not unexplained
