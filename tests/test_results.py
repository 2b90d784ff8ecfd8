import fcntl
import math
import os
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pandas
import pytest

from tests.fakes import full_disk
from Utils import results
from Utils.errors import UserError

ROOT = Path(__file__).resolve().parent.parent

# What a run of n steps records, for this process and for others.
MAKE_RUN = """
def make_run(run_id, n=25, **changed):
    row = dict.fromkeys(results.COLUMNS) | {
        "run_id": run_id, "round": 0, "technique": "no_optimization", "status": "ok",
        "phase": "timed", "step_ms": 12.3456, "data_ms": 0.5, "loss": 10.825, "batch_size": 16,
        "seq_len": 1024, "model": "gpt2", "dataset": "stdlib", "world_size": 1, "device": "a GPU",
        "torch": "2.13.0", "commit": "abc1234", "first_step_s": 1.25, "peak_memory_mib": 2048.5,
    }
    return [row | {"step": step} | changed for step in range(n)]
"""
exec(MAKE_RUN)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.csv"


@pytest.fixture
def filled(path):
    results.append(path, make_run("a", 3))  # noqa: F821
    return path
