"""The guard of a user's files: what existed stays, what is saved goes to scratch."""

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from Utils.base import paths

# Arguments: allowed, a folder of ours, the list of created files, scratch, early code.
RUNNER = """
import runpy, sys
from pathlib import Path
from tools.own_script.user_code import Ended
from tools.own_script.write_guard import WriteGuard
allowed, ours, created_list, scratch, before = sys.argv[1:]
exec(before)
writes = []
spec = {"folder": Path.cwd(), "scratch": f"{ours}/{scratch}", "created": f"{ours}/{created_list}",
        "writes": allowed == "allowed"}
guard = WriteGuard(spec, lambda: writes.append(1))
guard.install()
try:
    runpy.run_path(str(Path.cwd() / "train.py"), run_name="__main__")
except Ended:
    print("stopped")
print([guard.refused, len(writes)])
"""


class Project:
    """A user's folder with files; runs scripts in it under the guard."""

    def __init__(self, folder):
        self.folder, self.ours = folder / "project", folder / "ours"
        (self.folder / "old").mkdir(parents=True)
        self.existing = {}
        for name in ("log.txt", "ckpt.pt", "a.safetensors", "run.db", "old/notes.txt"):
            self.write(name, f"bytes of {name}\n".encode())
        self.scratch_names = (f"scratch{n}" for n in itertools.count())

    def write(self, name, content):
        (self.folder / name).write_bytes(content)
        self.existing[name] = content

    def changed(self):
        """Return the names of the files that are not what they were."""
        now = {name: self.folder / name for name in self.existing}
        return [n for n, f in now.items() if not f.is_file() or f.read_bytes() != self.existing[n]]

    def run(self, script, allowed="", created_list="created.txt", before=""):
        """Run a script; return what it printed, the refusal or None, and the count of writes.

        before: what runs before the guard is installed.
        """
        script = "import os\nimport shutil\nfrom pathlib import Path\n" + script
        (self.folder / "train.py").write_text(script)

        arguments = [allowed, str(self.ours), created_list, next(self.scratch_names), before]
        command = [sys.executable, "-c", RUNNER, *arguments]
        caches = {"HOME": str(self.ours), "HF_HOME": "hf", "CACHE_DIR": str(self.ours / "cache")}
        environment = paths.environment(OMP_NUM_THREADS="1", **caches)
        options = {"cwd": self.folder, "env": environment}
        done = subprocess.run(command, capture_output=True, text=True, **options)

        assert done.returncode == 0, done.stderr
        *printed, report = done.stdout.splitlines()
        return printed, *ast.literal_eval(report)


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("open('log.txt', 'a').write('x')", "opens log.txt for writing"),
        ("os.open('log.txt', os.O_RDWR)", "opens log.txt for writing"),
        ("os.symlink('log.txt', 'link'); open('link', 'w')", "opens log.txt for writing"),
        ("os.chdir('old'); open('../log.txt', 'w')", "opens log.txt for writing"),
        ("os.remove('log.txt')", "deletes log.txt"),
        ("shutil.rmtree('old')", "deletes old/notes.txt"),
        ("Path('log.txt').rename('new.txt')", "renames log.txt"),
        ("os.rename('old', 'new')", "renames old"),
        ("open('new', 'w').close(); os.replace('new', 'log.txt')", "replaces log.txt"),
        ("os.truncate('log.txt', 0)", "truncates log.txt"),
        ("import sqlite3; sqlite3.connect('run.db')", "connects to run.db"),
        (
            "from torch.profiler import profile; p = profile(); p.start(); p.stop(); "
            "p.export_chrome_trace('log.txt')",
            "opens log.txt for writing",
        ),
    ],
)
def test_a_change_of_an_existing_file_is_refused(project, line, action):
    # The script catches what it can.
    printed, refused, _ = project.run(f"try:\n    {line}\nexcept Exception:\n    pass\nprint('on')")
    assert printed == ["stopped"]
    remedy = "delete or move it, or allow it with WRITES=1"
    assert refused == f"train.py:5 {action}, which exists; {remedy}"
    assert project.changed() == []


@pytest.mark.parametrize(
    "script",
    [
        "try:\n    os.remove('log.txt')\nexcept:\n    os.remove('run.db')",
        "if os.fork() == 0:\n    os.remove('log.txt')\nos.wait()",
    ],
)
def test_a_refusal_is_known_where_it_was_caught_or_in_a_forked_process(project, script):
    *_, refused, _ = project.run(script)
    assert "train.py:5 deletes log.txt" in refused
    assert project.changed() == []


