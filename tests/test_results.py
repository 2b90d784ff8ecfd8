"""results.csv and results.jsonl: append, read, records, damage, old files, reset."""

import fcntl
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pandas
import pytest

from tests.helpers.rows import records_in, rows_of, write_record
from tests.helpers.stand_ins import full_disk
from Utils.base.errors import UserError
from Utils.results import rows_file

MS = [12.3456] * 25
HEADER = (
    "run_id,suite,base,parent,change,round,seed,technique,status,step,phase,step_ms,data_ms,loss,"
    "held_out_loss,batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,"
    "torch,commit,grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
)
OLD_HEADER = HEADER.replace("suite,base,parent,change", "base")
OWN = {"base": "train", "unit": "images", "model": "", "commit": "aaaaaaa"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.csv"


@pytest.fixture
def filled(path):
    rows_file.append(path, rows_of("tensorFloat32", MS[:3]))
    return path


def write_old(path, *runs):
    """Write runs to a file from before the columns suite, parent and change."""
    rows = pandas.DataFrame(sum(runs, []), dtype=object)
    rows[OLD_HEADER.split(",")].to_csv(path, index=False)


def append_b(path, name="b"):
    rows_file.append(path, rows_of(name, MS), {"run_id": name, "source": "code " * 400})


EVERY = (rows_file.check, rows_file.read, rows_file.initialize, append_b)


def techniques(path):
    return [row["technique"] for row in rows_file.read_as_texts(path)]


def refusal(path, functions=EVERY[1:2]):
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
        rows_file.append(path, rows_of("a", MS[:1], note=note))
    notes[-1] = r"caf\udce9"  # no Unicode: written as text
    assert [row["note"] for row in rows_file.read_as_texts(path)] == notes
    assert [*rows_file.read(path).note] == [*pandas.read_csv(path).note] == notes


def test_read_gives_numbers_for_numbers_and_text_for_text(path, monkeypatch):
    """Also of a file that pandas has saved, with a fraction for each round."""
    monkeypatch.setattr(rows_file, "CHUNK", 2)
    texts = {"torch": "2.10", "dataset": "007", "note": "one, two"}
    for commit, loss in (("1234567", float("nan")), ("abc", float("inf"))):
        rows_file.append(path, rows_of("a", MS[:2], commit=commit, loss=loss, **texts))

    frame = rows_file.read(path)
    assert [*frame.columns] == HEADER.split(",") and frame.batch_size.dtype == int
    assert str(frame[["step_ms", "loss", "commit", *texts]].values.tolist()[1:3]) == (
        "[[12.3456, nan, '1234567', '2.10', '007', 'one, two'], "
        "[12.3456, inf, 'abc', '2.10', '007', 'one, two']]"
    )

    pandas.read_csv(path, dtype=str).assign(round="0.0").to_csv(path, index=False)
    append_b(path)
    assert rows_file.read(path)[:4].astype(str).equals(frame.astype(str))


@pytest.mark.parametrize("moved", [False, True])
def test_append_waits_for_the_lock(path, moved):
    """DESIGN: "A run's rows are appended in one piece when it has ended well, under a lock".

    moved: by a reset, while two runs wait with the file open; else one of them converts it.
    """
    (rows_file.append if moved else write_old)(path, rows_of("a", MS[:3]))
    before = path.read_bytes()
    with ThreadPoolExecutor() as pool, path.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # for which only an exclusive lock waits
        appended = [pool.submit(append_b, path, name) for name in "bc"]
        with pytest.raises(TimeoutError):
            appended[0].result(0.5)
        assert [*path.parent.iterdir()] == [path] and path.read_bytes() == before
        if moved:
            path.rename(path.with_suffix(".old"))

    assert [run.result() for run in appended] == [None, None]
    text = "".join(techniques(path)).removeprefix("" if moved else "aaa")
    assert text in ("b" * 25 + "c" * 25, "c" * 25 + "b" * 25)
    assert len([*path.parent.glob("*.csv")]) == 2 - moved
    assert len(records_in(path.parent)) == 2


def test_append_writes_both_files_or_neither(filled):
    """DESIGN: "A killed run leaves the file as it was": record and rows are one write each."""
    before = filled.read_bytes()

    fails = OSError(5, "Input/output error")
    contexts = [full_disk(len(before) + room) for room in (0, 100, 2500)]  # the record fits in
    contexts += [mock.patch("os.fsync", side_effect=effect) for effect in ([fails], [None, fails])]
    for context in contexts:
        with context, pytest.raises(UserError, match="; nothing was appended"):
            append_b(filled)
        assert filled.read_bytes() == before and not records_in(filled.parent)
    with mock.patch("fcntl.flock", side_effect=OSError(38, "Not implemented")):
        with pytest.raises(UserError, match="cannot be locked: Not implemented"):
            append_b(filled)

    with mock.patch("os.write", wraps=rows_file.os.write) as write:
        append_b(filled)
    assert write.call_count == 2 and len(techniques(filled)) == 3 + 25


@pytest.mark.parametrize("place", ["{}/missing/x.csv", "{}", "/dev/null"])
def test_append_where_nothing_can_be_written_is_one_line(tmp_path, place):
    place = place.format(tmp_path)
    for function in (rows_file.check, rows_file.initialize, append_b):
        with pytest.raises(UserError, match=rf"^{place}: [^\n]+$"):
            function(place)
    assert not [*tmp_path.iterdir()]


def test_initialize_writes_a_header_once(path):
    rows_file.check(path)
    with pytest.raises(UserError, match="no such file; make baseline"):
        rows_file.read(path)
    assert not path.exists()
    assert [rows_file.initialize(path), rows_file.initialize(path)] == [True, False]
    assert path.read_text() == f"{HEADER}\n" and not rows_file.has_rows(path)
    with pytest.raises(UserError, match="no results yet; make baseline"):
        rows_file.read(path)
    append_b(path)
    assert rows_file.has_rows(path) and len(techniques(path)) == 25


@pytest.mark.parametrize(
    ("damage", "line", "problem"),
    [
        (lambda text: "hello", 1, "unknown header"),
        (lambda text: text[:-1], 4, "is cut off"),
        (lambda text: text[:-40], 4, "has "),
        (lambda text: text + '"never closed\n', 5, "cannot be read ("),
        (lambda text: text.replace("900,,\n", "900,,,\n", 1), 2, "has 31 fields"),
    ],
)
def test_damaged_file_is_refused_by_its_line(filled, damage, line, problem):
    """A run sees the header and the end of a file alone."""
    filled.write_text(damage(filled.read_text()))
    said = refusal(filled, EVERY if line in (1, 4) else EVERY[1:2])
    assert said.startswith(f"{filled}:{line}: {problem}")


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
        ("seed", "9" * 20),
        ("status", "fine"),
        ("grade", ""),
    ],
)
def test_damaged_value_is_refused_by_its_line(filled, column, value):
    """Also after a note of several lines."""
    rows = rows_of("b", MS[:2], note="one\ntwo")
    rows[1][column] = value
    rows_file.append(filled, rows)
    problem = f"{filled}:7: {column} cannot be {value!r}; fix that line, or "
    assert refusal(filled).startswith(problem)


