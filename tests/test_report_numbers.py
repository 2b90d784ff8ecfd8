"""Every number that the report of the committed results shows is found in their rows: computed
here with pandas and scipy alone, and compared place by place, by section, row and column."""

import io
import json
import re
import subprocess
import tarfile
from collections import defaultdict
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree.ElementTree import TreeBuilder

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from Utils.base import command_line, ladder, paths, variants
from Utils.base.command_line import Parser
from Utils.draw import report_page

BASELINE, CONFIDENCE, QUANTILES, EXTREMES = "no_optimization", 0.95, (20, 80), (2, 98)
KINDS = ("weights", "gradients", "optimizer_state", "rest")
EMPTY = {"input", "meta", "wbr"}  # elements that have no end; those of SVG end themselves
# What is no result: the script, the scale beside a drawing; and what a reader unfolds of files.
NO_RESULT = {"script", "style", "row axis", "top text", "bottom text"}
SHOWN_ATTRIBUTES = ("aria-label", "data-steps", "title", "placeholder")


# What the page shows ----------------------------------------------------------------------------


class Tree(HTMLParser):
    """HTML -> elements of xml.etree, which closes nothing by itself: the page closes what it
    opens."""

    def __init__(self, html):
        super().__init__()
        self.builder = TreeBuilder()
        self.feed(html)
        self.root = self.builder.close()

    def handle_starttag(self, tag, attributes):
        self.builder.start(tag, {key: value or "" for key, value in attributes})
        if tag in EMPTY:
            self.builder.end(tag)

    def handle_startendtag(self, tag, attributes):
        self.builder.start(tag, dict(attributes))
        self.builder.end(tag)

    def handle_endtag(self, tag):
        self.builder.end(tag)

    def handle_data(self, data):
        self.builder.data(data)


def is_no_result(element, parent):
    of_a_file = parent.tag == "details" and (element.tag == "pre" or parent.get("id"))
    return of_a_file or {element.tag, element.get("class")} & NO_RESULT


def own(element):
    """The text of an element itself, before its first child."""
    shown = [element.get(name, "") for name in SHOWN_ATTRIBUTES]
    return " ".join([*filter(None, shown), element.text or ""])


def words(element):
    """All the text in an element; a place to break a line is none to break a word."""
    text = own(element)
    for child in element:
        inside = "" if is_no_result(child, element) else words(child)
        text += (inside if child.tag == "wbr" else f" {inside} ") + (child.tail or "")
    return text


def places(element, section="", parent=None):
    """(section, row, column, text) of every text below an element, in the page's order."""
    if parent is not None and is_no_result(element, parent):
        return
    kind, section = element.get("class", ""), element.get("id") or section
    if element.tag in ("title", "header", "section"):
        section = element.get("id") or element.tag
    if element.tag == "table":
        titles = [words(th) for th in element.iterfind("thead/tr/th")]
        for row in element.iterfind("tbody/tr"):
            name = words(row[0]).split()[0]
            for title, cell in zip(titles, row, strict=False):
                yield section, name, title, words(cell)
    elif kind in ("row", "panel") or (element.tag == "div" and element.find("dt") is not None):
        name = next(e for e in element.iter() if "name" in e.get("class", "") or e.tag == "dt")
        yield section, words(name).strip(), "", words(element)
    else:
        yield section, "", "", own(element)
        for child in element:
            yield from places(child, section, element)
            yield section, "", "", child.tail or ""


def numbers(text, names=()):
    """The words of a text that have a digit, less those names; a setting is its value."""
    found = [word.strip("()[],;:.\"'") for word in re.split(r"[\s=→]+", text)]
    return [word for word in found if re.search(r"\d", word) and word not in names]


