"""Changes of a script: what may be one, what is kept, where time hides, answers for programs."""

import json
import re
from collections import Counter

import pytest

from tests.helpers import sides as fixture
from tests.helpers.checkouts import git
from tests.helpers.own_scripts import script
from tests.helpers.rows import REPOSITORY, records_in
from tools.own_script.training_verdict import IDENTICAL
from tools.pair import __main__ as pair_command
from tools.pair import outside_steps, sides, verdict
from tools.pair.verdict import FAILED, Judgement, not_measured
from Utils.analysis.intervals import Ratio
from Utils.base import paths
from Utils.base.child import INTERRUPTED
from Utils.base.errors import UserError
from Utils.launch import suite_runner, turn_taking

PAGE = (paths.ROOT / "docs/JUDGE.md").read_text()
# A clock that the script replaces, and steps that take long enough to be compared.
SOURCE = "import threading, time\ntime.perf_counter = lambda: 0.0\n" + script(
    after="time.sleep(0.02)"
)


def simulated(seed, ratio, rounds=8, peak_b=900, **quality_b):
    """Return (TwoSides, Summary) of a change by simulated rounds. quality_b: of B's records."""

    def record(parent, r):
        quality = {"before_s": 5 + r % 2, "beside_cpu_s": 3.0, "after_s": 0.0, "clock_s": 10.0}
        quality |= {key: quality[key] + s for key, s in quality_b.items() if parent}
        return {"quality": quality, "side": {"is_patch": True}}

    times = fixture.noisy(seed, 1 / ratio, rounds, noise=0.01)
    return fixture.comparison(times, b={"peak_memory_mib": peak_b}, record=record)


def answer(both, summary, training=IDENTICAL):
    """Return the answer on a simulated change of that training."""
    both.figures_b["x"].training.update({"kind": training, "reasons": []})
    (answer,) = verdict.answers(Judgement(both, summary.study, tried=3), 0.03)
    return answer


def test_changes_that_do_nothing_are_not_kept_and_faster_ones_are():
    """JUDGE: "the probability of any wrong verdict among fifty changes is at most 5%"."""
    of_nothing = [answer(*simulated(seed, 1.0, rounds)) for seed in range(15) for rounds in (4, 8)]
    assert True not in [answer["keep"] for answer in of_nothing]
    faster = [answer(*simulated(seed, 1.1)) for seed in range(5)]
    assert [answer["keep"] for answer in faster] == [True] * 5


# Ratio, peak of B (A has 900 MiB), whether it is kept, and the training. A memory of 895 MiB is
# less by too little to matter.
WORTH = """\
1.1 900 True  same up to rounding (bfloat16)
1.1 900 False other
1.1 900 None  not told
1.1 900 None  neither trained
0.9 800 False identical
1.0 800 True  identical
1.0 895 False identical
"""


@pytest.mark.parametrize("line", WORTH.splitlines())
def test_answer_says_whether_a_change_is_worth_keeping(line):
    """JUDGE: "faster, or less memory without being slower, and the training is identical"."""
    ratio, peak_b, keep, training = line.split(maxsplit=3)
    change = simulated(1, float(ratio), peak_b=int(peak_b))
    assert str(answer(*change, training)["keep"]) == keep


def test_answer_is_null_before_an_interval_decides():
    wide = Ratio(1.0, 0.9, 1.1)
    assert verdict.keep(wide, Ratio(1.1, 1.1, 1.1), IDENTICAL, 0.03) is None


def test_answer_has_the_fields_that_its_page_lists():
    """JUDGE: its table of fields."""
    documented = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    (refused,) = verdict.answers(not_measured("a.patch", "no"), 0.03)
    assert [*refused] == documented == [*answer(*simulated(0, 1.1))]
    assert refused["keep"] is False and refused["note"] == "no"


@pytest.mark.parametrize(
    "hidden, words",
    [
        ({"before_s": 2.0}, r"before the first timed step: \S+ s for \S+ s, 20% of the time"),
        ({"beside_cpu_s": 2.0}, r"in other threads and processes \(CPU time\): 5 s for 3 s, 20%"),
        ({"after_s": 2.0}, "on the device after the last boundary: 2 s for 0 s, 20% of"),
        ({"before_s": 0.2, "beside_cpu_s": 0.2, "after_s": 0.2}, ""),
    ],
)
def test_time_outside_of_the_steps_is_printed_if_it_grows_by_3_percent(hidden, words):
    """JUDGE: "printed if it grows by more than 3% of the steps' time"."""
    both, summary = simulated(0, 1.0, **hidden)
    texts = outside_steps.growths(summary, both)["x"]
    assert len(texts) == bool(words) and re.match(words, "".join(texts)), texts


def write_patch(file, folder, name, old, new):
    """Write a patch to a file that replaces a text in a file of a repository."""
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace(old, new))
    file.write_text(git(folder, "diff"))
    (folder / name).write_text(text)


RULER = "Utils/harness/turn_pipe.py"
SEED = "torch.manual_seed(7)"
BURN = """\
def burn():
    while True:
        sum(range(1000))
threading.Thread(target=burn, daemon=True).start()"""
CHANGES = {
    "1_comment": f"{SEED}  # the seed",
    "2_burns": f"{BURN}\n{SEED}",
    "3_crashes": f"{SEED}\n1 / 0",
    "4_prepares": f"time.sleep(1.5)\n{SEED}",
    "5_prepares_too": f"time.sleep(1.5)\n\n{SEED}",
}


