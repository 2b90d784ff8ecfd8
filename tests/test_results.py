"""results.csv and results.jsonl: append, read, records, damage, reset."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pandas
import pytest

from tests.helpers.rows import records_in, rows_of, write_record
from tests.helpers.stand_ins import full_disk
from Utils.base.errors import UserError
from Utils.results import rows_file

TIMES = [12.3456] * 25  # ms
HEADER = (
    "run_id,suite,base,parent,change,round,seed,technique,status,step,phase,step_ms,data_ms,loss,"
    "held_out_loss,batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,"
    "torch,commit,grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.csv"


@pytest.fixture
def filled(path):
    rows_file.append(path, rows_of("a", TIMES[:3]))
    return path


def append_b(path, name="b"):
    rows_file.append(path, rows_of(name, TIMES), {"run_id": name, "source": "code " * 400})


EVERY = (rows_file.check, rows_file.read, rows_file.initialize, append_b)
READING = EVERY[1:2]


def techniques(path):
    return [row["technique"] for row in rows_file.text_rows(path)]


def refusal(path, functions=READING):
    """Return the one line with which all functions refuse the file, which stays as it is."""
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


def test_append_writes_a_row_a_step_that_pandas_reads_with_no_options(path):
    """DESIGN: "Tidy, one row a step, append-only, header fixed, readable by `pandas.read_csv` with
    no options"; "A run without timings is one row".
    """
    columns = {"run_id": "1", "loss": 1 / 3, "note": 'a "b", c'}
    rows_file.append(path, rows_of("tensorFloat32", [90.0, 12.3456], warmup=1, **columns))
    rows_file.append(path, rows_of("idea", [], run_id="2", status="failed", commit=None))

    start = "1,ladder,no_optimization,no_optimization,+tensorFloat32,0,0,tensorFloat32,ok"
    end = ',1,1,64,tokens,gpt2,stdlib,1,Test GPU,2.13.0,abc1234,clean,0.09,900,,"a ""b"", c"'
    assert path.read_text().splitlines() == [
        HEADER,
        f"{start},0,warmup,90.0,0.1,0.3333333333333333,{end}",
        f"{start},1,timed,12.3456,0.1,0.3333333333333333,{end}",
        "2,ladder,no_optimization,,,0,0,idea,failed,,,,,,,1,1,64,tokens,gpt2,stdlib,1,Test GPU,"
        "2.13.0,,,,,,",
    ]
    frame = pandas.read_csv(path)
    assert ",".join(frame.columns) == HEADER
    assert frame.loss[0] == 1 / 3 and frame.step_ms[1] == 12.3456 and frame.step_ms.isna()[2]


def test_append_takes_any_note(path):
    notes = ["two\nlines", 'all,"\n"', "a\rb", "ünï 長い", "'=1+1", "x" * 200_000, "caf\udce9"]
    for note in notes:
        rows_file.append(path, rows_of("a", TIMES[:1], note=note))
    notes[-1] = r"caf\udce9"  # no Unicode: written as text
    assert [row["note"] for row in rows_file.text_rows(path)] == notes
    assert [*rows_file.read(path).note] == [*pandas.read_csv(path).note] == notes


def test_read_gives_numbers_for_numbers_and_text_for_text(path, monkeypatch):
    """Also of a file that pandas has saved, with a fraction for each round."""
    monkeypatch.setattr(rows_file, "CHUNK", 2)
    texts = {"torch": "2.10", "dataset": "007", "note": "one, two"}
    for commit, loss in (("1234567", float("nan")), ("abc", float("inf"))):
        rows_file.append(path, rows_of("a", TIMES[:2], commit=commit, loss=loss, **texts))

    frame = rows_file.read(path)
    assert [*frame.columns] == HEADER.split(",") and frame.batch_size.dtype == int
    assert str(frame[["step", "step_ms", "loss", "commit", *texts]].values.tolist()[1:3]) == (
        "[[1.0, 12.3456, nan, '1234567', '2.10', '007', 'one, two'], "
        "[0.0, 12.3456, inf, 'abc', '2.10', '007', 'one, two']]"
    )
    assert frame.run_id.max() == rows_file.text_rows(path)[-1]["run_id"]

    saved = pandas.read_csv(path, dtype={"torch": str, "dataset": str})
    saved.astype({"round": float}).to_csv(path, index=False)
    append_b(path)
    assert ",0.0," in path.read_text()
    assert rows_file.read(path)[:4].astype(str).equals(frame.astype(str))


def test_append_at_once_leaves_whole_blocks_in_a_file_converted_once(path):
    path.write_text(f"{rows_file.OLD_HEADER}\n")
    names = [f"{n}" for n in range(40)]
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(append_b, [path] * 40, names)]

    in_file = techniques(path)
    assert [*dict.fromkeys(in_file)] == in_file[::25] and {*in_file} == {*names}
    assert {record["run_id"] for record in records_in(path.parent)} == {*names}
    assert path.with_suffix(".jsonl").read_text().count('"text"') == 1
    assert len([*path.parent.glob("*.csv")]) == 2


@pytest.mark.parametrize("moved", [False, True])
def test_append_waits_for_the_lock(filled, moved):
    """DESIGN: "A run's rows are appended in one piece when it has ended well, under a lock".

    moved: by a reset, while the run waits with the old file open.
    """
    old = filled.with_suffix(".old")
    with ThreadPoolExecutor() as pool, filled.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # for which only an exclusive lock waits
        appended = pool.submit(append_b, filled)
        with pytest.raises(TimeoutError):
            appended.result(0.5)
        assert techniques(filled) == ["a"] * 3 and not records_in(filled.parent)
        if moved:
            filled.rename(old)

    appended.result()
    assert techniques(old) == ["a"] * 3 * moved
    assert techniques(filled) == ["a"] * 3 * (not moved) + ["b"] * 25


def test_append_writes_both_files_or_neither(filled):
    """DESIGN: "A killed run leaves the file as it was": record and rows are one write each."""
    before = filled.read_bytes()

    def refused(words):
        with pytest.raises(UserError, match=f"{words}.*; nothing was appended"):
            append_b(filled)
        assert filled.read_bytes() == before and not records_in(filled.parent)

    for room in (0, 100, 2500):  # which the record fits in, but not the rows
        with full_disk(len(before) + room):
            refused("")
    for outcomes in ([], [None]):
        failure = OSError(5, "Input/output error")
        with mock.patch("os.fsync", side_effect=[*outcomes, failure]):
            refused(failure.strerror)

    with mock.patch("os.write", side_effect=os.write) as write:
        append_b(filled)
    assert write.call_count == 2 and techniques(filled) == ["a"] * 3 + ["b"] * 25


@pytest.mark.parametrize("place", ["{}/missing/x.csv", "{}", "/dev/null"])
def test_append_where_nothing_can_be_written_is_one_line(tmp_path, place):
    place = place.format(tmp_path)
    for function in (rows_file.check, rows_file.initialize, append_b):
        with pytest.raises(UserError, match=rf"^{place}: [^\n]+$"):
            function(place)
    assert not [*tmp_path.iterdir()]


def test_append_without_locks_is_one_line(path):
    with mock.patch("fcntl.flock", side_effect=OSError(38, "Function not implemented")):
        with pytest.raises(UserError, match="cannot be locked: Function not implemented"):
            append_b(path)


def test_read_needs_no_permission_to_write(filled, monkeypatch):
    """Root may write to any file, so opening for writing is made to fail here."""

    def read_only(path, mode):
        if mode != "rb":
            raise PermissionError(13, "Permission denied")
        return open(path, mode)

    monkeypatch.setattr(Path, "open", read_only)
    assert len(rows_file.read(filled)) == 3
    with pytest.raises(UserError, match="Permission denied"):
        rows_file.check(filled)


def test_initialize_writes_a_header_once(path):
    rows_file.check(path)
    assert not path.exists()
    with pytest.raises(UserError, match="no such file; make baseline"):
        rows_file.read(path)
    assert [rows_file.initialize(path), rows_file.initialize(path)] == [True, False]
    assert path.read_text() == f"{HEADER}\n" and not rows_file.has_rows(path)
    with pytest.raises(UserError, match="no results yet; make baseline"):
        rows_file.read(path)

    path.write_bytes(b"")
    with full_disk(50), pytest.raises(UserError, match="nothing was appended"):
        rows_file.initialize(path)
    assert path.read_bytes() == b""  # no half header
    append_b(path)
    assert rows_file.has_rows(path) and techniques(path) == ["b"] * 25


@pytest.mark.parametrize(
    ("damage", "line", "problem", "functions"),
    [
        (lambda text: "hello", 1, "unknown header", EVERY),
        (lambda text: HEADER, 1, "unknown header", EVERY),
        (lambda text: text[:-1], 4, "is cut off", EVERY),
        (lambda text: text[:-40], 4, "has 23 fields instead of 30", EVERY),
        (lambda text: text + '"never closed\n', 5, "cannot be read (", READING),
        (lambda text: text.replace("900,,\n", "900,,,\n", 1), 2, "has 31 fields", READING),
        (lambda text: text.replace("900,,\n", "900,\n", 1), 2, "has 29 fields", READING),
        (lambda text: text[:-2] + "\n", 4, "has 29 fields", READING),
    ],
)
def test_damaged_file_is_refused_by_its_line(filled, damage, line, problem, functions):
    filled.write_text(damage(filled.read_text()))
    assert refusal(filled, functions).startswith(f"{filled}:{line}: {problem}")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("suite", "others"),
        ("step_ms", "fast"),
        ("step_ms", "-1.5"),
        ("data_ms", "inf"),
        ("first_step_s", ""),
        ("step", "1.5"),
        ("loss", "low"),
        ("batch_size", ""),
        ("round", "0.5"),
        ("seed", "9" * 20),
        ("status", "fine"),
        ("phase", "cold"),
        ("grade", ""),
        ("status", "failed"),
    ],
)
def test_damaged_value_is_refused_by_its_line(filled, column, value):
    """Also after a note of several lines."""
    rows = rows_of("b", TIMES[:2], note="one\ntwo")
    rows[1][column] = value
    rows_file.append(filled, rows)
    if value == "failed":  # such a run has no grade
        column, value = "grade", "clean"
    problem = f"{filled}:7: {column} cannot be {value!r}; fix that line, or "
    assert refusal(filled).startswith(problem)


def test_records_come_back_with_texts_that_are_stored_once(path):
    """DESIGN: "what many runs share (the source of a script, collect_env) is stored once, by
    hash". Damaged lines, as of a process that was killed, are left out.
    """
    lines = ['{"run_id": "a", ', "[" * 10**5, '{"run_id": "b", "source": {}}', '{"run_id": "c"']
    path.with_suffix(".jsonl").write_text("\n".join(lines))
    for n in range(3):
        texts = {"source": "code\n", "collect_env": f"report {n // 2}"}
        write_record(path, [{"run_id": str(n)}], **texts, n=n)

    assert len(path.with_suffix(".jsonl").read_text().splitlines()) == 4 + 3 + 1 + 2
    records = rows_file.read_records(path, ["2", "0", "missing", *"abc"])
    assert [*records] == ["b", "0", "2"]
    assert records["2"] == {"run_id": "2", **texts, "n": 2}


@pytest.mark.parametrize("content", ["hello", f"{rows_file.OLD_HEADER}\n"])
def test_reset_archives_rows_and_records_together(filled, content):
    """A damaged file and an old one; a second reset keeps the first archive."""
    append_b(filled)
    filled.write_text(content)
    archives = [rows_file.reset(filled), rows_file.reset(filled)]
    assert archives[0].read_text() == content and archives[0].with_suffix(".jsonl").exists()
    assert filled.read_text() == archives[1].read_text() == f"{HEADER}\n"
    assert not records_in(filled.parent)