# What the rows say ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of the committed results, its places, and `data`: the rows, the records of their
    runs, and sentences on what of the file is not shown."""
    folder = tmp_path_factory.mktemp("reference")
    archive = ["git", "-C", str(paths.ROOT), "archive", "HEAD", "results.csv", "runs"]
    packed = subprocess.run(archive, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    html = report_page.report(folder / "results.csv")
    return SimpleNamespace(html=html, places=[*places(Tree(html).root)], data=Data(folder))


class Data:
    """The committed rows that belong together with the newest run, by technique where asked; those
    of variants, which only the ablation and the recipe read, in `every` alone."""

    def __init__(self, folder):
        rows = pd.read_csv(folder / "results.csv", keep_default_na=False, na_values=[""])
        rows["note"] = rows.note.fillna("")
        own_batch = rows.note.str.extract(r"own batch: \d+ in place of (\d+)", expand=False)
        rows["asked"] = pd.to_numeric(own_batch).fillna(rows.batch_size).astype(int)
        shape = ["device", "torch", "model", "dataset", "asked", "seq_len", "commit"]
        newest = rows.loc[rows.run_id.idxmax()]
        assert (rows[shape] == newest[shape]).all(axis=None), "the reference is of one kind"
        self.first = newest
        assert (rows.groupby(["technique", "round"]).run_id.nunique() == 1).all()
        self.records = {
            run_id: json.loads((folder / "runs" / f"{run_id}.json").read_text())
            for run_id in rows.run_id.unique()
        }
        grades = {key: record.get("quality", {}) for key, record in self.records.items()}
        rows["tainted"] = [grades[run_id].get("grade") == "tainted" for run_id in rows.run_id]
        rows["ms"] = rows.step_ms * rows.asked / rows.batch_size  # of as many tokens
        self.every, self.names, self.forecasts = rows, set(rows.technique), {}
        self.order = [name for name in ladder.techniques() if name in self.names]
        self.rows = rows[rows.technique.isin(self.order)]
        self.timed = self.rows[self.rows.phase == "timed"]
        self.measured = [name for name in self.order if name in set(self.timed.technique)]
        self.rounds = rows["round"].nunique()

    def of(self, name):
        return self.every[self.every.technique == name]

    def steps(self, name):
        return self.of(name)[self.of(name).phase == "timed"]

    def median(self, name):
        return self.steps(name).step_ms.median()

    def by_run(self, name, column):
        return self.of(name).groupby("round")[column].first()

    def recorded(self, name, part, key):
        """The values of a figure in the records of a technique's runs, unknown ones left out."""
        found = [self.records[run_id].get(part) or {} for run_id in self.of(name).run_id.unique()]
        return [one[key] for one in found if one.get(key) is not None]

    def rate(self, name):
        steps = self.steps(name)
        return (steps.batch_size * steps.seq_len).iloc[0] / self.median(name) * 1e3

    def forecast(self, name, whole, without):
        """Makes a set known that has no rows: its logarithm in a round is the whole's, with what
        leaving out each by itself changes of it."""
        self.names.add(name)
        self.forecasts[name] = whole, without

    def logs(self, found):
        """(rounds, techniques) of logarithms, forecasts included. found: a Series by both."""
        logs = np.log(found.unstack("technique"))
        for name, (whole, without) in self.forecasts.items():
            logs[name] = logs[whole] + sum(logs[one] - logs[whole] for one in without)
        return logs

    def ratio(self, name, other, clean=False):
        """How many times as fast as another, low and high: of the medians of each round."""
        timed = self.every[self.every.phase == "timed"]
        timed = timed[~timed.tainted] if clean else timed
        logs = self.logs(timed.groupby(["technique", "round"]).ms.median())
        return np.exp(interval((logs[other] - logs[name]).dropna()))

    def ratio_text(self, *names, **how):
        ratio, low, high = self.ratio(*names, **how)
        return f"{ratio:.2f}x" if names[0] == names[1] else f"{ratio:.2f}x {low:.2f}-{high:.2f}"

    def loss(self, name):
        return self.steps(name).groupby("round").loss.apply(lambda loss: loss.tail(10).mean())

    def loss_text(self, name):
        """What its loss is beyond the baseline's: of the rounds' means over the last ten steps."""
        if self.recorded(name, "dataset_facts", "streamed"):
            return ""  # other batches than the baseline's
        by_step = [self.of(x).set_index(["round", "step"]).loss for x in (name, BASELINE)]
        if by_step[0].equals(by_step[1]):
            return "0"
        mean, low, high = interval(self.loss(name) - self.loss(BASELINE))
        return f"{mean:+.4f} {low:+.4f} to {high:+.4f}"

    def floor(self, name):
        """The modelled floor is of 12 bytes a parameter, AdamW's in float32; others have none."""
        kinds = ("weights_mib", "optimizer_state_mib")
        held = sum(np.median(self.recorded(name, "memory", kind)) for kind in kinds) * 2**20
        as_modelled = 0.99 < held / (12 * 124_439_808) < 1.01
        return self.recorded(name, "limits", "floor_ms")[-1] if as_modelled else None

    def peak(self, name):
        return self.by_run(name, "peak_memory_mib").median()

    def clean_peak(self, name):
        """The median of the logarithms, as where two are in the middle it is asked of ratios."""
        rows = self.every[~self.every.tainted]
        logs = self.logs(rows.groupby(["technique", "round"]).peak_memory_mib.first())
        return np.exp(logs[name].median())

    def reason(self, name):
        """Why a technique has no timing."""
        return self.of(name).iloc[-1].note

    def tainted(self, name):
        """What is held against a technique's runs, one text a round."""
        notes = self.by_run(name, "note")
        return [note.partition("tainted: ")[2] for note in notes if "tainted: " in note]

    def described(self):
        x = self.first
        shape = f"{x.model} {x.asked}x{x.seq_len} {x.dataset}"
        return f"{x.device} {x.torch} {shape} {self.rounds} {x.commit}"


