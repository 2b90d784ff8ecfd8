"""The verdict on a pair: its table, and the exit code."""

from Utils.analysis import intervals, text_tables, two_sides
from Utils.analysis.figures import NEITHER
from Utils.analysis.intervals import INCONCLUSIVE
from Utils.analysis.result_tables import four_digits
from Utils.base.text import number

FAILED, UNDECIDED, SLOWER, OTHER = 1, 3, 4, 5  # exit codes
MEANINGS = {
    FAILED: "a run failed, or a script runs on one side alone",
    UNDECIDED: "not every script can be judged; more rounds narrow intervals, as in ROUNDS=8",
    SLOWER: "a script is slower in B by more than SLOWER",
    OTHER: "B trains something else, or worse",
}
NARROW = 4  # columns of the first of two tables, each of which fits 80 letters


def sides_of_ladder(summary, ladder):
    """Return the TwoSides of a Summary. ladder: the scripts of B, whose parents are those of A."""
    scripts = {
        script.name.removesuffix("@B"): (script.parent, script.name)
        for script in ladder
        if script.parent
    }
    return two_sides.paired(summary, scripts)


def slower(sides, share):
    """Return the names of scripts that take longer in B by more than a share.

    By the nearer end of the interval.
    """
    return [
        name
        for name, ratio in sides.ratios.items()
        if ratio.verdict != INCONCLUSIVE and 1 / ratio.high > 1 + share
    ]


def trains_other(sides):
    """Return the names of scripts that train something else in B, or worse, with the reason."""
    figures_b = sides.figures_b.items()
    return [f"{name} ({b.training_problem})" for name, b in figures_b if b.training_problem]


def exit_code(sides, share):
    """Return 0, FAILED, OTHER, SLOWER or UNDECIDED.

    FAILED if a script runs on only one side, or no script runs on both.
    """
    ratios = sides.ratios.values()
    runs_alike = all(
        sides.figures_a[name].status == sides.figures_b[name].status for name in sides.ratios
    )
    if not runs_alike or not any(ratios):
        return FAILED
    if NEITHER in [figures.training.get("kind") for figures in sides.figures_b.values()]:
        return UNDECIDED
    if trains_other(sides):
        return OTHER
    if slower(sides, share):
        return SLOWER
    return UNDECIDED if INCONCLUSIVE in [ratio.verdict for ratio in ratios] else 0


def columns(sides, study):
    """Return the columns of the table, lists of texts by title."""
    runs = study.rows.sort_values("run_id").groupby("technique")
    first_step_s = runs.first_step_s.first()  # that of the first round
    measured = {
        "ms a step": lambda figures: four_digits(figures.step_ms) or figures.status,
        "first step (s)": lambda figures: number(first_step_s[figures.name], ".1f"),
        "peak memory (MiB)": lambda figures: number(figures.peak_memory_mib, ",.0f"),
    }
    losses = [_loss(figures) for figures in sides.figures_b.values()]
    trainings = [figures.training.get("kind", "") for figures in sides.figures_b.values()]
    training = {"training of B": trainings} if any(trainings) else {}
    return sides.columns(measured) | {"loss, B - A": losses} | training


def _loss(figures):
    """Return the difference of B's loss to A's, in words what differs from the usual."""
    if figures.parity == "exact":
        return "identical"
    text = figures.loss_difference.text_with_verdict
    return f"{text}, {figures.parity}" if figures.parity == "model changed" else text


def _samples(sides, study):
    """Yield the ratio of times of a sample, if it is not the one of a step."""
    sizes = study.rows.groupby("technique").batch_size.last()
    for name, ratio in sides.ratios.items():
        a, b = sides.figures_a[name], sides.figures_b[name]
        more = sizes[b.name] / sizes[a.name]
        if ratio and more != 1:
            yield f"{name}: {ratio.text} a step, {ratio.value * more:.2f}x a sample"


def page(sides, study, share, in_file):
    """Return the table with captions. study: the Study of all rows. in_file: as Markdown."""
    headline = f"Slower in B by more than {share:.1%}: {', '.join(slower(sides, share)) or 'none'}."
    training = f"Trains something else in B, or worse: {', '.join(trains_other(sides)) or 'none'}."
    caption = (
        f"B over A: {sides.measure} in turns. {intervals.MEANING}. First steps are of the first "
        "round, which began with empty compile caches."
    )

    texts = columns(sides, study)
    more = {title: texts.pop(title) for title in [*texts][NARROW:]}
    parts = [
        study.disturbance,
        texts,
        headline,
        training,
        *_samples(sides, study),
        {"script": texts["script"], **more},
        "\n".join(f"- {line}" for line in sides.described),
        caption,
        study.left_out,
        "\n".join(f"- {name}: {note}" for name, note in sides.notes.items() if note),
    ]
    return text_tables.page(parts, in_file)
