"""Two results held against each other: ratios, what is selected, what differs, the chart."""

import re

import numpy as np
import pytest
from matplotlib.image import imread

from tests.helpers.rows import rows_of, write_record
from Utils.analysis import comparison
from Utils.base import errors
from Utils.commands import __main__ as commands
from Utils.results import rows_file

OLD = {"torch": "2.11.0", "commit": "0000aaa"}
SOURCE = '"""What it does."""\nmain()\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def compared(folder, capsys):
    """Compares two selections: the printed text, and the table's cells by technique and title."""

    def compared(a="a.csv", b="b.csv", *flags):
        commands.main("compare", f"A={a}", f"B={b}", *flags)
        text = capsys.readouterr().out
        table = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
        titles, *lines = [[cell.strip("| ") for cell in line] for line in table]
        return text, {line[0]: dict(zip(titles, line, strict=True)) for line in lines}

    return compared


def write(path, *runs, **record):
    """Appends runs to a results file; with what a record holds, each gets one too."""
    for rows in runs:
        rows_file.append(path, rows)
        if record:
            own = {"technique": rows[0]["technique"], "source": SOURCE}
            write_record(path, rows, **own | record)


def rounds(technique, medians, **columns):
    """A run a round with these median step times, whose means do not go with them."""
    return [
        rows_of(technique, [999, 999, ms * 0.99, ms, ms * (2 + r)], round=r, **columns)
        for r, ms in enumerate(medians)
    ]


def pair(cells, title):
    """The texts of A and B in one cell of a table."""
    return cells[f"{title}, A | B".replace("|", r"\|")].split(r" \| ")


def differing(text):
    return re.findall(r"^- (.*)$", text.partition("What differs")[2], re.MULTILINE)


def test_the_interval_is_welchs_t_on_the_logs_of_unpaired_rounds(folder, compared):
    """Three rounds against four, by hand."""
    a, b = np.array([100, 104, 98]), np.array([80, 81, 79.5, 82])
    write(folder / "a.csv", *rounds("no_optimization", a))
    write(folder / "b.csv", *rounds("no_optimization", b))
    sides = [comparison.select(name, f"{name.lower()}.csv") for name in "AB"]
    ratio = comparison.compare(*sides)["no_optimization"]

    logs = np.log(a), np.log(b)
    errors = [log.var(ddof=1) / len(log) for log in logs]
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 2 + errors[1] ** 2 / 3)
    assert freedom == pytest.approx(2.625415)
    half = 3.455395 * sum(errors) ** 0.5  # t for so many degrees of freedom at 97.5%
    mean = logs[0].mean() - logs[1].mean()
    assert ratio.value == pytest.approx(np.exp(mean))
    assert ratio.low == pytest.approx(np.exp(mean - half), rel=1e-6)
    assert ratio.high == pytest.approx(np.exp(mean + half), rel=1e-6)
    text, cells = compared()
    shown = f"{np.exp(mean):.2f}x ({np.exp(mean - half):.2f}-{np.exp(mean + half):.2f})"
    assert cells["no_optimization"]["B over A"] == shown
    assert cells["no_optimization"]["verdict on B"] == "faster" and "Welch's t" in text
    rates = [float(text) for text in pair(cells["no_optimization"], "tokens/s")]
    assert rates[1] / rates[0] == pytest.approx(ratio.value, rel=0.002)  # rounded


@pytest.mark.parametrize(("in_a", "in_b"), [(1, 1), (1, 3), (3, 1)])
def test_one_round_on_either_side_gives_no_interval(in_a, in_b, folder, compared):
    write(folder / "a.csv", *rounds("no_optimization", [100, 101, 102][:in_a]))
    write(folder / "b.csv", *rounds("no_optimization", [50, 50.5, 51][:in_b]))
    text, cells = compared()
    assert re.fullmatch(r"(1\.9|2\.0)\dx", cells["no_optimization"]["B over A"])
    assert cells["no_optimization"]["verdict on B"] == "inconclusive"
    for shown in (text, svg()):
        assert "one round: no interval" in shown and "Welch" not in shown


