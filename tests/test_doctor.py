"""Faults are made for real where possible; the rest is compared with what other programs say."""

import getpass
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import processes
from tests.test_probes import gpu, on, states
from tools.doctor import __main__ as doctor_command
from tools.doctor import examination, torch_side
from tools.doctor.examination import Finding, TechniqueStatus
from Utils.base import paths
from Utils.base.errors import Unsupported
from Utils.corpus import token_cache
from Utils.device.capabilities import Emulated, WithoutEffect
from Utils.device.cpu import CPU
from Utils.harness import batch_trials
from Utils.run import execute
from Utils.scripts import ladder
from Utils.scripts.ladder import Technique

TECHNIQUES = ladder.techniques()


def call(*flags, **environment):
    """The doctor as a user runs it; on another's cache, so that nothing is found by chance."""
    done = processes.python("-m", "tools.doctor", *flags, **environment)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr == ""
    return done


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What it says of this machine, in JSON, and the seconds of all its processes' work."""
    file = tmp_path_factory.mktemp("here") / "results.csv"
    before = os.times()
    done = call("--json", "--device", "cpu", "--results-file", str(file))
    cpu_seconds = sum(os.times()[2:4]) - sum(before[2:4])
    assert done.returncode == 0
    assert not file.exists() and not list(file.parent.iterdir())  # it leaves no trace
    return SimpleNamespace(cpu_seconds=cpu_seconds, **json.loads(done.stdout))


def test_every_line_about_this_machine_is_true(here):
    said = states(here.findings)
    free_bytes = shutil.disk_usage(examination.nearest(paths.CACHE)).free
    free_gib = float(re.search(r"([\d.]+) GiB free", said["cache"]["ok"])[1])
    assert free_gib == pytest.approx(free_bytes / 2**30, rel=0.05, abs=1)
    (processor,) = said["processor"].values()  # this machine may be busy
    assert processor.startswith(f"torch uses {torch.get_num_threads()} threads for ")
    assert CPU().name in said["device"]["ok"] and "1x64 tokens" in said["step"]["ok"]
    assert said["torch"]["ok"].startswith(torch.__version__)
    assert sys.executable in said["python"]["ok"]
    assert shutil.which(os.environ.get("CXX", "g++")) in said["compiler"]["ok"]
    assert here.can_run
    faults = [each["topic"] for each in here.findings if each["state"] == "fault"]
    assert faults == [name for name in ("torchao", "bitsandbytes") if not find_spec(name)]
    assert [row["technique"] for row in here.techniques] == list(TECHNIQUES)


def test_neither_the_user_nor_the_host_is_named(here):
    said = " ".join(each["what"] for each in here.findings)
    words = re.findall(r"[\w-]+", re.sub(r"/\S*", "", said))  # a path may hold both
    assert not {getpass.getuser(), platform.node()} & {*words}


def test_it_takes_little_of_two_cores(here):
    """However busy the machine is: 10 seconds of two cores."""
    assert here.cpu_seconds < 20


def test_json_has_the_keys_that_are_documented(here):
    page = (paths.ROOT / "docs" / "COMMANDS.md").read_text()
    for key in {key for each in (*here.findings, *here.techniques) for key in each}:
        assert f"`{key}`" in page
    for finding in here.findings:
        assert finding["state"] in ("ok", "note", "fault") and finding["what"]


BROKEN = {  # topic: what is wrong, what to do
    "cache": ("file: Not a directory", "set CACHE_DIR to another folder"),
    "compiler": ("no C++ compiler on PATH", "apt-get install g++"),
    "bitsandbytes": ("cannot be used: killed by SIGSEGV", "--force-reinstall bitsandbytes"),
    "torchao": ("cannot be used: OSError: libcudart.so.11.0", "--force-reinstall torch"),
    "corpus": ("stdlib: will be tokenized once", "set CACHE_DIR to another folder"),
    "results": ("results.csv:1: unknown header", "make reset"),
}


