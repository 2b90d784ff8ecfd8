"""Rows of results.csv -> one line a technique: medians, ratios, intervals, verdicts.

A ratio is paired: within a round both scripts ran under the same conditions on the same batches,
so the median step times of that round are divided, and the rounds' log ratios averaged. The
interval is Student's t over the rounds, 95%. With one round there is none, and no verdict.
Losses are paired in the same way, as differences.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from Utils import ladder, results, settings
from Utils.errors import UserError, one_line

GROUP = ["device", "torch", "model", "dataset", "batch_size", "seq_len", "world_size", "code"]
BASELINE = "no_optimization"
LAST_STEPS = 10  # whose mean loss is a run's loss
CONFIDENCE = 0.95
NO_INTERVAL = "one round: no interval"
MARK = "<!-- table -->"


def select(rows, device_name=None):
    """The rows that may be compared with one another, and a sentence on what was left out, or "".

    rows: DataFrame of results.COLUMNS. device_name: part of a device's name; without it the
    newest run decides. Of several runs of a technique in one round, the newest counts.
    Raises UserError where no device has that name.
    """
    # An idea that is tried on top of a commit is compared with that commit's runs.
    rows = rows.assign(code=rows.commit.str.removesuffix("-dirty"))
    candidates = rows
    if device_name:
        candidates = rows[rows.device.str.contains(device_name, case=False, regex=False)]
        if candidates.empty:
            known = ", ".join(rows.device.unique())
            raise UserError(f"no results of a device named {device_name!r}; there are {known}")
    newest = candidates.loc[candidates.run_id.idxmax(), GROUP]
    same = (rows[GROUP] == newest).all(axis=1)
    chosen = rows[same]
    latest = chosen.groupby(["technique", "round"]).run_id.transform("max")
    chosen = chosen[chosen.run_id == latest]

    left_out = [
        f"{count(group)} of {model} {B}x{T} on {device} (torch {version}, {dataset}, "
        f"commit {code or 'unknown'})"
        for (device, version, model, dataset, B, T, _, code), group in rows[~same].groupby(GROUP)
    ]
    repeated = rows[same & ~rows.run_id.isin(chosen.run_id)]
    if len(repeated):
        left_out.append(f"{count(repeated)} repeated since")
    return chosen, "left out: " + "; ".join(left_out) if left_out else ""


def count(rows):
    runs = rows.run_id.nunique()
    return f"{runs} run{'s' * (runs > 1)}"


def describe(rows):
    """What selected rows have in common, in one line."""
    first, rounds = rows.iloc[0], rows["round"].nunique()
    commits = ", ".join(commit or "unknown" for commit in rows.commit.unique())
    return (
        f"{first.device}, torch {first.torch}, {first.model}, {first.batch_size}x{first.seq_len} "
        f"tokens a step, {first.dataset}, {rounds} round{'s' * (rounds > 1)}, commit {commits}"
    )


def summarize(rows):
    """One line a technique, in ladder order, as a DataFrame indexed by technique.

    status, note; parent; rounds (with timings); median_ms, p20_ms, p80_ms (of all timed steps);
    tokens_per_second; first_step_s; peak_memory_mib; loss (nats a token, mean of the last timed
    steps); loss_difference from the baseline, loss_low, loss_high, loss_verdict; and for the ratio
    of step times, over the baseline and over the parent, speedup, speedup_low, speedup_high,
    verdict and parent_speedup, ... likewise. What is not known is NaN.
    """
    known = ladder.techniques()
    order = [*known, *rows.technique[~rows.technique.isin(known)].unique()]
    timed = rows[(rows.status == "ok") & (rows.phase == "timed")]
    by_run = timed.groupby(["technique", "round"])
    medians = by_run.step_ms.median()
    losses = by_run.loss.apply(_last)
    by_step = rows[rows.status == "ok"].set_index(["technique", "round", "step"]).loss

    lines = []
    for name in order:
        own = rows[rows.technique == name]
        if own.empty:
            continue
        parent = known[name].parent if name in known else None
        line = {"technique": name, "parent": parent, **_outcome(own)}
        if name in medians:
            steps = timed.step_ms[timed.technique == name]
            line["rounds"] = len(medians[name])
            line["p20_ms"], line["median_ms"], line["p80_ms"] = np.percentile(steps, [20, 50, 80])
            tokens = own.batch_size.iloc[0] * own.seq_len.iloc[0]
            line["tokens_per_second"] = tokens / line["median_ms"] * 1e3
            ok = own[own.status == "ok"].groupby("round")
            line["first_step_s"] = ok.first_step_s.first().median()
            line["peak_memory_mib"] = ok.peak_memory_mib.first().median()
            line["loss"] = losses[name].mean()
            if BASELINE in losses and name != BASELINE:
                exact = by_step[name].sub(by_step[BASELINE]).dropna().eq(0).all()
                line |= loss_difference(losses[BASELINE], losses[name], exact)
            if not np.isfinite(timed.loss[timed.technique == name]).all():
                line["loss_verdict"] = "diverged"
            for prefix, other in (("", BASELINE), ("parent_", parent)):
                if other in medians and (other != name or prefix == ""):
                    ratio = speedup(medians[other], medians[name])
                    line |= {prefix + key: value for key, value in ratio.items()}
        lines.append(line)
    columns = [
        *("technique", "parent", "status", "note", "rounds", "median_ms", "p20_ms", "p80_ms"),
        *("tokens_per_second", "first_step_s", "peak_memory_mib", "loss"),
        *("loss_difference", "loss_low", "loss_high", "loss_verdict"),
        *(
            p + key
            for p in ("", "parent_")
            for key in ("speedup", "speedup_low", "speedup_high", "verdict")
        ),
    ]
    return pd.DataFrame(lines, columns=columns).set_index("technique")


def _last(losses):
    return losses.tail(LAST_STEPS).mean()


def speedup(reference, medians):
    """How many times faster `medians` is than `reference`, from the rounds that both have.

    reference, medians: Series of milliseconds, indexed by round. Returns speedup (geometric mean),
    speedup_low and speedup_high (95%, NaN with one round) and a verdict; {} without a common round.
    """
    logs = np.log(reference / medians).dropna()
    if logs.empty:
        return {}
    mean, low, high = interval(logs)
    verdict = NO_INTERVAL
    if len(logs) > 1:
        verdict = "faster" if low > 0 else "slower" if high < 0 else "no detectable difference"
    values = {"speedup": mean, "speedup_low": low, "speedup_high": high}
    return {**{key: float(np.exp(value)) for key, value in values.items()}, "verdict": verdict}


def loss_difference(reference, losses, exact):
    """How much higher `losses` are than `reference`, from the rounds that both have.

    reference, losses: Series of nats a token, indexed by round. exact: whether the losses of all
    steps are bitwise the same. Returns loss_difference, loss_low and loss_high (95%, NaN with one
    round) and a loss_verdict; {} without a common round.
    """
    differences = (losses - reference).dropna()
    if differences.empty:
        return {}
    mean, low, high = interval(differences)
    if exact:
        verdict = "exact"
    elif len(differences) == 1:
        verdict = NO_INTERVAL
    else:
        verdict = "worse" if low > 0 else "better" if high < 0 else "indistinguishable"
    keys = ("loss_difference", "loss_low", "loss_high", "loss_verdict")
    return dict(zip(keys, (mean, low, high, verdict), strict=True))


def interval(values):
    """(mean, low, high) of independent values: Student's t, 95%; low and high are NaN for one."""
    mean, n = values.mean(), len(values)
    if n == 1:
        return mean, np.nan, np.nan
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std() / n**0.5
    return mean, mean - half, mean + half


