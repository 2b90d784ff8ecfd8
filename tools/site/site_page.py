"""The page for choosing a GPU: its figures as JSON, and the folder of its files.

Figures come from rows, forecasts and published tables. The folder opens from a server and by a
double click.
"""

import base64
import gzip
import itertools
import json
import os
import shutil
import tomllib
from dataclasses import astuple
from math import isnan
from pathlib import Path

import pandas as pd
import vl_convert

from tools.docs import doc_figures
from tools.forecast import forecast_errors, stored_forecast
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
KEYS = ["device", "model", "batch", "seq_len"]  # of an answer of docs/forecast.csv
NEAR = 0.97  # a pick has at least this share of the fastest forecast's tokens a second
COLUMNS = [
    "technique",
    "batch",
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
    "line",  # number of the line in docs/forecast.csv; 0 if measured
    "loss",  # a text; empty in forecasts
]


def write(folder):
    """Write the page to a folder, and replace what was there. Raises UserError."""
    # Figures, with the charts that show them.
    repository = os.environ.get("GITHUB_REPOSITORY", "")  # owner/name, in a workflow of GitHub
    source = f"https://github.com/{repository}/blob/main/" if repository else "../"
    shown = figures() | {"source": source, "repository": repository}
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
    devices = {}
    for key, sheet in datasheets.datasheets().items():
        name = sheet.names[-1]
        if "GeForce" in name:
            group = "GeForce"
        elif "AMD" in name:
            group = "AMD"
        else:
            group = "NVIDIA, others"
        name = name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        devices[key] = {"key": key, "name": name, "group": group, "memory": sheet.memory}

    # Answers by device, model and shape: forecasts, then measured ones, which replace them.
    answers = {}
    techniques_by_pick = {}
    measured = map(measured_answers, selection.shared_files())
    for device, model, shape, answer, names in itertools.chain(forecast_answers(), *measured):
        techniques_by_pick[answer["pick"]] = names
        devices.setdefault(device["key"], device)
        answers.setdefault(device["key"], {}).setdefault(model, {})[shape] = answer

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

    repository = ladder.repository()
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
        "devices": [device for key, device in devices.items() if key in answers],
        "answers": answers,
        "copies": {
            pick: {
                "techniques": names,
                "lines": lines_to_copy.lines_by_library(names, repository),
            }
            for pick, names in techniques_by_pick.items()
        },
        "prices": prices | {"as_of": str(prices["as_of"])},
        "ladder": shown | in_float16,
        "published": published.round({"ratio": 2}).to_dict("records"),
        "errors": forecast_errors.in_words(),
    }


def forecast_answers():
    """Yield (device, model, shape, answer, techniques of the pick) of docs/forecast.csv.

    device: a dict with its key.
    """
    # The table with the page's titles.
    titles = {"batch_size": "batch", "tokens_per_second": "tokens", "peak_gib": "gib"}
    table = pd.read_csv(stored_forecast.FILE).rename(columns=titles)
    table = table.assign(line=table.index + 2, loss="")
    parents = ladder.repository().parents()
    tokens = 1e3 * table.batch * table.seq_len
    table["tokens_low"] = tokens / table.high_ms
    table["tokens_high"] = tokens / table.low_ms

    fits = table[table.batch > 0].astype({"batch": int})
    for (device, model, batch, length), rows in fits.groupby(KEYS, sort=False):
        rows = rows.set_index("technique", drop=False)
        before_ms = rows.forecast_ms.reindex(map(parents.get, rows.technique)).to_numpy()
        rows["before"] = before_ms / rows.forecast_ms
        factor = rows.before / rows.speedup
        rows["before_low"] = rows.speedup_low * factor
        rows["before_high"] = rows.speedup_high * factor

        # The shortest line of techniques among those near the fastest
        near = rows[rows.tokens >= NEAR * rows.tokens.max()]
        pick = min(near.technique, key=lambda name: len(ladder.lineage(name)))
        answer = {
            "kind": "forecast",
            "pick": pick,
            "rows": _rounded(rows[COLUMNS].itertuples(index=False)),
        }
        yield {"key": device}, model, f"{batch}x{length:g}", answer, ladder.lineage(pick)[1:]


def measured_answers(path):
    """Yield the same for each group of a shared file, whose pick is its recipe.

    device: has its name and group as well, if there is no datasheet.
    """
    for chosen in study.of_groups(rows_file.read(path), path):
        rows = chosen.rows
        if not chosen.is_ours or rows.world_size.iloc[0] > 1:
            continue

        summary = summarize(chosen)
        fastest = recommendation.recommend(summary).fastest
        pick = fastest.name if fastest else ladder.BASELINE
        names = fastest.techniques if fastest else []

        first = rows.iloc[0]
        batch = int(first.requested_batch_size)
        length = int(first.seq_len)
        answer = {
            "kind": "measured",
            "pick": pick,
            "described": selection.description(rows),
            "folder": path.parent.relative_to(selection.SHARED.parent).as_posix(),
            "rows": _measured_rows(summary.shown, batch),
        }
        # The recipe beside its base, as on the page of these results.
        if names:
            pair = [summary.scripts[name] for name in (chosen.base, fastest.name)]
            answer["pair"] = _measured_rows(pair, batch)

        sheet = datasheets.datasheet_for(first.device)
        kind = "Other GPUs" if selection.is_of_gpu(path) else "CPUs"
        device = {"key": path.parts[-3].lower(), "name": first.device, "group": f"{kind}, measured"}
        if sheet:
            device = {"key": sheet.key}
        yield device, first.model, f"{batch}x{length}", answer, names


def _measured_rows(scripts, batch):
    """Return the figures of scripts that have a time, as lists of COLUMNS."""
    rows = []
    for script in scripts:
        if script.is_timed:
            tokens = script.tokens_per_second * script.step_ms
            line = [
                script.name,
                batch,
                script.tokens_per_second,
                tokens / script.p80_ms,
                tokens / script.p20_ms,
                script.peak_memory_mib * MIB / GIB,
                *astuple(script.speedup),
                *astuple(script.parent_speedup),
                0,
                f"{script.loss:.3f}",
            ]
            rows.append(line)

    return _rounded(rows)


def _rounded(rows):
    """Return lists with numbers of six digits, and None for unknown ones."""
    return [[_six_digits(x) if isinstance(x, float) else x for x in row] for row in rows]


def _six_digits(value):
    rounded = float(f"{value:.6g}")
    if isnan(rounded):
        return None
    return int(rounded) if rounded.is_integer() else rounded
