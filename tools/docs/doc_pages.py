"""The generated parts of README.md and docs/, and docs/gpus.png.

A part is between two comments <!-- NAME -->; PARTS has their names by page. Sources are rows,
docstrings, the Makefile and published figures.
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
EXPECTED = {  # GPUs in the README's forecast, by their names in docs/forecast.csv
    "t4": "T4 (float16)",
    "rtx3050": "RTX 3050",
    "rtx4090": "RTX 4090",
    "a100": "A100",
    "h100": "H100",
}
ATTENTION = {  # scripts with their need besides bfloat16, which float16 can replace
    "flash_attention": "float16",
    "cudnn_attention": "cudnn_attention",
    "flex_attention": "flex_attention",
    "flash_attention_4": "flash_attention_4",
}
ATTENTION_CARDS = {
    "t4": "T4",
    "rtx3090": "RTX 3090",
    "a100": "A100",
    "rtx4090": "RTX 4090",
    "h100": "H100",
    "b200": "B200",
    "rtx5090": "RTX 5090",
}
LAST = "fused_optimizer"  # the script that is compared with the baseline
TOKENS = 10e9  # the number that build-nanogpt trains on
SHOWN = {  # scripts in the chart of GPUs
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
    """Return the README's table of the ladder, with a sentence above it and one below.

    It shows the newest shared rows.
    """
    path = selection.newest_shared()
    rows, lines = ladder_of(path)
    table = result_tables.texts_of(
        lines[~lines.index.isin(ladder.repository().beyond())], result_tables.MAIN
    )
    table["script"] = [broken(name) for name in table["script"]]

    folder = path.parent.relative_to(paths.ROOT).as_posix()
    slow, fast = lines.tokens_per_second[[ladder.BASELINE, LAST]]
    above = (
        f"**Measured on {rows.device.iloc[0]}: {lines.speedup[LAST].text} in all**, "
        f"{slow:,.0f} to {fast:,.0f} tokens/s ([all figures]({folder}/README.md))."
    )

    first = blind_figures()[0].query("source == @folder")
    errors = (first.forecast_ms / first.measured_ms - 1).abs()
    below = (
        f"{selection.describe(rows)}. Forecast before it was measured, a step was off by "
        f"{errors.median():.0%} in the median, {errors.max():.0%} at most."
    )
    return f"{above}\n\n{text_tables.markdown(table)}\n\n{below}"


def rungs():
    """Return the list of the ladder's scripts, and how many more there are."""
    scripts = ladder.tracked().values()
    seven = [script for script in scripts if script.at_top_level]
    items = [
        f"- {_link(script, '')}: {script.headline.removesuffix('.')}"
        for script in seven
        if script.parent
    ]
    more = len(scripts) - len(seven)
    items += ["", f"beyond/ has [{more} more](docs/TECHNIQUES.md): CUDA graphs, float8, DDP, ..."]
    return "\n".join(items)


def one_diff():
    """Return the changed lines of a script as a block of Markdown."""
    technique = ladder.get(LAST)
    _, _, *lines = diffs.diff(technique, ladder.get(technique.parent), context=0)
    changed = [line for line in lines if line[0] in "+-"]
    return "\n".join(["```diff", *changed, "```"])


def techniques():
    """Return docs/TECHNIQUES.md: a list of all tracked scripts, and a section for each."""
    rows, lines = ladder_of(selection.newest_shared())
    texts = lines.parent_speedup[lines.parent_speedup.map(bool)].map(str) + " on "
    measured = (texts + rows.device.iloc[0]).rename_axis("script").reset_index(name="text")
    figures = {
        "Measured": measured,
        "Published": published_changes(),
        "Forecast": forecast_changes(),
    }

    page = []
    for title, at_top_level in (("The seven scripts", True), ("Beyond the seven", False)):
        scripts = [t for t in ladder.tracked().values() if t.at_top_level is at_top_level]
        items = [f"- [{t.name}](#{t.name.lower()}): {t.headline}" for t in scripts]
        page += [f"## {title}", "\n".join(items)]
        page += [_section(t, figures) for t in scripts]
    return "\n\n".join(page)


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
    """Return "yes" if a GPU meets a need, apart from missing packages, else "no"."""
    try:
        capabilities.check(need, device)
    except Unsupported as reason:
        return "yes" if re.search("needs (pip|cuDNN)", str(reason)) else "no"
    return "yes"


