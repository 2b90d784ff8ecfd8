"""The techniques of a run, and the loop with their diffs merged into it."""

import contextlib
import re
import textwrap
import tomllib

from Utils.base import paths
from Utils.base.errors import Unsupported, UserError, unknown
from Utils.harness.settings import check_need
from Utils.results import rows_file
from Utils.scripts import diffs, ladder, variants

LOOP = paths.ROOT / "pretraining" / "train.py"
FASTEST_SCRIPT = "all_together"
PORTABLE_SCRIPT = "fused_optimizer"  # runs on every device
RANKS = "distributed_data_parallel"  # merged if there are several processes
REASONS = tomllib.loads(LOOP.with_name("loop_techniques.toml").read_text())
INCLUDED = REASONS["included"]  # reasons by technique
EXCLUDED = REASONS["excluded"]
COMMENT = re.compile(r"\n *#.*")  # on lines of its own

# Lines of the loop by what they are in float16: the loss scale of many batches, and its state.
SCALED = {
    "    run = Run(args, model, optimizer, batches)\n": (
        "    scaler = torch.amp.GradScaler(args.device.type)\n"
        "    run = Run(args, model, optimizer, batches, scaler)\n"
    ),
    "(loss / args.accumulation).backward()  # gradients add up: their sum is the step's mean": (
        "scaler.scale(loss / args.accumulation).backward()  # their sum is the step's mean"
    ),
    "        gradient_norm = ": ("        scaler.unscale_(optimizer)\n        gradient_norm = "),
    "        optimizer.step()\n": (
        "        scaler.step(optimizer)  # after an overflow no update is made\n"
        "        scaler.update()\n"
    ),
}
# The loss scale of scripts in float16, and their lines without it: the loop has its own.
UNSCALED = {
    r"    scaler = .*\n": "",
    r"scaler\.scale\(loss\)": "loss",
    r"scaler\.step\(optimizer\).*\n *scaler\.update\(\)": "optimizer.step()",
}
# No script has these lines, so a merge that changes one has matched the wrong words.
KEPT_LINES = (
    "    decay_matrices_only(optimizer, args.weight_decay)\n",
    "set_learning_rate(optimizer, learning_rate(step, args))\n",
)
SLOW_START = {"torch_compile", "max_autotune"}  # not worth their first step on a CPU


def choose(asked, args, results_file, scripts):
    """Return (names of techniques in ladder order, their origin in words).

    asked: names, "none", or "". With "" they are those of the recipe for this device and model;
    without a recipe, those of the fastest script that this device supports. scripts: the Ladder of
    this device. Raises UserError.
    """
    if asked == "none":
        return [], "asked for"
    if asked:
        names = re.split(r"[\s,+]+", asked.strip())
        return _checked(_on_device(names, scripts), scripts), "asked for"

    names = _recipe(args, results_file, scripts)
    if names:
        return names, f"the recipe for {args.model} on {args.hardware.name}"

    script = FASTEST_SCRIPT
    try:
        check(scripts.lineage(script), args, scripts)
    except Unsupported:
        (script,) = _on_device([PORTABLE_SCRIPT], scripts)
    names = _usable(scripts.lineage(script), args, scripts)
    return names, f"of {script}, what has an effect here"


def _on_device(names, scripts):
    """Return names, replaced where another script takes a script's place on this device."""
    return [scripts.replaced.get(name, name) for name in names]


def merged(names, scripts):
    """Return the text of the loop with the diffs of techniques. Raises UserError."""
    doc, code = ladder.split(LOOP.read_text())
    for n, name in enumerate(names):
        changed = _merge(code, name, scripts)
        if changed == code:
            raise UserError(f"WITH={name}: its diff changes nothing in the loop")
        if changed is None:
            state = f"with {', '.join(names[:n])}" if n else "as it is"
            problem = f"WITH={name}: its diff does not apply to the loop {state}"
            raise UserError(problem, f"name what it builds on as well; see make diff T={name}")
        code = changed

    if "torch.float16" in code:
        for line, scaled in SCALED.items():
            code = code.replace(line, scaled)

    headline, _, body = doc.partition("\n")
    if names:
        headline += "\n\n" + textwrap.fill(f"Merged into it: {', '.join(names)}.", 100)
    return f'"""{headline}\n{body}"""{code}'


