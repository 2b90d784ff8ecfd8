"""The make command that repeats the runs of a study."""

import re
import shlex

from Utils.base import command_line
from Utils.results.study import Study

# Settings of a run that are repeated if its command has them.
REPEATED = ("rounds", "batch_size", "seq_len", "model", "dataset", "steps", "warmup", "min_seconds")


def make_command(chosen: Study, rounds: int, target: str = "") -> str:
    """Return the make command that repeats the runs of a study with the newest one's settings.

    target: with its settings; by default the one that runs the study's scripts.
    """
    words = ["make", target or _target(chosen)]

    rows = chosen.all_rows
    newest = chosen.records.get(rows.run_id[rows.status == "ok"].max(), {})
    command = " ".join(map(str, newest.get("command") or ()))
    settings = dict(re.findall(r"--([a-z-]+)[= ](\S+)", command)) | {"rounds": str(rounds)}
    for name in REPEATED:
        default = str(command_line.RUN_SETTINGS[name].default)
        value = settings.get(name.replace("_", "-"), default)
        if value != default:
            words.append(f"{name.upper()}={shlex.quote(value)}")
    return " ".join(words)


def _target(chosen):
    """Return the target of make that runs the scripts of a study, with its base."""
    target = "everything" if chosen.beyond() else "all"
    if chosen.names("ablation"):
        target = "ablate"
    return target if chosen.is_ours else f"{target} BASE={chosen.base}"