def _section(technique, figures):
    """Return a script's section. figures: tables with columns script and text, by kind."""
    # Title, link and mechanism.
    facts = technique.facts
    lines = [f"### {technique.name}", "", _link(technique, "../", "Script")]
    if technique.parent:
        lines[-1] += f", over [{technique.parent}](#{technique.parent.lower()})"
    mechanism = " ".join(technique.doc.split("\n\n")[1].split())
    lines += ["", mechanism, ""]

    # Needs, without those of the parent.
    parent_needs = ladder.get(technique.parent).needs if technique.parent else ()
    inherited = [need for need in technique.needs if need in parent_needs]
    needs = [need for need in technique.needs if need not in inherited] or ["nothing of its own"]
    _, semicolon, remark = facts["Needs"].partition(";")
    lines.append(f"- Needs: {', '.join(needs)}{semicolon}{remark}")
    if inherited:
        lines.append(f"- Inherited needs: {', '.join(inherited)}")

    # Gains and costs, in words and in figures.
    lines += [f"- {name}: {facts[name]}" for name in ("Gains", "Costs")]
    for kind, changes in figures.items():
        texts = list(changes.text[changes.script == technique.name])
        if texts:
            lines.append(f"- {kind}: {', '.join(texts)}")
    lines.append(f"- See: {facts['See']}")
    return "\n".join(lines)


def _link(technique, up, text=None):
    """Return a Markdown link to a script. up: the way from the page to the repository's root."""
    path = technique.path.relative_to(paths.ROOT).as_posix()
    return f"[{text or technique.name}]({up}{path})"


def _help_tables(sections, title, format_name):
    """Return a table for each section of the Makefile, with its names and their help."""
    parts = []
    for section, helps in sections.items():
        columns = {
            title: [format_name(name) for name in helps],
            "meaning": list(helps.values()),
        }
        parts += [f"### {section}", text_tables.markdown(columns, columns)]
    return "\n\n".join(parts)


def forecasts():
    """Return the rows of docs/forecast.csv with GPT-2 at the usual batch of each device.

    That is the largest power of two at which the baseline fits, up to 16.
    """
    rows = pd.read_csv(DOCS / "forecast.csv").query("model == 'gpt2' and batch_size > 0")
    largest = rows[rows.technique == ladder.BASELINE].groupby("device").largest_batch.first()
    usual = np.exp2(np.log2(largest).astype(int)).clip(upper=16)
    rows = rows[rows.batch_size == rows.device.map(usual)]
    return rows.astype({"batch_size": int, "seq_len": int})


def forecast_error():
    """Return (number of published speedups of one change, error that 90% of forecasts are within).

    The error is a share. Forecasts are without figures of the same source.
    """
    check = pd.read_csv(DOCS / "forecast_check.csv")
    deviations = np.log(check.forecast_ms / check.measured_ms)
    ladders = deviations.groupby([check[name] for name in ("source", "key", "model", "batch")])
    deviations_of_changes = ladders.diff().dropna()
    errors = np.expm1(-deviations_of_changes).abs()
    return len(errors), errors.quantile(0.9)


def blind_figures():
    """Return two tables of docs/forecast_blind.csv: each figure's first forecast, and its last."""
    rows = pd.read_csv(DOCS / "forecast_blind.csv")
    keys = ["source", "key", "model", "technique", "batch", "tokens"]
    figures = rows.groupby(keys, sort=False, as_index=False)
    return figures.first(), figures.last()


def errors():
    """Return a table of the errors of forecasts: without the figure's source, and blind."""
    check = pd.read_csv(DOCS / "forecast_check.csv")
    first, _ = blind_figures()
    is_amd = first.key.map(lambda key: bool(gpus.find(key).architecture))
    parts = {
        "NVIDIA": check,
        "of these GPT-2 124M": check[check.model.str.startswith("GPT-2")],
        "NVIDIA, blind": first[~is_amd],
        "AMD, blind": first[is_amd],
    }

    table = {
        "figures": list(parts),
        "number": [],
        "median error": [],
        "90% within": [],
        "in their range": [],
    }
    for rows in parts.values():
        errors = (rows.forecast_ms / rows.measured_ms - 1).abs()
        in_range = rows.measured_ms.between(rows.low_ms, rows.high_ms)
        table["number"].append(str(len(rows)))
        table["median error"].append(f"{errors.quantile(0.5):.1%}")
        table["90% within"].append(f"{errors.quantile(0.9):.1%}")
        table["in their range"].append(f"{in_range.mean():.0%}")
    return text_tables.markdown(table, ["figures"])


