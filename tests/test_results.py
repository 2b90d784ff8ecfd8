"""results.csv and results.jsonl: append, read, records, damage, reset."""

import fcntl
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from unittest import mock

import pandas
import pytest

from tests.helpers.refusal import refused
from tests.helpers.rows import append_run, records_in, without_checksums
from tests.helpers.stand_ins import full_disk
from Utils.base import files, paths
from Utils.base.errors import UserError, say_once
from Utils.results import rows_file

MS = [12.3456] * 25
HEADER = (
    "run_id,suite,base,parent,change,round,seed,technique,status,step,phase,step_ms,data_ms,loss,"
    "held_out_loss,batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,"
    "torch,commit,grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
)


@contextmanager
def unchanged(path):
    """Let a filled file, and its records, be as before."""
    before = path.read_bytes()
    yield
    assert path.read_bytes() == before and len(records_in(path.parent)) == 2


@pytest.fixture
def filled(path):
    for name, ms, note in (("a", MS[:2], "one\ntwo"), ("b", MS[:1], "last")):
        append_run(path, name, ms, note=note)
    return path


def append_c(path, name="c"):
    append_run(path, name, MS, {"source": "code " * 400}, run_id=name)


WRITERS = (rows_file.check, rows_file.initialize, append_c)


def techniques(path):
    return "".join(row["technique"] for row in rows_file.read_as_texts(path))


def test_append_writes_a_row_a_step_that_pandas_reads_with_no_options(path):
    """DESIGN: "Tidy, one row a step, append-only, header fixed, readable by `pandas.read_csv` with
    no options"; "A run without timings is one row".
    """
    columns = {"run_id": "1", "loss": 1 / 3, "note": 'a "b", c'}
    append_run(path, "tensorFloat32", [90.0, 12.3456], warmup=1, **columns)
    append_run(path, "idea", [], run_id="2", status="failed", commit=None)

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
    assert frame.loss[0] == 1 / 3 and frame.step_ms[1] == 12.3456 and frame.step_ms.isna()[2]


def test_append_takes_any_note(path):
    notes = ['all,"\n"', "a\rb", "ünï 長い", "x" * 200_000, "caf\udce9"]
    for note in notes:
        append_run(path, "a", MS[:1], note=note)
    notes[-1] = r"caf\udce9"  # no Unicode: written as text
    assert [row["note"] for row in rows_file.read_as_texts(path)] == notes
    assert [*rows_file.read(path).note] == [*pandas.read_csv(path).note] == notes


def test_read_gives_numbers_for_numbers_and_text_for_text(path):
    texts = {"torch": "2.10", "dataset": "007", "note": "one, two"}
    for commit, loss in (("1234567", float("nan")), ("abc", float("inf"))):
        append_run(path, "a", MS[:2], commit=commit, loss=loss, **texts)

    frame = rows_file.read(path)
    assert [*frame.columns] == HEADER.split(",") and frame.batch_size.dtype == int
    assert str(frame[["step_ms", "loss", "commit", *texts]].values.tolist()[1:3]) == (
        "[[12.3456, nan, '1234567', '2.10', '007', 'one, two'], "
        "[12.3456, inf, 'abc', '2.10', '007', 'one, two']]"
    )


def test_append_waits_for_the_lock(filled):
    """DESIGN: "A run's rows are appended in one piece when it has ended well, under a lock".

    A reset moves the file away while two runs wait with it open.
    """
    records = filled.with_suffix(".jsonl")
    before = filled.read_bytes(), records.read_bytes()
    with ThreadPoolExecutor() as pool, filled.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # for which only an exclusive lock waits
        appended = [pool.submit(append_c, filled, name) for name in "cd"]
        with pytest.raises(TimeoutError):
            appended[0].result(0.5)
        assert (filled.read_bytes(), records.read_bytes()) == before
        filled.rename(filled.with_suffix(".old"))

    assert [run.result() for run in appended] == [None, None]
    assert techniques(filled) in ("c" * 25 + "d" * 25, "d" * 25 + "c" * 25)
    assert len(records_in(filled.parent)) == 4


