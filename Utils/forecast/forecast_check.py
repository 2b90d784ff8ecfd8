"""The forecast compared with published figures, each source left out of the fit in turn."""

import csv
import hashlib
import re
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise

import numpy as np

from Utils.base import paths
from Utils.base.units import GIB
from Utils.device import datasheets
from Utils.forecast import forecast_fit, published_figures, step_time, time_range
from Utils.forecast.recording_processes import in_processes, keep, kept, prepare

WORTH = 1.05  # a ratio of two rungs beyond which its direction counts
LADDER = ("source", "key", "batch", "model")  # what the rungs of one ladder have in common


@dataclass
class Row:
    """A published figure with its forecast, without its source, in milliseconds. COLUMNS."""

    source: str
    key: str
    model: str
    technique: str
    batch: int
    tokens: int
    precision: str
    measured_ms: float
    forecast_ms: float
    low_ms: float
    high_ms: float
    roofline_ms: float
    factor: float
    bound: str

    @property
    def error(self):
        return self.forecast_ms / self.measured_ms - 1

    @property
    def within(self):
        return self.low_ms <= self.measured_ms <= self.high_ms


def works(figures):
    """Return the work of each figure's step, traced at few layers and a prime batch, and cached."""
    steps = [
        replace(f.step, batch=forecast_fit.PRIME, layers=n)
        for f in figures
        for n in forecast_fit.TRACED_LAYERS
    ]
    names = (
        "other_models",
        "kernel_work",
        "traced_operation",
        "fusion_groups",
        "compiled_graph",
        "fake_run",
    )
    folder = paths.ROOT / "Utils" / "forecast"
    sources = "\0".join((folder / f"{name}.py").read_text() for name in names)
    files = {step: _file(f"{sources}\0{step}") for step in steps}
    found = {step: kept(file) for step, file in files.items()}
    missing = [step for step, work in found.items() if work is None]
    if missing:
        prepare(compiler=True)
    answers = in_processes(_traced, [(step, files[step]) for step in missing])
    return found | dict(zip(missing, answers, strict=True))


def _file(decides):
    """Return the file in the cache that keeps an answer, by the text that decides it."""
    key = hashlib.sha256(decides.encode()).hexdigest()[:16]
    return paths.CACHE / "forecasts" / "published" / f"{key}.pickle"


def _traced(step, file):
    from Utils.device.cuda import ImaginedGPU  # here: seconds, where all is kept from before
    from Utils.forecast import other_models

    work = other_models.work(step, ImaginedGPU("published", 80 * GIB))
    keep(work, file)
    return work


def check(figures, cases):
    """Return (rows, constants fitted to all figures)."""
    sources = list(dict.fromkeys(figure.source for figure in figures))
    constants, without = forecast_fit.fitted(cases, sources)
    deviations, factors = np.zeros(len(figures)), np.ones(len(figures))
    steps, roofs, rooflines = {}, np.zeros(len(figures)), cases.rooflines()
    of = np.array([figure.source for figure in figures])
    entries = [datasheets.find(figure.key) for figure in figures]
    precisions = [figure.step.precision.removeprefix("pure_") for figure in figures]
    kinds = list(zip(map(time_range.chip, entries), precisions, strict=True))
    for source, values in zip(sources, without, strict=True):
        apart = of != source
        known = {kind for kind, other in zip(kinds, apart, strict=True) if other}
        share = np.median((cases.measured - rooflines)[apart])
        for index in np.flatnonzero(~apart):
            steps[index] = cases.step_time(figures[index], values)
            deviations[index] = np.log(steps[index].seconds) - cases.measured[index]
            factors[index] = time_range.kind_factor(entries[index], precisions[index], known)
            factors[index] *= time_range.UNSAID if figures[index].widened else 1
            roofs[index] = np.exp(rooflines[index] + share)
    rows = []
    for index, figure in enumerate(figures):
        apart = of != figure.source
        half = factors[index] * time_range.width(deviations[apart], factors[apart])
        ms, step = 1e3 * steps[index].seconds, figure.step
        numbers = 1e3 * figure.seconds, ms, ms * np.exp(-half), ms * np.exp(half)
        numbers = [round(float(x), 3) for x in (*numbers, 1e3 * roofs[index], factors[index])]
        said = figure.source, figure.key, figure.model, figure.technique
        shape = step.batch, step.tokens, precisions[index]
        rows.append(Row(*said, *shape, *numbers, steps[index].bound))
    return rows, constants


def ratios(rows):
    """Return (measured, forecast) ratios of each rung to the next of the same ladder."""
    found = []
    for before, after in pairwise(rows):
        if all(getattr(before, n) == getattr(after, n) for n in LADDER):
            measured = before.measured_ms / after.measured_ms
            found.append((measured, before.forecast_ms / after.forecast_ms))
    return found


def summary(rows):
    """Return the results of the check as lines of text."""

    def line(name, chosen):
        errors = np.abs([row.error for row in chosen])
        plain = np.abs([row.roofline_ms / row.measured_ms - 1 for row in chosen])
        return (
            f"{name}: {len(chosen)} figures, median error {np.median(errors):.1%} (plain roofline "
            f"{np.median(plain):.1%}), 90% within {np.quantile(errors, 0.9):.1%} "
            f"({np.quantile(plain, 0.9):.1%}); {np.mean([row.within for row in chosen]):.0%} of "
            f"them in their range"
        )

    own = [row for row in rows if row.model.startswith("GPT-2")]
    lines = [line("all", rows), line("GPT-2 124M", own)]
    for source in dict.fromkeys(row.source for row in rows):
        lines.append(line(source, [row for row in rows if row.source == source]))
    worth = [(m, f) for m, f in ratios(rows) if m > WORTH]
    right = sum(f > 1 for _, f in worth)
    off = np.median([abs(f / m - 1) for m, f in worth])
    lines.append(
        f"rung to rung, where the published ratio is above {WORTH}: direction right in {right} of "
        f"{len(worth)}, median error of the ratio {off:.1%}"
    )
    return lines


def write(rows, constants):
    """Keep the check in docs/, and the fitted constants in step_time.toml."""
    with open(time_range.CHECK, "w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    lines = (f"value = {value:.4g}" for value in constants.values())  # in the order of the file
    text = re.sub(r"^value =.*", lambda old: next(lines), step_time.FILE.read_text(), flags=re.M)
    step_time.FILE.write_text(text)


def run():
    """Return (rows, constants) of all published figures that count. The fit takes seconds, so its
    answer is kept until something that decides it changes."""
    tables = [published_figures.FILE, *sorted((paths.ROOT / "Utils").glob("*/*.toml"))]
    decides = [*paths.sources("device", "forecast"), *(file.read_text() for file in tables)]
    file = _file("\0".join(decides))
    if (found := kept(file)) is None:
        figures = published_figures.figures()
        found = check(figures, forecast_fit.Cases(figures, works(figures)))
        keep(found, file)
    return found