@pytest.mark.slow
def test_changes_are_judged_one_after_the_other(tmp_path, monkeypatch, capfd):
    """JUDGE: "No file of yours is touched", "After a kill the same command continues", "has the
    code of an earlier change, gets the known verdict at once", "replacing `time.perf_counter`
    changes nothing", "once more, with new runs, and prints that figure alone".
    """
    folder = fixture.users_repository(tmp_path, monkeypatch, SOURCE)
    ideas = tmp_path / "ideas"
    ideas.mkdir()
    for name, new in CHANGES.items():
        write_patch(ideas / f"{name}.patch", folder, "train.py", SEED, new)
    fitting = (ideas / "1_comment.patch").read_text()
    (ideas / "6_unfit.patch").write_text(fitting.replace(f"-{SEED}", "-torch.manual_seed(8)"))

    # Killed during its first change that is measured, and started again.
    words = "B=ideas/*.patch", "JSON=1", *fixture.OWN, "ROUNDS=4"
    run_forks = turn_taking.run
    calls = iter([run_forks, run_forks, lambda *_: ({"train@A": INTERRUPTED}, False)])
    monkeypatch.setattr(turn_taking, "run", lambda *words: next(calls)(*words))
    with pytest.raises(SystemExit):
        pair_command.main(*words)
    monkeypatch.setattr(turn_taking, "run", run_forks)
    capfd.readouterr()
    assert pair_command.main(*words) == 1  # two were not judged
    said = capfd.readouterr()
    assert "resuming: 4 of 8 runs" in said.err

    answers = {a["change"][6:-6]: a for a in map(json.loads, said.out.splitlines())}
    assert [*answers] == [*CHANGES, "6_unfit"] and not any(a["keep"] for a in answers.values())
    comment, burns, crashes, prepares, as_before, unfit = answers.values()
    assert comment["same_code_as"] == "train.py" and comment["training"]["verdict"] == "identical"
    assert burns["time"]["a_ms"] > 20
    cpu_s = Counter()
    for record in records_in(tmp_path):
        cpu_s[record["side"]["text"]] += record["quality"]["beside_cpu_s"]
    assert cpu_s["ideas/2_burns.patch"] > cpu_s["ideas/4_prepares.patch"]
    assert "ZeroDivisionError" in crashes["note"]
    assert "before the first timed step" in prepares["outside_steps"][0]
    assert as_before["same_code_as"] == "ideas/4_prepares.patch"
    assert as_before["time"] == prepares["time"] and as_before["tried"] == 2
    assert "patch failed: train.py" in unfit["note"]
    assert (folder / "train.py").read_text() == SOURCE

    # As a table, all of it known. Nothing is worth another measurement, until it is said to be.
    monkeypatch.setattr(turn_taking, "run", None)
    words = "B=ideas/[1245]*.patch", *fixture.OWN, "ROUNDS=4"
    assert pair_command.main(*words) == 0
    said = capfd.readouterr().out
    assert "2 changes tried" in said and "99.9% interval" in said
    with pytest.raises(SystemExit):
        pair_command.main(*words, "AGAIN=1")
    assert capfd.readouterr().out.endswith("no change is worth keeping\n")
    monkeypatch.setattr(turn_taking, "run", run_forks)
    monkeypatch.setattr(verdict, "keep", lambda ratio, *_: ratio.value > 0)
    pair_command.main(*words, "AGAIN=1", "JSON=1")
    (again,) = map(json.loads, capfd.readouterr().out.splitlines())
    assert again["time"] != prepares["time"]


def test_patch_of_our_script_runs_in_place_of_its_file(tmp_path, monkeypatch, capsys):
    """JUDGE: "A patch of our scripts may change that script alone"."""
    folder = fixture.repository(tmp_path / "repository")
    monkeypatch.setattr(suite_runner, "ladder_of_device", lambda args: REPOSITORY)
    monkeypatch.setattr(paths, "ROOT", folder)
    fixture.use_cache(monkeypatch, tmp_path)
    for name, old, new in ((fixture.CHANGED, "LOSS = 100", "LOSS = 80"), (RULER, "2", "3")):
        write_patch(tmp_path / f"{old}.patch", folder, name, old, new)

    words = "STEPS=6", "WARMUP=2", "MODEL=gpt2-tiny", "ROUNDS=4", "JSON=1"
    assert pair_command.main("B=LOSS = 100.patch", *words) == 0
    (judged,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert judged["keep"] is True and judged["time"]["a_over_b"] == pytest.approx(1.25, rel=0.01)
    assert judged["training"]["verdict"] == IDENTICAL and judged["memory"]["verdict"] == "less"
    assert pair_command.main("B=2.patch", *words) == FAILED
    (refused,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert re.search(r"a patch may change \S*fused_optimizer.py alone", refused["note"])


@pytest.mark.parametrize(
    "words, line",
    [
        ("B=none*", r"B=none\*: there is no such file"),
        ("B=none.patch", "B=none.patch: there is no such file"),
        ("A=main B=a.patch", "B=a.patch: is a change, so A is the script as it is; leave A out"),
        ("A=main B=HEAD AGAIN=1", "AGAIN measures a change once more; name it, as in B=idea.patch"),
    ],
)
def test_change_is_refused_in_one_line(words, line, tmp_path, monkeypatch):
    fixture.use_cache(monkeypatch, tmp_path)
    (tmp_path / "a.patch").touch()
    with pytest.raises(UserError, match=line):
        pair_command.main(*words.split())


def test_script_of_another_folder_is_no_change(tmp_path):
    (tmp_path / "other.py").touch()
    with pytest.raises(UserError, match="other.py: is not in the folder of /mine/train.py; give a"):
        sides.texts_of(str(tmp_path / "other.py"), "/mine/train.py")
