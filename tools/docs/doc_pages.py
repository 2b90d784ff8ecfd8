"""The generated parts of README.md and docs/, each between two comments <!-- NAME --> of the names
in PARTS, and docs/gpus.png: from rows, docstrings, Makefile and figures.
"""

import re
import tomllib
from functools import partial

import numpy as np
import pandas as pd

from tools.forecast import gpus
from tools.forecast.gpus import ImaginedGPU
from Utils.analysis import result_tables, text_tables
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.base import command_line, paths
from Utils.base.errors import Unsupported
from Utils.base.text import broken
from Utils.device import capabilities
from Utils.draw import chart_style, ratio_charts
from Utils.results import rows_file, selection, study
from Utils.scripts import diffs, ladder

DOCS = paths.ROOT / "docs"
# GPUs of the README's forecast, by their names in docs/forecast.csv.
EXPECTED = {"t4": "T4 (float16)", "rtx3050": "RTX 3050", "rtx4090": "RTX 4090"}
EXPECTED |= {"a100": "A100", "h100": "H100"}
ATTENTION = {  # scripts with their need beside bfloat16, which float16 can stand in for
    "flash_attention": "float16",
    "cudnn_attention": "cudnn_attention",
    "flex_attention": "flex_attention",
    "flash_attention_4": "flash_attention_4",
}
ATTENTION_CARDS = {"t4": "T4", "rtx3090": "RTX 3090", "a100": "A100", "rtx4090": "RTX 4090"}
ATTENTION_CARDS |= {"h100": "H100", "b200": "B200", "rtx5090": "RTX 5090"}
LAST = "fused_optimizer"  # the script that it holds against the baseline
TOKENS = 10e9  # as many as build-nanogpt trains on
SHOWN = {  # scripts of the chart of GPUs
    "tensorFloat32": "TF32",
    "brainFloat16": "bfloat16",
    "torch_compile": "torch.compile",
    "flash_attention": "FlashAttention",
    "fused_optimizer": "fused AdamW",
    "8bit_optimizer": "8-bit AdamW",
}


def ladder_of(path):
    """Return the newest rows of the ladder in a results file, and their summary's lines."""
    summary = summarize(study.newest_ladder(rows_file.read(path), path))
    return summary.study.rows, summary.lines


def ladder_table():
    """Return the README's table of the ladder, of the newest shared rows, and what to say of it."""
    path = selection.newest_shared()
    rows, lines = ladder_of(path)
    table = result_tables.texts_of(
        lines[~lines.index.isin(ladder.repository().beyond())], result_tables.MAIN
    )
    table["script"] = [broken(name) for name in table["script"]]
    folder = path.parent.relative_to(paths.ROOT).as_posix()
    slow, fast = lines.tokens_per_second[[ladder.BASELINE, LAST]]
    found = f"**Measured on {rows.device.iloc[0]}: {lines.speedup[LAST].text} in all**"
    found += f", {slow:,.0f} to {fast:,.0f} tokens/s ([all figures]({folder}/README.md))."
    first = blind_figures()[0].query("source == @folder")
    errors = (first.forecast_ms / first.measured_ms - 1).abs()
    about = f"{selection.describe(rows)}. Forecast before it was measured, a step was off by "
    about += f"{errors.median():.0%} in the median, {errors.max():.0%} at most."
    return f"{found}\n\n{text_tables.markdown(table)}\n\n{about}"


def rungs():
    scripts = ladder.tracked().values()
    seven = [t for t in scripts if t.at_top_level]
    lines = [f"- {_link(t, '')}: {t.headline.removesuffix('.')}" for t in seven if t.parent]
    more = len(scripts) - len(seven)
    lines += ["", f"beyond/ has [{more} more](docs/TECHNIQUES.md): CUDA graphs, float8, DDP, ..."]
    return "\n".join(lines)


def one_diff():
    technique = ladder.get(LAST)
    _, _, *lines = diffs.diff(technique, ladder.get(technique.parent), context=0)
    return "\n".join(["```diff", *(line for line in lines if line[0] in "+-"), "```"])


def techniques():
    """Return docs/TECHNIQUES.md: a list of all tracked scripts, and a section for each."""
    rows, lines = ladder_of(selection.newest_shared())
    texts = lines.parent_speedup[lines.parent_speedup.map(bool)].map(str) + " on "
    measured = (texts + rows.device.iloc[0]).rename_axis("script").reset_index(name="text")
    known = {"Measured": measured, "Published": published_changes(), "Forecast": forecast_changes()}
    text = []
    for title, at_top_level in (("The seven scripts", True), ("Beyond the seven", False)):
        scripts = [t for t in ladder.tracked().values() if t.at_top_level is at_top_level]
        listed = [f"- [{t.name}](#{t.name.lower()}): {t.headline}" for t in scripts]
        text += [f"## {title}", "\n".join(listed)]
        text += [_section(t, known) for t in scripts]
    return "\n\n".join(text)


