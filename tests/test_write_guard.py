"""The guard of a user's files: what existed stays, what is saved goes to scratch."""

import ast
import os
import re
import runpy
import tempfile
from argparse import Namespace

import pytest

from tests.helpers import forked, processes
from tools.own_script.user_code import Ended
from tools.own_script.write_guard import WriteGuard
from Utils.base import paths

START = "import os\nimport shutil\nfrom pathlib import Path\n"


class Project:
    """A user's folder with files, in which scripts run under the guard.

    changed: after a run, names of files that existed before and are not what they were. notes:
    those of its guard.
    """

    def __init__(self, folder):
        self.folder = folder / "project"
        self.write("log.txt", "ckpt.pt", "a.safetensors", "run.db", "old/notes.txt")
        (self.folder / "empty").mkdir()

    def write(self, *names):
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(f"bytes of {name}\n")

    def contents(self):
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    def run(self, script, writes=False, runs="runs", imports=""):
        """Run a script; return what it printed, the refusal or None, and the count of writes.

        imports: what is run before the guard is installed.
        """
        (self.folder / "train.py").write_text(START + script)
        ours = self.folder.parent
        (ours / runs).mkdir(exist_ok=True)
        (ours / runs / "created").touch()
        spec = Namespace(
            folder=self.folder,
            writes=writes,
            runs=ours / runs,
            created=ours / runs / "created",
            scratch=tempfile.mkdtemp(dir=ours / runs),
        )

        def main():
            os.environ |= {"HOME": str(self.folder / "home"), "HF_HOME": "hf"}
            os.chdir(self.folder)
            exec(imports)
            written = []
            guard = WriteGuard(spec, lambda: written.append(1))
            try:
                runpy.run_path("train.py", run_name="__main__")
            except Ended:
                print("stopped")
            print([guard.notes.read(), guard.refused, len(written)])

        before = self.contents()
        done = forked.call(main)
        assert done.returncode == 0, done.stderr
        after = self.contents()
        self.changed = sorted(name for name in before if after.get(name) != before[name])
        *printed, report = done.stdout.splitlines()
        self.notes, *ending = ast.literal_eval(report)
        return printed, *ending


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr("Utils.base.paths.CACHE", tmp_path / "project" / "cache")
    return Project(tmp_path)


# Lines that are refused, with what they do.
REFUSED = """
open('log.txt', 'a').write('x')  # opens log.txt for writing
os.open('log.txt', os.O_RDWR)  # opens log.txt for writing
os.symlink('log.txt', 'link'); open('link', 'w')  # opens log.txt for writing
os.chdir('old'); open('../log.txt', 'w')  # opens log.txt for writing
p = profile(); p.start(); p.stop(); p.export_chrome_trace('log.txt')  # opens log.txt for writing
torch.from_file('log.txt', True, 1).fill_(1)  # opens log.txt for writing
torch.UntypedStorage.from_file('log.txt', True, 1)[0] = 1  # opens log.txt for writing
f = os.open('.', 0); os.chdir('/'); os.open('log.txt', 1, dir_fd=f)  # opens log.txt for writing
os.remove('log.txt')  # deletes log.txt
shutil.rmtree('old')  # deletes old/notes.txt
os.rmdir('empty')  # deletes empty
os.chmod('log.txt', 0o600)  # changes the mode of log.txt
os.fchmod(os.open('log.txt', 0), 0)  # changes the mode of log.txt
Path('log.txt').touch()  # changes the time of log.txt
os.utime(os.open('log.txt', 0), (1, 1))  # changes the time of log.txt
os.setxattr('log.txt', 'user.a', b'1')  # changes an attribute of log.txt
Path('log.txt').rename('new.txt')  # renames log.txt
os.rename('old', 'new')  # renames old
open('new', 'w').close(); os.replace('new', 'log.txt')  # replaces log.txt
os.truncate('log.txt', 0)  # truncates log.txt
sqlite3.connect('run.db')  # connects to run.db
sqlite3.connect('file:run%2Edb?xmode=ro', uri=True)  # connects to run.db
"""
IMPORTS = "import sqlite3, torch; from torch.profiler import profile"
ATTACHES = """import sqlite3
try: sqlite3.connect("file::memory:", uri=True).execute({})
except sqlite3.DatabaseError: pass"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_guard_refuses_a_change_of_an_existing_file(project, case):
    """YOUR_SCRIPT: "A script that would change an existing file is refused, with the line that does
    so". The script catches what it can.
    """
    line, action = case.split("  # ")
    script = f"{IMPORTS}\ntry:\n    {line}\nexcept Exception:\n    pass\nprint('on')"
    printed, refused, _ = project.run(script)
    assert printed == ["stopped"]
    remedy = "delete or move it, or allow it with WRITES=1"
    assert refused == f"train.py:6 {action}, which exists; {remedy}"
    assert project.changed == []


@pytest.mark.parametrize(
    "script, action",
    [
        ("try:\n    os.remove('log.txt')\nexcept:\n    os.remove('run.db')", "deletes log.txt"),
        ("if os.fork() == 0:\n    os.remove('log.txt')\nos.wait()", "deletes log.txt"),
        (ATTACHES.format("'attach \"file:run.db\" as d'"), "connects to run.db"),
        (ATTACHES.format("'attach ? as d', ['run.db']"), "attaches a database that a parameter"),
    ],
)
def test_guard_knows_a_refusal_that_was_caught_or_in_a_forked_process(project, script, action):
    *_, refused, _ = project.run(script)
    assert f"train.py:5 {action}" in refused and project.changed == []


def test_guard_notes_programs_that_get_a_path_of_the_folder(project):
    """YOUR_SCRIPT: "If the script starts a program with a path of its folder as an argument, the
    note names the program".
    """
    script = """