def test_append_writes_both_files_or_neither(filled):
    """DESIGN: "A killed run leaves the file as it was": record and rows are one write each."""
    size = filled.stat().st_size
    fails = OSError(5, "Input/output error")
    contexts = [full_disk(size + room) for room in (0, 2500)]  # the record fits in
    contexts.append(mock.patch("os.fsync", side_effect=[None, fails]))
    for context in contexts:
        with unchanged(filled), context, refused("; nothing was appended"):
            append_c(filled)

    with mock.patch("os.write", wraps=rows_file.os.write) as write:
        append_c(filled)
    assert write.call_count == 2 and techniques(filled) == "aab" + "c" * 25


def test_append_moves_the_rows_of_a_killed_run_aside(filled):
    """DESIGN: "A killed run leaves the file as it was"; until then readers leave them out."""
    before = filled.read_bytes()
    append_c(filled)
    os.truncate(filled, len(before) + 1000)
    rows = filled.read_bytes()[-1000:]
    assert techniques(filled) == "aab"

    append_c(filled, "d")
    assert techniques(filled) == "aab" + "d" * 25
    assert filled.with_name("results.csv.killed-c").read_bytes() == rows


def test_append_is_not_interrupted(path):
    def press_ctrl_c(file, text, write=files.atomic_append):
        os.kill(os.getpid(), signal.SIGINT)
        write(file, text)

    with mock.patch.object(files, "atomic_append", press_ctrl_c):
        with pytest.raises(KeyboardInterrupt):
            append_c(path)
    assert techniques(path) == "c" * 25 and len(records_in(path.parent)) == 1


# A text of a file, the one in its place, and the line and problem that are named.
DAMAGES = """\
run_id | id | 1: unknown header
,last |  | 6: has 29 fields
,900 | ,900, | 6: has 31 fields
last | "never closed | 6: cannot be read (
,ladder | ,others | 6: suite cannot be 'others'
12.3456 | fast | 6: step_ms cannot be 'fast'
12.3456 | -1.5 | 6: step_ms cannot be '-1.5'
,0.1, | ,inf, | 6: data_ms cannot be 'inf'
0,warmup | 1.5,warmup | 6: step cannot be '1.5'
,1,1,64 | ,,1,64 | 6: batch_size cannot be ''
,0,b | ,99999999999999999999,b | 6: seed cannot be '9
clean |  | 6: grade cannot be ''
"""


@pytest.mark.parametrize(
    "old, new, problem",
    [
        *(line.split(" | ") for line in DAMAGES.splitlines()),
        ("last\n", "last", "6: is cut off"),
        ("last", "\udcff", "6: has a zero byte, or is not UTF-8"),
    ],
)
def test_damaged_file_is_refused_by_its_line(filled, old, new, problem):
    """A run sees the header and the end of a file alone. Line 2 has a note of several lines."""
    text = new.join(filled.read_text().rsplit(old, 1))
    filled.write_text(text, errors="surrogateescape")
    without_checksums(filled)
    line = f"^{re.escape(f'{filled}:{problem}')}.*make reset RESULTS_FILE={filled}"
    for function in (rows_file.read, *(WRITERS if new in ("id", "last") else ())):
        with unchanged(filled), refused(line):
            function(filled)


def test_damaged_rows_are_not_those_of_a_killed_run(filled):
    append_c(filled)
    *lines, _, last = filled.read_bytes().splitlines(keepends=True)
    filled.write_bytes(b"".join([*lines, last]))
    with refused(":30: is not what run c wrote there"):
        append_c(filled, "d")


def damaged(content):
    """Cut at each byte, change each byte, and delete, double and move each line."""
    for n, byte in enumerate(content):
        yield content[:n]
        yield content[:n] + bytes([byte ^ 1]) + content[n + 1 :]

    lines = content.splitlines(keepends=True)
    for n, line in enumerate(lines):
        rest = lines[:n] + lines[n + 1 :]
        yield b"".join(rest)
        yield b"".join(lines[:n] + lines[n - 1 :])
        for m in range(len(lines)):
            yield b"".join([*rest[:m], line, *rest[m:]])


