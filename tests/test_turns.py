"""Runs that take turns: who trains when, what is left when one ends."""

import json
import os
import socket
import sys
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from Utils.base import paths
from Utils.harness.turn_pipe import Turn
from Utils.launch import turn_taking
from Utils.launch.turn_taking import SuiteProgress

PLAYER = """
import json, os, sys, time
from Utils.harness import turn_pipe

name, log, left, free_mib, ends_after, code = json.loads(sys.argv[1])
turn = turn_pipe.current_turn()
if name == "b" and os.fork() == 0:  # it leaves a process that holds its end of the socket
    time.sleep(9999)
if ends_after == 0:
    sys.exit(code)
number = 0
while left:
    steps, most = turn.wait(left=left, pace_s=0.01, peak_mib=1000, free_mib=free_mib)
    left = min(left, most)
    number += 1
    start = time.monotonic()
    time.sleep(0.02)
    with open(log, "a") as file:
        file.write(json.dumps([name, start, time.monotonic(), min(steps, left)]) + "\\n")
    left -= min(steps, left)
    if number == ends_after:
        time.sleep(code) if code > 100 else sys.exit(code)
print(name, "has printed this")
print(f"W1125 10:00:00.1 {os.getpid()} torch/a.py:7] a warning of all")
"""


def schedule_of(steps):
    return Mock(
        minutes=1,
        deadline=9e9,
        runs_left=lambda: 1,
        seconds_left=lambda group_s: 60,
        steps=lambda: steps,
    )


@pytest.fixture
def play(tmp_path, capsys):
    """Has stand-ins take turns. Returns exit codes, whether memory was full, (name, start, end,
    steps) of each turn, and the lines of progress.
    """

    def play(names, free_mib=90_000, left=900, minutes=1, schedule=None, **ends):
        log = tmp_path / "log"
        log.write_text("")
        shared = {"python": sys.executable, "environment": paths.environment, "needs": ()}
        techniques = []
        for name in names:
            words = json.dumps([name, str(log), left, free_mib, *ends.get(name, (-1, 0))])
            facts = shared | {"name": name, "label": name, "command": ["-c", PLAYER, words]}
            techniques.append(SimpleNamespace(**facts))

        progress = SuiteProgress(schedule or schedule_of(900))
        progress.next(0, "")
        codes, full = turn_taking.run(techniques, [], "suite", minutes, progress)
        turns = [json.loads(line) for line in log.read_text().splitlines()]
        return codes, full, turns, capsys.readouterr().err

    return play


def test_turns_last_a_second_and_reverse_every_other_time(play):
    """README: "A script and the one before run alternately, a second each". METHOD: "A run has an
    even number of turns"; "Every second turn and round the order is reversed".
    """
    codes, full, turns, progress = play("abc")
    assert codes == {"a": 0, "b": 0, "c": 0} and not full

    order = "".join(name for name, *_ in turns)
    assert order == "abccba" * 4
    assert all(end <= start for (_, _, end, _), (_, start, _, _) in pairwise(turns))
    steps = [turn[-1] for turn in turns]
    assert steps[::3] == steps[1::3] == steps[2::3] and sum(steps) == 2700
    assert steps[0] == 113  # 900 steps of 10 ms
    assert progress.count("has printed this") == 3 and progress.count("a warning of all") == 1


def test_turns_stop_at_free_memory(play):
    """METHOD: "Up to four scripts take turns"."""
    codes, full, turns, _ = play("ab", free_mib=1761)
    assert codes == {"a": 0} and full
    assert [(name, steps) for name, _, _, steps in turns] == [("a", 900)]  # in one go
    assert [*play("ab", free_mib=1763)[0]] == ["a", "b"]
    codes, full, *_ = play("abcde", left=3)
    assert [*codes] == ["a", "b", "c", "d"] and not full


# A player, the turn after which it ends, its exit code, minutes, the steps of a, and all codes.
# The second has impossible settings, which is said once; the last one hangs until the time-out.
ENDS = """\
b 2 7    1    900 {'a': 0, 'b': 7}
a 0 2    1    0   {'a': 2}
b 1 1000 0.03 113 {'a': None, 'b': None}
"""


@pytest.mark.parametrize("line", ENDS.splitlines())
def test_turns_go_on_without_a_run_that_ends(line, play):
    """DESIGN: "What cannot run says why, and stops nothing else"."""
    name, after, code, minutes, steps, codes = line.split(maxsplit=5)
    ends = {name: (int(after), int(code))}
    ended, _, turns, _ = play("ab", minutes=float(minutes), **ends)
    assert str(ended) == codes
    assert sum(turn[-1] for turn in turns if turn[0] == "a") == int(steps)


@pytest.mark.parametrize("steps, turns", [(9, [9]), (14, [7, 7]), (27, [7, 7, 7, 6])])
def test_turns_are_four_if_they_have_five_steps(steps, turns, play):
    """METHOD: "four or more, if turns have at least five steps". The schedule learns of each start,
    and has the steps.
    """
    schedule = schedule_of(steps)
    _, _, taken, _ = play("ab", schedule=schedule)
    assert [steps for name, *_, steps in taken if name == "a"] == turns
    added = [(call.args[0], call.args[2]["left"]) for call in schedule.costs.add.mock_calls]
    assert added == [("a", 900), ("b", 900)]


def test_turn_ends_where_its_launcher_has_ended():
    end, launchers = socket.socketpair()
    launchers.close()
    with pytest.raises(KeyboardInterrupt):
        Turn(end.fileno(), os.getppid(), "0a1b").wait(left=3)
