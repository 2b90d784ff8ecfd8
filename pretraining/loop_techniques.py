"""Techniques of a run, and the loop with their diffs."""

import contextlib
import itertools
import re
import textwrap
import tomllib

from Utils.base import paths
from Utils.base.errors import Unsupported, UserError
from Utils.harness.settings import check_need
from Utils.results import rows_file
from Utils.scripts import diffs, ladder, variants

LOOP = paths.ROOT / "pretraining" / "train.py"
BEST = "all_together", "fused_optimizer"  # of the scripts; the second runs everywhere
RANKS = "distributed_data_parallel"  # merged in whenever there are several processes
TABLES = tomllib.loads(LOOP.with_name("loop_techniques.toml").read_text())
INCLUDED, EXCLUDED = TABLES["included"], TABLES["excluded"]  # reasons by technique
COMMENT = re.compile(r"\n *#.*")  # on lines of its own
# The loss scale of scripts in float16, and what they have without it: the loop has its own.
UNSCALED = {
    r"    scaler = .*\n": "",
    r"scaler\.scale\(loss\)": "loss",
    r"scaler\.step\(optimizer\).*\n *scaler\.update\(\)": "optimizer.step()",
}
# No script has anything like these lines: a merge that changes one has matched the wrong words.
OWN_LINES = (
    "    decay_matrices_only(optimizer, args.weight_decay)\n",
    "set_learning_rate(optimizer, learning_rate(step, args))\n",
)
SLOW_START = {"torch_compile", "max_autotune"}  # not worth their first step on a CPU


def choose(asked, args, results_file, scripts):
    """Return (names of techniques in ladder order, where they are from in words).

    asked: names, "none", or "" for those of the recipe for this device and model, or else of the
    best script as far as it runs here. scripts: Ladder of the device. Raises UserError.
    """
    if asked:
        names = [] if asked == "none" else re.split(r"[\s,+]+", asked.strip())
        return _checked(_instead(names, scripts), scripts), "asked for"
    names = _recipe(args, results_file, scripts)
    if names:
        return names, f"the recipe for {args.model} on {args.hardware.name}"

    script, fallback = BEST
    try:
        check(scripts.line(script), args, scripts)
    except Unsupported:
        (script,) = _instead([fallback], scripts)
    names = _usable(scripts.line(script), args, scripts)
    return names, f"of {script}, what has an effect here"


def _instead(names, scripts):
    """Return names with the scripts that take the place of others on this device."""
    return [scripts.replaced.get(name, name) for name in names]


def merged(names, scripts):
    """Return the loop with those techniques' diffs: a script's text. Raises UserError."""
    doc, code = ladder.split(LOOP.read_text())
    for n, name in enumerate(names):
        technique = scripts.get(name)
        sides = [scripts.get(technique.parent).code, technique.code]
        for scaled, unscaled in UNSCALED.items():
            sides = [re.sub(scaled, unscaled, side) for side in sides]
        bare = [COMMENT.sub("", side) for side in sides]  # the loop has other comments
        ways = itertools.product((sides, bare), (diffs.merge, diffs.merge_aligned))
        results = (merge(code, *change) for change, merge in ways)
        before = code
        fitting = (result for result in results if result and all(map(result.count, OWN_LINES)))
        code = next(fitting, None)
        if code == before:
            raise UserError(f"--with {name}: its diff changes nothing in the loop")
        if code is None:
            needed = variants.needs(name, scripts) or ()
            lacking = [need for need in needed if need not in names]
            hint = f"; name {' and '.join(lacking)} as well" if lacking else ""
            state = f"with {', '.join(names[:n])}" if n else "as it is"
            raise UserError(f"--with {name}: its diff does not apply to the loop {state}{hint}")
    if "torch.float16" in code:
        for line, scaled in TABLES["scaled"].items():
            code = code.replace(line, scaled)
    made = "\n\n" + textwrap.fill(f"Merged into it: {', '.join(names)}.", 100) if names else ""
    headline, _, body = doc.partition("\n")
    return f'"""{headline}{made}\n{body}"""{code}'


def _checked(names, scripts):
    techniques = scripts.scripts
    for name in names:
        if name not in techniques:
            remedy = f"choose {', '.join(techniques)}"
            raise UserError(f"--with {name}: no technique of that name", remedy)
        if name in INCLUDED:
            raise UserError(f"--with {name}: part of the loop: {INCLUDED[name]}")
        if misfit := techniques[name].misfit:
            raise UserError(f"--with {name}: {misfit}")
        if name in EXCLUDED:
            raise UserError(f"--with {name}: not for this loop: {EXCLUDED[name]}")
        if lacking := variants.declared(name, techniques) - {*names}:
            raise UserError(f"--with {name}: needs {' and '.join(sorted(lacking))}")
    return [name for name in techniques if name in names and techniques[name].parent]


def _recipe(args, results_file, scripts):
    """Return the recipe's techniques, as far as they run here.

    None if no rows are of this device and model.
    """
    if not rows_file.has_rows(results_file):
        return None
    # Here, as pandas and scipy take seconds, and a resumed run does not ask.
    from Utils.analysis.recommendation import recommend
    from Utils.analysis.summary import summarize
    from Utils.results import study

    rows = rows_file.read(results_file)
    same = (rows.device == args.hardware.name) & (rows.model == args.model)
    rows = rows[same & (rows.base == ladder.BASELINE)]
    if rows.empty:
        return None
    measured = study.newest(rows, results_file, with_ablation=True)
    recipe = recommend(summarize(measured)).fastest
    return recipe and _usable(_instead(recipe.techniques, scripts), args, scripts)


def _usable(names, args, scripts):
    """Return those of the techniques that this loop takes and this device supports."""
    techniques = scripts.scripts
    kept = []
    for name in techniques:
        slow = name in SLOW_START and args.device.type == "cpu"
        if name not in names or name in INCLUDED | EXCLUDED or slow or not techniques[name].parent:
            continue
        with contextlib.suppress(UserError, Unsupported):
            if not check([name], args, scripts):
                merged([*kept, name], scripts)
                kept.append(name)
    return kept


def check(names, args, scripts):
    """Return what limits techniques on this device, in words. Raises Unsupported."""
    techniques = scripts.scripts
    notes = []
    for name in names:
        if techniques[name].misfit:
            raise Unsupported(techniques[name].misfit)
        parent = techniques.get(techniques[name].parent)
        needs = set(techniques[name].needs) - set(parent.needs if parent else ())
        notes += [check_need(need, args) for need in needs]
    return list(filter(None, notes))