def test_broken_parts_are_named_with_their_remedies(tmp_path):
    """All at once, each for real: no compiler, a cache that is a file, packages that crash."""
    (tmp_path / "file").write_text("no folder")
    for package, code in (
        ("torchao", "raise OSError('libcudart.so.11.0: cannot open shared object file')"),
        ("bitsandbytes", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"),
    ):
        (tmp_path / "stubs" / package).mkdir(parents=True)
        (tmp_path / "stubs" / package / "__init__.py").write_text(f"print('noise')\n{code}\n")
    (tmp_path / "results.csv").write_text("step,loss\n1,2\n")
    done = call(
        *("--json", "--device", "cpu", "--results-file", str(tmp_path / "results.csv")),
        CACHE_DIR=str(tmp_path / "file" / "cache"),
        PATH=os.path.dirname(sys.executable),
        PYTHONPATH=str(tmp_path / "stubs"),
    )
    said = json.loads(done.stdout)
    faults = {one["topic"]: one for one in said["findings"] if one["state"] == "fault"}
    for topic, (what, remedy) in BROKEN.items():
        assert what in faults[topic]["what"] and remedy in faults[topic]["remedy"]
    assert done.returncode == 1 and not said["can_run"]  # neither rows nor tokens have a place
    assert [row["technique"] for row in said["techniques"]] == list(TECHNIQUES)
    assert {row["status"] for row in said["techniques"]} == {"unsupported"}


def test_an_older_python_is_told_so(tmp_path):
    command = "import runpy; runpy.run_module('tools.doctor')"
    old = tmp_path / "python"  # far older: it would stumble over the syntax
    old.write_text(
        f'#!/bin/sh\n{sys.executable} -c "import sys; sys.version_info = (2, 7); {command}"\n'
    )
    old.chmod(0o755)
    words = ["make", "doctor", f"PYTHON={old}"]
    done = subprocess.run(words, cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert f"{sys.executable} is older than Python 3.11; set PYTHON to a newer one" in done.stderr


@pytest.mark.parametrize(
    ("stub", "words"),
    [
        ("print('noise')\nraise ImportError('libcudnn.so.9: missing')", "ImportError: libcudnn"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_answered_in_words(stub, words, tmp_path):
    (tmp_path / "torch.py").write_text(stub)
    done = call("--json", PYTHONPATH=str(tmp_path))
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["can_run"]
    (fault,) = (f for f in found["findings"] if f["topic"] == "torch" and f["state"] == "fault")
    assert words in fault["what"] and "pip install" in fault["remedy"]
    assert {row["status"] for row in found["techniques"]} == {"unsupported"}
    assert [row["technique"] for row in found["techniques"]] == list(TECHNIQUES)
    assert all(words in row["reason"] for row in found["techniques"])


def test_make_doctor_answers_where_packages_are_missing(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    words = [f"PYTHON={tmp_path / 'bare/bin/python'}", f"RESULTS_FILE={tmp_path / 'results.csv'}"]
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    command = ["make", "-C", str(paths.ROOT), "-s", "doctor", "JSON=1", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2  # make's own, for any but 0
    assert "Traceback" not in done.stdout + done.stderr
    known = json.loads(done.stdout)
    (torch_fault,) = (one for one in known["findings"] if one["topic"] == "torch")
    assert torch_fault["state"] == "fault" and "No module named" in torch_fault["what"]
    assert torch_fault["remedy"].startswith("pip install -r requirements.txt")
    assert re.search(r"not installed: .*\bnumpy\b", states(known["findings"])["python"]["note"])
    assert not known["can_run"]
    assert all(row["reason"].startswith("torch: ") for row in known["techniques"])


class Reached(Exception):
    """The script has come to its loop."""


class Stopped:
    def __init__(self, args, model, optimizer):
        raise Reached(args)


@pytest.mark.parametrize("technique", ladder.tracked().values(), ids=lambda t: t.name)
def test_a_row_says_what_the_run_says(technique, here, monkeypatch, tmp_path):
    """The real script, up to its first step: what it then is and has noted is in the row."""
    monkeypatch.setattr(batch_trials, "largest_batch", lambda args, name, at_most: args.batch_size)
    monkeypatch.setattr(paths, "commit", lambda: "")
    monkeypatch.setattr(token_cache, "open_streams", lambda dataset: [])  # no text is read yet
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    flags = ["--model", "gpt2-tiny", "--device", "cpu"]
    if technique.name != "streaming_dataset":
        flags += ["--dataset", "synthetic"]  # it is the quickest to be had
    flags += ["--results-file", str(tmp_path / "results.csv")]
    try:
        execute(technique, flags, Stopped)
    except Unsupported as error:
        status, reason = {"unsupported"}, str(error)
    except Reached as reached:
        (args,) = reached.args
        notes = [note for note in args.notes if "other batches" not in note]
        status, reason = {"runs"}, "; ".join(dict.fromkeys(notes))
        kinds = {type(note) for note in args.notes}
        if WithoutEffect in kinds:
            status = {"runs", "runs without effect"}
        if Emulated in kinds:
            status = {"emulated"}
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.set_float32_matmul_precision("highest")
    (row,) = (row for row in here.techniques if row["technique"] == technique.name)
    assert row["status"] in status and row["reason"] == reason


def judged(name, device, *flags):
    statuses = torch_side.techniques(on(device, *flags))
    return next(status for status in statuses if status.technique == name)


@pytest.fixture
def tool_chain(monkeypatch):
    """Everything installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: name)


T4 = {"name": "Tesla T4", "capability": (7, 5), "memory_bytes": 16e9}


@pytest.mark.parametrize(
    ("name", "properties", "status", "words"),
    [
        ("float16_grad_scaler", T4, "runs", ""),
        ("brainFloat16", T4, "runs", "in float16"),
        ("no_sync", T4, "unsupported", "in float16 its diff has no place at 'loss.backward()'"),
        ("cudnn_attention", {}, "runs", "made for compute capability 9.0"),
        ("float8_linear", {"capability": (9, 0)}, "runs", ""),
    ],
)
def test_rows_of_a_gpu(name, properties, status, words, tool_chain, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91_000)
    row = judged(name, gpu(**properties))
    assert row.status == status and words in row.reason and bool(words) == bool(row.reason)


def test_a_need_without_effect_is_held_against_who_brings_it_in(monkeypatch):
    capabilities = {"avx512_bf16": True, "amx_bf16": False, "amx_fp16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, False)
    cpu = CPU()
    rows = {name: judged(name, cpu) for name in ("tensorFloat32", "brainFloat16", "cuda_graphs")}
    note = "TF32: no effect expected on this device"
    assert rows["tensorFloat32"].status == "runs without effect"
    assert rows["brainFloat16"].status == "runs" and rows["brainFloat16"].reason == note
    assert rows["cuda_graphs"].status == "runs without effect"
    capabilities["avx512_bf16"] = False
    for name in ("brainFloat16", "fused_optimizer", "cuda_graphs"):
        row = judged(name, cpu)
        assert row.status == "emulated" and "bfloat16: emulated" in row.reason


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ("nothing", ""),
        ("package liger", "needs liger (pip install liger)"),
        ("wings", "'wings' is unknown; choose from tf32"),
        ("batch multiple of 3", "multiple of 3"),
    ],
)
def test_a_script_of_ones_own_has_its_row(needs, words, tmp_path):
    doc = f"My idea.\n\nParent: no_optimization\nNeeds:  {needs}\n"
    script = Technique("my_idea", tmp_path / "my_idea.py", doc, "", **ladder.facts(doc))
    row = torch_side.judge(script, TECHNIQUES["no_optimization"], on(CPU()))
    assert (row.technique, row.status) == ("my_idea", "unsupported" if words else "runs")
    assert words in row.reason and bool(words) == bool(row.reason)


def test_a_fault_takes_away_what_needs_it():
    fault = Finding("compiler", "broken", "fault", "mend it", ("compile", "triton"))
    fine = TechniqueStatus("a", "runs", needs=("tf32", "compile"))
    row = examination.overlay(fine, [fault])
    assert (row.status, row.reason) == ("unsupported", "compiler: broken")
    assert row.remedy == "mend it"
    unhurt = TechniqueStatus("b", "runs", needs=("tf32",))
    assert examination.overlay(unhurt, [fault]) == unhurt
    nowhere = Finding("corpus", "no tokens", "fault", "make some", ("run",))
    assert examination.overlay(unhurt, [fault, nowhere]).reason == "corpus: no tokens"


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("200", 100), ("20", 60)])
def test_text_fits_and_colours_are_for_a_terminal_alone(columns, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    found = [Finding("cache", "word " * 40, "fault", "make room"), Finding("torch", "2.13")]
    rows = [TechniqueStatus("a_technique", "unsupported", "why", "do")]
    rows.append(TechniqueStatus("b", "runs"))
    doctor_command.show(found, rows, terminal=False)
    plain = capsys.readouterr().out
    lines = plain.splitlines()
    assert lines[0].startswith("FAULT  cache         word word")
    assert lines[1].startswith(" " * 21 + "word") and " " * 21 + "-> make room" in lines
    assert "ok     torch         2.13" in lines and "b            runs" in lines
    assert "a_technique  unsupported  why -> do" in lines
    assert lines[-1] == "1 of 2 techniques run here."
    doctor_command.show(found, rows, terminal=True)
    coloured = capsys.readouterr().out
    assert "\033" not in plain and "\033[31mFAULT" in coloured and "\033[32m" not in coloured
    stripped = re.sub("\033\\[\\d+m", "", coloured)
    assert max(map(len, stripped.splitlines())) <= width


def test_who_has_read_enough_may_stop():
    code = """
import runpy, sys
from tools.doctor import examination
rows = [examination.TechniqueStatus("script", "runs")] * 9999
examination.examine = lambda args: ([], rows)
sys.argv[1:] = []
runpy.run_module("tools.doctor", run_name="__main__")
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=paths.ROOT, **pipes)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 0