import subprocess
subprocess.run(["touch", "-c", Path("log.txt").resolve()])
subprocess.run("cat ../run.db | wc -l > /dev/null", shell=True, cwd="old")
os.makedirs("cache")
os.system("true old/notes.txt none.txt cache")
os.posix_spawn("/bin/true", ["true", "--of=log.txt"], os.environ); os.wait()
if os.fork() == 0:
    os.execv("/bin/true", ["true", "ckpt.pt"])
os.wait()
torch = __import__("torch")
print(torch.from_file("log.txt", size=1, dtype=torch.uint8).item())
"""
    assert project.run(script)[:2] == (["98"], None) and project.changed == []
    programs = "touch log.txt,sh run.db,sh old/notes.txt,true log.txt,true ckpt.pt"
    notes = programs.replace(" ", " got ").split(",")

    assert project.notes == [f"{note}, but its writes are not monitored" for note in notes]


# What is not seen, by words of the page, with a script that changes a file so.
UNSEEN = """
another program  # os.system("echo > log.txt")
a path in a variable  # os.environ["V"] = "log.txt"; os.system("echo > $V")
C code  # import ctypes; ctypes.CDLL(None).truncate(b"log.txt", 9)
itself  # sqlite3.Connection("").executescript("attach 'log.txt' as d; create table d.t(x)")
hard link  # os.mkdir("new"); os.link("log.txt", "new/log"); open("new/log", "w").write("x")
"""


def test_guard_does_not_see_what_the_page_lists(project):
    """YOUR_SCRIPT: "Changes that are not detected"."""
    page = (paths.ROOT / "docs" / "YOUR_SCRIPT.md").read_text()
    bullets = re.findall(
        "^- (.*)", page.partition("Changes that are not detected")[2], re.MULTILINE
    )
    for bullet, case in zip(bullets, UNSEEN.strip().splitlines(), strict=True):
        words, script = case.split("  # ")
        (project.folder / "log.txt").write_text("")
        assert words in bullet and project.run(f"{IMPORTS}\n{script}")[1] is None
        assert project.changed == ["log.txt"]


def test_guard_lets_a_command_change_what_it_created(project):
    script = "os.makedirs('out/a', exist_ok=True)\nPath('new.txt').write_text('1')\n"
    script += "Path('out/a/b').write_text('1')\nos.replace('out/a/b', 'moved')\nos.remove('moved')"
    assert project.run(script)[:2] == ([], None)
    (project.folder / "out" / "not_recorded").touch()
    assert project.run(script + "\nshutil.rmtree('out')")[:2] == ([], None)
    _, refused, _ = project.run(script, runs="of_another_command")
    assert "train.py:5 opens new.txt for writing" in refused


def test_guard_exempts_caches_and_what_is_no_file(project):
    """Those of compilers are in the folder of temporary files, wherever that is."""
    names = [
        "cache/x",
        "hf/x",
        "home/.cache/x",
        "old/__pycache__/x",
        "old/x.pyc",
        "tmp/me/cutlass_python_cache/x",
        "tmp/torchinductor_me/x",
    ]
    project.write(*names)
    script = f"for name in {names}: open(name, 'w').close()\nopen('/dev/null', 'w')\n"
    script += "os.mkfifo('pipe'); os.open('pipe', os.O_RDWR)"

    assert project.run(script, imports="import tempfile; tempfile.tempdir = 'tmp'")[1] is None
    assert project.changed == names


COMPILING = """
import glob, os, sys
from argparse import Namespace
import torch
from tools.own_script.write_guard import WriteGuard