@pytest.mark.parametrize("name", ["results.csv", "results.jsonl"])
def test_damaged_file_is_named_or_gives_the_same_rows(name, filled, monkeypatch, capsys):
    """COMMANDS: "Nothing is taken back on a guess". Rows of a killed run are kept aside."""
    append_run(filled, "c", [], {"source": "code"}, run_id="c")
    monkeypatch.setattr("Utils.results.rows_file._parsed", cache(rows_file._parsed))
    contents = {path: path.read_bytes() for path in filled.parent.iterdir()}

    def shown():
        say_once.cache_clear()
        try:
            rows = rows_file.read(filled).sort_values(["run_id", "step"])
            records = rows_file.read_records(filled, rows.run_id.unique())
        except UserError as error:
            place = r".*/results.(csv:\d+: |jsonl:\d+: |csv: no results yet; run make)"
            return bool(re.match(place, str(error)))
        return [*map(str, records.values())], rows.to_csv(index=False)

    usual = shown()
    for content in damaged(contents[filled.with_name(name)]):
        for path in contents:
            path.write_bytes(content if path.name == name else contents[path])
        before = filled.read_bytes()
        values = shown()
        assert values in (usual, True) or (values and capsys.readouterr().err), content

        with suppress(UserError):
            rows_file.append(filled, [])
        after = filled.read_bytes()
        for path in filled.parent.glob("*.killed-*"):
            after += path.read_bytes()
            path.unlink()
        assert after == before or before in HEADER.encode()


def test_records_come_back_with_texts_that_are_stored_once(path):
    """DESIGN: "what many runs share (the source of a script, collect_env) is stored once, by
    hash". What a killed process left of a line is moved aside.
    """
    file = path.with_suffix(".jsonl")
    file.write_text('{"run_id": "a", \n{"run_id": "b", "source": "x"}\n{"run_id": "c"')
    assert not rows_file.read_records(path, "c")
    for n in range(3):
        texts = {"source": "code\n", "collect_env": f"report {n // 2}"}
        append_run(path, "a", MS[:1], texts | {"n": n}, run_id=str(n))

    assert len(file.read_text().splitlines()) == 2 + 3 + 1 + 2
    assert [path.read_text() for path in file.parent.glob("*.killed-*")] == ['{"run_id": "c"']
    records = rows_file.read_records(path, ["2", "0", "missing", *"bc"])
    assert [*records] == ["b", "0", "2"]
    assert records["2"] == {"run_id": "2", **texts, "n": 2}


@pytest.mark.parametrize(
    "line, problem",
    [
        ("null", "is not as it was written"),
        ('{"run_id": "c", ', "Expecting property name .*"),
        ('{"run_id": "c", "device": []}', r"device cannot be \[\]"),
        ('{"run_id": "c", "versions": "2.13"}', "versions cannot be '2.13'"),
        ('{"run_id": "c", "patch": {}}', "digest is missing"),
    ],
)
def test_records_of_another_shape_are_refused_by_their_line(line, problem, path):
    append_c(path)
    with path.with_suffix(".jsonl").open("a") as file:
        file.write(f"{line}\n")
    with refused(f"results.jsonl:3: {problem}; .* make reset"):
        rows_file.read_records(path, ["c"])


def test_reset_archives_a_damaged_file_and_records_together(path, monkeypatch):
    """A second reset keeps the first archive."""
    with refused("no such file; run make all"):
        rows_file.read(path)
    append_c(path)
    path.write_text("hello")
    archives = [rows_file.reset(path), rows_file.reset(path)]

    assert archives[0].read_text() == "hello" and archives[0].with_suffix(".jsonl").exists()
    assert path.read_text() == archives[1].read_text() == f"{HEADER}\n"
    assert not records_in(path.parent) and not rows_file.initialize(path)
    with refused("no results yet; run make all"):
        rows_file.read(path)
    with monkeypatch.context() as full:
        full.setattr("Utils.results.rows_file.append", mock.Mock(side_effect=UserError("full")))
        with refused("full; its rows are kept as .*/results-"):
            rows_file.reset(path)


def test_file_of_old_columns_names_the_converting_commit(filled):
    """DESIGN: "one line names the commit that converts them"."""
    filled.write_text(filled.read_text().replace("suite,base,parent,change", "base", 1))
    for function in (rows_file.read, *WRITERS):
        with unchanged(filled), refused(f"^{filled}:1: has no columns suite, ") as caught:
            function(filled)

    _, _, commands = str(caught.value).partition(" git switch --detach ")
    commit, _, command = commands.partition(" && ")
    assert command == f"make init_results RESULTS_FILE={filled} && git switch -"
    assert paths.git("merge-base", commit, "HEAD").startswith(commit)
    assert paths.git("ls-tree", commit, "Utils/results/old_rows.py")
