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
import time
import venv
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.test_probes import gpu, on, states
from Utils.base import git, paths
from Utils.base.errors import Unsupported
from Utils.commands import doctor as doctor_command
from Utils.corpus import text_sources
from Utils.device.capabilities import Emulated, WithoutEffect
from Utils.device.cpu import CPU
from Utils.doctor import doctor_advice, findings, host_probes, technique_status
from Utils.doctor.findings import Finding, TechniqueStatus
from Utils.doctor.toolchain_probes import NATIVE
from Utils.launch import batch_trials
from Utils.results import rows_file, shared_folders
from Utils.run import execute
from Utils.scripts import ladder, variants
from Utils.scripts.ladder import Technique

TECHNIQUES = ladder.techniques()
IMPORTED = [name for name in NATIVE if name != "triton"]  # which a CPU does not use


def call(*flags, **environment):
    """The doctor as a user runs it; on another's cache, so that nothing is found by chance."""
    command = [sys.executable, "-m", "Utils.commands", "doctor", *flags]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, cwd=paths.ROOT, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr == ""
    return done


def command(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


# What is true here ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What it says of this machine, in JSON, and the seconds that it took, by the clock and of all
    its processes' work."""
    file = tmp_path_factory.mktemp("here") / "results.csv"
    start, before = time.perf_counter(), os.times()
    done = call("--json", "--device", "cpu", "--results-file", str(file))
    seconds, after = time.perf_counter() - start, os.times()
    cpu_seconds = sum(after[2:4]) - sum(before[2:4])
    assert done.returncode == 0
    assert not file.exists() and not list(file.parent.iterdir())  # it leaves no trace
    return SimpleNamespace(seconds=seconds, cpu_seconds=cpu_seconds, **json.loads(done.stdout))


def test_every_line_about_this_machine_is_true(here):
    found, figures = states(here.findings), {}
    for finding in here.findings:
        figures |= finding["figures"]
    cpuinfo, meminfo = (Path("/proc", name).read_text() for name in ("cpuinfo", "meminfo"))
    meminfo = dict(re.findall(r"^(\w+): +(\d+) kB", meminfo, re.MULTILINE))
    assert figures["logical_cpus"] == len(re.findall("^processor", cpuinfo, re.MULTILINE))
    assert 0 < figures["usable_cpus"] <= int(command("env", "-u", "OMP_NUM_THREADS", "nproc"))
    assert figures["memory_gib"] == pytest.approx(int(meminfo["MemTotal"]) / 2**20, abs=0.1)
    assert figures["available_gib"] == pytest.approx(int(meminfo["MemAvailable"]) / 2**20, rel=0.2)
    disk = command("df", "--output=avail", "-B1", str(host_probes.nearest(paths.CACHE)))
    assert figures["free_disk_gib"] == pytest.approx(int(disk.split()[1]) / 2**30, rel=0.05, abs=1)
    assert figures["threads"] == torch.get_num_threads()
    assert figures["type"] == "cpu" and figures["tokens"] == 64
    assert CPU().name in found["device"]["ok"]
    assert found["torch"]["ok"].startswith(torch.__version__)
    assert sys.executable in found["python"]["ok"]
    assert shutil.which(os.environ.get("CXX", "g++")) in found["compiler"]["ok"]
    packages = Path(torch.__file__).parent.parent
    for package in filter(find_spec, IMPORTED):
        (installed,) = packages.glob(f"{package}-*.dist-info")
        assert f"{package}-{found[package]['ok'].split(',')[0]}.dist-info" == installed.name
    assert here.can_run


def test_nothing_here_is_a_fault_but_what_is_not_installed(here):
    faults = [one["topic"] for one in here.findings if one["state"] == "fault"]
    assert faults == [name for name in IMPORTED if not find_spec(name)]


def test_neither_the_user_nor_the_host_is_named(here):
    said = " ".join(one["what"] for one in here.findings)
    words = re.findall(r"[\w-]+", re.sub(r"/\S*", "", said))  # a path may hold both
    assert not {getpass.getuser(), platform.node()} & {*words}


@pytest.mark.timing
def test_it_takes_seconds(here):
    assert here.seconds < 10


def test_it_takes_little_of_two_cores(here):
    """However busy the machine is: 10 seconds of two cores."""
    assert here.cpu_seconds < 20


def test_json_has_the_keys_that_are_documented(here):
    page = (paths.ROOT / "docs" / "COMMANDS.md").read_text()
    keys = {key for one in (*here.findings, *here.techniques, *here.advice) for key in one}
    for key in keys | {"advice", "because"}:  # an idle machine may have no advice
        assert f"`{key}`" in page
    for finding in here.findings:
        assert finding["state"] in ("ok", "note", "fault") and finding["what"]


def test_every_technique_has_a_row_in_ladder_order(here):
    assert [row["technique"] for row in here.techniques] == list(TECHNIQUES)


# What is broken ---------------------------------------------------------------------------------


BROKEN = {  # topic: what is wrong, what to do
    "cache": ("file: Not a directory", "set CACHE_DIR to another folder"),
    "compiler": ("no C++ compiler on PATH", "apt-get install g++"),
    "bitsandbytes": ("cannot be used: killed by SIGSEGV", "--force-reinstall bitsandbytes"),
    "torchao": (
        "cannot be used: OSError: libcudart.so.11.0",
        "pip install --force-reinstall torch",
    ),
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
    assert re.match(r"\w+ blocks \d+ of \d+ techniques -> ", said["advice"][0]["advice"])


def test_an_older_python_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    (finding,) = findings.ask(host_probes.python, None)
    assert finding.state == "fault" and "older than 3.11" in finding.what
    assert finding.blocks == ("run",)
    command = "import runpy; runpy.run_module('Utils.commands')"
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
        (
            "print('noise')\nraise ImportError('libcudnn.so.9: cannot open')",
            "ImportError: libcudnn",
        ),
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
    held = f"torch blocks {len(TECHNIQUES)} of {len(TECHNIQUES)} techniques"
    assert found["advice"][0]["advice"].startswith(held)


def test_make_doctor_answers_where_packages_are_missing(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    words = [f"PYTHON={tmp_path / 'bare/bin/python'}", f"RESULTS_FILE={tmp_path / 'results.csv'}"]
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["make", "doctor", "JSON=1", *words],
        cwd=paths.ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2  # make's own, for any but 0
    assert "Traceback" not in done.stdout + done.stderr
    known = json.loads(done.stdout)
    (torch_fault,) = (one for one in known["findings"] if one["topic"] == "torch")
    assert torch_fault["state"] == "fault" and "No module named" in torch_fault["what"]
    assert torch_fault["remedy"].startswith("pip install -r requirements.txt")
    assert re.search(r"not installed: .*\bnumpy\b", states(known["findings"])["packages"]["note"])
    assert not known["can_run"]
    assert all(row["reason"].startswith("torch: ") for row in known["techniques"])


# A row a technique ------------------------------------------------------------------------------


class Reached(Exception):
    """The script has come to its loop."""


class Stopped:
    def __init__(self, args, model, optimizer):
        raise Reached(args)


@pytest.mark.parametrize("technique", TECHNIQUES.values(), ids=TECHNIQUES.keys())
def test_a_row_says_what_the_run_says(technique, here, monkeypatch, tmp_path):
    """The real script, up to its first step: what it then is and has noted is in the row."""
    monkeypatch.setattr(batch_trials, "largest_batch", lambda args, name, at_most: args.batch_size)
    monkeypatch.setattr(git, "commit", lambda: "")
    monkeypatch.setattr(text_sources, "open_streams", lambda dataset: [])  # no text is read yet
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


def test_what_the_committed_runs_on_a_cpu_said_is_said(here):
    rows = {row["technique"]: row for row in here.techniques}
    table = [row for path in shared_folders.files() for row in rows_file.text_rows(path)]
    on_cpus = (one for one in table if "thread" in one["device"])  # a CPU is named with them
    for technique, status, note in {(o["technique"], o["status"], o["note"]) for o in on_cpus}:
        if variants.parse(technique):  # of which doctor says nothing
            continue
        row = rows[technique]
        if status == "unsupported":
            assert (row["status"], row["reason"]) == (status, note)
        elif not row["reason"].startswith("needs "):  # what was installed there need not be here
            assert row["status"] != "unsupported"


def judged(name, device, *flags):
    args = on(device, *flags)
    return technique_status.judge(TECHNIQUES[name], TECHNIQUES.get(TECHNIQUES[name].parent), args)


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
        ("tensorFloat32", T4, "runs without effect", "TF32: no effect expected on this device"),
        ("brainFloat16", T4, "unsupported", "native bfloat16 needs compute capability 8.0"),
        ("cudnn_attention", {}, "runs", "made for compute capability 9.0"),
        ("float8_linear", {}, "unsupported", "float8 needs compute capability 8.9"),
        ("float8_linear", {"capability": (9, 0)}, "runs", ""),
    ],
)
def test_rows_of_a_gpu(name, properties, status, words, tool_chain, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91_000)
    row = judged(name, gpu(**properties))
    assert row.status == status and words in row.reason and bool(words) == bool(row.reason)


def test_a_remedy_is_named_where_it_is_one(tool_chain):
    assert "float16_grad_scaler" in judged("brainFloat16", gpu(**T4)).remedy
    p100 = gpu(name="Tesla P100", capability=(6, 0))  # it has no tensor cores at all
    assert judged("brainFloat16", p100).remedy == judged("flash_attention", p100).remedy == ""
    assert "brainFloat16" in judged("float16_grad_scaler", CPU()).remedy


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


def test_the_shape_is_the_one_that_would_run():
    row = judged("gradient_accumulation", CPU())
    assert row.status == "unsupported" and "try --batch-size 4" in row.reason
    assert judged("gradient_accumulation", CPU(), "--batch-size", "8").status != row.status


def test_what_a_script_takes_from_utils_declares_for_itself(monkeypatch):
    row = judged("streaming_dataset", CPU(), "--dataset", "synthetic")
    assert row.status == "unsupported" and "no text to stream" in row.reason
    assert "datasets" in judged("streaming_dataset", CPU()).needs


def own_script(tmp_path, code, parent="no_optimization", needs="nothing"):
    path = tmp_path / "my_idea.py"
    doc = f"My idea.\n\nParent: {parent}\nNeeds:  {needs}\n"
    path.write_text(f'"""{doc}"""\n{code}\n')
    return Technique("my_idea", path, doc, code, ladder.facts(doc))


@pytest.mark.parametrize(
    ("code", "needs", "words"),
    [
        ("def main(args:", "nothing", "no Python: line 6"),
        ("import liger", "nothing", "imports liger, which is not installed"),
        ("from liger.ops import x", "nothing", "imports liger, which is not installed"),
        ("try:\n    import liger\nexcept ImportError:\n    pass", "nothing", ""),
        ("", "package liger", "needs liger (pip install liger)"),
        ("", "wings", "'wings' is unknown; choose from tf32"),
        ("", "batch multiple of 3", "multiple of 3"),
    ],
)
def test_a_script_of_ones_own_has_its_row(code, needs, words, tmp_path):
    script = own_script(tmp_path, code, needs=needs)
    row = technique_status.judge(script, TECHNIQUES["no_optimization"], on(CPU()))
    assert (row.technique, row.status) == ("my_idea", "unsupported" if words else "runs")
    assert words in row.reason and bool(words) == bool(row.reason)


def test_a_fault_takes_away_what_needs_it():
    fault = Finding("compiler", "broken", "fault", "mend it", ("compile", "triton"))
    fine = TechniqueStatus("a", "runs", needs=("tf32", "compile"))
    assert doctor_advice.overlay(fine, [fault]) == TechniqueStatus(
        "a", "unsupported", "compiler: broken", "mend it", fine.needs, ["compile"]
    )
    other = TechniqueStatus("b", "runs", needs=("tf32",))
    assert doctor_advice.overlay(other, [fault]) == other
    nowhere = Finding("corpus", "no tokens", "fault", "make some", ("run",))
    assert doctor_advice.overlay(other, [fault, nowhere]).reason == "corpus: no tokens"


# Advice -----------------------------------------------------------------------------------------


def test_advice_is_what_blocks_most_and_then_what_else_uses_the_machine():
    rows = [
        TechniqueStatus("a", "unsupported", lacks=("compile",)),
        TechniqueStatus("b", "unsupported", lacks=("compile",)),
        TechniqueStatus("c", "unsupported", lacks=("bitsandbytes",)),
        TechniqueStatus("d", "unsupported", lacks=("float8", "torchao")),  # not torchao alone
    ]
    found = [
        Finding("processor", "busy", "note", "stop it"),
        Finding("ceilings", "not measured", "note", "measure"),  # slows nothing
        Finding("threads", "too many", "note"),
        Finding("torchao", "not installed", "fault", "pip install torchao", ("torchao",)),
        Finding("bitsandbytes", "broken", "fault", "mend it", ("bitsandbytes",)),
        Finding("compiler", "none", "fault", "install g++", ("compile",)),
        Finding("driver", "torch has no GPU", "fault", "another build"),
    ]
    assert doctor_advice.advice(found, rows) == [
        {"advice": "compiler blocks 2 of 4 techniques -> install g++", "because": ["compiler"]},
        {"advice": "bitsandbytes blocks 1 of 4 techniques -> mend it", "because": ["bitsandbytes"]},
        {"advice": "driver: torch has no GPU -> another build", "because": ["driver"]},
        {"advice": "busy -> stop it", "because": ["processor"]},
    ]
    assert len(doctor_advice.advice(found * 9, rows)) == 5


# Telling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("200", 100), ("20", 60)])
def test_text_fits_and_colours_are_for_a_terminal_alone(columns, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    found = [Finding("cache", "word " * 40, "fault", "make room"), Finding("torch", "2.13")]
    rows = [
        TechniqueStatus("a_technique", "unsupported", "why", "do"),
        TechniqueStatus("b", "runs"),
    ]
    doctor_command.show(found, rows, [{"advice": "do", "because": ["cache"]}], terminal=False)
    plain = capsys.readouterr().out
    lines = plain.splitlines()
    assert lines[0].startswith("FAULT  cache         word word")
    assert lines[1].startswith(" " * 21 + "word") and " " * 21 + "-> make room" in lines
    assert "ok     torch         2.13" in lines and "b            runs" in lines
    assert "a_technique  unsupported  why -> do" in lines and lines[-1] == "1. do"
    doctor_command.show(found, rows, [], terminal=True)
    coloured = capsys.readouterr().out
    assert "\033" not in plain and "\033[31mFAULT" in coloured and "\033[32m" not in coloured
    assert "No advice: nothing here slows or stops a run." in coloured
    stripped = re.sub("\033\\[\\d+m", "", coloured)
    assert max(map(len, stripped.splitlines())) <= width


def test_who_has_read_enough_may_stop():
    command = [
        sys.executable,
        "-c",
        "import sys; from Utils.commands import doctor as d; "
        "row = type('Row', (), dict(technique='a' * 9999, status='runs', reason='', remedy='')); "
        "d.examine = lambda _: ([], [row] * 99, []); sys.exit(d.main([]))",
    ]
    process = subprocess.Popen(
        command, cwd=paths.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 0