folder, name = sys.argv[1:]
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/kernels_of_{name}"
open(f"{folder}/created", "a").close()
spec = Namespace(
    folder=folder,
    writes="",
    runs=folder,
    created=f"{folder}/created",
    scratch=f"{folder}/{name}",
)
WriteGuard(spec, print)
torch.compile(torch.sin)(torch.ones(9))
assert glob.glob(f"{folder}/torchinductor_*/precompiled_headers/locks/*")
"""


@pytest.mark.slow
def test_guard_allows_locks_of_precompiled_headers(tmp_path):
    """The second has a full cache of precompiled headers, and no kernels."""
    for name in ("first", "second"):
        processes.command("-c", COMPILING, tmp_path, name, TMPDIR=str(tmp_path))


def test_guard_keeps_the_files_of_a_revision_in_the_cache(project, monkeypatch):
    """The folder in which `make pair` unpacks a revision is in the cache."""
    monkeypatch.setattr("Utils.base.paths.CACHE", project.folder.parent)
    assert project.run("open('log.txt', 'w')")[1].startswith("train.py:4 opens log.txt for writing")


def test_guard_leaves_odd_arguments_to_the_call(project):
    script = """
import sys, sqlite3
for arguments in [(), (None,), (1, 2), (None, None, None), ("a\\0b", "w", 1), ([], 0, 1)]:
    for event in ("open", "os.remove", "os.rename", "os.truncate", "os.mkdir", "sqlite3.connect"):
        sys.audit(event, *arguments)
for mode, name in (("w", "no/such/file"), ("x", "log.txt")):
    try:
        open(name, mode)
    except OSError as error:
        print(type(error).__name__, flush=True)
sqlite3.connect(":memory:")
sqlite3.connect("file:run.db?mode=ro", uri=True)
with open("log.txt") as file, open(os.dup(1), "w") as again:
    again.write(file.read())
"""

    printed, refused, _ = project.run(script)
    assert printed == ["FileNotFoundError", "FileExistsError", "bytes of log.txt"]
    assert refused is None and project.changed == []


# How a script imports, saves and loads a tensor w.
SAVES = {
    "torch": ("import torch", "torch.save(w, 'ckpt.pt')", "w = torch.load(Path('ckpt.pt'))"),
    "safetensors": (
        "from safetensors.torch import load_file, save_file",
        "save_file({'w': w}, 'a.safetensors')",
        "w = load_file('a.safetensors')['w']",
    ),
    "dcp": (
        "import torch.distributed.checkpoint as dcp",
        "dcp.save({'w': w}, checkpoint_id='dcp')",
        "dcp.load({'w': w}, checkpoint_id='dcp')",
    ),
}


@pytest.mark.parametrize("library", SAVES)
def test_guard_sends_saves_to_the_scratch_folder_of_one_run(project, library):
    """YOUR_SCRIPT: "What torch.save, safetensors and torch.distributed.checkpoint write goes to a
    scratch folder".
    """
    imports, save, load = SAVES[library]
    start = f"import torch\n{imports}\n"
    project.run("", imports=f"{start}w = torch.tensor(1)\n{save}")
    script = f"{start}w = torch.tensor(2)\n{save}\nw = torch.tensor(0)\n{load}\nprint(w.item())"
    for before in (imports, ""):
        printed, refused, writes = project.run(script, imports=before)
        assert (printed, refused) == (["2"], None) and writes >= 1
        assert project.changed == []
    assert project.run(f"{start}w = torch.tensor(0)\n{load}\nprint(w.item())")[0] == ["1"]


def test_guard_moves_copies_and_deletes_a_saved_file(project):
    script = """
import torch
os.makedirs("new/best")
torch.save(1, "new/tmp")
os.replace("new/tmp", "new/last")
shutil.copyfile("new/last", "log.txt")
shutil.copy("new/last", "new/best")
print([torch.load(name) for name in ("new/last", "log.txt", "new/best/last")])
torch.save(2, "last")
print(os.path.getsize("last") > 0, Path("new/last").exists(), os.path.exists("new/tmp"))
os.remove("new/last")
print(os.path.exists("new/last"), torch.load("last"))
with open("opened", "wb") as file:
    torch.save(3, file)
"""

    existing = {*project.contents()}
    printed, refused, _ = project.run(script)
    assert printed == ["[1, 1, 1]", "True True False", "False 2"] and refused is None
    assert {*project.contents()} == {*existing, "opened", "train.py"} and project.changed == []