def test_of_other_shapes_tokens_are_compared_and_the_page_says_so(folder, compared):
    """Eight times the tokens in four times the time: twice as fast."""
    write(folder / "a.csv", *rounds("no_optimization", [100, 100.1]))
    shape = {"batch_size": 4, "seq_len": 128}
    write(folder / "b.csv", *rounds("no_optimization", [400, 400.1], **shape))
    text, cells = compared()
    assert cells["no_optimization"]["B over A"].startswith("2.00x (")
    assert pair(cells["no_optimization"], "tokens/s") == ["639.7", "1,280"]
    assert "The shapes differ, 1x64 and 4x128: a ratio of tokens, not steps." in text
    assert "shape: 1x64 | 4x128" in differing(text)
    write(folder / "c.csv", *rounds("no_optimization", [100, 100.1]))
    assert "shape" not in compared("a.csv", "c.csv")[0]


def test_what_a_technique_is_worth_and_costs_stands_for_both_sides(folder, compared):
    for name, faster in (("a", 2), ("b", 4)):
        columns = {"loss": faster + 0.25, "peak_memory_mib": 1000 * faster}
        write(folder / f"{name}.csv", *rounds("no_optimization", [100, 110], **columns))
        idea = rounds("tensorFloat32", [100 / faster, 110 / faster], **columns)
        write(folder / f"{name}.csv", *idea)
    line = compared()[1]["tensorFloat32"]
    assert pair(line, "over baseline") == ["2.00x", "4.00x"]
    assert pair(line, "peak memory (MiB)") == ["2,000", "4,000"]
    assert pair(line, "loss") == ["2.250", "4.250"]


def test_a_taint_and_a_loss_that_is_not_finite_are_told(folder, compared):
    write(folder / "a.csv", *rounds("no_optimization", [9, 9], note="odd | ", grade="tainted"))
    write(folder / "b.csv", *rounds("no_optimization", [9, 9], loss=float("nan")))
    line = compared()[1]["no_optimization"]
    assert line["note"] == "A: odd \\| ; tainted in 2 of 2 rounds"
    assert pair(line, "loss") == ["5.000", "diverged"]
    assert "5.000 | diverged" in svg()


def test_what_is_on_one_side_only_says_what_it_is_on_the_other(folder, compared):
    reason = {"status": "unsupported", "note": "needs a | b"}
    note = {"note": "TF32: no effect expected on this device"}
    write(folder / "a.csv", *rounds("my_own", [9, 9]), *rounds("8bit_optimizer", [9, 9]))
    write(folder / "a.csv", *rounds("tensorFloat32", [9, 9], **note))
    write(folder / "a.csv", rows_of("brainFloat16", [], **reason))
    write(folder / "b.csv", rows_of("8bit_optimizer", [], **reason))
    write(folder / "b.csv", *rounds("tensorFloat32", [9, 9]), *rounds("no_optimization", [9, 9]))
    write(folder / "b.csv", rows_of("brainFloat16", [], **reason))
    text, cells = compared()
    assert list(cells) == [
        *("no_optimization", "tensorFloat32", "brainFloat16", "8bit_optimizer", "my_own")
    ]
    notes = {name: line["note"] for name, line in cells.items()}
    assert notes == {
        "no_optimization": "A: not run",
        "tensorFloat32": "A: TF32: no effect expected on this device",
        "brainFloat16": r"unsupported: needs a \| b",
        "8bit_optimizer": r"B: unsupported: needs a \| b",
        "my_own": "B: not run",
    }
    for name in ("my_own", "no_optimization", "8bit_optimizer", "brainFloat16"):
        assert cells[name]["B over A"] == cells[name]["verdict on B"] == ""
    assert pair(cells["my_own"], "loss") == ["5.000", "-"]
    shown = svg()
    for words in ("A: not run", "B: not run", "B: unsupported: needs a | b", "900 | -"):
        assert words in shown, words


@pytest.fixture
def mixed(folder):
    """One file with what an append-only file comes to hold."""
    path = folder / "results.csv"
    write(path, *rounds("no_optimization", [100], device="NVIDIA H100", **OLD))
    write(path, *rounds("no_optimization", [90], device="NVIDIA H100"))
    write(path, *rounds("no_optimization", [80], device="NVIDIA H100", batch_size=16))
    write(path, *rounds("no_optimization", [70], dataset="synthetic", model="gpt2-xl"))
    write(path, *rounds("no_optimization", [60], commit="fffffff-dirty"))
    return path