def interval(values):
    """Mean, low and high: Student's t."""
    n = len(values)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std() / n**0.5
    return np.array([values.mean(), values.mean() - half, values.mean() + half])


# The parts of the page --------------------------------------------------------------------------


def header(data, page):
    """The headline is on whom the page says; that it is the right one, test_report.py shows."""
    lead = re.search(r'<p class="lead"><b>(\w+)</b>', page.html)[1]
    cells = {(row, column): text for part, row, column, text in page.places if part == "techniques"}
    fair = [
        name
        for name in data.measured
        if "faster" in cells[name, "over baseline"]
        and cells[name, "what it computes"] in ("exact", "numerics changed")
        and "worse" not in cells[name, "loss - baseline's"]
    ]
    ratio, low, high = data.ratio(lead, BASELINE)
    better = [x for x in data.measured if x not in fair and data.ratio(x, BASELINE)[0] > ratio]
    both, device = (BASELINE, lead), data.first.device
    yield ("title", "", ""), f"{ratio:.2f}x {device}"
    ms = [f"{data.median(name):,.1f}" for name in both]
    lines = f"{ratio:.2f}x {ms[1]} {ms[0]} {device} {CONFIDENCE:.0%} {data.rounds}"
    lines += f" {low:.2f} {high:.2f} {len(fair)}"
    lines += "".join(f" {data.ratio(name, BASELINE)[0]:.2f}x" for name in better)
    yield ("header", "", ""), f"{lines} {data.described()}"
    yield ("header", "Step time, median", ""), " ".join(ms)
    yield ("header", "Speed", ""), " ".join(f"{data.rate(name):,.0f}" for name in both)
    yield ("header", "Peak memory", ""), " ".join(f"{data.peak(name):,.0f}" for name in both)
    losses = " ".join(f"{data.loss(name).mean():.3f}" for name in both)
    yield ("header", "Loss", ""), f"{losses} {data.loss_text(lead)}"