def attention():
    """Return the table of which attention runs on which GPU, by the needs of the scripts."""
    table = {"script": [_link(ladder.get(name), "../") for name in ATTENTION]}
    for key, name in ATTENTION_CARDS.items():
        card = gpus.find(key)
        device = ImaginedGPU(name, card.memory_bytes, card.capability)
        title = "{}, {}.{}".format(name, *card.capability)
        table[title] = [_runs(need, device) for need in ATTENTION.values()]
    return text_tables.markdown(table)


def _runs(need, device):
    """Return whether a GPU meets a need, packages apart, in a word."""
    try:
        capabilities.check(need, device)
    except Unsupported as reason:
        return "yes" if re.search("needs (pip|cuDNN)", str(reason)) else "no"
    return "yes"


def _section(technique, elsewhere):
    """Return a script's section. elsewhere: tables of figures, by kind."""
    facts = technique.facts
    lines = [f"### {technique.name}", "", _link(technique, "../", "Script")]
    if technique.parent:
        lines[-1] += f", over [{technique.parent}](#{technique.parent.lower()})"
    mechanism = " ".join(technique.doc.split("\n\n")[1].split())
    inherited = ladder.get(technique.parent).needs if technique.parent else ()
    inherited = [need for need in technique.needs if need in inherited]
    needs = [need for need in technique.needs if need not in inherited] or ["nothing of its own"]
    _, semicolon, remark = facts["Needs"].partition(";")
    lines += ["", mechanism, "", f"- Needs: {', '.join(needs)}{semicolon}{remark}"]
    if inherited:
        lines.append(f"- Inherited needs: {', '.join(inherited)}")
    lines += [f"- {name}: {facts[name]}" for name in ("Gains", "Costs")]
    for kind, changes in elsewhere.items():
        if texts := [*changes.text[changes.script == technique.name]]:
            lines.append(f"- {kind}: {', '.join(texts)}")
    return "\n".join([*lines, f"- See: {facts['See']}"])


def _link(technique, up, text=None):
    path = technique.path.relative_to(paths.ROOT).as_posix()
    return f"[{text or technique.name}]({up}{path})"


