"""The figures of the page by device, model and shape, from rows, forecasts and published figures,
as lists that become JSON."""

import tomllib

import numpy as np
import pandas as pd

from Utils.analysis import recommendation
from Utils.analysis.intervals import numbers
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.units import GIB, MIB
from Utils.device import datasheets
from Utils.draw import doc_pages, report_page
from Utils.results import rows_file, selection
from Utils.scripts import ladder

DOCS = paths.ROOT / "docs"
NEAR = 0.97  # of the fastest forecast, at least, for the shortest line
LARGEST = "largest"  # in place of a shape: each script at the largest batch that fits
# Of a row: line is its place in its file, loss a text, empty in forecasts. Of each ratio and of
# tokens a second the value and the ends of its range.
COLUMNS = ["technique", "batch", "tokens", "tokens_low", "tokens_high", "gib", "speedup"]
COLUMNS += ["speedup_low", "speedup_high", "before", "before_low", "before_high", "line", "loss"]
GROUPS = {"GeForce": "GeForce", "AMD": "AMD"}  # by a word of the name


def figures():
    """Return all that the page shows, a dict for JSON. Raises UserError."""
    answers = forecast_answers(pd.read_csv(DOCS / "forecast.csv"))
    devices = {key: _device(sheet) for key, sheet in datasheets.datasheets().items()}
    copies = {}
    for path in selection.shared_files():
        for of_device, model, shape, answer in measured_answers(path, copies):
            devices.setdefault(of_device["key"], of_device)
            answers.setdefault(of_device["key"], {}).setdefault(model, {})[shape] = answer
    for by_model in answers.values():
        for by_shape in by_model.values():
            for name in {answer["pick"] for answer in by_shape.values()} - copies.keys():
                copies[name] = _copy(ladder.line(name)[1:])
    prices = tomllib.loads((DOCS / "prices.toml").read_text(), parse_float=float)
    return {
        "columns": COLUMNS,
        "techniques": {name: _technique(script) for name, script in ladder.techniques().items()},
        "models": {name: config.parameters() for name, config in CONFIGS.items()},
        "devices": [device for key, device in devices.items() if key in answers],
        "answers": answers,
        "copies": copies,
        "prices": prices | {"as_of": str(prices["as_of"])},
        "ladder": _ladder(),
        "published": published(),
        "allocator": allocator(),
        "errors": errors(),
    }


def forecast_answers(table):
    """Return the answers of docs/forecast.csv, {device: {model: {shape: answer}}}."""
    table = table.assign(line=table.index + 2, loss="", gib=table.peak_gib)
    scripts = ladder.techniques()
    lines = {name: ladder.line(name, scripts) for name in table.technique.unique()}
    order = {name: (len(line), list(scripts).index(name)) for name, line in lines.items()}
    table["parent"] = table.technique.map({name: scripts[name].parent for name in lines})
    tokens = 1e3 * table.batch_size * table.seq_len
    table["tokens"] = table.tokens_per_second
    table["tokens_low"], table["tokens_high"] = tokens / table.high_ms, tokens / table.low_ms
    fits = table[table.batch_size > 0].rename(columns={"batch_size": "batch"})
    fits = fits.astype({"batch": int, "seq_len": int})
    shaped = fits.assign(shape=fits.batch.astype(str) + "x" + fits.seq_len.astype(str))
    of_answer = ["device", "model", "shape"]
    is_largest = fits.batch == fits.largest_batch
    not_only_largest = shaped[~is_largest][of_answer].drop_duplicates()
    shaped = pd.concat([shaped.merge(not_only_largest), fits[is_largest].assign(shape=LARGEST)])
    answers = {}
    for (device, model, shape), rows in shaped.groupby(of_answer, sort=False):
        rows = rows.set_index("technique", drop=False)
        token_ms = rows.forecast_ms / rows.batch
        before = token_ms.reindex(rows.parent).to_numpy() / token_ms
        if shape == LARGEST:  # of other batches: no range is forecast
            rows["speedup"] = rows.tokens / rows.tokens.get(ladder.BASELINE, np.nan)
            rows["speedup_low"] = rows["speedup_high"] = np.nan
        factor = before / rows.speedup
        rows = rows.assign(before=before, before_low=rows.speedup_low * factor)
        rows["before_high"] = rows.speedup_high * factor
        near = rows[rows.tokens >= NEAR * rows.tokens.max()]
        pick = min(near.technique, key=order.get)
        answer = {"kind": "forecast", "pick": pick, "rows": _lists(rows)}
        answers.setdefault(device, {}).setdefault(model, {})[shape] = answer
    return answers


