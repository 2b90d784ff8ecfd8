"""Rows for others: a folder to share, its check, the folders that are there, the field report."""

import re
from pathlib import Path

import pytest

import plot_results
from tests.helpers.refusal import refused
from tests.helpers.rows import ladder_runs, records_in, rows_of, without_checksums
from tools.share.__main__ import main as submit
from tools.share.field_report import main as field_report
from tools.share.private_names import replacements, scrub
from tools.share.submission import PNG, PNG_END, check, page, pages
from Utils.base import paths
from Utils.commands.__main__ import main as command
from Utils.results import row_rules, rows_file, selection

HOME, USER, HOST = "/home/zelda.q", "zelda.q", "deepthought"
ROW = "results.csv"
FOLDERS = [path.parent for path in selection.shared_files()]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A machine with names, and an empty folder of results."""
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("USER", USER)
    monkeypatch.setattr("platform.node", lambda: f"{HOST}.example.org")
    monkeypatch.setattr("Utils.results.selection.SHARED", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(folder, rounds=2, **columns):
    """Append runs and records, in which names are planted wherever they could come from."""
    path = folder / "results.csv"
    columns |= {"note": f"read from {HOME}/corpus", "dataset": f"{HOME}/corpus"}

    for r in range(rounds):
        for name, ms in (("no_optimization", 100), ("tensorFloat32", 50)):
            rows = rows_of(name, [ms + r] * 4, round=r, **columns)
            record = {
                "command": [name, f"--dataset={HOME}/corpus", "/data/ZELDA.Q/r.csv"],
                "variables": {"CUDA_HOST": f"{HOST}.example.org", "TORCH_USER": USER},
                "collect_env": f"torch: 2\n-e git+ssh://{USER}@{HOST}/idea.git\n/Users/mortimer/x",
                "source": f'"""By {USER}, on {HOST.upper()}."""\n',
                "versions": {"python": "3.11.7", "torch": "2.13.0"},
                "quality": {"grade": "clean"},
            }
            rows_file.append(path, rows, record)
    return path


def contents(folder):
    """Return the bytes of all files of a folder, by path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_submit_writes_a_complete_folder_without_names(here, capsys):
    """README: "`make submit` writes rows and charts to [results/]". RESULTS: "Home folders, your
    name and the host's name are replaced in every text before charts are drawn".
    """
    path = measured(here)
    field_report()
    said = capsys.readouterr().out
    assert said.startswith("- device: Test GPU\n") and "zelda" not in said
    submit()
    folder = here / "results" / "Test_GPU" / "2026-01-01"
    assert capsys.readouterr().out.startswith(f"{folder}\nnext: commit it")
    for file in folder.iterdir():
        content = file.read_bytes().lower()
        assert not [word for word in (b"zelda", b"deepthought", b"mortimer") if word in content]

    report = "torch: 2\n-e git+ssh://<user>@<host>/idea.git\n<home>/x"
    assert (folder / "environment.txt").read_text() == report
    (record, *_) = records_in(folder)
    (scrubbed,) = rows_file.read_records(folder / "results.csv", [record["run_id"]]).values()
    assert scrubbed["variables"] == {"CUDA_HOST": "<host>", "TORCH_USER": "<user>"}
    assert scrubbed["source"] == '"""By <user>, on <host>."""\n'
    # Times and losses are what they were.
    assert (folder / "results.csv").read_text() == path.read_text().replace(HOME, "<home>")
    page = (folder / "README.md").read_text()
    assert page.startswith("# Test GPU\n\nMeasured until 2026-01-01 with python 3.11.7, torch 2.13")
    assert "| tensorFloat32 " in page and "\n![speedup.png](" in page
    assert "[Test GPU](Test_GPU/2026-01-01/README.md)" in (here / "results/README.md").read_text()
    submit("--check", "results")
    assert capsys.readouterr().out == f"{folder}: complete\n"

    # What is refused changes nothing.
    edited("abc1234", "abc1234-dirty")(here)
    without_checksums(path)
    before = contents(here)
    with refused(r"^results.csv: .*uncommitted code: no_.*; nothing was written"):
        submit()
    assert contents(here) == before
    path.unlink()
    measured(here)
    with refused("holds other runs of that day"):
        submit()