def _explained(sections, title, written):
    """Return a table a section of the Makefile's names and their help; written: how a name is."""
    parts = []
    for section, helps in sections.items():
        columns = {title: [*map(written, helps)], "meaning": [*helps.values()]}
        parts += [f"### {section}", text_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


def forecasts():
    """Return the rows of docs/forecast.csv of GPT-2 at the baseline's usual batch on each device:
    the largest power of two that fits, up to 16.
    """
    rows = pd.read_csv(DOCS / "forecast.csv").query("model == 'gpt2' and batch_size > 0")
    largest = rows[rows.technique == ladder.BASELINE].groupby("device").largest_batch.first()
    usual = np.exp2(np.log2(largest).astype(int)).clip(upper=16)
    rows = rows[rows.batch_size == rows.device.map(usual)]
    return rows.astype({"batch_size": int, "seq_len": int})


def forecast_error():
    """Return how many published speedups of one change were forecast, and 90% within what share."""
    check = pd.read_csv(DOCS / "forecast_check.csv")
    deviations = np.log(check.forecast_ms / check.measured_ms)
    ladders = deviations.groupby([check[name] for name in ("source", "key", "model", "batch")])
    of_changes = ladders.diff().dropna()
    return len(of_changes), np.expm1(-of_changes).abs().quantile(0.9)


def blind_figures():
    """Return the rows of docs/forecast_blind.csv: each figure's first forecast, and its last."""
    rows = pd.read_csv(DOCS / "forecast_blind.csv")
    same = ["source", "key", "model", "technique", "batch", "tokens"]
    figures = rows.groupby(same, sort=False, as_index=False)
    return figures.first(), figures.last()


def errors():
    """Return a table of how far off forecasts were: without a figure's source, and blind."""
    check = pd.read_csv(DOCS / "forecast_check.csv")
    first, _ = blind_figures()
    is_amd = first.key.map(lambda key: bool(gpus.find(key).architecture))
    parts = {
        "NVIDIA": check,
        "of these GPT-2 124M": check[check.model.str.startswith("GPT-2")],
        "NVIDIA, blind": first[~is_amd],
        "AMD, blind": first[is_amd],
    }
    table = {"figures": [*parts], "number": [str(len(rows)) for rows in parts.values()]}
    sizes = [(rows.forecast_ms / rows.measured_ms - 1).abs() for rows in parts.values()]
    for title, share in {"median error": 0.5, "90% within": 0.9}.items():
        table[title] = [f"{errors.quantile(share):.1%}" for errors in sizes]
    inside = [rows.measured_ms.between(rows.low_ms, rows.high_ms) for rows in parts.values()]
    table["in their range"] = [f"{each.mean():.0%}" for each in inside]
    return text_tables.markdown(table, ["figures"])


def blind():
    """Return a table of steps that no constant was fitted to: the first forecast, and the last."""
    first, last = blind_figures()
    shapes = first.batch.astype(str) + "x" + first.tokens.astype(str)
    names = first.key + ", " + first.model + " " + shapes + ": " + first.technique
    columns = {"figure": names, "measured ms": first.measured_ms.map("{:,.1f}".format)}
    for title, rows in {"first forecast": first, "last": last}.items():
        error = (rows.forecast_ms / rows.measured_ms - 1).map("{:+.1%}".format)
        columns[title] = error + " (" + rows.commit + ")"
    return text_tables.markdown({name: [*cells] for name, cells in columns.items()}, ["figure"])


def expected():
    """Return a table of what TOKENS take on each of EXPECTED, under the error of such forecasts."""
    count, within = forecast_error()
    words = (
        f"**Forecast, not measured**, from datasheets. Of {count} known speedups of one change, "
        f"nine in ten were forecast within {within:.0%}, without figures of the same source "
        "([each](docs/FORECAST.md))."
    )
    rows = forecasts().set_index(["technique", "device"])
    rows = rows.rename(index={value: name for name, value in ladder.FLOAT16.items()})
    baseline, last = (rows.loc[name].loc[[*EXPECTED]] for name in (ladder.BASELINE, LAST))
    shapes = baseline.batch_size.astype(str) + "x" + baseline.seq_len.astype(str)
    columns = {
        "GPU, tokens a step": baseline.index.map(EXPECTED) + ", " + shapes,
        "baseline, tokens/s": baseline.tokens_per_second.map("{:,.0f}".format),
        f"{broken(LAST)}, tokens/s": last.tokens_per_second.map("{:,.0f}".format),
        "speedup (90% range)": map(Ratio, last.speedup, last.speedup_low, last.speedup_high),
        "10B tokens: baseline": _cost(baseline),
        broken(LAST): _cost(last),
    }
    texts = {title: [*map(str, values)] for title, values in columns.items()}
    return f"{words}\n\n{text_tables.markdown(texts, [*columns][:1])}"


def _cost(rows):
    """Return the hours that TOKENS take on each GPU, and the dollars where it has a price."""
    prices = tomllib.loads((DOCS / "prices.toml").read_text())
    prices = pd.Series(prices).reindex(rows.index).astype(float)
    hours = TOKENS / rows.tokens_per_second / 3600
    dollars = (prices * hours).map(", ${:,.0f}".format)
    return hours.map("{:,.0f} h".format) + dollars.where(prices.notna(), "")


def published_changes():
    """Return docs/published_changes.csv with more columns: `ratio`, the speedup by the figures of
    docs/published.csv, the `url` of its source, and `text` with a link to that.
    """
    step = ["source", "metric", "technique"]
    figures = pd.read_csv(DOCS / "published.csv").drop_duplicates(step).set_index(step)
    changes = pd.read_csv(DOCS / "published_changes.csv")
    before, after = (
        figures.loc[pd.MultiIndex.from_frame(changes[["source", "metric", name]])].reset_index()
        for name in ("before", "after")
    )
    ratio = (before.value / after.value) ** np.where(after.unit == "ms", 1, -1)
    url = after.url.str.partition(" ")[0]
    links = " ([" + changes.name + "](" + url + "))"
    text = ratio.map("{:.2f}x on ".format) + changes.gpu + links
    return changes.assign(ratio=ratio, url=url, text=text)


def forecast_changes():
    """Return the forecast speedups over the script before on each of EXPECTED, a DataFrame."""
    expected = forecasts().set_index(["device", "technique"])
    in_ladder = {*SHOWN, *ladder.FLOAT16.values()}
    rows = []
    for (device, script), row in expected.loc[[*EXPECTED]].iterrows():
        parent = ladder.get(script).parent
        if parent and script in in_ladder:
            ratio = Ratio(row.speedup, row.speedup_low, row.speedup_high)
            ratio = ratio.times(1 / expected.speedup[device, parent])
            text = f"{ratio} on {EXPECTED[device]}"
            rows.append({"script": script, "device": device, "ratio": ratio, "text": text})
    return pd.DataFrame(rows)


def table_of(name):
    """Return the table of a file of docs/, whose first column is text."""
    table = pd.read_csv(DOCS / name, dtype=str)
    texts = {title.replace("_", " "): list(cells) for title, cells in table.items()}
    return text_tables.markdown(texts, [*texts][:1])


def kernels():
    """Return the table of docs/kernels.csv, the forecast of one step, and its rate at the peaks."""
    table = pd.read_csv(DOCS / "kernels.csv", keep_default_na=False)
    rate = (1e3 * table.pop("tokens") / table.at_peak_ms).iloc[-1].round(-3)
    for name in table.select_dtypes("float"):
        form = "{:.0%}" if name.startswith("of_peak") else "{:.2f}"
        table[name] = table[name].map(form.format)
    texts = {title.replace("_", " "): [*map(str, cells)] for title, cells in table.items()}
    limit = f"At the datasheet's peaks, one kernel after the other: {rate:,.0f} tokens/s."
    return f"{text_tables.markdown(texts, ['kind', 'bound'])}\n\n{limit}"


def gpus_chart():
    """Draw the ratios over the script before: published ones filled, forecasts hollow with their
    ranges, ours as crosses. GeForce cards are orange, other GPUs blue, CPUs grey.
    """
    published = published_changes().loc[lambda changes: changes.script.isin(SHOWN)]
    sources = published.groupby(["gpu", "source"], sort=False)
    series = []
    for marker, ((gpu, _), rows) in zip("os^vD<>*", sources, strict=False):
        ratios = rows.set_index("script").ratio.map(Ratio)
        source = rows.name.iloc[0].partition(",")[0]
        series.append(_series(f"{gpu}, {source}", gpu, ratios, marker, mec="white", ms=8))
    for path in selection.shared_files():
        rows, lines = ladder_of(path)
        ratios = lines.parent_speedup[lines.index.isin(SHOWN) & lines.parent_speedup.map(bool)]
        if len(ratios) > len(SHOWN) / 2:
            gpu = rows.device.iloc[0] if selection.is_of_gpu(path) else ""
            series.append(_series(f"{gpu or 'our CPU'}, measured by us", gpu, ratios, "X", ms=9))
    forecasts = forecast_changes().set_index(["device", "script"]).ratio
    forecast_marks = ("rtx4090", "^"), ("a100", "o"), ("h100", "D")
    for n, (device, marker) in enumerate(forecast_marks, start=1):
        gpu = EXPECTED[device]
        series.append(_series(f"{gpu}, forecast", gpu, forecasts[device], marker, n, mfc="white"))
    meaning = (
        "filled: published, of other code, batches and models; hollow: our forecast and its range "
        "of 90%; cross: measured by us. 8-bit AdamW is over FlashAttention."
    )
    head = "How much faster depends on your GPU", meaning
    look = {"values": False, "width": 5.6}  # inches: letters are 8 pixels high on a phone
    figure, axes = ratio_charts.forest([*SHOWN.values()], series, head, "", **look)
    axes.set_xlabel("speedup over the script before")
    below = {"loc": "upper left", "bbox_to_anchor": (-0.15, 0), "ncol": 2, "fontsize": "small"}
    axes.get_legend().remove()
    figure.legend(**below, frameon=False, columnspacing=0.5, handletextpad=0)
    return figure


def _series(label, gpu, ratios, marker, line=0, **look):
    colour = chart_style.BLUE if gpu else chart_style.GREY
    if "RTX" in gpu:
        colour = chart_style.ORANGE
    ratios = ratios.reindex([*SHOWN], fill_value=Ratio())
    look = {"color": colour, "marker": marker, "ms": 6} | look
    return ratio_charts.Series(label, list(ratios), look, line)


traps = partial(table_of, "linear_cross_entropy.csv")
kinds = partial(table_of, "profile_h200.csv")
PARTS = {  # page, its generated parts by name
    "README.md": {
        "expected": expected,
        "diff": one_diff,
        "rungs": rungs,
        "ladder": ladder_table,
    },
    "docs/TECHNIQUES.md": {"attention": attention, "traps": traps, "techniques": techniques},
    "docs/FORECAST.md": {"errors": errors, "blind": blind, "kinds": kinds, "kernels": kernels},
    "docs/COMMANDS.md": {
        "targets": lambda: _explained(command_line.targets(), "command", "`make {}`".format),
        "variables": lambda: _explained(command_line.variables(), "variable", broken),
    },
}


def write():
    """Write the chart, and every part into its page, between its two marks. Return the pages."""
    look = {"dpi": 110, "bbox_inches": "tight", "metadata": {"Software": None}}
    gpus_chart().savefig(paths.ROOT / "docs" / "gpus.png", **look)
    for page, parts in PARTS.items():
        path = paths.ROOT / page
        text = path.read_text()
        for name, make in parts.items():
            mark = f"<!-- {name} -->"
            before, _, after = text.split(mark)
            text = f"{before}{mark}\n{make()}\n{mark}{after}"
        path.write_text(text)
    return list(PARTS)
