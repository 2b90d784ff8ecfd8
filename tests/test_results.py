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

from tests.rows import rows_of
from tests.stand_ins import full_disk
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.results import rows_file
from Utils.results.rows_file import COLUMNS, HEADER

TIMES = [12.3456] * 25  # ms


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.csv"


@pytest.fixture
def filled(path):
    rows_file.append(path, rows_of("a", TIMES[:3]))
    return path


def process(code, *arguments):
    """A Python process of its own, to write to the file beside us."""
    imports = "import sys; from tests.rows import rows_of; from Utils.results import rows_file"
    code = f"{imports}; TIMES = {TIMES}\n{code}"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], cwd=paths.ROOT)


def blocks(path):
    """(technique, steps) of each stretch of rows of one technique, in the order of the file."""
    rows = groupby(rows_file.check(path), key=lambda row: row["technique"])
    return [(name, [int(row["step"]) for row in group]) for name, group in rows]


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def refusal(path):
    """The one line with which reading and appending both refuse the file, which stays as it is."""
    before = path.read_bytes()
    for refused in (rows_file.check, rows_file.read, rows_file.initialize):
        with pytest.raises(UserError):
            refused(path)
    with pytest.raises(UserError) as caught:
        rows_file.append(path, rows_of("b", TIMES))
    message = str(caught.value)
    assert path.read_bytes() == before
    assert "\n" not in message
    assert f"make reset RESULTS_FILE={path}" in message
    return message


# Round trip -------------------------------------------------------------------------------------


def test_what_is_appended_is_what_pandas_reads_with_no_options(path):
    first, second = rows_of("a", TIMES[:2]), rows_of("b", TIMES[:3], loss=1 / 3, note="a note")
    rows_file.append(path, first)
    rows_file.append(path, second)
    frame = pandas.read_csv(path)
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 5
    for row, (_, read) in zip(first + second, frame.iterrows(), strict=True):
        for name, value in row.items():
            if value in (None, ""):
                assert pandas.isna(read[name])
            elif isinstance(value, float):
                assert read[name] == pytest.approx(value, rel=1e-12)
            else:
                assert str(read[name]) == str(value)


def test_the_header_is_the_one_promised():
    assert HEADER == (
        "run_id,base,round,seed,technique,status,step,phase,step_ms,data_ms,loss,held_out_loss,"
        "batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,torch,commit,"
        "grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
    )


@pytest.mark.parametrize(
    "note",
    ["a, b", 'say "no"', "two\nlines", 'all,"\n"', "a\rb", "ünï 長い", "'=1+1", "x" * 200_000],
)
def test_any_note_comes_back(path, note):
    rows_file.append(path, rows_of("a", TIMES[:2], note=note))
    rows_file.append(path, rows_of("b", TIMES[:1]))
    assert [row["note"] for row in rows_file.check(path)] == [note, note, ""]
    assert list(pandas.read_csv(path).note)[:2] == [note, note]


def test_a_name_that_is_no_unicode_does_not_lose_the_run(path):
    rows_file.append(path, rows_of("a", TIMES[:1], dataset=os.fsdecode(b"caf\xe9.txt")))
    assert list(pandas.read_csv(path).dataset) == ["caf\\udce9.txt"]


def test_none_is_written_empty(path):
    (row,) = rows_of("a", [], commit=None, note=None)
    rows_file.append(path, [row])
    assert path.read_text().endswith(",1,Test GPU,2.13.0,,,,,,\n")


def test_a_run_without_timings_is_one_row_with_its_reason(path):
    figures = ["step", "step_ms", "data_ms", "loss", "first_step_s"]
    figures += ["held_out_loss", "peak_memory_mib", "reserved_memory_mib"]
    for status in ("unsupported", "out_of_memory", "failed"):
        rows_file.append(path, rows_of("a", [], status=status, note="because"))
    frame = rows_file.read(path)
    assert list(frame.status) == ["unsupported", "out_of_memory", "failed"]
    assert frame[figures].isna().all(axis=None)
    assert set(frame.note) == {"because"}


def test_read_gives_numbers_for_numbers_and_text_for_text(path):
    rows_file.append(path, rows_of("a", TIMES[:2], commit="1234567", torch="2.10", note=None))
    frame = rows_file.read(path)
    assert list(frame.columns) == list(COLUMNS)
    assert frame.step.tolist() == [0, 1]
    assert frame.step_ms.tolist() == [12.3456] * 2
    assert frame.batch_size.dtype == int
    assert frame[["commit", "torch", "note"]].values.tolist() == [["1234567", "2.10", ""]] * 2


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_run_that_diverged_stays_readable(path, loss):
    rows_file.append(path, rows_of("a", TIMES[:2], loss=loss))
    rows_file.append(path, rows_of("b", TIMES[:1]))
    assert str(rows_file.read(path).loss.tolist()) == str([loss, loss, 5.0])


# Several processes ------------------------------------------------------------------------------


