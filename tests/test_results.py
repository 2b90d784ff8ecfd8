"""results.csv and results.jsonl: what is appended is read, or nothing is; damage is named."""

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

from tests.helpers.rows import records_in, rows_of, write_record
from tests.helpers.stand_ins import full_disk
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
    """A separate Python process that writes to the file."""
    imports = (
        "import sys; from tests.helpers.rows import rows_of; from Utils.results import rows_file"
    )
    code = f"{imports}; TIMES = {TIMES}\n{code}"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], cwd=paths.ROOT)


def blocks(path):
    """(technique, steps) of each stretch of rows of one technique, in the order of the file."""
    rows = groupby(rows_file.text_rows(path), key=lambda row: row["technique"])
    return [(name, [int(row["step"]) for row in group]) for name, group in rows]


def refusal(path, *functions):
    """The line with which all of the functions refuse the file, which stays as it is."""
    before = path.read_bytes()
    messages = set()
    for function in functions:
        with pytest.raises(UserError) as caught:
            function(path)
        messages.add(str(caught.value))
    (message,) = messages
    assert path.read_bytes() == before and not records_in(path.parent)
    assert "\n" not in message and f"make reset RESULTS_FILE={path}" in message
    return message


def append_b(path):
    rows_file.append(path, rows_of("b", TIMES), {"run_id": "b"})


EVERY = (rows_file.check, rows_file.read, rows_file.initialize, append_b)


def test_what_is_appended_is_what_pandas_reads_with_no_options(path):
    first, second = rows_of("a", TIMES[:2]), rows_of("b", TIMES[:3], loss=1 / 3, note="a note")
    rows_file.append(path, first)
    rows_file.append(path, second)
    frame = pandas.read_csv(path)
    assert ",".join(frame.columns) == (
        "run_id,suite,base,parent,change,round,seed,technique,status,step,phase,step_ms,data_ms,loss,"
        "held_out_loss,batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,"
        "torch,commit,grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
    )
    assert len(frame) == 5
    for row, (_, read) in zip(first + second, frame.iterrows(), strict=True):
        for name, value in row.items():
            if value in (None, ""):
                assert pandas.isna(read[name])
            elif isinstance(value, float):
                assert read[name] == pytest.approx(value, rel=1e-12)
            else:
                assert str(read[name]) == str(value)


@pytest.mark.parametrize(
    "note",
    ["a, b", 'say "no"', "two\nlines", 'all,"\n"', "a\rb", "ünï 長い", "'=1+1", "x" * 200_000],
)
def test_any_note_comes_back(path, note):
    for name in ("a", "b"):  # behind such a note a run appends too
        rows_file.append(path, rows_of(name, TIMES[:2], note=note))
    assert [row["note"] for row in rows_file.text_rows(path)] == [note] * 4
    assert list(rows_file.read(path).note) == list(pandas.read_csv(path).note) == [note] * 4
    rows_file.append(path, rows_of("a", TIMES[:1], dataset=os.fsdecode(b"caf\xe9.txt")))
    assert rows_file.read(path).dataset.iloc[-1] == "caf\\udce9.txt"  # no Unicode: written as text


def test_a_run_without_timings_is_one_row_with_its_reason(path):
    figures = ["step", "step_ms", "data_ms", "loss", "first_step_s"]
    figures += ["held_out_loss", "peak_memory_mib", "reserved_memory_mib"]
    for status in ("unsupported", "out_of_memory", "failed"):
        rows_file.append(path, rows_of("a", [], status=status, commit=None, note="because"))
    assert path.read_text().endswith(",1,Test GPU,2.13.0,,,,,,because\n")  # None is empty
    frame = rows_file.read(path)
    assert list(frame.status) == ["unsupported", "out_of_memory", "failed"]
    assert frame[figures].isna().all(axis=None)
    assert set(frame.note) == {"because"}


def test_read_gives_numbers_for_numbers_and_text_for_text(path, monkeypatch):
    monkeypatch.setattr(rows_file, "CHUNK", 2)
    for commit in ("1234567", "abc"):
        rows_file.append(
            path, rows_of("a", TIMES[:3], commit=commit, torch="2.10", dataset="007", note=None)
        )
    frame = rows_file.read(path)
    assert list(frame.columns) == list(COLUMNS)
    assert frame.step.tolist() == [0, 1, 2] * 2
    assert frame.step_ms.tolist() == [12.3456] * 6
    assert frame.batch_size.dtype == int
    assert frame.commit.tolist() == ["1234567"] * 3 + ["abc"] * 3
    texts = frame[["torch", "dataset", "note"]].drop_duplicates()
    assert texts.values.tolist() == [["2.10", "007", ""]]
    assert frame.run_id.max() == rows_file.text_rows(path)[-1]["run_id"]
    path.unlink()
    for loss in (math.nan, math.inf, 5.0):  # of runs that diverged
        rows_file.append(path, rows_of("a", TIMES[:1], loss=loss))
    assert str(rows_file.read(path).loss.tolist()) == "[nan, inf, 5.0]"