def measured_answers(path, copies):
    """Yield (device, model, shape, answer) of each group of a shared file, and put the lines of its
    recipe into copies."""
    for _, group in selection.groups(rows_file.read(path)):
        if group.base.iloc[0] != ladder.BASELINE or group.world_size.iloc[0] > 1:
            continue
        rows, _ = selection.select(group)
        with_variants, _ = selection.select(group, with_variants=True)
        records = rows_file.read_records(path, with_variants.run_id.unique())
        fastest = recommendation.recommend(with_variants, records).fastest
        pick = fastest.name if fastest else ladder.BASELINE
        copies[pick] = _copy(fastest.techniques if fastest else [])
        first = rows.iloc[0]
        batch, length = int(first.requested_batch_size), int(first.seq_len)
        answer = {"kind": "measured", "pick": pick, "described": selection.describe(rows)}
        answer["folder"] = path.parent.relative_to(selection.SHARED.parent).as_posix()
        answer["rows"] = _measured_rows(summarize(rows, records), batch, length)
        # The recipe beside its base in the rounds that both have, as on the page of these results.
        pair = report_page.recipe_lines(with_variants, records, fastest)
        if pair[0] is not None:
            answer["pair"] = _measured_rows(pd.DataFrame(pair[::-1]), batch, length)
        sheet = datasheets.named(first.device)
        device = {"key": path.parts[-3].lower(), "name": first.device, "group": "CPUs, measured"}
        if selection.is_of_gpu(path):
            device["group"] = "Other GPUs, measured"
        yield _device(sheet) if sheet else device, first.model, f"{batch}x{length}", answer


def _measured_rows(lines, batch, length):
    """Return lines of a summary that have a time, as lists of COLUMNS."""
    lines = lines[lines.step_ms > 0]
    lines = lines.assign(technique=lines.index, batch=batch, line=0)
    lines["gib"] = lines.peak_memory_mib.astype(float) * MIB / GIB
    lines["tokens"] = lines.tokens_per_second.astype(float)
    lines["tokens_low"] = 1e3 * batch * length / lines.p80_ms.astype(float)
    lines["tokens_high"] = 1e3 * batch * length / lines.p20_ms.astype(float)
    for column, ratios in (("speedup", lines.speedup), ("before", lines.parent_speedup)):
        figures = numbers(ratios)
        lines[column] = figures.value
        lines[f"{column}_low"], lines[f"{column}_high"] = figures.low, figures.high
    lines["loss"] = lines.loss.map("{:.3f}".format)
    return _lists(lines)


def published():
    """Return the published speedups of one change, dicts, each with its source."""
    changes = doc_pages.published_changes()
    columns = ["script", "gpu", "name", "ratio", "url"]
    return changes[columns].round({"ratio": 2}).to_dict("records")


def allocator():
    """Return the allocator's peaks of docs/virtual_gpu.csv in GiB, dicts."""
    table = pd.read_csv(DOCS / "virtual_gpu.csv").query("status == 'ok' and seq_len == 1024")
    keys = {sheet.key.removeprefix("rtx"): key for key, sheet in datasheets.datasheets().items()}
    table = table.assign(device=table.profile.map(keys), line=table.index + 2)
    table["gib"] = (table.peak_mib * MIB / GIB).round(2)
    columns = ["device", "model", "technique", "batch_size", "gib", "line"]
    return table[columns].to_dict("records")


def errors():
    """Return how wrong forecasts were: of changes that were published, and of the blind table."""
    count, within = doc_pages.forecast_error()
    blind = pd.read_csv(DOCS / "forecast_blind.csv").to_dict("records")
    return {"changes": count, "within": round(within, 4), "blind": blind}


def _ladder():
    """Return the label of each script of the charts: in float16 that of the one it stands for."""
    names = {name: name for name in doc_pages.SHOWN}
    return names | {ladder.FLOAT16[name]: name for name in names if name in ladder.FLOAT16}


def _device(sheet):
    name = sheet.names[-1].removeprefix("NVIDIA ").removeprefix("GeForce ")
    group = next((GROUPS[word] for word in GROUPS if word in sheet.names[-1]), "NVIDIA, others")
    return {"key": sheet.key, "name": name, "group": group, "memory": sheet.memory}


def _technique(script):
    path = script.path.relative_to(paths.ROOT).as_posix()
    changed = ladder.diff(script, ladder.get(script.parent), context=1)[2:] if script.parent else []
    headline = script.headline.removesuffix(".")
    return {
        "headline": headline,
        "path": path,
        "parent": script.parent,
        "diff": changed,
        "costs": script.facts.texts["Costs"],
    }


def _copy(techniques):
    return {"techniques": techniques, "lines": recommendation.lines_of(techniques)}


def _lists(rows):
    """Return rows as lists of COLUMNS, with six digits and None for what is not known."""
    return [
        [_six_digits(value) if isinstance(value, float) else value for value in row]
        for row in rows[COLUMNS].astype(object).itertuples(index=False)
    ]


def _six_digits(value):
    digits = float(f"{value:.6g}")
    return None if np.isnan(digits) else int(digits) if digits.is_integer() else digits
