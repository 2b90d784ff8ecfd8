"""Several ranks train as one process does; and what is left when one has ended."""

import functools
import math
import os
import socket
from dataclasses import replace
from functools import partial

import psutil
import pytest
import torch

from tests.helpers import forked
from tests.helpers.refusal import refused
from tests.helpers.rows import records_in
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device.cpu import CPU
from Utils.harness import ranks, script_start
from Utils.harness.ranks import ALONE
from Utils.harness.run_record import RankResult
from Utils.launch import rank_launcher
from Utils.results import rows_file
from Utils.run import Run
from Utils.scripts import ladder

NAMES = ("distributed_data_parallel", "zero_redundancy", "fully_sharded", "no_sync")
FLAGS = [
    "--model=gpt2-tiny",
    "--seq-len=16",
    "--batch-size=8",
    "--device=cpu",
    "--steps=5",
    "--warmup=3",
]
PARAMETERS = CONFIGS["gpt2-tiny"].parameters(50_304)


def in_float32(name, folder, **changes):
    """The script of that name without compiling and autocast, so that it is quick and exact."""
    text = ladder.get(name).path.read_text()
    for old, new in {
        "    model = torch.compile(model)\n": "",
        "@torch.compile\n": "",
        "        block.compile()": "        pass",
        "dtype=torch.bfloat16": "enabled=False",
        "bfloat16, ": "",  # a need, by which a CPU that emulates it would run another script
        **changes,
    }.items():
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Function of a technique and a number of ranks that returns the rows and the record of its
    run, and what it printed. The ranks are forks of this process.
    """
    folder = tmp_path_factory.mktemp("ranks")

    @functools.cache
    def trained(name, n):
        file = folder / f"{name}-{n}" / "results.csv"
        file.parent.mkdir()
        script = in_float32(name, file.parent)
        with socket.create_server(("localhost", 0)) as listener:
            port = str(listener.getsockname()[1])
        ranks.leave()  # a group whose threads no fork has: another test's, in this process

        def main(rank):
            os.environ |= {"MASTER_PORT": port, "MASTER_ADDR": "localhost"}
            os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(n))
            os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            forked.of_script(script, *FLAGS, f"--results-file={file}")()
            ranks.end(0)

        ended = forked.call_all([partial(main, rank) for rank in range(n)], at_once=n)
        said = "".join(done.stdout + done.stderr for done in ended)
        assert [done.returncode for done in ended] == [0] * n, said
        (record,) = records_in(file.parent)
        return rows_file.read(file), record, said

    return trained


@pytest.mark.parametrize(
    "name, n",
    [
        ("distributed_data_parallel", 2),
        ("fully_sharded", 2),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in NAMES),
    ],
)
def test_ranks_train_as_one_process_does(name, n, trained):
    """DISTRIBUTED: "the losses of 2 and 4 gloo ranks equal one process's within 2e-6 in float32";
    "Rank 0 writes one row per step, with the slowest rank's time and with `world_size`".
    """
    alone, of_alone, _ = trained("asynchronous_logging", 1)
    rows, record, said = trained(name, n)

    assert record["before_update"] == pytest.approx(of_alone["before_update"], rel=1e-5)
    assert list(rows.loss) == pytest.approx(list(alone.loss), rel=2e-6)
    assert rows.held_out_loss[0] == pytest.approx(alone.held_out_loss[0], rel=1e-5)
    assert list(rows.step) == list(range(5)) and set(rows.world_size) == {n}
    assert said.count(f"{name}: median") == 1
    assert record["parameters"] == record["updated_parameters"] == PARAMETERS
    mib = PARAMETERS * 4 / 2**20
    memory = [rank["memory"] for rank in record["ranks"]]
    weights = mib / n if name == "fully_sharded" else mib
    assert [rank["weights_mib"] for rank in memory] == pytest.approx([weights] * n, rel=0.05)
    copies = 1 if name in ("zero_redundancy", "fully_sharded") else n
    state = sum(rank["optimizer_state_mib"] for rank in memory)
    assert state == pytest.approx(2 * mib * copies, rel=0.05)


def test_rows_are_the_slowest_ranks_times_and_the_mean_of_losses(settle):
    """DISTRIBUTED: "A row's `step_ms` is the longest of that step over the ranks, as is `data_ms`;
    its loss is the mean"; "`peak_memory_mib` is the largest rank's"; "A run is disturbed if any
    rank is".
    """

    first = RankResult(
        step_ms=[9, 1, 5],
        data_ms=[0.1, 0.5, 0.1],
        timed=[False, True, True],
        losses=[4.0] * 3,
        memory={"peak_mib": 20.0, "reserved_mib": None},
        counters={"clock_s": 1.0},
        readings={},
        updated=[0],
        other_processes=[],
        steps=3,
    )
    second = replace(
        first,
        step_ms=[8, 3, 2],
        data_ms=[0.2] * 3,
        losses=[2.0] * 3,
        memory={"peak_mib": 30.0, "reserved_mib": None},
        updated=[1],
        other_processes=["game (pid 4711, 1 MiB)"],
    )
    args = settle("--steps=3", "--warmup=1").replace(world_size=2)
    weight = torch.nn.Linear(1, 1)
    Run(args, weight, torch.optim.SGD(weight.parameters())).write([first, second])

    rows = rows_file.read(args.results_file)
    assert list(rows.step_ms) == [9, 3, 5] and list(rows.loss) == [3.0] * 3
    assert list(rows.data_ms) == [0.2, 0.5, 0.2]
    assert set(rows.peak_memory_mib) == {30.0} and set(rows.world_size) == {2}
    (record,) = records_in(args.results_file.parent)
    assert record["parameters"] == record["updated_parameters"] == 2  # each updated another one
    assert record["quality"]["reasons"] == ["rank 1: game (pid 4711, 1 MiB) on the GPU"]


def test_ranks_that_cannot_run_a_script_are_refused(settle, monkeypatch, capsys):
    """DISTRIBUTED: "Each rank takes its share of the sequences that one process would draw"."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        settle(*FLAGS, "--batch-size=5")
    assert "5: 2 ranks cannot share it evenly; try --batch-size 6\n" in capsys.readouterr().err
    with refused("this script does not support several ranks"):
        script_start.start(print, settle(*FLAGS))