def blind():
    """Return a table of figures without influence on the constants: first and last forecast."""
    first, last = blind_figures()
    shapes = first.batch.astype(str) + "x" + first.tokens.astype(str)
    names = first.key + ", " + first.model + " " + shapes + ": " + first.technique
    columns = {"figure": names, "measured ms": first.measured_ms.map("{:,.1f}".format)}
    for title, rows in {"first forecast": first, "last": last}.items():
        error = (rows.forecast_ms / rows.measured_ms - 1).map("{:+.1%}".format)
        columns[title] = error + " (" + rows.commit + ")"
    return text_tables.markdown({name: [*cells] for name, cells in columns.items()}, ["figure"])


def expected():
    """Return a sentence on the error of forecasts, and a table of speed and cost by GPU."""
    count, within = forecast_error()
    words = (
        f"**Forecast, not measured**, from datasheets. Of {count} known speedups of one change, "
        f"nine in ten were forecast within {within:.0%}, without figures of the same source "
        "([each](docs/FORECAST.md))."
    )

    rows = forecasts().set_index(["technique", "device"])
    rows = rows.rename(index={value: name for name, value in ladder.FLOAT16.items()})
    baseline = rows.loc[ladder.BASELINE].loc[[*EXPECTED]]
    last = rows.loc[LAST].loc[[*EXPECTED]]

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
    return f"{words}\n\n{text_tables.markdown(texts, ['GPU, tokens a step'])}"


def _cost(rows):
    """Return the hours that TOKENS take on each GPU, and the dollars if it has a price."""
    prices = tomllib.loads((DOCS / "prices.toml").read_text())
    prices = pd.Series(prices).reindex(rows.index).astype(float)
    hours = TOKENS / rows.tokens_per_second / 3600
    dollars = (prices * hours).map(", ${:,.0f}".format)
    return hours.map("{:,.0f} h".format) + dollars.where(prices.notna(), "")


def published_changes():
    """Return docs/published_changes.csv with more columns: ratio, url and text.

    ratio: the speedup, by figures of docs/published.csv. url: its source. text: both, as Markdown.
    """
    keys = ["source", "metric", "technique"]
    figures = pd.read_csv(DOCS / "published.csv").drop_duplicates(keys).set_index(keys)
    changes = pd.read_csv(DOCS / "published_changes.csv")

    def figures_of(column):
        names = changes[["source", "metric", column]]
        return figures.loc[pd.MultiIndex.from_frame(names)].reset_index()

    # A figure is a time or a rate.
    before = figures_of("before")
    after = figures_of("after")
    is_time = after.unit == "ms"
    ratio = (before.value / after.value).where(is_time, after.value / before.value)

    url = after.url.str.partition(" ")[0]
    links = " ([" + changes.name + "](" + url + "))"
    text = ratio.map("{:.2f}x on ".format) + changes.gpu + links
    return changes.assign(ratio=ratio, url=url, text=text)


def forecast_changes():
    """Return the forecast speedups over the script before on each of EXPECTED, a DataFrame."""
    by_device = forecasts().set_index(["device", "technique"])
    ladder_scripts = {*SHOWN, *ladder.FLOAT16.values()}
    changes = []
    for (device, script), row in by_device.loc[[*EXPECTED]].iterrows():
        parent = ladder.get(script).parent
        if parent and script in ladder_scripts:
            over_baseline = Ratio(row.speedup, row.speedup_low, row.speedup_high)
            ratio = over_baseline.times(1 / by_device.speedup[device, parent])
            text = f"{ratio} on {EXPECTED[device]}"
            changes.append({"script": script, "device": device, "ratio": ratio, "text": text})
    return pd.DataFrame(changes)


