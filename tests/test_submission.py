"""Shared results: what a folder holds, whose names it does not, what a stranger's may not hold."""

import getpass
import platform
from pathlib import Path

import pytest

from tests.helpers.rows import records_in, rows_of
from Utils.analysis import submission
from Utils.base.errors import UserError
from Utils.commands import __main__ as commands
from Utils.results import rows_file, selection

HOME, USER, HOST = "/home/zelda.q", "zelda.q", "deepthought"
PLANTED = ("zelda", "deepthought", "mortimer")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A machine with names, and a folder of its own."""
    for name, value in (("HOME", HOME), ("USER", USER), ("LOGNAME", USER), ("HOSTNAME", HOST)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path(HOME))
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setattr(platform, "node", lambda: f"{HOST}.example.org")
    monkeypatch.setattr(selection, "SHARED", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_charts(monkeypatch):
    """In place of the charts, which take seconds, a file that begins as one."""
    picture = submission.PNG + b"no chart"
    monkeypatch.setattr(submission, "draw", lambda f: (f / "speedup.png").write_bytes(picture))


def measured(folder, names=("no_optimization", "tensorFloat32"), rounds=2, ms=100, **columns):
    """A results file with records, in which names are planted wherever they could come from."""
    path = folder / "results.csv"
    for r in range(rounds):
        for number, name in enumerate(names):
            steps = [ms * (1 + 0.01 * r) / (1 + number)] * 5
            texts = {"note": f"read from {HOME}/corpus", "dataset": f"{HOME}/corpus"}
            rows = rows_of(name, steps, round=r, **texts | columns)
            record = {
                "run_id": rows[0]["run_id"],
                "command": [name, f"--dataset={HOME}/corpus", "--results-file=/data/ZELDA.Q/r.csv"],
                "variables": {"CUDA_HOST": f"{HOST}.example.org", "TORCH_USER": USER},
                "collect_env": f"torch: 2\n-e git+ssh://{USER}@{HOST}/idea.git\n/Users/mortimer/x",
                "source": f'"""By {USER}, on {HOST.upper()}."""\n',
                "versions": {"python": "3.11.7", "torch": "2.13.0"},
                "quality": {"grade": "clean", "other_processes": ["/home/mortimer/a.out (pid 1)"]},
            }
            rows_file.append(path, rows, record)
    return path


def made(here, **options):
    return submission.make(measured(here, **options))[0]


def test_no_byte_of_a_folder_names_anyone(here, capsys):
    path = measured(here)
    commands.main("submit")
    folder = here / "results" / "Test_GPU" / "2026-01-01"
    assert str(folder) in capsys.readouterr().out
    members = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {*submission.NEEDED[:-1], "speedup.png", "memory.png"} <= {*members}
    assert members["speedup.png"].startswith(submission.PNG) and len(members["speedup.png"]) > 9e3
    for name, content in members.items():
        for word in PLANTED:
            assert word.encode() not in content.lower(), f"{word} in {name}"
    report = "torch: 2\n-e git+ssh://<user>@<host>/idea.git\n<home>/x"
    assert members["environment.txt"].decode() == report
    run_ids = [record["run_id"] for record in records_in(folder)]
    record, *_ = rows_file.read_records(folder / "results.csv", run_ids).values()
    assert len(run_ids) == 4 and record["collect_env"] == report
    assert record["command"][1:] == ["--dataset=<home>/corpus", "--results-file=/data/<user>/r.csv"]
    assert record["variables"] == {"CUDA_HOST": "<host>", "TORCH_USER": "<user>"}
    assert record["versions"] == {"python": "3.11.7", "torch": "2.13.0"}
    # Times and losses are what they were.
    assert members["results.csv"].decode() == path.read_text().replace(HOME, "<home>")
    page = members["README.md"].decode()
    assert page.startswith("# Test GPU\n") and "tensorFloat32" in page and "![speedup.png]" in page
    assert "[Test GPU](Test_GPU/2026-01-01/README.md)" in (here / "results/README.md").read_text()
    for checked in (folder, here / "results"):
        commands.main("submit", "--check", str(checked))
        assert capsys.readouterr().out == f"{folder}: complete\n"


def test_names_that_are_no_names_and_parts_of_words_stay():
    names = [("/home/al", "<home>"), ("ada", "<user>")]
    texts = ["adam, Ada and ada_2 of Canada", 3, None]
    value = {"ada": texts, "path": "/home/al/x /home/alice/y /homely"}
    assert submission.scrub(value, names) == {
        "ada": ["adam, <user> and <user>_2 of Canada", 3, None],
        "path": "<home>/x <home>/y /homely",
    }


def test_a_user_that_is_root_is_no_secret(monkeypatch):
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "root")
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(Path, "home", lambda: Path("/root"))
    monkeypatch.setenv("HOME", "/root")
    text = submission.scrub("without being root in /root/work", submission.identity())
    assert text == "without being root in <home>/work"


@pytest.mark.slow
def test_the_newest_group_is_in_it_and_complete_ones_of_other_shapes(here, no_charts):
    measured(here, device="Other GPU")
    measured(here, seq_len=128, rounds=1)
    measured(here, seq_len=256)
    folder, left_out = submission.make(measured(here, rounds=3))
    rows = rows_file.read(folder / "results.csv")
    assert {*rows.device} == {"Test GPU"} and {*rows.seq_len} == {64, 256}
    assert rows.run_id.nunique() == 10 and left_out == "left out: 6 runs"
    assert submission.check(folder) == [folder]
    submission.make(measured(here, rounds=3))  # a later run of that day replaces it
    assert rows_file.read(folder / "results.csv").run_id.nunique() == 10
    (here / "results.csv").unlink()
    with pytest.raises(UserError, match="holds other runs of that day"):
        submission.make(measured(here))


def replace(name, old, new):
    def change(folder):
        (folder / name).write_bytes((folder / name).read_bytes().replace(old, new))

    return change


def records_say(text):
    return replace("results.jsonl", b'"quality": {"grade": "clean"', b'"quality": ' + text)


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"commit": "abc1234-dirty"}, None, "uncommitted code"),
        ({"rounds": 1}, None, "fewer than 2 clean rounds of no_optimization, tensorFloat32"),
        ({"grade": "tainted"}, None, "fewer than 2 clean rounds"),
        ({"names": ["tensorFloat32"]}, None, "no timings of no_optimization"),
        ({}, records_say(b'[' * 10**5), "no record with versions and quality of 4 runs"),
        ({}, records_say(b'3, "x": {"y": 1'), "no record with versions and quality of 4 runs"),
        ({}, records_say(b'{"a": 0}, "memory": "much", "x": {"y": 1'), "records are malformed"),
        ({}, lambda folder: (folder / "results.jsonl").unlink(), "lacks results.jsonl"),
        ({}, lambda folder: (folder / "speedup.png").unlink(), "lacks speedup*.png"),
        ({}, replace("speedup.png", submission.PNG, b"<svg>"), "speedup.png is not a PNG"),
        ({}, lambda folder: (folder / "a.svg").touch(), "'a.svg' is not allowed"),
        ({}, lambda folder: (folder / "a.png").mkdir(), "'a.png' is not allowed"),
        ({}, lambda folder: (folder / "b.png").symlink_to("/etc/passwd"), "'b.png' is not allowed"),
        ({}, lambda folder: (folder / "README.md").write_bytes(b"0" * 2**26), "larger than 64 MiB"),
        ({}, replace("results.csv", b"ok,1,warmup", b"ok,x,warmup"), ":3: step cannot be 'x'"),
        ({}, replace("results.csv", b"tensorFloat32", b"<b>tensor"), "is not valid"),
        ({}, replace("results.csv", b"run_id,suite", b"run,suite"), ":1: unknown header"),
        ({}, replace("results.csv", b",timed,100.0", b",timed,nan"), ":4: step_ms cannot be 'nan'"),
        ({}, replace("results.csv", b",timed,100.0", b",timed,-1"), ":4: step_ms cannot be '-1'"),
        ({}, replace("results.csv", b"read from", b"<script>"), "results.csv:2: note '<script>"),
        ({}, replace("results.csv", b"Test GPU", b"../../x"), "results.csv:2: device '../../x'"),
        ({}, replace("results.csv", b"Test GPU", b"G" * 10**4), "results.csv:2: device 'GGG"),
        ({}, replace("README.md", b"# ", b"<img src=x>"), "README.md holds a tag"),
        ({}, replace("results.csv", b",0,tensor", b",%d,tensor" % 10**99), "seed cannot be '1000"),
    ],
)  # fmt: skip
def test_what_is_lacking_is_said_in_one_line(here, no_charts, options, change, words):
    folder = made(here, **options)
    if change:
        change(folder)
    with pytest.raises(UserError) as error:
        submission.check(folder)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert "make reset" not in str(error.value)  # which is for one's own
    assert str(error.value).startswith(str(folder))


def test_rows_of_two_devices_are_no_folder(here, no_charts):
    folder = made(here)
    rows = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(rows + rows.partition("\n")[2].replace("Test", "Other"))
    with pytest.raises(UserError, match="rows of 2 devices, versions, models or commits"):
        submission.check(folder)
    with pytest.raises(UserError, match="holds no results"):
        submission.check(here / "elsewhere")


def test_a_file_without_rows_stands_for_the_newest_shared_ones_of_a_gpu(here, no_charts, capsys):
    path = here / "results.csv"
    assert selection.reading(path) == path
    for device, reserved in (("A GPU", 900.0), ("B GPU", 900.0), ("C CPU", None)):
        folder = made(here, device=device, reserved_memory_mib=reserved)
        folder.rename(folder.with_name(f"2026-01-0{ord(device[0]) - 64}"))
    path.unlink()
    rows_file.initialize(path)
    assert capsys.readouterr().err == ""
    newest = selection.reading(path)
    assert newest == here / "results" / "B_GPU" / "2026-01-02" / "results.csv"
    said = f"{path} has no rows yet: these are of {newest.relative_to(here)}\n"
    assert capsys.readouterr().err == said
    measured(here)
    assert selection.reading(path) == path
