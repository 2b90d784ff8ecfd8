"""Patches of a user's script: their edits, the patch of a recipe, a script that runs patched."""

import difflib
import re
import shutil
import sys
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.helpers import processes
from tests.helpers.own_scripts import NET, script
from tests.helpers.refusal import refused
from tests.helpers.rows import frame, rows_of
from tests.test_own_script import Own, own, prepared  # noqa: F401  (fixtures)
from tools.own_script import recipe_patch, script_patch
from tools.own_script.inspection import Spot
from tools.own_script.source_edits import Location, NoPlace, Source
from tools.own_script.switches import FusedOptimizer
from tools.own_script.user_code import digest_of
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.results import study

SETTING = 'torch.set_float32_matmul_precision("high")'


def setting_in(source):
    """Return the Edits of a Source that add a setting after its imports."""
    return [*source.imports(["torch"]), source.after_imports(SETTING)]


# Sources with the words that an edit adds.
WITH_SETTING = [
    "import torch\nSETTING\nx = 1\n",
    "import torch\nSETTING",
    "IMPORT\nSETTING\nx = 1\n",
    '"""Doc.\nimport torch\n"""\nIMPORT\nSETTING\n',
    "from torch import nn  # a\n\nimport os\nIMPORT\nSETTING\n",
    "import os; import torch; x = 1\nSETTING\n",
    "import os\nimport torch as th\nIMPORT\nSETTING\n",
    "import os\nx = 1\nimport torch\nSETTING\n",
    "import torch.nn\r\nSETTING\r\nx = '1'\r\n",  # with quotes and line ends of the file
    "\ufeffimport torch\nSETTING\n",
    "\ufeffIMPORT\nSETTING\nx = 1\n",
    "import torch  # größe\nSETTING\n",
]


@pytest.mark.parametrize("edited", WITH_SETTING)
def test_edit_after_imports_leaves_all_other_bytes(edited):
    before = re.sub(r"(IMPORT\r?\n)?SETTING(\r?\n)?", "", edited)
    if not edited.endswith("\n"):
        before = before.removesuffix("\n")
    setting = SETTING.replace('"', "'") if "'" in edited else SETTING
    after = edited.replace("IMPORT", "import torch").replace("SETTING", setting)
    source = Source("train.py", before.encode())
    assert script_patch.edited(source.content, setting_in(source)) == after.encode()


CALLS = {
    "AdamW(p, lr=1)": "AdamW(p, lr=1, fused=True)",
    "AdamW(p, lr=1,)": "AdamW(p, lr=1, fused=True)",
    "AdamW((p))": "AdamW((p), fused=True)",
    "AdamW(x for x in p)": "AdamW((x for x in p), fused=True)",
    "AdamW(p, fused=False)": "AdamW(p, fused=True)",
    "AdamW(\n\tp,\n\tlr=1,  # small\n)": "AdamW(\n\tp,\n\tlr=1,  # small\n\tfused=True,\n)",
    "AdamW(\n    p,\n    lr=1  # b,\n)": "AdamW(\n    p,\n    lr=1,\n    fused=True  # b,\n)",
    "AdamW(p,\n      lr=1)": "AdamW(p,\n      lr=1,\n      fused=True)",
    "AdamW(\n    p, lr=1\n)": "AdamW(\n    p, lr=1, fused=True\n)",
    "AdamW(p, **options)": "its call has *args or **options",
    "AdamW(*options)": "its call has *args or **options",
    "AdamW(p, fused=is_gpu)": "its call sets fused",
    "AdamW(p, foreach=True)": "its call sets foreach",
}


@pytest.mark.parametrize("before", CALLS)
def test_edit_of_a_call_has_the_layout_of_its_arguments(tmp_path, before):
    file = tmp_path / "train.py"
    file.write_text(f"größe = {before}\n")
    source = Source.read(file)
    call = source.tree.body[0].value
    spot = Spot(file, [call.lineno, call.end_lineno, call.col_offset, call.end_col_offset], {})
    try:
        edits = FusedOptimizer.changes[0].edits(spot)
        after = script_patch.edited(source.content, edits).decode()
    except NoPlace as reason:
        after = f"größe = {reason}\n"
    assert after == f"größe = {CALLS[before]}\n"


