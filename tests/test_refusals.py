"""Command lines that are refused: one line on stderr, exit code 2, and no file is written."""

import importlib
import shlex

import pytest

from pretraining import options, start
from tests.helpers.rows import append_run
from Utils.base.errors import exit_on_error
from Utils.harness.settings import parse_args

MAINS = {
    "no_optimization": lambda *words: parse_args("", words, "no_optimization"),
    "train": lambda *words: start.plan(options.parse("", words)),
}
# A command, its words, and the line with which it refuses them, or its beginning.
REFUSALS = """\
no_optimization | --steps 0 | argument --steps: '0' is not a whole number from 1 to 2^53
no_optimization | --seq-len 4096 | --seq-len 4096: gpt2 takes 1024 tokens at most
no_optimization | --steps 5 --warmup 5 | --warmup 5: a warm-up of 5 steps of 5 leaves no step
no_optimization | --model gpt5 | --model gpt5: no such model; the nearest is gpt2
no_optimization | --device tpu | --device tpu: no such device; choose auto, cpu, cuda
no_optimization | --results-file a.csv | a.csv:1: unknown header
train | --seq-len=2048 | --seq-len 2048: gpt2-tiny takes 1024 tokens at most
train | --tokens-per-step=512 --batch-size=3 | --batch-size 3: a step has 4 sequences
train | --model=gpt5 | --model gpt5: no such model; the nearest is gpt2
train | --with=nonsense | WITH=nonsense: no technique of that name; make help T=all
train | --with=larger_batch | WITH=larger_batch: part of the loop: BATCH_SIZE decides
train | --with=fully_sharded | WITH=fully_sharded: not for this loop: a checkpoint
Utils.commands | tables | there is no such command; the nearest is table
Utils.commands | ablate T=no_optimization | no_optimization has no technique that could be left out
Utils.commands | compare A=r.csv:H2 B=r.csv | r.csv: no results of 'H2'; there are gpt2 1x64
Utils.commands | compare A=r.csv B=r.csv:2.13 | A and B share 1 run of Test GPU, torch 2.13.0
Utils.commands | compare B=r.csv | A names no results file; as in make compare A=results.csv:2.11
Utils.commands | diff T=fused_optimizer-muon | fused_optimizer does not descend from muon
Utils.commands | diff T=flash_attention+muon | flash_attention+muon: a technique alone
Utils.commands | diff T=all_together-flash_attention | all_together-flash_attention cannot be made
Utils.commands | diff T=no_optimization+nonsense | no technique 'nonsense'; make help
Utils.commands | diff T=muon-muon+muon | no technique 'muon-muon+muon'; make help
Utils.commands | diff T=no_optimization+muon+muon | no technique 'no_optimization+muon+muon'
Utils.commands | diff T=no_optimization+no_optimization | no technique 'no_optimization+no
Utils.commands | diff T=no_optimization+cuda_graphs | no_optimization+cuda_graphs cannot be made
Utils.commands | diff T=no_optimization+fused_optimizer+8bit_optimizer | no_optimization+fused
Utils.commands | init_results RESULTS_FILE=out.jsonl | RESULTS_FILE=out.jsonl: 'out.jsonl' is
Utils.commands | report REPORT=r.csv RESULTS_FILE=r.csv | r.csv: exists and was not written by this
Utils.commands | report REPORT=mine.txt RESULTS_FILE=r.csv | mine.txt: exists and was not written by
Utils.commands | suite BASE=train.py T=ladder | T=ladder: BASE runs a script of your own; leave T
Utils.commands | suite BASE=train.py WITHOUT=flash_atention | WITHOUT=flash_atention: no such switch
Utils.commands | suite STEP=20 | STEP=20: no such variable; the nearest is STEPS
tools.profile | T=no_optimization --results-file=r.csv | profiles: File exists
Utils.commands | recipe | results.csv: no such file; run make all to measure this machine
Utils.commands | suite T=nonsense | no technique 'nonsense'; make help T=all lists them
Utils.commands | table RESULTS_FILE=typo.csv | typo.csv: no such file; run make all
Utils.commands | report RESULTS_FILE=r.csv DEVICE_NAME=H100 | no results of 'H100'; there are gpt2
tools.share | RESULTS_FILE=typo.csv | typo.csv: no such file; run make all to measure this machine
tools.forecast | --device=rtx4091 | no device 'rtx4091' in the table; the nearest is rtx4090
tools.forecast | --device=cuda:99 | --device cuda:99: torch
tools.forecast | --device=cuda --memory=10G | --memory 10G: not a size; give it as 10GiB
tools.own_script | BASE="torchrun train.py" | BASE=torchrun train.py: there is no such script; give
tools.own_script | "BASE=-m no.such.module" | HERE/no/such/module.py: No such file
tools.own_script | BASE=mine.ipynb | HERE/mine.ipynb: is a notebook
tools.own_script | BASE=no.py | BASE=no.py: there is no such script
"""


@pytest.mark.parametrize("refusal", REFUSALS.splitlines())
def test_command_line_is_refused_in_one_line(refusal, tmp_path, monkeypatch, capsys):
    """COMMANDS: "A misspelt one is an error"."""
    command, words, line = refusal.replace("HERE", str(tmp_path)).split(" | ")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    for name in ("profiles", "mine.txt", "mine.jsonl", "mine.ipynb", "train.py"):
        (tmp_path / name).write_text("mine")
    append_run("r.csv", "no_optimization", [9] * 3)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}

    main = MAINS.get(command) or importlib.import_module(f"{command}.__main__").main
    with pytest.raises(SystemExit, match="2"), exit_on_error(command):
        main(*shlex.split(words))
    output, errors = capsys.readouterr()
    assert output == "" and f": error: {line}" in errors
    assert (
        errors.count("\n") == 1
        and {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    )