def _merge(code, name, scripts):
    """Return the loop's code with the diff of a technique, or None if the diff does not apply."""
    technique = scripts.get(name)
    parent_and_child = [scripts.get(technique.parent).code, technique.code]
    for scaled, unscaled in UNSCALED.items():
        parent_and_child = [re.sub(scaled, unscaled, script) for script in parent_and_child]
    without_comments = [COMMENT.sub("", script) for script in parent_and_child]

    # The loop has other comments than the scripts, so a diff may apply without them only.
    for change in (parent_and_child, without_comments):
        for merge in (diffs.merge, _merge_aligned):
            merged_code = merge(code, *change)
            if merged_code and all(line in merged_code for line in KEPT_LINES):
                return merged_code
    return None


def _merge_aligned(mine, base, theirs):
    """Merge as `diffs.merge` does, but by the longest common runs of words.

    git may match single words inside a long insertion.
    """
    words = diffs.apply_both(*map(diffs.WORD.findall, (mine, base, theirs)))
    return None if words is None else diffs.python_code(words)


def _checked(names, scripts):
    """Return the names in ladder order, without the base. Raises UserError for unusable ones."""
    techniques = scripts.scripts
    for name in names:
        if name not in techniques:
            raise unknown(f"WITH={name}: no technique of that name", name, techniques)
        if name in INCLUDED:
            raise UserError(f"WITH={name}: part of the loop: {INCLUDED[name]}")
        if techniques[name].misfit:
            raise UserError(f"WITH={name}: {techniques[name].misfit}")
        if name in EXCLUDED:
            raise UserError(f"WITH={name}: not for this loop: {EXCLUDED[name]}")
        lacking = variants.declared(name, techniques) - {*names}
        if lacking:
            raise UserError(f"WITH={name}: needs {' and '.join(sorted(lacking))}")
    return [name for name in techniques if name in names and techniques[name].parent]


def _recipe(args, results_file, scripts):
    """Return the recipe's techniques that this device supports.

    Return None without a recipe, or if no rows are from this device and model.
    """
    if not rows_file.has_rows(results_file):
        return None

    # pandas and scipy take seconds, and a resumed run does not need them.
    from Utils.analysis.recommendation import recommend  # noqa: PLC0415
    from Utils.analysis.summary import summarize  # noqa: PLC0415
    from Utils.results import study  # noqa: PLC0415

    rows = rows_file.read(results_file)
    comparable = (rows.device == args.hardware.name) & (rows.model == args.model)
    rows = rows[comparable & (rows.base == ladder.BASELINE)]
    if rows.empty:
        return None

    recipe = recommend(summarize(study.choose(rows, results_file))).fastest
    if recipe is None:
        return None
    return _usable(_on_device(recipe.techniques, scripts), args, scripts)


def _usable(names, args, scripts):
    """Return those of the techniques that this loop takes and this device supports."""
    unusable = {*INCLUDED, *EXCLUDED}
    if args.device.type == "cpu":
        unusable |= SLOW_START

    kept = []
    for name, technique in scripts.scripts.items():
        if name not in names or name in unusable or not technique.parent:
            continue
        with contextlib.suppress(UserError, Unsupported):
            if not check([name], args, scripts):
                merged([*kept, name], scripts)
                kept.append(name)
    return kept


def check(names, args, scripts):
    """Return the remarks on techniques that this device limits. Raises Unsupported."""
    techniques = scripts.scripts
    notes = []
    for name in names:
        if techniques[name].misfit:
            raise Unsupported(techniques[name].misfit)
        parent = techniques.get(techniques[name].parent)
        needs = set(techniques[name].needs) - set(parent.needs if parent else ())
        notes += [check_need(need, args) for need in needs]
    return list(filter(None, notes))
