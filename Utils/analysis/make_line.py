"""The make command that repeats the runs of some rows."""

import re
import shlex

from Utils.base import command_line
from Utils.results import selection
from Utils.scripts import ladder, own_names

SETTINGS = ("BATCH_SIZE", "SEQ_LEN", "MODEL", "DATASET", "STEPS", "WARMUP", "MIN_SECONDS")


def given_settings(rows, records):
    """Return the settings in the command of the newest timed run, by the names of the Makefile's
    variables; none without its record."""
    newest = rows.run_id[rows.status == "ok"].max()
    words = " ".join(map(str, records.get(newest, {}).get("command") or ()))
    settings = {
        flag.upper().replace("-", "_"): value
        for flag, value in re.findall(r"--([a-z-]+)[= ](\S+)", words)
    }
    return {name: settings[name] for name in SETTINGS if name in settings}


def target(rows):
    """Return the target of the Makefile that runs the scripts of these rows."""
    in_beyond = {own_names.last(name) for name in rows.technique.unique()} & ladder.beyond()
    name = "everything" if in_beyond else "all"
    if selection.variants_in(rows):
        name = "ablate"
    base = selection.baseline(rows)
    return name if base == ladder.BASELINE else f"{name} BASE={base}"


def changed(settings):
    """Return the settings that are not the default, quoted for a shell."""
    defaults = command_line.defaults()
    return {
        name: shlex.quote(str(value))
        for name, value in settings.items()
        if value is not None and str(value) != str(defaults[name.lower()])
    }


def make_line(target, settings):
    """Return make with that target and the settings that are not the default."""
    assignments = [f"{name}={value}" for name, value in changed(settings).items()]
    return " ".join(["make", target, *assignments])