@pytest.mark.parametrize(
    ("words", "ms"),
    [
        ("2.11", 100),
        ("0000AAA", 100),
        ("h100", 80),  # the newest of three
        ("h100 1x64 2.13", 90),
        ("  2.13   nvidia 16x64 ", 80),
        ("synthetic", 70),
        ("gpt2-XL", 70),
        ("fffffff", 60),
        ("", 60),
    ],
)
def test_words_select_within_a_file(words, ms, mixed):
    for text in (f"results.csv:{words}", f"{mixed}:{words}"):
        assert comparison.select("A", text).lines.step_ms["no_optimization"] == pytest.approx(ms)


def test_two_parts_of_one_file_are_compared(mixed, compared):
    text, cells = compared("results.csv:2.11", "results.csv:h100")
    assert cells["no_optimization"]["B over A"] == f"{16 * 100 / 80:.2f}x"
    assert "- A: NVIDIA H100, torch 2.11.0, gpt2, 1x64 tokens a step, stdlib, 1 round, " in text
    assert "- B: NVIDIA H100, torch 2.13.0, gpt2, 16x64 tokens a step, stdlib, 1 round, " in text


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("results.csv:H200", "results.csv", "results.csv: no runs match 'H200'; there are gpt2 "),
        ("results.csv", "results.csv:h100 xl", "no runs match 'h100 xl'; there are gpt2 1x64 on"),
        ("results.csv", "results.csv:fffffff", "A and B share 1 run of Test GPU, torch 2.13"),
        ("missing.csv:2.11:x", "results.csv", "missing.csv: no such file; make baseline"),
        ("results.csv", "damaged.csv", "damaged.csv:1: unknown header"),
        ("results.csv", "empty.csv", "empty.csv: no results yet"),
        ("results.csv", "copy.csv:fffffff", "stdlib, 1 round, commit fffffff-dirty; select"),
        ("", "results.csv", "A names no results file; for example A=results.csv:H100"),
        ("results.csv", ":2.11", "B names no results file; for example B=results.csv:H100"),
        ("results.csv", "runs", "runs: not a file"),
    ],
)
def test_what_cannot_be_compared_is_one_line(a, b, words, mixed, folder, capsys):
    (folder / "runs").mkdir()
    (folder / "damaged.csv").write_text("a,b\n")
    (folder / "empty.csv").touch()
    (folder / "copy.csv").write_bytes(mixed.read_bytes())
    write(folder / "copy.csv", *rounds("no_optimization", [9, 9], commit="fffffff-dirty")[1:])
    before = sorted(folder.iterdir())
    with pytest.raises(SystemExit) as ended, errors.one_line("compare"):
        commands.main("compare", f"A={a}", f"B={b}")
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    assert said.err.startswith("compare: error: ") and said.err.count("\n") == 1
    assert words in said.err
    assert sorted(folder.iterdir()) == before


RECORD = {
    "started": "2026",
    "settings": {"steps": 50, "warmup": 5, "seed": 0, "batch_size": 1},
    "threads": 8,
    "variables": {"OMP_NUM_THREADS": "8"},
    "platform": "Linux-6.8",
    "versions": {"python": "3.11.7", "torch": "2.13.0", "triton": "3.6"},
    "device": {"name": "Test GPU", "driver": "580.1", "power_limit_w": "700.00"},
    "dataset_facts": {"sha256": "abc"},
    "memory": {"peak_mib": 900.0},
}


def test_every_recorded_condition_that_differs_is_a_line(folder, compared):
    write(folder / "a.csv", *rounds("no_optimization", [9, 9], **OLD), **RECORD)
    record = {
        **RECORD,
        "started": "2027",
        "settings": {"steps": 100, "warmup": 5, "seed": 0, "batch_size": 2},
        "threads": 16,
        "variables": {},
        "platform": "Linux-6.9",
        "versions": {"python": "3.12.1", "torch": "2.11.0"},
        "device": {"name": "B", "driver": None, "power_limit_w": "650.00", "toolkit": "13.0"},
        "dataset_facts": {"sha256": "def"},
        "memory": {"peak_mib": 901.0},
    }
    new = rounds("no_optimization", [9, 9], device="B", world_size=2, model="m", dataset="d")
    write(folder / "b.csv", *new, **record)
    assert {*differing(compared()[0])} == {
        "device: Test GPU | B",
        "torch: 2.11.0 | 2.13.0",
        "model: gpt2 | m",
        "dataset: stdlib | d",
        "processes: 1 | 2",
        "commit: 0000aaa | abc1234",
        "settings.steps: 50 | 100",
        "threads: 8 | 16",
        "variables.OMP_NUM_THREADS: 8 | not recorded",
        "versions.python: 3.11.7 | 3.12.1",
        "versions.triton: 3.6 | not recorded",
        "platform: Linux-6.8 | Linux-6.9",
        "device.driver: 580.1 | not recorded",
        "device.power_limit_w: 700.00 | 650.00",
        "dataset_facts.sha256: abc | def",
        "device.toolkit: not recorded | 13.0",
    }