def _outcome(own):
    """status and note of a technique: "ok" where any round has timings."""
    runs = own.groupby("round").first()
    timed = runs[runs.status == "ok"]
    bad = runs[runs.status != "ok"]
    if timed.empty:
        return {"status": runs.status.iloc[-1], "note": runs.note.iloc[-1]}
    notes = [note for note in timed.note.unique() if note]
    notes += [f"round {index}: {run.status}: {run.note}" for index, run in bad.iterrows()]
    return {"status": "ok", "note": "; ".join(notes)}


# As a table -------------------------------------------------------------------------------------


def own_notes(summary):
    """The notes, less what a technique's parent has to say as well."""
    notes = []
    for note, parent in zip(summary.note, summary.parent, strict=True):
        said = summary.note.get(parent, "").split("; ")
        own = "; ".join(part for part in note.split("; ") if part not in said)
        notes.append(own.replace("|", "\\|"))  # a bar would end the table's cell
    return notes


def ratio_text(line, prefix=""):
    """ "1.52x (1.48-1.56)", or "1.52x" with one round, or "" where it is not known."""
    value, low, high = (line[prefix + key] for key in ("speedup", "speedup_low", "speedup_high"))
    if pd.isna(value):
        return ""
    return f"{value:.2f}x" if pd.isna(low) else f"{value:.2f}x ({low:.2f}-{high:.2f})"


