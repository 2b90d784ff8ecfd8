"""Why a script cannot be recommended, decided once for tables, charts, pages and the recipe."""

from Utils.analysis.figures import ScriptFigures
from Utils.base.errors import UserError
from Utils.results.study import Study
from Utils.scripts import variants

# Needs of scripts that gain a wait for the device: on a CPU, which has none, they have no effect.
WAITS = {"device_queue", "copy_engine", "device_memory", "cuda_graphs"}


def problem_of(script: ScriptFigures, base: ScriptFigures | None, chosen: Study) -> str:
    """Return why a script or variant of a study cannot be recommended, or "".

    base: the script that its speedup is over, None if that was not run.
    """
    if script.status != "ok":
        return script.reason
    if script.failure:
        return script.failure
    if chosen.is_ours:
        try:
            variants.find(script.name, chosen.ladder)
        except UserError:  # its merges conflict since a script was edited
            return "its script can no longer be made"

    on_cpu = chosen.all_rows.reserved_memory_mib.isna().all()
    if on_cpu and _gains_a_wait(chosen, script.name):
        return "no effect here"
    if base is None or base.status != "ok":
        return f"not measured with {script.base}"
    if script.training_problem:
        return script.training_problem
    return "" if script.is_timed else script.quality


def _gains_a_wait(chosen, name):
    """Return whether a script adds a technique that gains a wait for the device.

    For a variant without a technique, look at what its parent adds.
    """
    if chosen.leaves_out(name):
        name = chosen.parent(name)
    scripts = chosen.ladder.scripts

    for sign, technique in chosen.change(name):
        script = scripts.get(technique)
        if sign == "+" and script:
            before = scripts[script.parent].needs if script.parent else ()
            if WAITS.intersection(script.needs).difference(before):
                return True
    return False
