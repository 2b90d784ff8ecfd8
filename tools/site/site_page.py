"""The page for choosing a GPU: its figures as JSON, and the folder of its files.

Figures come from shared rows and published tables. The folder opens from a server and by a double
click.
"""

import base64
import gzip
import json
import os
import shutil
import tomllib
from dataclasses import astuple
from math import isnan
from pathlib import Path

import vl_convert

from tools.docs import doc_figures
from Utils.analysis import lines_to_copy, recommendation
from Utils.analysis.summary import summarize
from Utils.base import files, paths
from Utils.base.errors import naming
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.units import GIB, MIB
from Utils.device import datasheets
from Utils.results import rows_file, selection, study
from Utils.scripts import diffs, ladder

HERE = Path(__file__).parent
COLUMNS = [
    "technique",
    "tokens",  # a second
    "tokens_low",
    "tokens_high",
    "gib",  # peak memory
    "speedup",  # over the baseline
    "speedup_low",
    "speedup_high",
    "before",  # speedup over the script before
    "before_low",
    "before_high",
    "loss",  # a text
]


def write(folder):
    """Write the page to a folder, and replace what was there. Raises UserError."""
    # Figures, with the charts that show them.
    repository = os.environ.get("GITHUB_REPOSITORY", "")  # owner/name, in a workflow of GitHub
    source = f"https://github.com/{repository}/blob/main/" if repository else "../"
    shown = figures() | {"source": source}
    charts = json.loads((HERE / "charts.json").read_text())
    config = charts.pop("config")
    shown["charts"] = {name: spec | {"config": config} for name, spec in charts.items()}
    text = json.dumps(shown, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()

    style = (paths.ROOT / "Utils/draw/pages/page.css").read_text()
    style += (HERE / "site.css").read_text()
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    files.claim(folder, lambda folder: files.is_marked(folder / "index.html"))
    with naming(folder), files.new_folder(folder.parent) as unfinished:
        new = Path(shutil.copytree(HERE / "static", unfinished / "site"))
        (new / "page.css").write_text(style)
        (new / "vega.js").write_text(library)
        (new / "figures.js").write_text(f'window.packedFigures = "{packed}";\n')
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


def figures():
    """Return everything that the page shows, a dict for JSON. Raises UserError."""
    # Devices, and answers by device, model and shape
    devices = {}
    answers = {}
    gpus_first = sorted(selection.shared_files(), key=selection.is_of_gpu, reverse=True)
    for path in gpus_first:
        for device, model, shape, answer in measured_answers(path):
            key = device["key"]
            devices.setdefault(key, device)
            answers.setdefault(key, {}).setdefault(model, {})[shape] = answer

    # Scripts, with their diffs.
    techniques = {}
    for name, script in ladder.techniques().items():
        parent = ladder.get(script.parent) if script.parent else None
        techniques[name] = {
            "headline": script.headline.removesuffix("."),
            "path": script.path.relative_to(paths.ROOT).as_posix(),
            "parent": script.parent,
            "diff": diffs.diff(script, parent, context=1)[2:] if parent else [],
            "costs": script.facts["Costs"],
        }

    shown = {name: name for name in doc_figures.SHOWN}
    in_float16 = {
        replacement: name for name, replacement in ladder.FLOAT16.items() if name in shown
    }
    prices = tomllib.loads((doc_figures.DOCS / "prices.toml").read_text(), parse_float=float)
    published = doc_figures.published_changes()[["script", "gpu", "name", "ratio", "url"]]
    return {
        "columns": COLUMNS,
        "techniques": techniques,
        "models": {name: config.parameters() for name, config in CONFIGS.items()},
        "devices": [*devices.values()],
        "answers": answers,
        "prices": prices | {"as_of": str(prices["as_of"])},
        "ladder": shown | in_float16,
        "published": published.round({"ratio": 2}).to_dict("records"),
    }


def measured_answers(path):
    """Yield (device, model, shape, answer) for each group of a shared file.

    The answer's pick is the recipe of the group.
    """
    repository = ladder.repository()
    for chosen in study.of_groups(rows_file.read(path), path):
        rows = chosen.rows
        if not chosen.is_ours or rows.world_size.iloc[0] > 1:
            continue

        # Figures, and the recipe
        summary = summarize(chosen)
        fastest = recommendation.recommend(summary).fastest
        names = fastest.techniques if fastest else []
        answer = {
            "pick": fastest.name if fastest else ladder.BASELINE,
            "techniques": names,
            "lines": lines_to_copy.lines_by_library(names, repository),
            "described": selection.description(rows),
            "folder": path.parent.relative_to(selection.SHARED.parent).as_posix(),
            "rows": measured_rows(summary.shown),
        }
        # The recipe beside its base, as on the page of these results.
        if names:
            pair = [summary.scripts[name] for name in (chosen.base, fastest.name)]
            answer["pair"] = measured_rows(pair)

        # The device, under its datasheet's name if it has one
        first = rows.iloc[0]
        sheet = datasheets.datasheet_for(first.device)
        device = {
            "key": sheet.key if sheet else path.parts[-3].lower(),
            "name": sheet.names[-1] if sheet else first.device,
            "group": "GPUs" if selection.is_of_gpu(path) else "CPUs",
            "memory": sheet.memory if sheet else None,
        }
        yield device, first.model, f"{first.requested_batch_size:g}x{first.seq_len:g}", answer


def measured_rows(scripts):
    """Return the figures of scripts that have a time, as lists of COLUMNS."""
    rows = []
    for script in scripts:
        if script.is_timed:
            tokens = script.tokens_per_second * script.step_ms
            figures = [
                script.tokens_per_second,
                tokens / script.p80_ms,
                tokens / script.p20_ms,
                script.peak_memory_mib * MIB / GIB,
                *astuple(script.speedup),
                *astuple(script.parent_speedup),
            ]
            rows.append([script.name, *map(_six_digits, figures), f"{script.loss:.3f}"])

    return rows


def _six_digits(value):
    """Return a number of six digits, None for an unknown one."""
    rounded = float(f"{value:.6g}")
    if isnan(rounded):
        return None
    return int(rounded) if rounded.is_integer() else rounded
