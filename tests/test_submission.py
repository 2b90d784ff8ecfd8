"""Results to share: what a file holds, whose names it does not, what a stranger's may not do."""

import getpass
import json
import platform
import socket
import struct
import zipfile
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text

from tests.rows import rows_of, write_record
from Utils.analysis import device_panels, submission
from Utils.base.errors import UserError
from Utils.commands import gallery, submit
from Utils.draw import gallery_chart
from Utils.results import rows_file

HOME, USER, HOST = "/home/zelda.q", "zelda.q", "deepthought"
PLANTED = ("zelda", "deepthought", "mortimer")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A machine with names, and a folder of its own."""
    for name, value in (("HOME", HOME), ("USER", USER), ("LOGNAME", USER), ("HOSTNAME", HOST)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path(HOME))
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setattr(platform, "node", lambda: f"{HOST}.example.org")
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(submission, "COLLECTION", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_charts(monkeypatch):
    """In place of the charts, which take seconds, a picture that says so."""

    def draw(folder):
        (folder / "plots").mkdir()
        (folder / "plots" / "speedup.png").write_bytes(PNG + b"no chart")

    monkeypatch.setattr(submission, "draw", draw)


def measured(folder, names=("no_optimization", "tensorFloat32"), rounds=2, ms=100, **columns):
    """A results file with records, in which names are planted wherever they could come from."""
    path = folder / "results.csv"
    for r in range(rounds):
        for number, name in enumerate(names):
            own = rows_of(
                name,
                [ms * (1 + 0.01 * r) / (1 + number)] * 5,
                round=r,
                **{"note": f"read from {HOME}/corpus", "dataset": f"{HOME}/corpus", **columns},
            )
            rows_file.append(path, own)
            record = {
                "technique": name,
                "command": [name, f"--dataset={HOME}/corpus", "--results-file=/data/ZELDA.Q/r.csv"],
                "variables": {"CUDA_HOST": f"{HOST}.example.org", "TORCH_USER": USER},
                "collect_env": f"PyTorch version: 2\n-e git+ssh://{USER}@{HOST}/idea.git\n/Users/mortimer/x",
                "source": f'"""By {USER}, on {HOST.upper()}."""\n',
                "versions": {"python": "3.11.7", "torch": "2.13.0"},
                "quality": {"grade": "clean", "other_processes": ["/home/mortimer/a.out (pid 1)"]},
            }
            write_record(path, own, **record)
    return path


def made(folder, name="mine.zip", **options):
    return submission.make(folder / name, measured(folder, **options))[0]


# What it holds ----------------------------------------------------------------------------------


def test_no_byte_of_it_names_anyone(here):
    path = made(here)
    assert any(word in (here / "results.csv").read_text() for word in PLANTED)
    with zipfile.ZipFile(path) as pack:
        names = pack.namelist()
        members = {name: pack.read(name) for name in names}
    assert {"manifest.json", "results.csv", "plots/speedup.png", "plots/memory.png"} <= {*names}
    assert len([name for name in names if name.startswith("runs/") and "json" in name]) == 4
    (report,) = [data for name, data in members.items() if name.startswith("runs/collect_env-")]
    assert report == b"PyTorch version: 2\n-e git+ssh://<user>@<host>/idea.git\n<home>/x"
    for name, data in [*members.items(), ("its names", " ".join(names).encode())]:
        for word in PLANTED:
            assert word.encode() not in data.lower(), f"{word} in {name}"
    record = json.loads(members[next(name for name in names if name.startswith("runs/2"))])
    assert record["command"][1:] == ["--dataset=<home>/corpus", "--results-file=/data/<user>/r.csv"]
    assert record["variables"] == {"CUDA_HOST": "<host>", "TORCH_USER": "<user>"}
    assert record["versions"] == {"python": "3.11.7", "torch": "2.13.0"}
    assert members["plots/speedup.png"].startswith(PNG) and len(members["plots/speedup.png"]) > 9999
    manifest = json.loads(members["manifest.json"])
    expected = {"device": "Test GPU", "torch": "2.13.0", "model": "gpt2", "batch_size": 1}
    expected |= {"seq_len": 64, "dataset": "<home>/corpus", "commit": "abc1234", "rounds": 2}
    expected |= {"grade": "clean", "runs": 4, "techniques": 2, "date": "20260101"}
    assert {key: manifest[key] for key in expected} == expected
    assert submission.check(path) == manifest


def test_times_and_losses_are_what_they_were(here, no_charts):
    path = made(here)
    with zipfile.ZipFile(path) as pack:
        packed = pack.read("results.csv").decode()
    own = (here / "results.csv").read_text()
    assert packed == own.replace(HOME, "<home>")


def test_names_that_are_no_names_and_parts_of_words_stay():
    names = [("/home/al", "<home>"), ("ada", "<user>")]
    value = {
        "ada": ["adam, Ada and ada_2 of Canada", 3, None],
        "path": "/home/al/x /home/alice/y /homely",
    }
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


def test_only_the_newest_group_is_in_it(here, no_charts):
    measured(here, device="Other GPU")
    path = made(here, rounds=3)
    assert submission.check(path)["rounds"] == 3
    with zipfile.ZipFile(path) as pack:
        assert b"Other GPU" not in pack.read("results.csv")
        assert len(pack.namelist()) == 2 + 6 + 1 + 1


# What it lacks ----------------------------------------------------------------------------------


def repacked(path, change):
    """The submission with its members, a dict of name to bytes, changed."""
    with zipfile.ZipFile(path) as pack:
        members = {name: pack.read(name) for name in pack.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as pack:
        for name, data in members.items():
            pack.writestr(name, data)
    return path


def every_record(data):
    return lambda members: members.update(
        {name: data for name in members if name.startswith("runs/2")}
    )


def drop(prefix):
    return lambda members: [members.pop(name) for name in [*members] if name.startswith(prefix)]


def replace(name, old, new):
    return lambda members: members.update({name: members[name].replace(old, new)})


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"commit": "abc1234-dirty"}, None, "uncommitted code"),
        ({"rounds": 1}, None, "fewer than 2 clean rounds of no_optimization, tensorFloat32"),
        ({"grade": "tainted"}, None, "fewer than 2 clean rounds"),
        ({"names": ["tensorFloat32"]}, None, "no timings of no_optimization"),
        ({}, drop("runs/"), "no record with versions and quality of 4 runs"),
        ({}, every_record(b"[" * 10**5), "no record with versions and quality of 4 runs"),
        ({}, every_record(b'{"quality": 3}'), "no record with versions and quality of 4 runs"),
        (
            {},
            every_record(b'{"quality": {}, "versions": {}, "memory": "much"}'),
            "its records are malformed",
        ),
        ({}, drop("manifest"), "lacks manifest.json"),
        ({}, drop("results"), "lacks results.csv"),
        ({}, drop("plots/"), "no chart of speedups"),
        (
            {},
            replace("manifest.json", b'"rounds": 2', b'"rounds": 9'),
            "says rounds '9', its rows 2",
        ),
        ({}, replace("manifest.json", b"Test GPU", b"Best GPU"), "says device 'Best GPU'"),
        ({}, replace("manifest.json", b"{", b"["), "its manifest cannot be read"),
        ({}, lambda m: m.update({"manifest.json": b"[" * 10**5}), "its manifest cannot be read"),
        ({}, replace("results.csv", b"ok,1,warmup", b"ok,x,warmup"), "line 3: has step 'x'"),
        ({}, replace("results.csv", b"tensorFloat32", b"<b>tensor"), "is not valid"),
        (
            {},
            replace("results.csv", b",0,tensorFloat32", b",%d,tensorFloat32" % 10**99),
            "100 digits",
        ),
        ({"ms": 0}, None, "step times of 0"),
        ({}, replace("plots/speedup.png", PNG, b"<svg>"), "speedup.png is not a PNG"),
    ],
)
def test_what_is_lacking_is_said_in_one_line(here, no_charts, options, change, words):
    path = made(here, **options)
    if change:
        repacked(path, change)
    with pytest.raises(UserError) as error:
        submission.check(path)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert "make reset" not in str(error.value)  # which is for one's own
    assert str(error.value).startswith(str(path)) and str(error.value).count("/tmp/") <= 1
    with pytest.raises(UserError):
        submission.add(path)
    assert not (here / "results").exists()


def test_rows_of_two_devices_are_no_submission(here, no_charts):
    path = made(here)
    other = (here / "results.csv").read_bytes().replace(b"Test GPU", b"Other GPU")
    repacked(path, lambda m: m.update({"results.csv": m["results.csv"] + other.split(b"\n", 1)[1]}))
    with pytest.raises(UserError, match="rows of 2 devices, versions, shapes or commits"):
        submission.check(path)


# A stranger's -----------------------------------------------------------------------------------


def member(name, data=b"x", mode=None):
    def write(pack):
        info = zipfile.ZipInfo(name)
        if mode:
            info.external_attr = mode << 16
        pack.writestr(info, data, zipfile.ZIP_DEFLATED)

    return write


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (member("../evil.json"), "is not allowed"),
        (member("/etc/cron.d/x"), "is not allowed"),
        (member("runs/../../x.json"), "is not allowed"),
        (member("runs\\..\\x.json"), "is not allowed"),
        (member("runs/a/b.json"), "is not allowed"),
        (member("plots/a.svg"), "is not allowed"),
        (member("runs/x.json", b"/etc/passwd", 0o120777), "is not allowed"),
        (member("runs/x.json", b"0" * 70 * 2**20), "larger than 64 MiB"),
        (lambda p: [member("runs/x.json")(p) for _ in range(2)], "has runs/x.json twice"),
        (lambda p: [member(f"runs/{i}.json")(p) for i in range(5001)], "5001 files; at most 5000"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_could_do_harm_is_refused_before_anything_is_written(here, write, words):
    path, target = here / "bad.zip", here / "unpacked"
    target.mkdir()
    with zipfile.ZipFile(path, "w") as pack:
        write(pack)
    with pytest.raises(UserError, match=words) as error:
        submission.unpack(path, target)
    assert "\n" not in str(error.value) and not [*target.iterdir()]


def encrypted(data):
    """Marks every member as encrypted, in both of the places where a zip says so."""
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + offset
        data = data[:at] + struct.pack("<H", 1) + data[at + 2 :]
    return data


def lying(data):
    """Says that the member is 1 byte long."""
    at = data.index(b"PK\x01\x02") + 24
    return data[:at] + struct.pack("<I", 1) + data[at + 4 :]


@pytest.mark.parametrize(
    "spoil",
    [lambda d: b"no zip", lambda d: b"", lambda d: d[:-30], encrypted, lying,
     lambda d: d[:45] + bytes(20) + d[65:]],
)  # fmt: skip
def test_what_is_no_whole_zip_is_refused_in_one_line(here, spoil):
    path = here / "bad.zip"
    with zipfile.ZipFile(path, "w") as pack:
        member("manifest.json", b"{}" * 999)(pack)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UserError, match="not a zip file, or damaged|no submission; it lacks"):
        submission.unpack(path, here)
    with pytest.raises(UserError, match="No such file"):
        submission.check(here / "nowhere.zip")


def test_one_that_is_whole_is_unpacked_to_its_device_and_never_over_another(here, no_charts):
    path = made(here)
    folder = submission.add(path)
    assert folder == here / "results" / "Test_GPU" / "mine"
    rows = rows_file.read(folder / "results.csv")
    assert len(rows_file.records(folder / "results.csv", rows.run_id.unique())) == 4
    with pytest.raises(UserError, match="File exists"):
        submission.add(path)


def test_the_command_line_makes_checks_and_adds(here, no_charts, capsys):
    measured(here)
    submit.main(["make"])
    (path,) = here.glob("*.zip")
    assert path.name == "Test_GPU-20260101.zip" and path.name in capsys.readouterr().out
    submit.main(["check", str(path)])
    assert "whole; device Test GPU, torch 2.13.0" in capsys.readouterr().out
    submit.main(["add", str(path)])
    assert (here / "results" / "Test_GPU" / path.stem / "manifest.json").exists()
    with pytest.raises(SystemExit) as end:
        submit.main(["check"])
    assert end.value.code == 2


# Side by side -----------------------------------------------------------------------------------


@pytest.fixture
def three(here, no_charts):
    """Two devices that can be compared and one with another shape, as submissions."""
    for name, options in (
        ("a", {"device": "GPU $A$", "ms": 100}),
        ("b", {"device": "GPU B", "ms": 40}),
        ("c", {"device": "GPU C", "seq_len": 1024}),
    ):
        folder = here / name
        folder.mkdir()
        submission.add(made(folder, f"{name}.zip", **options))
    return here


def test_devices_of_one_shape_are_drawn_side_by_side_and_others_named(three, monkeypatch, capsys):
    measured(three, device="My GPU", rounds=3)
    panels, left_out = device_panels.collect(three / "results.csv")
    assert [panel["device"] for panel in panels] == ["GPU $A$", "GPU B", "My GPU"]
    assert left_out == ["GPU C: gpt2 1x1024 is not comparable with gpt2 1x64"]
    figure = gallery_chart.draw(panels, left_out)
    assert len(figure.axes) == 3
    for axes, panel in zip(figure.axes, panels, strict=True):
        (point,) = (line for line in axes.lines if line.get_marker() == "o")
        assert point.get_xdata()[0] == panel["lines"].speedup["tensorFloat32"].value
        texts = " ".join(text.get_text() for text in axes.texts)
        assert "best: tensorFloat32" in texts and "2.00x" in texts
        rate = panel["lines"].tokens_per_second["tensorFloat32"]
        assert f"{rate:,.0f} tokens/s" in texts
        assert axes.get_title(loc="left") == panel["device"]
        assert not any(text.get_parse_math() for text in axes.findobj(Text))  # no formula
    assert "GPU C: gpt2 1x1024" in figure.get_supxlabel()
    plt.close(figure)
    gallery.main(["--results-file", str(three / "results.csv")])
    assert (three / "plots" / "gallery.png").stat().st_size > 10_000
    assert "left out: GPU C" in capsys.readouterr().out


def test_tainted_runs_and_repeated_results_are_not_drawn(three):
    measured(three, device="My GPU", grade="tainted")
    _, left_out = device_panels.collect(three / "results.csv")
    assert any("no clean timings of no_optimization" in text for text in left_out)
    again = three / "results" / "GPU_B" / "again"
    again.mkdir()
    (again / "results.csv").write_bytes(
        (three / "results" / "GPU_B" / "b" / "results.csv").read_bytes()
    )
    panels, left_out = device_panels.collect(None)
    assert len(panels) == 2 and any("a copy of other results" in text for text in left_out)


def test_without_any_results_one_line_says_so(here):
    with pytest.raises(UserError, match="no results to draw"):
        device_panels.collect(here / "results.csv")


def test_where_all_results_are_damaged_their_damage_is_said(here):
    file = here / "damaged.csv"
    file.write_text("damaged, but mine")
    with pytest.raises(UserError, match="damaged.csv, line 1: unknown header"):
        device_panels.collect(file)