def loss_text(line):
    """ "+0.0120 (+0.0020 to +0.0220)", "exact", or "" where it is not known."""
    if line.loss_verdict in ("exact", "diverged"):
        return line.loss_verdict
    if pd.isna(line.loss_difference):
        return ""
    if pd.isna(line.loss_low):
        return f"{line.loss_difference:+.4f}"
    return f"{line.loss_difference:+.4f} ({line.loss_low:+.4f} to {line.loss_high:+.4f})"


def table(rows, left_out=""):
    """The selected rows as a GitHub-markdown table with a caption. A string."""
    summary = summarize(rows)

    def column(name, form):
        return ["" if pd.isna(value) else format(value, form) for value in summary[name]]

    lines = [line for _, line in summary.iterrows()]
    spread = zip(column("p20_ms", ",.1f"), column("p80_ms", ",.1f"), strict=True)
    columns = {
        "technique": list(summary.index),
        "status": [status.replace("_", " ") for status in summary.status],
        "median step (ms)": column("median_ms", ",.1f"),
        "p20-p80 (ms)": [f"{low}-{high}" if low else "" for low, high in spread],
        "tokens/s": column("tokens_per_second", ",.0f"),
        "speedup over baseline": [ratio_text(line) for line in lines],
        "over parent": [ratio_text(line, "parent_") for line in lines],
        "verdict on parent": _words(summary.parent_verdict),
        "first step (s)": column("first_step_s", ".1f"),
        "peak memory (MiB)": column("peak_memory_mib", ",.0f"),
        "loss": column("loss", ".3f"),
        "loss - baseline's": [loss_text(line) for line in lines],
        "verdict on loss": _words(summary.loss_verdict),
        "note": own_notes(summary),
    }
    words = ("technique", "status", "note", "verdict on parent", "verdict on loss")
    align = ["left" if name in words else "right" for name in columns]
    text = pd.DataFrame(columns).to_markdown(index=False, disable_numparse=True, colalign=align)
    brackets = NO_INTERVAL
    if summary.speedup_low.notna().any():
        seeds = rows[rows.technique == BASELINE].groupby("round").loss.apply(_last)
        brackets = (
            "in brackets the 95% interval over rounds; from seed to seed the baseline's loss "
        )
        brackets += f"has a standard deviation of {seeds.std():.3f}"
    caption = f"{describe(rows)}; {brackets}."
    return "\n".join([text, "", caption, *([left_out] if left_out else [])])


def _words(column):
    """A column of verdicts; with one round there are none, and the caption says so."""
    return ["" if pd.isna(word) or word == NO_INTERVAL else word for word in column]


def main(argv=None):
    """Prints the table of a results file, or writes it into a page between two marks."""
    parser = settings.Parser("table", main.__doc__)
    settings.add_selection(parser)
    parser.add_argument("--into", type=Path, help="page with the marks <!-- table --> around it")
    args = parser.parse_args(argv)
    text = table(*select(results.read(args.results_file), args.device_name))
    if args.into is None:
        print(text)
        return
    try:
        parts = args.into.read_text().split(MARK)
        if len(parts) != 3:
            raise UserError(f"{args.into}: has no two marks {MARK}")
        args.into.write_text(f"{parts[0]}{MARK}\n{text}\n{MARK}{parts[2]}")
    except OSError as error:
        raise UserError(f"{args.into}: {error.strerror}") from None


if __name__ == "__main__":
    with one_line("table"):
        main()
