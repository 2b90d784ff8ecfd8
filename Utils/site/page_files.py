"""The files of the page, written to a folder that opens from a server and by a double click."""

import base64
import gzip
import json
import os
import shutil
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError, naming
from Utils.site import page_figures

HERE = Path(__file__).parent
STYLE = paths.ROOT / "Utils" / "draw" / "pages" / "page.css"
TABLES = ("forecast", "forecast_check", "forecast_blind", "published", "published_changes")
TABLES += ("virtual_gpu",)
MOST_BYTES = 100_000  # of a table that is not compressed
MISSING = "vl-convert-python, which carries the charts' library, is not installed"
REMEDY = "pip install vl-convert-python"


def write(folder):
    """Write the page to a folder, in place of what it held. Raises UserError."""
    try:
        import vl_convert
    except ImportError:
        raise UserError(MISSING, REMEDY) from None
    repository = os.environ.get("GITHUB_REPOSITORY", "")  # owner/name, in a workflow of GitHub
    source = f"https://github.com/{repository}/blob/main/" if repository else "../"
    figures = page_figures.figures() | {"source": source, "repository": repository}
    charts = json.loads((HERE / "charts.json").read_text())
    config = charts.pop("config")
    figures["charts"] = {name: spec | {"config": config} for name, spec in charts.items()}
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    notebook = (paths.ROOT / "examples" / "colab_t4.ipynb").read_text()
    if repository:
        filled = f'REPOSITORY = \\"https://github.com/{repository}\\"'
        notebook = notebook.replace('REPOSITORY = \\"\\"', filled)
    with naming(folder):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "data").mkdir(parents=True)
        shutil.copy(HERE / "index.html", folder)
        shutil.copy(HERE / "page.js", folder)
        (folder / "page.css").write_text(STYLE.read_text() + (HERE / "site.css").read_text())
        (folder / "vega.js").write_text(
            vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        )
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        (folder / "figures.js").write_text(f'window.packedFigures = "{packed}";\n')
        (folder / "colab_t4.ipynb").write_text(notebook)
        shutil.copy(HERE / "data.md", folder / "data" / "README.md")
        for name in TABLES:
            table = (page_figures.DOCS / f"{name}.csv").read_bytes()
            if len(table) <= MOST_BYTES:
                (folder / "data" / f"{name}.csv").write_bytes(table)
            else:  # pandas reads it as it is
                table = gzip.compress(table, mtime=0)
                (folder / "data" / f"{name}.csv.gz").write_bytes(table)