def test_a_file_that_pandas_has_saved_is_read_and_appended_to(path):
    rows_file.append(path, rows_of("a", TIMES[:2], note="one, two"))
    rows_file.append(path, rows_of("b", [], status="failed", note="three"))
    expected = rows_file.read(path)
    pandas.read_csv(path).astype({"round": float}).to_csv(path, index=False)
    assert ",0.0," in path.read_text()
    append_b(path)
    pandas.testing.assert_frame_equal(
        rows_file.read(path)[:3].astype({"run_id": str, "technique": str}),
        expected.astype({"run_id": str, "technique": str}),
        check_categorical=False,
    )


def test_processes_that_append_at_once_leave_whole_blocks(path):
    code = """for i in range(20):
        name = f"{sys.argv[2]}-{i}"
        record = {"run_id": name, "source": "code " * 999}
        rows_file.append(sys.argv[1], rows_of(name, TIMES), record)"""
    writers = [process(code, path, n) for n in range(8)]
    assert [writer.wait() for writer in writers] == [0] * 8
    found = blocks(path)
    names = {f"{n}-{i}" for n in range(8) for i in range(20)}
    assert {name for name, _ in found} == names
    assert [steps for _, steps in found] == [list(range(25))] * 160
    assert {record["run_id"] for record in records_in(path.parent)} == names
    assert (path.with_suffix(".jsonl")).read_text().count('"text"') == 1


@pytest.mark.parametrize("moved", [False, True])
def test_an_append_waits_for_the_lock(filled, moved):
    """moved: by a reset, while the process waits with the old file open."""
    before, old = filled.read_bytes(), filled.with_suffix(".old")
    with filled.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # for which a lock that is no exclusive one would not wait
        append = "rows_file.append(sys.argv[1], rows_of('b', TIMES), {'run_id': 'b'})"
        writer = process(append, filled)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(1)
        assert filled.read_bytes() == before and not records_in(filled.parent)
        if moved:
            filled.rename(old)
    assert writer.wait(20) == 0
    a, b = ("a", [0, 1, 2]), ("b", list(range(25)))
    assert (blocks(old), blocks(filled)) == (([a], [b]) if moved else ([], [a, b]))


def test_reset_archives_rows_and_records_together(filled):
    append_b(filled)
    for archive in (rows_file.reset(filled), rows_file.reset(filled)):
        assert archive.exists() and blocks(filled) == []
    kept = {len(rows_file.text_rows(file)) for file in filled.parent.glob("results-*.csv")}
    assert kept == {0, 28}
    assert not records_in(filled.parent) and len([*filled.parent.glob("*.jsonl")]) == 1


def test_a_killed_process_leaves_whole_blocks_or_is_told_from_them(tmp_path):
    code = "for i in range(10**6): "
    code += "rows_file.append(sys.argv[1], rows_of(str(i), TIMES), {'run_id': str(i)})"
    cut_off = 0
    for attempt in range(8):
        path = tmp_path / f"{attempt}.csv"
        writer = process(code, path)
        while writer.poll() is None and not (path.exists() and path.stat().st_size > 20_000):
            time.sleep(0.002)
        time.sleep(0.003 * attempt)
        writer.kill()
        writer.wait()
        if not path.read_bytes().endswith(b"\n"):  # in one of 75: between two pages of the write
            cut_off += 1
            pytest.raises(UserError, append_b, path)
            continue
        rows_file.append(path, rows_of("after", TIMES))
        *found, _ = blocks(path)
        assert found == [(str(i), list(range(25))) for i in range(len(found))]
        assert [*rows_file.read_records(path, dict(found))] == [*dict(found)]
    assert cut_off < 3


@pytest.mark.parametrize("room", [0, 100, 2500])
def test_a_full_disk_leaves_both_files_as_they_were(filled, room):
    before = filled.read_bytes()
    with full_disk(len(before) + room), pytest.raises(UserError, match="nothing was appended"):
        append_b(filled)
    assert filled.read_bytes() == before and not records_in(filled.parent)
    rows_file.append(filled, rows_of("c", TIMES))
    assert [name for name, _ in blocks(filled)] == ["a", "c"]
    filled.write_bytes(b"")
    with full_disk(50), pytest.raises(UserError, match="nothing was appended"):
        rows_file.initialize(filled)
    assert filled.read_bytes() == b""  # no half header


@pytest.mark.parametrize("calls", [1, 2])
def test_a_failing_disk_leaves_both_files_as_they_were(filled, monkeypatch, calls):
    """At the record, and at the rows behind it."""
    before, left = filled.read_bytes(), [calls]

    def fsync(file):
        left[0] -= 1
        if not left[0]:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match="Input/output error; nothing was appended"):
        append_b(filled)
    assert filled.read_bytes() == before and not records_in(filled.parent)