@pytest.mark.parametrize(
    "source",
    ["if x: model = 1\n", "model = 1; y = 2\n", "x = 0; model = 1\n"],
)
def test_edit_after_a_statement_that_shares_its_line_has_no_place(source):
    source = Source("train.py", source.encode())
    statement = source.statement_at(Location(1, 1, source.content.index(b"model"), 20))
    with pytest.raises(NoPlace, match="shares a line"):
        source.after(statement, "pass")


MADE = {
    'models = {}\nmodels["net"] = Net()\nmodel = models["net"]': ('models["net"]', 1),
    "if len(sys.argv) > 9:\n    model = 1\nelse:\n    model = Net()": ("model", 3),
    "if len(sys.argv) < 9:\n\tmodel = Net()\nelse:\n\tmodel = 1": ("model", 1),
    "class Box: pass\nbox = Box()\nbox.net = Net()\nmodel = box.net": ("box.net", 2),
    "def build(x):\n    net = Net()\n    return [net][0]\nmodel, y = build(1), 2": ("model", 3),
    "def build():\n    net = Net()\n    return {1: net}\nmodel = build()[1]": ("model", 3),
    "models = [Net() for _ in range(2)]\nmodel = models[0]": "no name is assigned",
    "model = copy.deepcopy(Net())": "no statement of your script made it",
    "models = [Net()]; model = models[0]": "no name is assigned",
}


@pytest.mark.parametrize("made", MADE)
def test_place_of_a_model_is_the_statement_that_ran(own, tmp_path, made):  # noqa: F811
    source = script(model="MADE").replace("model = MADE\n", f"{made}\n")
    first = source[: source.index(made)].count("\n") + 1
    [spot] = own(source).inspect().spots["model"]
    if isinstance(MADE[made], str):
        assert spot.reason.startswith(MADE[made])
    else:
        expression, line = MADE[made]
        assert (spot.reason, spot.fields["model"]) == ("", expression)
        assert spot.location[0] == first + line


STARTS = """
import inspect, multiprocessing, sys, traceback
import nets
from nets import Net, scale, where
"""
NETS = (
    """import torch
from torch import nn
def scale(queue=None):
    if queue:
        queue.put(1.0)
    return 1.0
def where():
    raise ValueError(1.0)
"""
    + NET
)
ASSERTS = """
if __name__ == "__main__":
    assert "2.0" in inspect.getsource(scale) and scale() == 2.0
    try:
        where()
    except ValueError:
        assert "raise ValueError(2.0)" in traceback.format_exc()
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        worker = context.Process(target=scale, args=(queue,))
        worker.start()
        assert queue.get(timeout=60) == 2.0
        worker.join()
"""


def patch_between(folder, name, before, after):
    """Write a patch of a file into a folder. Return its path."""
    sides = before.splitlines(keepends=True), after.splitlines(keepends=True)
    file = folder / f"{name}.patch"
    file.write_text("".join(difflib.unified_diff(*sides, f"a/{name}", f"b/{name}")))
    return file


def run_patched(folder, source, patch):
    """Run a script with a patch. Return a CompletedProcess as `Own.run` does."""
    run = Own(source, folder, "log.txt")
    base = run.runs.base
    patched = script_patch.patched_files(patch, base.file)
    run.runs = type(run.runs)(replace(base, patched=patched), run.runs.args)
    return run.run()


@pytest.mark.slow
def test_patched_script_is_what_all_its_processes_see(own, tmp_path, monkeypatch):  # noqa: F811
    """YOUR_SCRIPT: "no file is touched and no bytecode is written". A fork could have a forkserver
    of another test, which is not patched.
    """

    def in_process(command, environment):
        return processes.run(sys.executable, *command, env=environment)

    monkeypatch.setattr("tests.test_own_script.in_fork", in_process)
    (tmp_path / "nets.py").write_text(NETS)
    patch = patch_between(tmp_path, "nets.py", NETS, NETS.replace("1.0", "2.0"))
    source = STARTS + ASSERTS + textwrap.indent(script().replace(NET, ""), "    ")
    done = run_patched(tmp_path, source, patch)
    assert [row["status"] for row in done.rows[-1:]] == ["ok"], done.stderr
    assert (tmp_path / "nets.py").read_text() == NETS
    assert not (tmp_path / "__pycache__").exists()