@pytest.mark.parametrize(
    "user, home, text, scrubbed",
    [
        (
            "ada",
            "/home/al",
            "adam, Ada and ada_2, /home/al/x",
            "adam, <user> and <user>_2, <home>/x",
        ),
        ("root", "/root", "without being root in /root/work", "without being root in <home>/work"),
    ],
)
def test_scrub_replaces_whole_words_and_no_common_names(user, home, text, scrubbed, monkeypatch):
    monkeypatch.setenv("USER", user)
    monkeypatch.setenv("HOME", home)
    assert scrub(text, replacements()) == scrubbed


@pytest.fixture
def folder(tmp_path):
    """A complete folder."""
    measured(tmp_path)
    for name, content in (
        ("environment.txt", b""),
        ("README.md", b"# "),
        ("speedup.png", PNG + PNG_END),
    ):
        (tmp_path / name).write_bytes(content)
    without_checksums(tmp_path / ROW)
    assert check(tmp_path) == [tmp_path]
    return tmp_path


def edited(old, new, name=ROW):
    """Return a function that replaces a text in a file of a folder."""

    def edit(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content.replace(old.encode(), new.encode()))

    return edit


# A file of a folder, a text of it and the one in its place, and the fault that is named.
FAULTS = """\
results.jsonl | "quality" | "other" | versions and quality of 4 runs
results.jsonl | "quality" | "memory": "much", "quality" | memory cannot be 'much'
results.csv | ok,1,warmup | ok,x,warmup | :3: step cannot be 'x'
results.csv | 0,abc1234,clean,0.05, | 1,abc1234,clean,0.05, | rows of 2 devices
results.csv | ,1,0,no_opt | ,0,0,no_opt | fewer than 2 rounds of no_optimization
results.csv | no_optimization,ok | torch_compile,ok | no timings of no_optimization
results.csv | ,Test GPU, | ,GPU](http://a.b), | device 'GPU](http://a.b)' is not
results.csv | read from | =cmd|' /C calc'!A0 | results.csv:2: note "=cmd|' /C
results.csv | ,tensorFloat32,ok | ,-1+2,ok | technique '-1+2' is not valid
results.jsonl | "2.13.0" | "<script>" | holds markup or control characters
results.jsonl | "quality" | "platform": "\\u001b[2J", "quality" | holds markup or control
README.md | #  | [a.png](http://a.b) | README.md holds a tag, or a link
README.md | #  | \x1b[2J | environment.txt holds control characters
speedup.png | PNG | svg | speedup.png is not a PNG
speedup.png | IEND | <svg> | speedup.png is not a PNG
"""


def planted(line):
    """Return a function that plants a fault in a folder, and the words that name it."""
    name, old, new, words = line.split(" | ")
    return edited(old, new, name), words


def in_odd_rounds(folder):
    """Let a folder have three rounds of a day since which they come in pairs."""
    measured(folder, rounds=3)
    for name in (ROW, "results.jsonl"):
        edited("20260101", "20270101", name)(folder)
    without_checksums(folder / ROW)


@pytest.mark.parametrize(
    "change, words",
    [
        *map(planted, FAULTS.splitlines()),
        (edited("# ", "0" * 2**26, "README.md"), "larger than 64 MiB"),
        (in_odd_rounds, "fewer than 4 rounds of no_optimization, tensorFloat32; an odd number"),
        (lambda folder: (folder / "speedup.png").unlink(), "lacks speedup*.png"),
        (lambda folder: (folder / "b.png").symlink_to("/etc/passwd"), "'b.png' is not allowed"),
        (lambda folder: (folder / ROW).unlink(), "holds no results"),
    ],
)
def test_check_names_a_fault_in_one_line(folder, change, words):
    """CONTRIBUTING: "all rows have one device, torch version, model and commit, which is not
    `-dirty`"; "every technique with timings has at least four rounds"; "every run with timings has
    its record, with versions and quality"; "the only files are `results.csv`, `results.jsonl`,
    `environment.txt`, `README.md` and charts as PNG, 64 MiB in all".
    """
    change(folder)
    with refused(re.escape(words)) as error:
        check(folder)
    message = str(error.value)
    assert message.startswith(str(folder)) and "\n" not in message
    assert "make reset" not in message  # which is for a file of the user's own