def test_processes_that_append_at_once_leave_whole_blocks(path):
    code = "for i in range(20): rows_file.append(sys.argv[1], rows_of(f'{sys.argv[2]}-{i}', TIMES))"
    writers = [process(code, path, n) for n in range(8)]
    assert [writer.wait() for writer in writers] == [0] * 8
    found = blocks(path)
    assert {name for name, _ in found} == {f"{n}-{i}" for n in range(8) for i in range(20)}
    assert [steps for _, steps in found] == [list(range(25))] * 160


def test_an_append_is_one_write(filled, monkeypatch):
    writes, write = [], os.write
    monkeypatch.setattr(os, "write", lambda *call: writes.append(call) or write(*call))
    rows_file.append(filled, rows_of("b", TIMES))
    assert len(writes) == 1
    assert len(blocks(filled)) == 2


def test_an_append_waits_for_the_lock(filled):
    before = filled.read_bytes()
    with filled.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # for which a lock that is no exclusive one would not wait
        writer = process("rows_file.append(sys.argv[1], rows_of('b', TIMES))", filled)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(1)
        assert filled.read_bytes() == before
    assert writer.wait(20) == 0
    assert [name for name, _ in blocks(filled)] == ["a", "b"]


def test_reset_while_a_run_waits_for_the_lock_loses_no_row(filled):
    old = filled.with_suffix(".old")
    with filled.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = process("rows_file.append(sys.argv[1], rows_of('b', TIMES))", filled)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(1)  # by now it has opened the file that is about to be moved
        filled.rename(old)
    assert writer.wait(20) == 0
    assert blocks(old) == [("a", [0, 1, 2])]
    assert blocks(filled) == [("b", list(range(25)))]


def test_a_killed_process_leaves_whole_blocks(tmp_path):
    code = "for i in range(10**6): rows_file.append(sys.argv[1], rows_of(str(i), TIMES))"
    for attempt in range(8):
        path = tmp_path / f"{attempt}.csv"
        writer = process(code, path)
        wait_until(lambda path=path: path.exists() and path.stat().st_size > 20_000)
        time.sleep(0.003 * attempt)
        writer.kill()
        writer.wait()
        found = blocks(path)
        assert found == [(str(i), list(range(25))) for i in range(len(found))]
        rows_file.append(path, rows_of("after", TIMES))
        assert len(blocks(path)) == len(found) + 1


# Where nothing can be written -------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 100, 2500])
def test_a_full_disk_leaves_the_file_as_it_was(filled, room):
    before = filled.read_bytes()
    with full_disk(len(before) + room), pytest.raises(UserError, match="nothing was appended"):
        rows_file.append(filled, rows_of("b", TIMES))
    assert filled.read_bytes() == before
    rows_file.append(filled, rows_of("c", TIMES))
    assert [name for name, _ in blocks(filled)] == ["a", "c"]


def test_a_full_disk_leaves_no_half_header(path):
    with full_disk(50), pytest.raises(UserError, match="nothing was appended"):
        rows_file.initialize(path)
    assert path.read_bytes() == b""
    assert rows_file.initialize(path)


def test_a_failing_disk_leaves_the_file_as_it_was(filled, monkeypatch):
    before = filled.read_bytes()

    def fsync(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match="Input/output error; nothing was appended"):
        rows_file.append(filled, rows_of("b", TIMES))
    assert filled.read_bytes() == before


@pytest.mark.parametrize(
    "place", ["/sys/x.csv", "/proc/x.csv", "{}/missing/x.csv", "{}", "/dev/null"]
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, place):
    place = place.format(tmp_path)
    for function in (
        rows_file.check,
        rows_file.initialize,
        lambda p: rows_file.append(p, rows_of("a", TIMES)),
    ):
        with pytest.raises(UserError) as caught:
            function(place)
        assert str(caught.value).startswith(f"{place}: ")
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_check_makes_no_file(path):
    assert rows_file.check(path) == []
    assert list(path.parent.iterdir()) == []


# New and empty files ----------------------------------------------------------------------------


def test_an_empty_file_is_as_good_as_none(path):
    path.touch()
    assert rows_file.check(path) == []
    rows_file.append(path, rows_of("a", TIMES[:2]))
    assert blocks(path) == [("a", [0, 1])]


def test_initialize_writes_the_header_only_where_there_is_none(path):
    assert rows_file.initialize(path) is True
    assert path.read_text() == HEADER + "\n"
    assert rows_file.initialize(path) is False
    assert path.read_text() == HEADER + "\n"
    rows_file.append(path, rows_of("a", TIMES[:2]))
    before = path.read_bytes()
    assert rows_file.initialize(path) is False
    assert path.read_bytes() == before


def test_reading_nothing_says_how_to_get_something(path):
    with pytest.raises(UserError, match="no such file; make baseline"):
        rows_file.read(path)
    assert not path.exists()
    rows_file.initialize(path)
    with pytest.raises(UserError, match="no results yet; make baseline"):
        rows_file.read(path)


# Files that are not ours ------------------------------------------------------------------------


