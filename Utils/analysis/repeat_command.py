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
    if chosen.is_ours:
        command = " ".join(map(str, newest.get("command") or ()))
        settings = dict(re.findall(r"--([a-z-]+)[= ](\S+)", command))
    else:  # the words of its command are the script's
        words += newest.get("own_script", {}).get("settings") or [f"BASE={chosen.base}"]
        recorded = newest.get("settings", {})
        settings = {name: str(recorded[name]) for name in {"steps", "warmup"} & recorded.keys()}
    settings["rounds"] = str(rounds)
    for name in REPEATED:
        default = str(command_line.RUN_SETTINGS[name].default)
        value = settings.get(name.replace("_", "-"), default)
        if value != default:
            words.append(f"{name.upper()}={shlex.quote(value)}")
    return " ".join(words)


def _target(chosen):
    """Return the target of make that runs the scripts of a study."""
    if chosen.names("ablation"):
        return "ablate"
    return "everything" if chosen.beyond() else "all"