def test_scripts_whose_code_differs_are_named_their_docstrings_aside(folder, compared):
    names = ("no_optimization", "tensorFloat32", "brainFloat16", "my_own")
    for side, code in (("a", "one()"), ("b", "two()")):
        for name in names[: 3 if side == "a" else 4]:
            code_of = code if name in ("tensorFloat32", "my_own") else "same()"
            source = f'"""{name} as {side} explains it."""\n{code_of}\n'
            source = "" if name == names[2] and side == "b" else source
            write(folder / f"{side}.csv", *rounds(name, [9, 9], commit=""), source=source)
    assert differing(compared()[0]) == ["source: the code differs in tensorFloat32"]


def test_records_that_are_missing_are_said_to_be(folder, compared):
    write(folder / "a.csv", *rounds("no_optimization", [9, 9]), threads=4)
    write(folder / "b.csv", *rounds("no_optimization", [9, 9], **OLD))
    gone = ["torch: 2.13.0 | 2.11.0", "commit: abc1234 | 0000aaa"]
    assert differing(compared()[0]) == [*gone, "B: no record of 2 of 2 runs in b.jsonl"]
    (folder / "sub").mkdir()
    write(folder / "sub" / "c.csv", *rounds("no_optimization", [9, 9]), threads=4)
    records = folder / "sub" / "c.jsonl"
    records.write_text(records.read_text()[:-9])
    assert differing(compared("a.csv", "sub/c.csv")[0]) == [
        "nothing recorded differs",
        "B: no record of 1 of 2 runs in sub/c.jsonl",
    ]


def svg(prefix=""):
    """The chart's texts, after a look at the picture."""
    image = imread(f"plots/{prefix}compare.png")
    assert image.shape[1] > 1000 and image[..., :3].std() > 0.05
    with open(f"plots/{prefix}compare.svg") as file:
        return " \n".join(re.findall(r"<text[^>]*>([^<]*)</text>", file.read()))


def test_the_chart_carries_values_verdicts_sides_units_and_spread(folder, compared):
    names = {"no_optimization": 1.0, "tensorFloat32": 1.5, "brainFloat16": 0.5}
    for name, faster in names.items():
        write(folder / "a.csv", *rounds(name, [100, 101, 102], **OLD))
        write(folder / "b.csv", *rounds(name, [99 / faster, 101 / faster, 103 / faster]))
    write(folder / "a.csv", *rounds("8bit_optimizer", [50, 51], **OLD))
    write(folder / "b.csv", rows_of("8bit_optimizer", [], status="unsupported", note="no wheel"))
    compared("a.csv", "b.csv", "--plotsprefix", "mine_")
    text = svg("mine_")
    assert re.findall(r"\d\.\d\dx(?= \()", text) == ["1.00x", "1.50x", "0.50x"]
    for verdict in ("no detectable difference", "faster", "slower"):
        assert text.count(verdict) == 1  # in the legend
    assert "tokens per second of B / of A (x)" in text
    assert "line: 95% interval" in text
    for words in (
        "A: Test GPU, torch 2.11.0, gpt2, 1x64 tokens a step, stdlib, 2 to 3 rounds, "
        "commit 0000aaa",
        "B: Test GPU, torch 2.13.0, gpt2, 1x64 tokens a step, stdlib, 3 rounds, commit abc1234",
        "B: unsupported: no wheel",
        "900 | 900",
        "5.000 | 5.000",
        "peak memory (MiB)",
        "loss (nats)",
    ):
        assert words in text, words
    for order in (("no_optimization", "tensorFloat32", "8bit_optimizer"), ("A: Test", "B: Test")):
        places = [text.index(words) for words in order]
        assert places == sorted(places)


def test_without_a_technique_in_common_the_chart_says_what_there_is(folder, compared, recwarn):
    write(folder / "a.csv", *rounds("no_optimization", [9, 9]))
    write(folder / "b.csv", *rounds("tensorFloat32", [9, 9]))
    text, _ = compared()
    assert "A: not run" in svg() and "B: not run" in svg()
    assert "interval" not in text and not recwarn.list