def test_records_come_back_with_texts_that_are_stored_once(path):
    """DESIGN: "what many runs share (the source of a script, collect_env) is stored once, by
    hash". Damaged lines, as of a process that was killed, are left out.
    """
    file = path.with_suffix(".jsonl")
    file.write_text('{"run_id": "a", \n{"run_id": "b", "source": {}}\n{"run_id": "c"')
    for n in range(3):
        texts = {"source": "code\n", "collect_env": f"report {n // 2}"}
        write_record(path, [{"run_id": str(n)}], **texts, n=n)

    assert len(file.read_text().splitlines()) == 3 + 3 + 1 + 2
    records = rows_file.read_records(path, ["2", "0", "missing", *"abc"])
    assert [*records] == ["b", "0", "2"]
    assert records["2"] == {"run_id": "2", **texts, "n": 2}


def test_reset_archives_a_damaged_file_and_records_together(filled):
    """A second reset keeps the first archive."""
    append_b(filled)
    filled.write_text("hello")
    archives = [rows_file.reset(filled), rows_file.reset(filled)]
    assert archives[0].read_text() == "hello" and archives[0].with_suffix(".jsonl").exists()
    assert filled.read_text() == archives[1].read_text() == f"{HEADER}\n"
    assert not records_in(filled.parent)


def identities(path):
    """Return "technique suite parent change" of all rows, as both readers have them."""
    names = ["technique", "suite", "parent", "change"]
    texts = {" ".join(row[name] for name in names).strip() for row in rows_file.read_as_texts(path)}
    assert {*rows_file.read(path)[names].agg(" ".join, axis=1).str.strip()} == texts
    return texts


def test_old_scripts_of_ours_get_what_their_docstrings_say(path, capsys):
    expected = {
        "no_optimization ladder",
        "tensorFloat32 ladder no_optimization +tensorFloat32",
        "torch_compile ladder brainFloat16 +torch_compile",
        "padded_vocabulary beyond fused_optimizer +padded_vocabulary",
        "no_optimization+flash_attention ablation no_optimization +flash_attention",
        "fused_optimizer-torch_compile-flash_attention ablation fused_optimizer "
        "-torch_compile-flash_attention",
    }
    write_old(path, *(rows_of(text.split()[0], MS[:3]) for text in expected))
    assert identities(path) == expected and not capsys.readouterr().err