def speed(data, page):
    floors = min(filter(None, map(data.floor, data.measured)))
    percentiles = " ".join(f"p{q}" for q in QUANTILES)
    caption = f"{CONFIDENCE:.0%} {data.median(BASELINE) / floors:.1f}x {data.described()}"
    yield ("ladder", "", ""), f"{caption} {CONFIDENCE:.0%} {percentiles}"
    for name in data.order:
        if name not in data.measured:
            yield ("ladder", name, ""), data.reason(name)
            yield ("techniques", name, "over baseline"), data.reason(name)
            continue
        over = data.ratio_text(name, BASELINE)
        yield ("ladder", name, ""), f"{over} {over}"
        parent, tainted = ladder.get(name).parent, data.tainted(name)
        p20, p80 = np.percentile(data.steps(name).step_ms, QUANTILES)
        said = {part for note in data.by_run(parent or name, "note") for part in note.split("; ")}
        note = data.by_run(name, "note").iloc[0].partition("tainted: ")[0]
        cells = {
            "technique": " ".join(part for part in note.split("; ") if part not in said),
            "over baseline": over,
            "over parent": data.ratio_text(name, parent) if parent else "",
            "median step (ms)": f"{data.median(name):,.1f} {p20:,.1f}-{p80:,.1f}",
            "tokens/s": f"{data.rate(name):,.0f}",
            "peak memory (MiB)": f"{data.peak(name):,.0f}",
            "loss": f"{data.loss(name).mean():.3f}",
            "loss - baseline's": data.loss_text(name) if name != BASELINE else "",
            "quality": f"{len(tainted)} of {data.rounds} {tainted[0]}" if tainted else "",
        }
        for title, text in cells.items():
            yield ("techniques", name, title), text


def steps(data, page):
    times = data.rows.groupby(["technique", "step"]).step_ms.median()
    low, high = np.percentile(data.timed.step_ms, EXTREMES)
    extremes = " ".join(f"p{q}" for q in EXTREMES)
    yield ("steps", "", ""), f"{data.rows.step.nunique()} {data.described()}"
    yield ("heatmap", "", ""), f"{low:,.1f} {high:,.1f} {extremes} {data.described()}"
    for name in data.order:
        if name not in data.measured:
            yield ("heatmap", name, ""), data.reason(name)
            continue
        median = f"{data.median(name):,.1f}"
        each = " ".join(f"{step:.0f} {ms:,.1f}" for step, ms in times[name].items())
        first = data.by_run(name, "first_step_s").median()
        panel = f"{name} (tainted)" if data.tainted(name) else name
        yield ("steps", panel, ""), f"{median} {each} {first:.1f}"
        yield ("heatmap", name, ""), f"{median} {each}"


def memory(data, page):
    yield ("memory", "", ""), data.described()
    peaks = {name: data.peak(name) for name in data.measured}
    scale = 1024 if max(peaks.values()) >= 4096 else 1
    for name in data.order:
        if name not in data.measured:
            yield ("memory", name, ""), data.reason(name)
            continue
        kinds = {kind: np.median(data.recorded(name, "memory", f"{kind}_mib")) for kind in KINDS}
        drawn = " ".join(f"{x / scale:,.4g}" for x in (peaks[name], *kinds.values()))
        yield ("memory", name, ""), drawn
        cells = {f"{kind.replace('_', ' ')} (MiB)": f"{x:,.0f}" for kind, x in kinds.items()}
        cells["peak (MiB)"] = f"{peaks[name]:,.0f}"
        cells["peak (GiB)"] = f"{peaks[name] / 1024:.2f}"
        for title, text in cells.items():
            yield ("memory", name, title), text


