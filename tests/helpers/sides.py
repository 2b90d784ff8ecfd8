"""A repository whose scripts take turns as ours do, and train nothing: they start in no time."""

import numpy as np

from tests.helpers.checkouts import commit, copy, git
from tests.helpers.own_scripts import fork_runs
from tests.helpers.rows import frame, rows_of
from tools.pair import side_runs, sides, verdict
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.results import study

SCRIPT = '''"""A script that trains nothing.

Parent: PARENT
"""
import json, math, os, sys
from datetime import UTC, datetime
from pathlib import Path

from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.harness import turn_pipe
from Utils.results import rows_file
from Utils.scripts.identity import identity_from_environment

MS, LOSS = 100, 5.0

args = Parser("script", "", *RUN_SETTINGS).parse_args()
turn = turn_pipe.current_turn()
left = args.steps
while turn and left > 0:
    steps, most = turn.wait(left=left, pace_s=0.5, peak_mib=1, free_mib=9e4)
    left = min(left, most) - steps
name = Path(sys.argv[0]).stem
run_id = rows_file.run_id(datetime.now(UTC), turn and turn.token)
identity = identity_from_environment(name)
row = dict.fromkeys(rows_file.COLUMNS) | identity.place | {
    "run_id": run_id, "base": "no_optimization", "technique": identity.label, "round": args.round,
    "seed": args.seed, "status": "ok", "batch_size": 1, "requested_batch_size": 1, "seq_len": 8,
    "unit": "tokens", "model": args.model, "dataset": "text", "world_size": 1, "device": "A CPU",
    "torch": "0", "commit": identity.columns["commit"], "grade": "clean", "first_step_s": MS / 100,
    "peak_memory_mib": 10 * MS,
}
rows = []
for step in range(args.steps):
    ms = MS * (1 + 0.002 * math.sin(MS + step + 7 * args.seed))
    phase = "warmup" if step < args.warmup else "timed"
    rows.append(row | {"step": step, "phase": phase, "step_ms": ms, "data_ms": 0, "loss": LOSS})
folders = [os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
settings = {"steps": args.steps}
record = {"run_id": run_id, "suite_id": os.environ["SUITE_ID"], "settings": settings,
          "technique": identity.label, "folders": folders, **identity.record}
rows_file.append(args.results_file, rows, record)
'''
CHANGED = "beyond/fast/fused_optimizer.py"  # started by the name of its module


OWN = ("ARGS=log.txt", "DEVICE=cpu", "STEPS=6", "WARMUP=3", "ROUNDS=2", "BASE=mine/train.py")


def use_cache(monkeypatch, folder):
    """Start in a folder, and let all that is kept between commands lie there."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(paths, "CACHE", folder / "cache")
    monkeypatch.setattr(side_runs, "KERNELS", folder / "cache" / "kernels")
    for module in (sides, side_runs):
        monkeypatch.setattr(module, "FOLDER", folder / "cache" / "pair")


def users_repository(folder, monkeypatch, source):
    """Make a repository with train.py in a folder, whose runs are forks. Return its folder."""
    fork_runs(monkeypatch, folder)
    use_cache(monkeypatch, folder)
    mine = folder / "mine"
    mine.mkdir()
    (mine / "train.py").write_text(source)
    commit(mine)
    return mine


def change(folder, old, new, name=CHANGED):
    """Replace a text in a file of a repository, and commit it."""
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    git(folder, "commit", "-qam", f"{old} is {new}")


def repository(folder):
    """Make a repository with a copy of Utils and two scripts in a folder. Return the folder."""
    copy(folder, "Utils")
    (folder / "no_optimization.py").write_text(SCRIPT.replace("PARENT", "none"))
    (folder / "beyond" / "fast").mkdir(parents=True)
    (folder / CHANGED).write_text(SCRIPT.replace("PARENT", "no_optimization"))
    commit(folder)
    return folder


def comparison(times, losses=5.0, grade="clean", b=None, record=None):
    """Return (TwoSides, Summary) of simulated rounds. times, losses: of A, B by round.

    b: columns of B's rows. record: of each run, if there are records.
    """
    runs = []
    records = {}
    losses = np.broadcast_to(losses, np.shape(times))

    for index, (name, parent) in enumerate((("x@A", ""), ("x@B", "x@A"))):
        place = {"suite": "pair", "parent": parent, "change": "", "grade": grade}
        for r in range(len(times)):
            steps = [900, 900, *[times[r][index]] * 5]
            place |= {"loss": losses[r][index], "round": r, "run_id": f"2026T{index}-{r}"}
            runs.append(rows_of(name, steps, **place, **(b or {} if parent else {})))
            if record:
                records[place["run_id"]] = record(parent, r) | {"run_id": place["run_id"]}
    summary = summarize(study.of_group(frame(runs), [], records))
    return verdict.both_sides(summary, {"x": ("x@A", "x@B")}), summary


def noisy(number, ratio, rounds=6, noise=0.02):
    """Return step times of A and B by round, by a machine that drifts."""
    random = np.random.default_rng(number)
    machine = np.exp(random.normal(0, 0.2, (rounds, 1)))
    return 100 * machine * np.exp(random.normal(0, noise, (rounds, 2))) * [1, ratio]