def table_of(name):
    """Return the table of a file in docs/. Its first column is text."""
    table = pd.read_csv(DOCS / name, dtype=str)
    texts = {title.replace("_", " "): list(cells) for title, cells in table.items()}
    return text_tables.markdown(texts, [*texts][:1])


def kernels():
    """Return the table of docs/kernels.csv, a forecast step, and its rate at the peaks."""
    table = pd.read_csv(DOCS / "kernels.csv", keep_default_na=False)
    rate = (1e3 * table.pop("tokens") / table.at_peak_ms).iloc[-1].round(-3)
    for name in table.select_dtypes("float"):
        form = "{:.0%}" if name.startswith("of_peak") else "{:.2f}"
        table[name] = table[name].map(form.format)
    texts = {title.replace("_", " "): [*map(str, cells)] for title, cells in table.items()}
    limit = f"At the datasheet's peaks, one kernel after the other: {rate:,.0f} tokens/s."
    return f"{text_tables.markdown(texts, ['kind', 'bound'])}\n\n{limit}"


def gpus_chart():
    """Draw the ratios over the script before, of GPUs and of our CPU.

    Published ones are filled, forecasts hollow with their ranges, ours crosses. GeForce cards are
    orange, other GPUs blue, CPUs grey.
    """
    published = published_changes()
    published = published[published.script.isin(SHOWN)]
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

    forecast_ratios = forecast_changes().set_index(["device", "script"]).ratio
    markers = {"rtx4090": "^", "a100": "o", "h100": "D"}
    for line, (device, marker) in enumerate(markers.items(), start=1):
        gpu = EXPECTED[device]
        ratios = forecast_ratios[device]
        series.append(_series(f"{gpu}, forecast", gpu, ratios, marker, line, mfc="white"))

    meaning = (
        "filled: published, of other code, batches and models; hollow: our forecast and its range "
        "of 90%; cross: measured by us. 8-bit AdamW is over FlashAttention."
    )
    head = "How much faster depends on your GPU", meaning
    figure, axes = ratio_charts.forest(
        list(SHOWN.values()),
        series,
        head,
        "",
        values=False,
        width=5.6,  # inches: letters are 8 pixels high on a phone
    )
    axes.set_xlabel("speedup over the script before")
    axes.get_legend().remove()
    figure.legend(
        loc="upper left",
        bbox_to_anchor=(-0.15, 0),  # below the chart
        ncol=2,
        fontsize="small",
        frameon=False,
        columnspacing=0.5,
        handletextpad=0,
    )
    return figure


def _series(label, gpu, ratios, marker, line=0, ms=6, **style):
    """Return the Series of a GPU, or of a CPU with gpu "", in the order of SHOWN."""
    colour = chart_style.BLUE if gpu else chart_style.GREY
    if "RTX" in gpu:
        colour = chart_style.ORANGE
    ratios = ratios.reindex([*SHOWN], fill_value=Ratio())
    style = {"color": colour, "marker": marker, "ms": ms, **style}
    return ratio_charts.Series(label, list(ratios), style, line)


traps = partial(table_of, "linear_cross_entropy.csv")
kinds = partial(table_of, "profile_h200.csv")
PARTS = {  # functions by the name of a part, by page
    "README.md": {
        "expected": expected,
        "diff": one_diff,
        "rungs": rungs,
        "ladder": ladder_table,
    },
    "docs/TECHNIQUES.md": {"attention": attention, "traps": traps, "techniques": techniques},
    "docs/FORECAST.md": {"errors": errors, "blind": blind, "kinds": kinds, "kernels": kernels},
    "docs/COMMANDS.md": {
        "targets": lambda: _help_tables(command_line.targets(), "command", "`make {}`".format),
        "variables": lambda: _help_tables(command_line.variables(), "variable", broken),
    },
}


def write():
    """Write the chart, and each part between its two marks. Return the names of the pages."""
    gpus_chart().savefig(
        paths.ROOT / "docs" / "gpus.png",
        dpi=110,
        bbox_inches="tight",
        metadata={"Software": None},
    )

    for page, parts in PARTS.items():
        path = paths.ROOT / page
        text = path.read_text()
        for name, make in parts.items():
            mark = f"<!-- {name} -->"
            before, _, after = text.split(mark)
            text = f"{before}{mark}\n{make()}\n{mark}{after}"
        path.write_text(text)
    return list(PARTS)
