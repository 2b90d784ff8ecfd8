"""The rooms of Utils: imports run one way, files stay short, nothing is imported in hiding."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from Utils.base import paths
from Utils.scripts import ladder

# A layer and those that it may import. A file of Utils itself is a layer of its own.
LAYERS = {
    "base": set(),
    "model": set(),
    "scripts": {"base"},
    "device": {"base"},
    "corpus": {"base"},
    "data": {"base", "corpus"},
    "results": {"base", "scripts"},
    "harness": {"base", "scripts", "results", "device", "corpus", "model"},
    "run": {"base", "results", "harness"},
    "own_script": {"base", "scripts", "results", "device", "harness"},
    "analysis": {"base", "scripts", "results"},
    "draw": {"base", "scripts", "device", "results", "analysis"},
    "site": {"base", "scripts", "device", "results", "analysis", "draw"},
}
RUNNING = {"base", "scripts", "results", "device", "corpus", "model", "data", "harness", "run"}
LAYERS |= {
    "doctor": RUNNING,
    "launch": RUNNING | {"analysis"},
    "forecast": RUNNING | {"analysis"},
    "profile": RUNNING | {"analysis"},
}
LAYERS["commands"] = set(LAYERS)
TECHNIQUE = "a training script"
# Trials of batches, a stream of text, and the error for what cannot run.
LAYERS[TECHNIQUE] = {"model", "data", "run", "launch", "corpus", "base"}
LAYERS["plot_results"] = {"base", "scripts", "results", "analysis", "draw"}
MOST_FLOORS, MOST_LINES = 7, 400
OPTIONAL = {
    "vl_convert",
    "bitsandbytes",
    "torchao",
    "datasets",
    "huggingface_hub",
    "tiktoken",
    "pynvml",
    "triton",
    "transformers",
    "lightning",
}


def files():
    """Return all modules of the project by dotted name."""
    found = [*paths.ROOT.glob("Utils/**/*.py"), paths.ROOT / "plot_results.py"]
    # Other files at the top are someone's own.
    found += [technique.path for technique in ladder.tracked().values()]
    found += paths.ROOT.glob("beyond/**/__init__.py")
    found = [file for file in found if file != paths.ROOT / "Utils" / "__init__.py"]
    names = (file.relative_to(paths.ROOT).with_suffix("").parts for file in found)
    return {".".join(parts): file for parts, file in zip(names, found, strict=True)}


FILES = files()
TREES = {name: ast.parse(file.read_text()) for name, file in FILES.items()}


def imports(tree):
    """Yield (node, the dotted names that it may import) of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield node, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield node, [name if name in FILES else node.module for name in names]


def graph():
    """Return what each module imports of ours, wherever in the file."""
    return {
        name: {one for _, names in imports(tree) for one in names if one in FILES} - {name}
        for name, tree in TREES.items()
    }


def layer(name):
    first, *rest = name.split(".")
    if first == "Utils":
        return rest[0]
    return first if first in LAYERS else TECHNIQUE


def test_every_folder_is_a_layer():
    assert {layer(name) for name in FILES} <= LAYERS.keys()
    for name in LAYERS.keys() & {folder.name for folder in (paths.ROOT / "Utils").iterdir()}:
        doc = ast.get_docstring(TREES[f"Utils.{name}.__init__"]) or ""
        holds, _, imported = doc.partition("\n")
        assert holds and imported, f"Utils/{name}/__init__.py: what it holds, what it imports"


def test_imports_run_one_way():
    wrong = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in sorted(others)
        if layer(other) != layer(name) and layer(other) not in LAYERS[layer(name)]
    ]
    assert not wrong


def test_no_module_imports_itself_by_way_of_others():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_there_are_few_floors():
    below, floors = {}, {}
    for name, others in graph().items():
        below.setdefault(layer(name), set()).update(map(layer, others))
    for name in TopologicalSorter({k: v - {k} for k, v in below.items()}).static_order():
        floors[name] = 1 + max((floors[other] for other in below[name] - {name}), default=0)
    assert max(floors.values()) <= MOST_FLOORS, floors


def test_a_file_can_be_read_in_one_sitting():
    lines = {name: len(FILES[name].read_text().splitlines()) for name in FILES}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def test_every_command_has_a_main_function_and_no_ending_of_its_own():
    for name in (name for name in FILES if name.startswith("Utils.commands.")):
        text = FILES[name].read_text()
        if not name.endswith("__"):
            assert "def main(args):" in text and "__name__" not in text, name


def explained(node, lines):
    """Tell whether a comment stands on an import, or above the block of imports that it ends."""
    if any("#" in line for line in lines[node.lineno - 1 : node.end_lineno]):
        return True
    above = node.lineno - 2
    while lines[above].strip().startswith(("import ", "from ")):
        above -= 1
    return "#" in lines[above + 1] or lines[above].strip().startswith("#")


def test_an_import_inside_a_function_says_what_it_saves():
    wrong = []
    for name, tree in TREES.items():
        lines, top = FILES[name].read_text().splitlines(), {*map(id, tree.body)}
        for node, names in imports(tree):
            optional = {one.partition(".")[0] for one in names} <= OPTIONAL
            if id(node) not in top and not optional and not explained(node, lines):
                wrong.append(f"{name}:{node.lineno}: {', '.join(names)}")
    assert not wrong
