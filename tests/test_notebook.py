"""The notebook for a free GPU, executed with a tiny model."""

import nbclient
import nbformat
import pytest

from Utils.base import paths

NOTEBOOK = paths.ROOT / "examples" / "colab_t4.ipynb"
SETTINGS = """
REPOSITORY, GUESS = "", 1.0
MODEL, STEPS, ROUNDS = "gpt2-tiny", 8, 2
SCRIPTS = "no_optimization tensorFloat32"
OWN_SCRIPT, ARGS = "examples/vision.py", ""
WITHOUT = "brainFloat16 torch_compile flash_attention fused_optimizer 8bit_optimizer"
MORE = "DEVICE=cpu BATCH_SIZE=2 SEQ_LEN=32 WARMUP=2 DATASET=synthetic"
RESULTS, PLOTS = "{folder}/results.csv", "{folder}/"
"""


def executed(notebook, folder):
    """Execute a notebook in a folder. Return what each cell printed."""
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(folder)}})
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(out.get("text", out.output_type) for out in cell.outputs) for cell in cells]


@pytest.mark.slow
def test_notebook_cells_run_and_show_what_they_say(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert len(notebook.cells) == 10 and not any(cell.get("outputs") for cell in notebook.cells)
    notebook.cells[1].source = SETTINGS.format(folder=tmp_path)
    texts = executed(notebook, NOTEBOOK.parent)
    _, _, doctor, diff, _, table, charts, own, report = texts
    assert "scripts run here" in doctor and "fused=True" in diff
    assert "2 rounds" in table and "You guessed 2.0x" in table
    assert charts.count("display_data") == 2
    assert "+tensorFloat32" in own and "tensorFloat32" in report


def test_notebook_without_a_makefile_says_what_to_fill_in(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = notebook.cells[1:3]
    notebook.cells[1].source += "\n"
    notebook.cells[1].source = notebook.cells[1].source.replace("sys.exit", "print")
    _, text = executed(notebook, tmp_path)
    assert text.splitlines()[0].startswith("Fill in REPOSITORY")