def test_patch_of_a_file_that_is_not_imported_is_refused(own, tmp_path):  # noqa: F811
    (tmp_path / "config.py").write_text("lr = 1\n")
    patch = patch_between(tmp_path, "config.py", "lr = 1\n", "lr = 2\n")
    done = run_patched(tmp_path, "exec(open('config.py').read())\n" + script(), patch)
    assert "does not import" in done.stderr and "config.py" in done.stderr


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "No valid patches in input"),
        ("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-x\n+y\n", "none.py is not a file below"),
        ("--- a/../x.py\n+++ b/../x.py\n@@ -1 +1 @@\n-x\n+y\n", "x.py is not a file below"),
        ("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x\n+y\n", "patch failed: train.py:1"),
    ],
)
def test_patch_that_does_not_apply_is_one_line(tmp_path, text, reason):
    (tmp_path / "train.py").write_text("z\n")
    patch = tmp_path / "some.patch"
    patch.write_text(text)
    with refused(reason):
        script_patch.patched_files(patch, tmp_path / "train.py")


def recipe_of(folder, technique, ratio, digest=""):
    """Return (recipe, Summary) of a script in a folder, which ran with a technique.

    ratio: time with the patch to that with the switch. digest: of the patch that ran.
    """
    file = str(folder / "train.py")
    source = Source.read(file)
    own_script = {
        "file": file,
        "sources": {file: digest_of(file)},
        "edits": {
            technique: [setting_in(source), []],
            "float16": [[], [["scaler", "an edit of the loop"]]],
        },
        "settings": [f"BASE={file}"],
    }
    runs = []

    for r in range(4):
        for name, ms in (("train", 100), ("train+x", 50), ("train+patch", 50 * ratio)):
            runs.append(rows_of(name, [ms + r] * 6, base="train", round=r))
    rows = frame(runs)
    records = {}
    for run in rows.itertuples():
        record = records[run.run_id] = {"own_script": own_script, "technique": run.technique}
        if run.change == "+patch":
            ran = digest if run.round else "another"
            record["patch"] = {"digest": ran, "switched": "train+x"}
    summary = summarize(study.of_group(rows, [], records))
    names = [technique, "float16"]
    return SimpleNamespace(name="train+x", techniques=names, speedup=Ratio(2, 1.9, 2.1)), summary


def test_patch_of_a_recipe_is_written_and_measured(tmp_path, path):
    (tmp_path / "train.py").write_text("import os\r\nx = 'größe'")
    recipe, summary = recipe_of(tmp_path, "tf32", 1.0)
    patch = recipe_patch.written(recipe, summary, path)
    assert (patch.techniques, patch.lines) == (["tf32"], ["float16: scaler (an edit of the loop)"])
    page = recipe_patch.page(recipe, summary, path)
    assert "as this patch" not in page and "1 run of earlier" in summary.study.left_out
    assert f"git -C {tmp_path} apply {patch.file}" in page
    assert f"make pair BASE={tmp_path / 'train.py'} B=" in page

    recipe, summary = recipe_of(tmp_path, "tf32", 1.2, patch.digest)
    page = recipe_patch.page(recipe, summary, path)
    assert "as this patch: 1.65x (1.59-1.72)" in page
    assert "slower than train+x: 0.84x (0.82-0.86)" in page
    assert "slower than train+x" in patch.file.read_text()

    # Both programs make the same of it.
    setting = SETTING.replace('"', "'")
    expected = f"import os\r\nimport torch\r\n{setting}\r\nx = 'größe'".encode()
    for program, *options in [("git", "apply"), ("patch", "-p1", "-i")]:
        copy = tmp_path / program
        copy.mkdir()
        shutil.copy(tmp_path / "train.py", copy)
        processes.run(program, *options, patch.file, cwd=copy)
        assert (copy / "train.py").read_bytes() == expected


def test_patch_of_a_recipe_replaces_no_changed_file_and_needs_the_measured_script(tmp_path, path):
    (tmp_path / "train.py").write_text("import os\n")
    recipe, summary = recipe_of(tmp_path, "tf32", 1.0)
    patch = recipe_patch.written(recipe, summary, path)
    patch.file.write_text(patch.file.read_text() + "mine\n")
    page = recipe_patch.page(recipe, summary, path)
    assert "was not written by this program" in page
    assert patch.file.read_text().endswith("mine\n")

    patch.file.unlink()
    (tmp_path / "train.py").write_text("import sys\n")
    page = recipe_patch.page(recipe, summary, path)
    assert "has changed since it was measured" in page and not patch.file.exists()