@pytest.mark.parametrize("note", ["in float16; waits for data 20% of the time", ""])
def test_old_rows_without_bfloat16_are_of_the_float16_ladder(path, note):
    """By a note of a run, or as no script with bfloat16 has timings. Other devices stay apart."""
    t4 = {"device": "Tesla T4"}
    write_old(
        path,
        rows_of("float16_compile", MS[:3], note=note, **t4),
        rows_of("padded_vocabulary", MS[:3], **t4),
        rows_of("torch_compile", [], status="unsupported", **t4),
        rows_of("fused_optimizer", MS[:3]),
        rows_of("float16_attention", MS[:3]),
    )
    assert identities(path) == {
        "float16_compile ladder float16_grad_scaler +float16_compile",
        "padded_vocabulary beyond float16_fused_optimizer +padded_vocabulary",
        "torch_compile ladder float16_grad_scaler +torch_compile",
        "fused_optimizer ladder flash_attention +fused_optimizer",
        "float16_attention beyond float16_compile +float16_attention",
    }


def test_old_switches_of_a_users_script_are_in_turn(path, capsys):
    """One that failed is skipped by the next; of an ablation one is alone, or all but one."""
    compiled = "train+tensorFloat32+torch_compile"
    fused = f"{compiled}+fused_optimizer"
    graphs = "train+tensorFloat32+fused_optimizer+cuda_graphs"
    expected = {
        "train own",
        "train+tensorFloat32 own train +tensorFloat32",
        f"{compiled} own train+tensorFloat32 +torch_compile",
        f"{fused} own {compiled} +fused_optimizer",
        f"{compiled}+8bit_optimizer own {compiled} +8bit_optimizer",
        f"{fused}+channels_last own {fused} +channels_last",
        f"{graphs} own {fused} +cuda_graphs-torch_compile",
        "train+fused_optimizer ablation train +fused_optimizer",
        f"train+torch_compile+fused_optimizer ablation {fused} -tensorFloat32",
    }
    runs = [rows_of(text.split()[0], MS[:3], **OWN) for text in expected]
    failed = rows_of("train+tensorFloat32+brainFloat16", [], status="unsupported", **OWN)
    # In another version of the script, only this technique took effect.
    later = rows_of("train+flash_attention", MS[:3], **OWN | {"commit": "bbbbbbb-dirty"})
    write_old(path, *runs, failed, later)
    assert identities(path) == expected | {
        "train+tensorFloat32+brainFloat16 own train+tensorFloat32 +brainFloat16",
        "train+flash_attention own train +flash_attention",
    }
    assert not capsys.readouterr().err


def test_old_names_that_are_unknown_are_told_in_one_line_and_kept(path, capsys):
    names = ("no_optimization+gone", "renamed_since", "renamed_since")
    runs = [rows_of(name, MS[:1]) for name in names]
    write_old(path, *runs, rows_of("train.fast+torch_compile", MS[:1], **OWN))
    rows = rows_file.read(path)
    assert [*rows.suite] == ["ladder"] * 3 + ["own"] and {*rows.parent} == {*rows.change} == {""}
    said = capsys.readouterr().err
    assert said.startswith(f"{path}: no script here is named ")
    assert [said.count(text) for text in (*rows.technique, "\n")] == [1] * 5


def test_append_converts_an_old_file_once_and_keeps_it(path, monkeypatch, capsys):
    """The file that a link names is converted, not the link."""
    monkeypatch.setattr(rows_file, "CHUNK", 4)
    target = path.with_name("elsewhere")
    path.symlink_to(target)
    columns = {"note": 'a, "b"\nc', "torch": "2.10"}
    write_old(path, rows_of("tensorFloat32", MS, **columns), rows_of("train+muon", MS, **OWN))
    before = path.read_bytes()
    texts_before = rows_file.read_as_texts(path)

    with full_disk(len(before) - 1000), pytest.raises(UserError, match="File too large"):
        append_b(path)
    assert path.read_bytes() == before and {*path.parent.iterdir()} == {path, target}
    append_b(path)
    (archive,) = path.parent.glob("results-2*.csv")
    assert capsys.readouterr().err == (
        f"{path}: now with the columns suite, parent, change; the file of before is {archive}\n"
    )
    assert archive.read_bytes() == before and path.is_symlink()
    assert target.read_text().startswith(f"{HEADER}\n")
    assert (
        rows_file.read_as_texts(path)[:50] == texts_before and techniques(path)[50:] == ["b"] * 25
    )