@pytest.mark.parametrize(
    "place", ["/sys/x.csv", "/proc/x.csv", "{}/missing/x.csv", "{}", "/dev/null"]
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, place):
    place = place.format(tmp_path)
    for function in (rows_file.check, rows_file.initialize, append_b):
        with pytest.raises(UserError) as caught:
            function(place)
        assert str(caught.value).startswith(f"{place}: ")
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_can_still_be_read(filled, monkeypatch):
    """Root may write to any file, so opening for writing is made to fail here."""
    usual = Path.open

    def read_only(self, mode="r", *rest, **options):
        if "+" in mode or "w" in mode or "a" in mode:
            raise PermissionError(13, "Permission denied")
        return usual(self, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", read_only)
    assert len(rows_file.read(filled)) == 3
    with pytest.raises(UserError, match="Permission denied"):
        rows_file.check(filled)


def test_a_file_system_without_locks_is_one_line(path, monkeypatch):
    def flock(file, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="cannot be locked: Function not implemented"):
        append_b(path)


def test_the_header_is_written_once_by_the_first_run_or_by_initialize(path):
    rows_file.check(path)
    assert list(path.parent.iterdir()) == []
    path.touch()
    rows_file.append(path, rows_of("a", TIMES[:2]))
    assert blocks(path) == [("a", [0, 1])] and rows_file.has_rows(path)
    before = path.read_bytes()
    assert rows_file.initialize(path) is False and path.read_bytes() == before
    path.unlink()
    assert [rows_file.initialize(path), rows_file.initialize(path)] == [True, False]
    assert path.read_text() == HEADER + "\n" and not rows_file.has_rows(path)


def test_reading_nothing_says_how_to_get_something(path):
    with pytest.raises(UserError, match="no such file; make baseline"):
        rows_file.read(path)
    assert not path.exists()
    rows_file.initialize(path)
    with pytest.raises(UserError, match="no results yet; make baseline"):
        rows_file.read(path)


@pytest.mark.parametrize(
    "content", [b"hello", b"\n", b"run_id,round\n", "\ufeff".encode(), HEADER[:-1].encode()]
)
def test_another_file_is_refused(path, content):
    path.write_bytes(content)
    assert f"{path}:1: unknown header" in refusal(path, *EVERY)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_cut_end_is_refused_by_runs_and_readers(filled, cut):
    filled.write_bytes(filled.read_bytes()[:-cut])
    assert f"{filled}:4: " in refusal(filled, *EVERY)


@pytest.mark.parametrize(
    ("damaged", "line", "problem"),
    [
        (lambda lines: [*lines, '"never closed'], 5, "cannot be read ("),
        (lambda lines: [*lines, "junk"], 5, "has 1 fields instead of 30"),
        (lambda lines: [lines[0], lines[1] + ",", *lines[2:]], 2, "has 31 fields instead of 30"),
        (lambda lines: [*lines[:2], lines[2] + ",", lines[3]], 3, "has 31 fields instead of 30"),
        (lambda lines: [lines[0], lines[1][:-1], *lines[2:]], 2, "has 29 fields instead of 30"),
        (lambda lines: [*lines[:3], lines[3][:-1]], 4, "has 29 fields instead of 30"),
    ],
)
def test_a_damaged_line_is_named_where_the_file_is_read(filled, damaged, line, problem):
    lines = damaged(filled.read_text().splitlines())
    filled.write_text("\n".join([*lines, ""]))
    assert f"{filled}:{line}: {problem}" in refusal(filled, rows_file.read)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("step_ms", ("fast", "", "-1.5", "nan")),
        ("data_ms", ("inf",)),
        ("first_step_s", ("",)),
        ("step", ("1.5", "")),
        ("loss", ("low",)),
        ("peak_memory_mib", ("1 GB",)),
        ("batch_size", ("",)),
        ("round", ("one", "0.5", "9" * 20)),
        ("seed", ("inf",)),
        ("status", ("fine",)),
        ("phase", ("cold", "")),
        ("grade", ("good", "")),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(filled, column, values):
    """Also behind a note of several lines."""
    rows_file.append(filled, rows_of("b", TIMES[:1], note="one\ntwo"))
    rows = rows_file.text_rows(filled)
    rows[1]["note"] = "one\ntwo\nthree"
    for value in values:
        rows[3][column] = value
        filled.unlink()
        rows_file.append(filled, rows)
        message = refusal(filled, rows_file.read)
        assert f"{filled}:7: {column} cannot be {value!r}; fix that line, or " in message


def test_records_come_back_with_texts_that_are_stored_once(path):
    for n in range(3):
        record = {"source": "code\n", "collect_env": f"report {n // 2}", "n": n}
        rows_file.append(path, rows_of("a", TIMES), {"run_id": str(n), **record})
    lines = path.with_suffix(".jsonl").read_text().splitlines()
    assert len(lines) == 3 + 1 + 2
    records = rows_file.read_records(path, ["2", "0", "missing"])
    assert records["2"] == {"run_id": "2", **record}
    assert [record["n"] for record in records.values()] == [0, 2]


def test_damaged_records_are_left_out_and_appended_to(path):
    lines = ['{"run_id": "a", ', "[" * 10**5, '{"run_id": "b", "source": {}}', '{"run_id": "c"']
    path.with_suffix(".jsonl").write_text("\n".join(lines))  # the last of a process that was killed
    write_record(path, [{"run_id": "d"}], source="code")
    assert [*rows_file.read_records(path, "abcd")] == ["b", "d"]
    assert rows_file.read_records(path, "d")["d"]["source"] == "code"
