"""Two results compared: the printed page, selection by words, recorded differences, the chart."""

import re
from pathlib import Path

import pytest

from tests.helpers.rows import append_run
from Utils.commands import __main__ as commands

OLD = {"torch": "2.11.0", "commit": "0000aaa"}
RECORD = {
    "started": "2026",
    "settings": {"steps": 50, "batch_size": 1},
    "variables": {"OMP_NUM_THREADS": "8"},
    "device": {"name": "Test GPU", "driver": "580.1"},
}
RECORD_OF_B = {
    "settings": {"steps": 100, "batch_size": 4},
    "variables": {},
    "device": {"name": "B GPU", "driver": None},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def compared(capsys):
    """Compares a.csv and b.csv. Returns the printed text without blanks that align it."""

    def compared(*flags):
        commands.main("compare", "A=a.csv", "B=b.csv", *flags)
        return re.sub(" +", " ", capsys.readouterr().out).replace(r" \| ", "|")

    return compared


def write(path, technique, medians, record=None, **columns):
    """Append a run a round with these median step times, from which their means differ."""
    for r, ms in enumerate(medians):
        steps = [999, 999, ms * 0.99, ms, ms * (2 + r)]
        of_run = {"technique": technique} | record if record else None
        append_run(path, technique, steps, of_run, round=r, **columns)


def test_compare_prints_and_draws_ratios_sides_and_differences(compared):
    """METHOD: "tokens per second are compared by Welch's t [...] All recorded conditions that
    differ are listed".

    B has eight times the tokens a step; the ratio of no_optimization is that of test_intervals.
    """
    b = {
        "batch_size": 4,
        "seq_len": 128,
        "device": "B GPU",
        "world_size": 2,
        "loss": 4.25,
        "peak_memory_mib": 2000,
    }
    absent = {"status": "unsupported", "note": "needs a | b"}
    of_a = RECORD | {"source": '"""Explained."""\nmain()\n'}
    write("a.csv", "no_optimization", [100, 104, 98], of_a, **OLD)
    write("a.csv", "tensorFloat32", [50, 52, 49], of_a, note="slow", **OLD)
    write("a.csv", "8bit_optimizer", [25, 26, 24], of_a, **OLD)
    sources = {
        "no_optimization": '"""Explained again."""\nmain()\n',
        "tensorFloat32": "main(2)\n",
        "my_own": "",
    }
    for name, source in sources.items():
        write("b.csv", name, [640, 648, 636, 656], RECORD_OF_B | {"source": source}, **b)
    append_run("a.csv", "brainFloat16", [], **OLD | absent)
    for name in ("brainFloat16", "8bit_optimizer"):
        append_run("b.csv", name, [], **b | absent)

    page = compared("--plotsprefix=mine_")
    assert page.startswith("A and B differ in shape: ratios are of tokens per second")
    assert (
        page.partition("----|\n")[2]
        == """\
| no_optimization | 1.25x (1.11-1.40) | faster | 382.7|433.2 | 1.00x|1.00x | 900|2,000 | \
5.000|4.250 | |
| tensorFloat32 | 0.62x (0.56-0.70) | slower | 765.5|433.2 | 2.00x|1.00x | 900|2,000 | \
5.000|4.250 | A: slow |
| brainFloat16 | | | -|- | -|- | -|- | -|- | unsupported: needs a|b |
| 8bit_optimizer | | | 1,543|- | 4.03x|- | 900|- | 5.000|- | B: unsupported: needs a|b |
| my_own | | | -|433.2 | -|1.00x | -|2,000 | -|4.250 | A: not run |

- A: Test GPU, torch 2.11.0, gpt2, 1x64 tokens a step, stdlib, 3 rounds, commit 0000aaa
- B: B GPU, torch 2.13.0, gpt2, 4x128 tokens a step, stdlib, 4 rounds, commit abc1234

B over A: tokens per second of B / of A, at the median step (Welch's t over rounds). In brackets \
95% intervals, which hold for all ratios of the table together.

What differs (A | B):

- device: Test GPU | B GPU
- torch: 2.11.0 | 2.13.0
- shape: 1x64 | 4x128
- processes: 1 | 2
- commit: 0000aaa | abc1234
- settings.steps: 50 | 100
- variables.OMP_NUM_THREADS: 8 | not recorded
- device.driver: 580.1 | not recorded
- source: the code differs in tensorFloat32
plots/mine_compare.png
plots/mine_compare.svg
"""
    )
    chart = re.findall(r"<text[^>]*>([^<]*)</text>", Path("plots/mine_compare.svg").read_text())
    assert {*chart} >= {
        "A: Test GPU, torch 2.11.0, gpt2, 1x64 tokens a step, stdlib, 3 rounds, commit 0000aaa",
        "1.25x (1.11-1.40)",
        "900 | 2,000",
        "5.000 | 4.250",
        "B: unsupported: needs a | b",
    }


def test_compare_says_that_days_differ_and_has_no_interval_of_one_round(compared):
    """COMMANDS: "it says so if the days differ". docs/YOUR_SCRIPT.md: "`table`, `report`, `compare`
    and `ablate` take `BASE=train` too". No record is missed of a run that does not count.
    """
    own = {"base": "train"}
    write("a.csv", "train", [100, 101, 102], RECORD, **own)
    write("a.csv", "train", [500], RECORD, grade="tainted", **own)  # the first round again
    write("b.csv", "train", [50], RECORD_OF_B, run_id="20260102T0", **own)
    for path in ("a.csv", "b.csv"):
        write(path, "no_optimization", [10], run_id="20260103T0")  # the newest
    page = compared("BASE=train")
    assert "no record" not in page and "- day: 20260101 | 20260102\n" in page
    assert "| train | 2.64x | inconclusive |" in page and "Welch" not in page
    assert "no interval: too few rounds.\n" in page