def test_check_refuses_a_link_to_a_folder(folder):
    link = folder.with_name(f"{folder.name}_link")
    link.symlink_to(folder)
    with refused(": is a link; "):
        submit("--check", str(link))


def test_results_of_another_machine_have_its_device_first(here, capsys):
    """RESULTS: "While your file has no rows, `make table`, `plots` and `report` show the newest
    folder of a GPU, or without one the newest"; "`recipe`, `field-report` and `submit` refuse".
    """
    for place, mib in (("B_GPU/2026-01-01", 9), ("A_GPU/2026-01-02", 9), ("C/2026-01-03", None)):
        folder = here / "results" / place
        folder.mkdir(parents=True)
        for run in ladder_runs(device=folder.parent.name, reserved_memory_mib=mib):
            rows_file.append(folder / ROW, run)
    shown = "results/A_GPU/2026-01-02/results.csv"

    command("table")
    output, errors = capsys.readouterr()
    assert errors == f"results.csv has no rows yet; showing {shown}\n"
    assert output.startswith("A_GPU: measured on another machine; run make all")
    command("report")
    page = Path("report.html").read_text()
    headings = re.findall("<(?:h1|h2|h3|summary|title)>(.*?)<", page)
    assert len(headings) > 5 and {text[:7] for text in headings} == {"A_GPU: "}
    plot_results.main()
    assert [path.name for path in Path("plots").iterdir()] == ["A_GPU"]

    # A file that is named is shown as it is.
    command("recipe", f"RESULTS_FILE={shown}")
    command("table", f"RESULTS_FILE={shown}")
    assert "another machine" not in capsys.readouterr().out
    for main in (field_report, submit):
        with refused("no such file; run make all"):
            main()


def test_pages_leave_out_a_folder_that_cannot_be_read(here, capsys):
    for name in ("A", "B", "C"):
        folder = here / "results" / name / "2026-01-01"
        folder.mkdir(parents=True)
        measured(folder)
    edited(",Test GPU,", ",[GPU](http://a.b),")(here / "results/A/2026-01-01")
    without_checksums(here / "results/A/2026-01-01/results.csv")
    (here / "results/B/2026-01-01/results.csv").write_text("a,b\n")
    texts = pages()
    assert [page.parent.parent.name for page in [*texts][1:]] == ["A", "C"]
    assert "B/2026-01-01: left out: " in capsys.readouterr().err
    for text in texts.values():
        assert "[GPU]" not in text


def test_reference_folders_are_complete_by_the_check_of_pull_requests(capsys):
    """CONTRIBUTING: "`make submit CHECK=FOLDER` checks"; the workflow does so for all folders."""
    submit("--check", str(selection.SHARED))
    assert capsys.readouterr().out.splitlines() == [f"{folder}: complete" for folder in FOLDERS]
    workflow = (paths.ROOT / ".github" / "workflows" / "submission.yml").read_text()
    assert "-m tools.share CHECK=results\n" in workflow


def test_reference_results_file_is_tracked_for_its_header_alone():
    assert paths.git("show", "HEAD:results.csv") == row_rules.HEADER


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_every_folder_is_complete_and_its_page_is_made_of_its_rows(folder):
    assert (folder / "README.md").read_text() == page(folder)
    link = f"]({folder.parent.name}/{folder.name}/README.md)"
    assert link in paths.git("show", "HEAD:results/README.md")