def test_ddp_collects_no_statistics_for_which_a_gpu_would_wait(monkeypatch):
    """DISTRIBUTED: "DDP's own statistics are off"."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, str(value))
    ranks.stand_alone()
    torch.distributed.init_process_group("gloo")
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
        assert model._get_ddp_logging_data()["iteration"] == 0
    finally:
        ranks.leave()


def test_numbers_of_processes_have_room_on_the_machine(monkeypatch):
    # A container's quota.
    monkeypatch.setattr("Utils.device.cpu.cgroup_limits", lambda: (2.5, math.inf))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    assert [rank_launcher.count(text, "cpu") for text in ("1", "all")] == [1, 2]
    for text, words in (
        ("3", "GPUS=3: there are 2 cores here; give 1 to 2, or all"),
        ("1 2", "give 1 to 2, or all"),
        ("0", "give 1 to 2, or all"),
    ):
        with refused(f"{words}$"):
            rank_launcher.count(text, "cpu")


LOOP = "in run.steps(batches):\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement, line",
    [
        ("import os; os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL (out of memory?)"),
        ("import time; time.sleep(99)", "rank 1 hung: the others waited for 6 s"),
        (
            "raise MemoryError",
            f"rank 1: out of memory: 8x16 does not fit {CPU().name} on 2 ranks; try BATCH_SIZE=4",
        ),
    ],
)
def test_rank_at_fault_ends_the_run_with_one_line(
    statement, line, tmp_path, path, monkeypatch, capfd
):
    """DISTRIBUTED: "A rank that dies ends the run at once"; "The last line names the rank. No rows
    are written, and no process remains".
    """
    failing = f"{LOOP}            if args.rank == 1 and len(run.losses) == 3: {statement}\n"
    script = in_float32(NAMES[0], tmp_path, **{LOOP: failing})
    monkeypatch.setenv("PATIENCE_S", "6")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = psutil.Process().children(recursive=True)
    assert rank_launcher.launch(NAMES[0], [str(script), *FLAGS, f"--results-file={path}"], 2) == 1

    said = "".join(capfd.readouterr())
    assert f"{NAMES[0]}: {line}; nothing was recorded\n" in said
    assert said.count("nothing was recorded") == 1 and "Traceback" not in said
    assert not path.exists() and not records_in(tmp_path)
    after = {*psutil.Process().children(recursive=True)}
    assert all(process.status() == "zombie" for process in after.difference(before))


@pytest.mark.parametrize(
    "codes, noticed, says",
    [
        ({0: 75, 1: -9}, {0: "late"}, "rank 1 hung: the others"),  # as it slept through SIGTERM
        ({0: -6, 1: -15, 2: -6}, {}, "rank 1 hung: the others"),  # NCCL's watchdog
    ],
)
def test_rank_at_fault_is_named(codes, noticed, says):
    assert rank_launcher.diagnosis(codes, noticed).startswith(says)