def ablation(data, page):
    """What each script of the ladder is worth on the baseline, on its parent, and at the end of the
    whole that the variants name. That the sentences say the right thing, test_ablation.py shows."""
    variants = [re.match(r"(\w+)([+-])(\w+)$", name) for name in data.names - set(data.order)]
    if not variants:
        return
    pairs, whole = {}, next(match[1] for match in variants if match[2] == "-")
    for name in data.order:
        if (parent := ladder.get(name).parent) and ladder.get(name).at_top_level:
            ways = {"alone": (f"{BASELINE}+{name}", BASELINE), "ladder": (name, parent)}
            if parent == BASELINE:
                ways["alone"] = ways["ladder"]
            ways["last"] = ways["ladder"] if name == whole else (whole, f"{whole}-{name}")
            pairs[name] = {way: pair for way, pair in ways.items() if data.names.issuperset(pair)}
    assert {f"{a}{b}{c}" for a, b, c in (match.groups() for match in variants)} == {
        one for ways in pairs.values() for pair in ways.values() for one in pair
    } - set(data.order)
    lines = f"{CONFIDENCE:.0%} {data.described()}"
    for line in (text for part, *_, text in page.places if part == "ablation"):
        if said := re.match(r"(\w+): \S+ alone and \S+ added last", line):
            ways = pairs[said[1]]
            lines += "".join(f" {data.ratio(*ways[way])[0]:.2f}x" for way in ("alone", "last"))
    yield ("ablation", "", ""), lines
    for name, ways in pairs.items():
        texts = [data.ratio_text(*pair) for pair in ways.values()]
        yield ("ablation", name, ""), " ".join([*(text.split()[0] for text in texts), *texts])


def limits(data, page):
    for name in data.measured:
        precision = data.recorded(name, "limits", "precision")[-1:]
        tflops = data.recorded(name, "limits", "flops_per_token")[-1] * data.rate(name) / 1e12
        ceilings = data.recorded(name, "limits", "ceilings")[-1]["matmul_tflops"]
        floor = data.floor(name)
        graphs = data.recorded(name, "compile", "graphs")
        cells = {
            "first step (s)": f"{data.by_run(name, 'first_step_s').median():.1f}",
            "compiled": f"{np.median(graphs):.0f}" if graphs else "",
            "products in": " ".join(precision),
            "TFLOP/s": f"{tflops:,.3g}",
            "of the measured ceiling": f"{tflops / ceilings[precision[0]]:.0%}",
            "modelled floor (ms)": f"{floor:,.1f}" if floor else "",
            "still to be had": f"{data.median(name) / floor:.1f}x" if floor else "",
        }
        for title, text in cells.items():
            yield ("limits", name, title), text
        hours = 1e9 / data.rate(name) / 3600
        yield ("cost", name, "hours for 10^9 tokens"), f"{hours:,.1f}"


def quality(data, page):
    rows = data.rows
    yield ("quality", "", ""), f"{rows.run_id.nunique():,} {len(rows):,}"
    for name in data.order:
        graded = len(data.recorded(name, "quality", "grade"))
        tainted = data.tainted(name)
        cells = {"runs": str(data.of(name).run_id.nunique())}
        if graded:
            cells |= {"clean": str(graded - len(tainted)), "tainted": str(len(tainted))}
            cells["why"] = " ".join(dict.fromkeys(tainted))
        for title, key, form in (
            ("other processes (of the cores)", "other_cpu_share", ".1%"),
            ("hypervisor (of the cores)", "steal_share", ".1%"),
            ("drift over the run", "drift", "+.0%"),
        ):
            if values := data.recorded(name, "quality", key):
                cells[title] = format(max(values, key=abs), form)
        for title, text in cells.items():
            yield ("quality", name, title), text


def environment(data, page):
    """Facts of the records, and the settings of their runs that are not what they are without."""
    found = {}
    for record in data.records.values():
        facts = {"platform": record["platform"], "threads": record["threads"]}
        facts |= record["versions"] | record["variables"]
        for part, before in (("device", "device "), ("dataset_facts", "dataset's ")):
            for key, value in record.get(part, {}).items():
                facts[before + key] = f"{value:,}" if type(value) is int else value
        found |= {(k, str(v)): None for k, v in facts.items() if type(v) in (int, str)}
    for key in dict.fromkeys(key for key, _ in found):
        yield ("environment", key, ""), " ".join([key, *(v for k, v in found if k == key)])
    parser, newest = Parser("", ""), data.records[data.first.run_id]
    command_line.add_settings(parser)
    given = {"rounds": data.rounds, **newest["settings"]}
    given["seed"] -= newest["round"]
    for key in newest["chosen_automatically"]:
        del given[key]
    asked = [str(value) for key, value in given.items() if value != parser.get_default(key)]
    yield ("repeat", "", ""), " ".join([data.first.commit, *asked, data.first.torch])


