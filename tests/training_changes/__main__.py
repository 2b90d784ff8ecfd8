"""Judge the changes of this folder.

    python -m tests.training_changes [WORD...]

Writes docs/training_changes.csv, a line a change. With words, only those change whose path has one
of them.
"""

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pandas as pd

from tools.own_script import own_runs, script_patch
from tools.own_script.__main__ import SETTINGS
from tools.own_script.own_runs import OwnRuns, OwnScript
from tools.own_script.training_check import TrainingCheck, text_of
from Utils.base import paths
from Utils.base.command_line import Parser
from Utils.launch.schedule import Schedule

FOLDER = Path(__file__).parent
FILE = paths.ROOT / "docs/training_changes.csv"
ARGUMENTS = {
    "small_language_model": "--steps 20",
    "small_vision": "",
    "language_model": "--epochs 1 --width 16",
    "vision": "--epochs 2",
    "gan": "40",
}
AT_DROPOUT_0 = "-at_dropout_0"  # end of names of changes that need none on both sides


def changes(*words):
    """Return the patches whose path has one of the words, by script and its arguments."""
    patches = defaultdict(list)
    for patch in sorted(FOLDER.glob("*/*.patch")):
        script = patch.name.partition("-")[0]
        path = str(patch.relative_to(FOLDER))
        if script in ARGUMENTS and (not words or any(word in path for word in words)):
            more = " --dropout 0" if patch.stem.endswith(AT_DROPOUT_0) else ""
            patches[script, ARGUMENTS[script] + more].append(patch)
    return patches


def judged(script, arguments, patches):
    """Yield each patch with the record of its Verdict."""
    file = paths.ROOT / f"examples/{script}.py"
    args = Parser("adopt", "", *SETTINGS).parse_args([f"BASE={file}", f"ARGS={arguments}"])

    with own_runs.inspected(args) as runs:
        check = TrainingCheck(OwnScript(runs), args, Schedule(args))
        for patch in patches:
            patched = script_patch.patched_files(str(patch), str(file))
            runs_of_patch = OwnRuns(replace(runs.base, patched=patched), args)
            try:
                runs_of_patch.take_inspection(runs)
                check.judge(OwnScript(runs_of_patch))
                yield patch, runs_of_patch.training[()]
            finally:
                runs_of_patch.close()


def main(*words):
    """Judge changes, and write their lines: all, or with words in place of the same changes'."""
    lines = []
    for (script, arguments), patches in changes(*words).items():
        for patch, training in judged(script, arguments, patches):
            change = [patch.parent.name, *patch.stem.split("-", 1)]
            lines.append([*change, training["kind"], text_of(training)])
            print(*lines[-1], sep="  ", flush=True)

    stored = pd.read_csv(FILE, keep_default_na=False)
    if not words:
        stored = stored[:0]
    keys = [*stored.columns[:3]]
    table = pd.concat([stored, pd.DataFrame(lines, columns=stored.columns)])
    table.drop_duplicates(keys, keep="last").sort_values(keys).to_csv(FILE, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
