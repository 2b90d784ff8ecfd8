"""Several processes of one script at once: what counts of them, what is said, what is left."""

import re
from dataclasses import replace

import numpy as np
import psutil
import pytest

from tools.together import __main__ as together_command
from tools.together import at_once, rates
from tools.together.at_once import ProcessFailed, ProcessResult
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.launch.turn_taking import Member
from Utils.scripts import ladder

FLAGS = ["--model=gpt2-tiny", "--steps=6", "--warmup=2", "--dataset=synthetic", "--device=cpu"]
PART = ProcessResult(
    began=100.0, step_s=np.array([1.0, 1.0, 2.0]), tokens=64, peak_mib=300.0, record={}
)


def left():
    """Those of the processes that are there, in the order of their start."""
    processes = psutil.process_iter(["cmdline"])  # a zombie has none
    return [p for p in processes if "/together-" in " ".join(p.info["cmdline"] or ())]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The scratch of these tests alone; tokens and the like are where they are."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    yield tmp_path / "cache"
    assert not list((tmp_path / "cache").iterdir())


def test_together_only_the_time_in_which_all_train_counts():
    assert rates.tokens_per_second([PART]) == pytest.approx([3 * 64 / 4])
    late = replace(PART, began=101.5, step_s=np.array([0.5, 5.0]), tokens=10)
    # from 101.5 to 104: half of a step and a whole one, against a whole one and 2 of 5 seconds
    values = rates.tokens_per_second([PART, late])
    assert values == pytest.approx([96 / 2.5, 14 / 2.5])


def test_together_rounds_are_compared_in_pairs():
    slower = [replace(PART, step_s=PART.step_s * factor) for factor in (1.6, 1.7, 1.8)]
    ratio = rates.compare([[PART]] * 3, [[part, part] for part in slower])
    assert ratio.value == pytest.approx(2 / (1.6 * 1.7 * 1.8) ** (1 / 3))
    assert ratio.verdict == "faster" and ratio.low > 1
    pytest.raises(UserError, rates.tokens_per_second, [PART, replace(PART, began=104)])


@pytest.mark.slow
def test_together_two_are_measured_and_leave_no_rows(cache, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.chdir(tmp_path)
    assert together_command.main("T=no_optimization", "--n=2", *FLAGS, "--steps=52") == 0

    said = capsys.readouterr().out
    alone, pair = re.findall(r"\| +(\d) \| +(\d) \| +([\d,]+)(?: \+ [\d,]+)? \| +([\d,]+) \|", said)
    assert (alone[:2], pair[:2]) == (("1", "2"), ("2", "1"))
    sums = [int(line[3].replace(",", "")) for line in (alone, pair)]
    ratio = re.search(r"2 processes reach ([\d.]+)x the tokens per second", said)
    assert float(ratio[1]) == pytest.approx(sums[1] / sums[0], rel=0.05)
    assert "inconclusive; measure more" in said and not [*left(), *tmp_path.glob("results.*")]


def kill_the_second():
    for late in left()[1:]:
        late.kill()


def interrupt():
    assert len(left()) == 2
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "event", "error", "reason"),
    [
        (5, kill_the_second, ProcessFailed, "process 2 .* failed: killed by SIGKILL"),
        (0, list, ProcessFailed, "process 1 of 2: failed: ended after the time-out"),
        (1, interrupt, KeyboardInterrupt, ""),
    ],
)
def test_together_process_at_fault_is_named_and_all_are_ended(
    minutes, event, error, reason, cache, monkeypatch
):
    listen = Member.listen
    monkeypatch.setattr(Member, "listen", lambda member, end: event() or listen(member, end))
    with pytest.raises(error, match=reason):
        at_once.at_once(ladder.get("no_optimization"), 2, FLAGS, minutes)
    assert not left()


def test_together_refuses_what_cannot_be():
    for words, said in (
        ([], "no technique is named; give one, as in T="),
        (["T=no_optimization", "--warmup=0"], "--warmup 0"),
    ):
        with pytest.raises(UserError, match=said):
            together_command.main(*words)
