"""The command that repeats the runs of a study."""

import shlex

from Utils.base import command_line, paths
from Utils.results.study import Study

# Settings of a run that are repeated if its command has them.
REPEATED = ("batch_size", "seq_len", "model", "dataset", "steps", "warmup", "min_seconds")


def make_command(chosen: Study, more: str = "ROUNDS=4", target: str = "") -> str:
    """Return the command that repeats the runs of a study with the newest one's settings.

    more: a setting that it has as well; by default as many rounds as an interval needs.
    target: with its settings; by default the one that runs the study's scripts.
    """
    words = [paths.COMMAND, target or _target(chosen)]

    rows = chosen.all_rows
    newest = chosen.records.get(rows.run_id[rows.status == "ok"].max(), {})
    if not chosen.is_ours:  # the words of its command are the script's
        script = newest.get("own_script", {}).get("settings") or [f"BASE={chosen.base}"]
        return " ".join([*words, *script, more])
    flags = [str(word) for word in newest.get("command") or ()][1:]
    settings, _ = command_line.Parser("", "", *REPEATED).parse_known_args(flags)
    for name in REPEATED:
        value = getattr(settings, name)
        if value != command_line.RUN_SETTINGS[name].default:
            words.append(f"{name.upper()}={shlex.quote(str(value))}")
    return " ".join([*words, more])


def _target(chosen):
    """Return the name of the command that runs the scripts of a study."""
    if chosen.names("ablation"):
        return "ablate"
    return "everything" if chosen.beyond() else "all"