def test_every_number_is_where_the_rows_say(page):
    data, shown, expected = page.data, defaultdict(list), defaultdict(list)
    for section, row, column, text in page.places:
        shown[section, row, column] += numbers(text, data.names)
    for part in (header, speed, steps, memory, ablation, limits, quality, environment):
        for place, text in part(data, page):
            expected[place] += numbers(text, data.names)
    found = {place: v for place, v in shown.items() if v and place[0] != "recipe"}
    assert found == {key: value for key, value in expected.items() if value}
    assert sum(map(len, found.values())) > 1000


# The recipe -------------------------------------------------------------------------------------


def test_every_number_of_the_recipe_is_of_the_two_that_it_names(page):
    """From clean runs alone. What is recommended, tests/test_recipe.py shows."""
    data, before, seen = page.data, "", 0
    asked = data.records[data.first.run_id]["settings"]
    runs = data.every[data.every.status == "ok"].groupby("run_id").tainted.first()
    NAME = r"([a-zA-Z0-9_+-]+)"
    for *_, text in page.places:
        if found := re.match(f"{NAME} is a forecast until it has run: what (.*) change by", text):
            without = re.split(", | and ", found[2])
            data.forecast(found[1], re.search(f"against {NAME}, multiplied", text)[1], without)

    def against(name, other):
        return data.ratio_text(name, other, clean=True)

    for section, row, _, text in page.places:
        if section != "recipe" or not numbers(text, data.names):
            before = text
            continue
        for name, value in re.findall(r"([A-Z_]+)=(\S+)", text):
            # Not found there: the technique, how many rounds more would tell, and what to run.
            assert name in ("T", "ROUNDS", "RUN") or value == str(asked[name.lower()]), text
        shown = numbers(re.sub(r"[A-Z_]+=\S+", "", text), data.names)
        if pair := re.search(f"{NAME} against {NAME}$", text):
            more = data.clean_peak(pair[1]) - data.clean_peak(pair[2])
            expected = f"{against(*pair.groups())} {more:+,.0f}"
            gained = variants.parts(pair[1]) - variants.parts(pair[2])
            assert gained == {row}
        elif row:
            expected = data.reason(row)
        elif before in data.names:
            other = re.search(f"Against the best measured, {NAME}", text)
            expected = f"{against(before, BASELINE)} {data.clean_peak(before):,.0f}"
            loss = "" if before in data.forecasts else data.loss_text(before)
            expected += f" {loss} {other and against(before, other[1])}"
        elif pair := re.search(rf"that {NAME} has \S+ less speed than {NAME}", text):
            expected = f"{1 - data.ratio(*pair.groups(), clean=True)[1]:.0%}"
        elif "runs are tainted" in text:
            expected = f"{runs.sum()} of {len(runs)}"
        else:
            expected = ""
        assert shown == numbers(expected, data.names), text
        before, seen = text, seen + len(shown)
    assert seen > 100
    codes = [e.text or "" for e in Tree(page.html).root.iterfind(".//section[@id='recipe']//code")]
    scripts = [code for code in codes if code.startswith('"""')]
    for script in scripts:  # which say of themselves what the page says
        for name, why in re.findall(r"^- (\w+): (.*)", script, re.MULTILINE):
            assert ("recipe", name, "why", why) in page.places
        name = re.match(f'"""{NAME},', script)[1]
        kind = "Forecast" if name in data.forecasts else "Measured"
        measured = re.search(f"^{kind}: (.*),", script, re.MULTILINE)[1]
        described = re.search(r"^\((.*)\)\.$", script, re.MULTILINE)[1]
        assert numbers(measured) == numbers(against(name, BASELINE))
        assert numbers(described) == numbers(data.described())
    assert scripts


def test_the_reports_of_the_environment_are_the_records(page):
    reports = {str(record["collect_env"]) for record in page.data.records.values()}
    root = Tree(page.html).root
    assert {e.text for e in root.iterfind(".//section[@id='environment']//pre")} == reports