def test_writes_may_be_allowed(project):
    script = "import torch\nopen('log.txt', 'w').close(); os.remove('run.db')\n"
    _, refused, _ = project.run(script + "torch.save(1, 'ckpt.pt')", allowed="allowed")
    assert refused is None
    assert project.changed() == ["log.txt", "run.db"]  # the checkpoint is in scratch


def test_writes_are_counted(project):
    assert project.run("open('log.txt'); open('b', 'w'); open('/dev/null', 'w')")[2] == 1


def test_a_command_may_change_what_it_created(project):
    script = "os.makedirs('out/a', exist_ok=True)\nPath('new.txt').write_text('1')\n"
    script += "Path('out/a/b').write_text('1')\nos.replace('out/a/b', 'moved')\nos.remove('moved')"
    assert project.run(script)[:2] == ([], None)
    (project.folder / "out" / "not_recorded").touch()
    assert project.run(script + "\nshutil.rmtree('out')")[:2] == ([], None)
    _, refused, _ = project.run(script, created_list="of_another_command.txt")
    assert "train.py:5 opens new.txt for writing" in refused


def test_caches_and_what_is_no_file_are_exempt(project):
    names = ("../ours/.cache/x", "../ours/cache/x", "hf/x", "old/__pycache__/x", "old/x.pyc")
    for name in names:
        (project.folder / name).parent.mkdir(parents=True, exist_ok=True)
        project.write(name, b"before")
    script = f"for name in {names}: open(name, 'w').close()\nopen('/dev/null', 'w')\n"
    assert project.run(script + "os.mkfifo('pipe'); os.open('pipe', os.O_RDWR)")[1] is None
    assert project.changed() == list(names)


def test_odd_arguments_are_left_to_the_call(project):
    script = """
import sys, sqlite3
for arguments in [(), (None,), (1, 2), (None, None, None), ("a\\0b", "w", 1), ([], 0, 1)]:
    for event in ("open", "os.remove", "os.rename", "os.truncate", "os.mkdir", "sqlite3.connect"):
        sys.audit(event, *arguments)
try:
    open("no/such/file", "w")
except OSError as error:
    print(type(error).__name__, flush=True)
sqlite3.connect(":memory:")
with open("log.txt") as file, open(os.dup(1), "w") as again:
    again.write(file.read())
"""

    printed, refused, _ = project.run(script)
    assert printed[-1] == "bytes of log.txt" and len(printed) == 2 and refused is None
    assert project.changed() == []


# How a script imports, saves and loads a tensor w.
SAVES = {
    "ckpt.pt": ("", "torch.save(w, 'ckpt.pt')", "w = torch.load(Path('ckpt.pt'))"),
    "a.safetensors": (
        "from safetensors.torch import load_file, save_file",
        "save_file({'w': w}, 'a.safetensors')",
        "w = load_file('a.safetensors')['w']",
    ),
    "dcp/.metadata": (
        "import torch.distributed.checkpoint as dcp",
        "dcp.save({'w': w}, checkpoint_id='dcp')",
        "dcp.load({'w': w}, checkpoint_id='dcp')",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVES)
def test_saves_go_to_the_scratch_folder_of_one_run(project, name):
    imports, save, load = SAVES[name]
    start = f"from pathlib import Path\nimport torch\n{imports}\n"
    earlier = f"{start}w = torch.tensor(1)\n{save}"
    subprocess.run([sys.executable, "-c", earlier], cwd=project.folder, check=True)
    for file in project.folder.glob(f"{Path(name).parent}/*"):
        if file.is_file():
            project.write(str(file.relative_to(project.folder)), file.read_bytes())
    save_and_load = f"w = torch.tensor(2)\n{save}\nw = torch.tensor(0)\n{load}\nprint(w.item())"
    for before in (start, ""):
        printed, refused, writes = project.run(start + save_and_load, before=before)
        assert printed == ["2"] and refused is None and writes >= 1
        assert project.changed() == []
    assert project.run(f"{start}w = torch.tensor(0)\n{load}\nprint(w.item())")[0] == ["1"]


def test_a_saved_file_can_be_moved_copied_and_deleted(project):
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

    printed, refused, _ = project.run(script)
    assert printed == ["[1, 1, 1]", "True True False", "False 2"] and refused is None
    files = {str(f.relative_to(project.folder)) for f in project.folder.rglob("*") if f.is_file()}
    assert files == {*project.existing, "opened", "train.py"} and project.changed() == []