def test_another_header_is_refused(filled):
    filled.write_text(filled.read_text().replace("step_ms", "ms", 1))
    assert f"{filled}, line 1: unknown header" in refusal(filled)


@pytest.mark.parametrize("content", [b"hello", b"\n", b"run_id,round\n", "\ufeff".encode()])
def test_any_other_file_is_refused(path, content):
    path.write_bytes(content)
    assert f"{path}, line 1: unknown header" in refusal(path)


@pytest.mark.parametrize(("cut", "line"), [(1, 4), (2, 4), (40, 4)])
def test_a_last_line_that_is_cut_off_is_refused(filled, cut, line):
    with filled.open("r+b") as file:
        file.truncate(filled.stat().st_size - cut)
    assert f"{filled}, line {line}: " in refusal(filled)


def test_a_quote_that_never_closes_is_refused(filled):
    with filled.open("a") as file:
        file.write('"never closed\n')
    assert f"{filled}, line 5: cannot be read (" in refusal(filled)


def test_binary_junk_is_refused(filled):
    with filled.open("ab") as file:
        file.write(b"\xff\xfe\x00")
    assert f"{filled}, line 5: is not text" in refusal(filled)


@pytest.mark.parametrize("change", [lambda line: line + ",", lambda line: line.rpartition(",")[0]])
def test_a_wrong_number_of_fields_is_refused(filled, change):
    lines = filled.read_text().splitlines()
    lines[2] = change(lines[2])
    filled.write_text("\n".join(lines) + "\n")
    assert f"{filled}, line 3: has " in (message := refusal(filled))
    assert "fields instead of 27" in message


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("step_ms", "fast", "has step_ms 'fast', which is not a number"),
        ("step_ms", "", "has step_ms '', which is not a number"),
        ("step_ms", "-1.5", "has step_ms -1.5, which is not a duration"),
        ("step_ms", "nan", "has step_ms nan, which is not a duration"),
        ("step_ms", "inf", "has step_ms inf, which is not a duration"),
        ("data_ms", "-1", "has data_ms -1, which is not a duration"),
        ("data_ms", "nan", "has data_ms nan, which is not a duration"),
        ("first_step_s", "inf", "has first_step_s inf, which is not a duration"),
        ("first_step_s", "", "has first_step_s '', which is not a number"),
        ("step", "1.5", "has step '1.5', which is not a number"),
        ("step", "", "has step '', which is not a number"),
        ("loss", "low", "has loss 'low', which is not a number"),
        ("peak_memory_mib", "1 GB", "has peak_memory_mib '1 GB', which is not a number"),
        ("batch_size", "", "has batch_size '', which is not a number"),
        ("round", "one", "has round 'one', which is not a number"),
        ("round", "9" * 20, "has a round of 20 digits, which is too large"),
        ("status", "fine", "has the unknown status 'fine'"),
        ("phase", "cold", "has the unknown phase 'cold'"),
        ("phase", "", "has the unknown phase ''"),
        ("grade", "good", "has the unknown grade 'good'"),
        ("grade", "", "has the unknown grade ''"),
        ("seed", "", "has seed '', which is not a number"),
        ("requested_batch_size", "auto", "has requested_batch_size 'auto', which is not a number"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(filled, column, value, problem):
    lines = filled.read_text().splitlines()
    fields = lines[2].split(",")
    fields[COLUMNS.index(column)] = value
    lines[2] = ",".join(fields)
    filled.write_text("\n".join(lines) + "\n")
    assert f"{filled}, line 3: {problem}; fix that line, or " in refusal(filled)


def test_the_line_named_is_the_files_even_behind_a_note_of_several(path):
    rows_file.append(path, rows_of("a", TIMES[:1], note="one\ntwo\nthree"))
    with path.open("a") as file:
        file.write("junk\n")
    assert f"{path}, line 5: has 1 fields" in refusal(path)


def test_a_file_that_cannot_be_written_can_still_be_read(tmp_path, monkeypatch):
    """Root may write to any file, so opening for writing is made to fail here."""
    path = tmp_path / "results.csv"
    rows_file.append(path, rows_of("no_optimization", [9, 9, 9]))
    whole = Path.open

    def read_only(self, mode="r", *rest, **options):
        if "+" in mode or "w" in mode or "a" in mode:
            raise PermissionError(13, "Permission denied")
        return whole(self, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", read_only)
    assert len(rows_file.read(path)) == 3
    with pytest.raises(UserError, match="Permission denied"):
        rows_file.check(path)


def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="cannot be locked: Function not implemented"):
        rows_file.append(tmp_path / "results.csv", rows_of("no_optimization", [9, 9, 9]))


def test_a_record_is_looked_for_nowhere_else(tmp_path):
    (tmp_path / "runs").mkdir()
    for path in (tmp_path / "runs" / "a.json", tmp_path / "b.json"):
        path.write_text('{"technique": "x"}')
    assert list(rows_file.records(tmp_path / "results.csv", ["a", "../b", "", "c"])) == ["a"]
