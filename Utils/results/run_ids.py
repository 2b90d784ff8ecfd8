"""Names of runs: when each started, and the group of runs with which it took turns."""

import secrets


def new_group():
    """Return a name for runs that take turns, of 8 hexadecimal digits."""
    return secrets.token_hex(4)


def run_id(started, group):
    return f"{started:%Y%m%dT%H%M%S.%fZ}-{group}"


def groups_of(run_ids):
    """Return the group of each run_id of a Series."""
    return run_ids.map({run_id: run_id.rpartition("-")[2] for run_id in run_ids.unique()})
