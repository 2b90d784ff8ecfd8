"""Several ranks train as one process does, one row a step; and what is left when one has ended."""

import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from types import SimpleNamespace

import psutil
import pytest
import torch

from tests.helpers import forked, profiler_events
from tests.helpers.rows import records_in
from tools.forecast.gpus import ImaginedGPU
from tools.profile.step_breakdown import break_down
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.data import TokenBatches
from Utils.device import cpu, device_choice
from Utils.device.cpu import CPU
from Utils.harness import ranks
from Utils.harness.ranks import ALONE, GRACE_S, NOTICED
from Utils.harness.run_record import RankResult
from Utils.launch import rank_launcher
from Utils.results import rows_file
from Utils.run import Run
from Utils.scripts import ladder

NAMES = ("distributed_data_parallel", "zero_redundancy", "fully_sharded", "no_sync")
FLAGS = ["--model=gpt2-tiny", "--seq-len=16", "--batch-size=8", "--device=cpu", "--steps=5"]
FLAGS += ["--warmup=3"]
PARAMETERS = CONFIGS["gpt2-tiny"].parameters(50_304)


def in_float32(name, folder, **changes):
    """The script of that name without compiling and autocast, so that it is quick and exact."""
    text = ladder.get(name).path.read_text()
    for old, new in {
        "    model = torch.compile(model)\n": "",
        "@torch.compile\n": "",
        "        block.compile()": "        pass",
        "dtype=torch.bfloat16": "enabled=False",
        **changes,
    }.items():
        text = text.replace(old, new)
    assert not re.search(r"compile\(|bfloat16\)", text)
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def without_ranks(**more):
    kept = {name: value for name, value in paths.environment().items() if name not in ALONE}
    return kept | {"OMP_NUM_THREADS": "1"} | more


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def run_ranks(n, script, *flags, agent=True, before=lambda rank: None):
    """Runs a script as n ranks, forks of this process. Returns their exit codes and what they
    printed, together.
    agent: end all when one has ended badly, as torchrun's does. before: is called in each of them
    with its rank."""
    ranks.leave()  # a group whose threads no fork has: another test's, in this process
    shared = {"WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": free_port()}

    def main():
        try:
            forked.of_script(script, *flags)()
        except SystemExit as end:
            ranks.end(end.code or 0)
        ranks.end(0)

    def start(rank, output):
        variables = shared | {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost"}
        variables = {name: str(value) for name, value in variables.items()}
        return forked.start(main, output, output, variables, partial(before, rank))

    with tempfile.TemporaryFile("w+") as output:
        started = [start(rank, output) for rank in range(n)]
        end = time.monotonic() + 120
        while alive := [one for one in started if one.is_alive()]:
            late = time.monotonic() > end
            if late or (agent and any(one.exitcode for one in started)):
                for one in alive:
                    one.terminate()
            wait([one.sentinel for one in alive], 0.1)  # what ends now has its exit code later
        output.seek(0)
        return [one.exitcode for one in started], output.read()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Function of a technique and a number of ranks that gives the rows and the record of its run,
    and what it printed."""
    folder, known = tmp_path_factory.mktemp("ranks"), {}

    def trained(name, n):
        if (name, n) not in known:
            file = folder / f"{name}-{n}" / "results.csv"
            file.parent.mkdir()
            script = in_float32(name, file.parent)
            codes, said = run_ranks(n, script, *FLAGS, f"--results-file={file}")
            assert codes == [0] * n, said
            rows = rows_file.read(file)
            (kept,) = rows_file.read_records(file, rows.run_id.unique()).values()
            known[name, n] = SimpleNamespace(rows=rows, record=kept, said=said)
        return known[name, n]

    return trained


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_train_as_one_process_does(name, n, trained):
    alone, several = trained("asynchronous_logging", 1).rows, trained(name, n)
    assert list(several.rows.loss) == pytest.approx(list(alone.loss), rel=2e-6)
    assert set(several.rows.world_size) == {n} and ("ranks" in several.record) == (n > 1)
    assert alone.held_out_loss[0] < math.log(50_257) - 0.1  # which a wrong gradient would not be


def test_rank_0_alone_writes_one_row_a_step_with_the_slowest_ranks_time(trained):
    run = trained("distributed_data_parallel", 4)
    assert list(run.rows.step) == list(range(5)) and set(run.rows.batch_size) == {8}
    timed = run.rows.step_ms[run.rows.phase == "timed"]
    assert timed.median() >= max(rank["median_step_ms"] for rank in run.record["ranks"]) - 1e-3
    assert run.said.count("distributed_data_parallel: median") == 1
    assert socket.gethostname() not in json.dumps(run.record["ranks"])


def test_rows_are_the_slowest_ranks_times_and_the_mean_of_losses(settle):
    args = settle(*FLAGS)
    args.world_size = 2
    weight = torch.nn.Linear(1, 1)

    def result(times, losses, peak, updated, *others):
        return RankResult(
            step_ms=times,
            data_ms=[ms / 20 for ms in times],
            timed=[False] * 3 + [True] * 2,
            losses=losses,
            memory={"peak_mib": peak, "reserved_mib": None},
            counters={"clock_s": 1.0},
            readings={},
            updated=updated,
            other_processes=others,
        )

    first = result([9, 1, 2, 5, 4], [4.0] * 5, 20.0, [0])
    second = result([8, 3, 1, 6, 2], [2.0] * 5, 30.0, [1], "game (pid 4711, 1 MiB)")
    Run(args, weight, torch.optim.SGD(weight.parameters())).write([first, second])
    rows = rows_file.read(args.results_file)
    assert list(rows.step_ms) == [9, 3, 2, 6, 4] and list(rows.loss) == [3.0] * 5
    assert list(rows.data_ms) == pytest.approx([0.45, 0.15, 0.1, 0.3, 0.2])
    assert set(rows.peak_memory_mib) == {30.0} and set(rows.world_size) == {2}
    (record,) = records_in(args.results_file.parent)
    assert record["parameters"] == record["updated_parameters"] == 2  # each updated another one
    assert [rank["median_step_ms"] for rank in record["ranks"]] == [4.5, 4.0]
    assert record["quality"]["reasons"] == ["rank 1: game (pid 4711, 1 MiB) on the GPU"]


@pytest.mark.slow
def test_memory_by_kind_is_what_a_rank_holds_itself(trained):
    def memory(name, n):
        return [one["memory"] for one in trained(name, n).record["ranks"]]

    whole = PARAMETERS * 4 / 2**20
    for one in memory("distributed_data_parallel", 4):
        assert one["weights_mib"] == pytest.approx(whole, rel=0.01)
        assert one["optimizer_state_mib"] == pytest.approx(2 * whole, rel=0.01)
    for one in memory("fully_sharded", 4):
        assert one["weights_mib"] == pytest.approx(whole / 4, rel=0.05)
        assert one["gradients_mib"] == pytest.approx(whole / 4, rel=0.05)
        assert one["optimizer_state_mib"] == pytest.approx(whole / 2, rel=0.05)
    state = [one["optimizer_state_mib"] for one in memory("zero_redundancy", 4)]
    assert sum(state) == pytest.approx(2 * whole, rel=0.01) and min(state) < whole / 10
    for name in NAMES:
        kept = trained(name, 4).record
        assert kept["parameters"] == kept["updated_parameters"] == PARAMETERS


def test_ranks_share_out_the_batch_that_one_process_draws(settle):
    args = settle(*FLAGS)
    whole, shares = TokenBatches(args)[3], []
    args.world_size = 4
    for args.rank in range(4):
        shares.append(TokenBatches(args)[3])
    for one, parts in zip(whole, zip(*shares, strict=True), strict=True):
        assert torch.equal(one, torch.cat(parts)) and len(parts[0]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch_size", "words"),
    [
        ("asynchronous_logging", 8, "this script does not support several ranks"),
        (NAMES[0], 5, "2 ranks cannot share it evenly; try --batch-size 6"),
    ],
)
def test_what_several_ranks_cannot_run_is_one_line(name, batch_size, words, tmp_path):
    flags = [*FLAGS, f"--batch-size={batch_size}", f"--results-file={tmp_path / 'results.csv'}"]
    rank_0_late = {"before": lambda rank: rank or time.sleep(2 * GRACE_S)}
    codes, said = run_ranks(2, in_float32(name, tmp_path), *flags, **rank_0_late)
    assert codes[0] == 2 and said.count("\n") == 1 and not (tmp_path / "results.csv").exists()
    assert said.startswith(name) and words in said


def test_ddp_collects_no_statistics_for_which_a_gpu_would_wait(monkeypatch):
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    ranks.stand_alone()
    torch.distributed.init_process_group("gloo")
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
        found = model._get_ddp_logging_data()
        assert found["iteration"] == 0 and not any("time" in name for name in found)
    finally:
        ranks.leave()


def test_an_automatic_batch_is_as_large_a_rank_as_it_is_alone():
    config = CONFIGS["gpt2"]
    assert device_choice.auto_shape(CPU(), config, ranks=4) == (4, 64)
    gpu = ImaginedGPU("a GPU", 80 * 2**30)
    B, T = device_choice.auto_shape(gpu, config)
    assert device_choice.auto_shape(gpu, config, ranks=4) == (4 * B, T)
    small = ImaginedGPU("a GPU", 16 * 2**30)
    alone = device_choice.auto_shape(small, config, batch_size=8)[1]
    assert device_choice.auto_shape(small, config, batch_size=32, ranks=4) == (32, alone)


def test_each_rank_takes_a_gpu_of_its_own_and_there_are_enough(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_choice, "CUDA", lambda device, partners: device)
    for wanted in ("cuda", "auto"):
        assert device_choice.choose(wanted, 1, 2) == torch.device("cuda", 1)
    with pytest.raises(UserError, match="3 ranks, and torch sees 2 GPUs"):
        device_choice.choose("cuda", 0, 3)
    with pytest.raises(UserError, match="a GPU of its own; use cuda"):
        device_choice.choose("cuda:1", 0, 2)


def test_more_processes_than_the_machine_has_room_for_are_refused(monkeypatch):
    cores, there = device_choice.available("cpu")
    assert rank_launcher.counts("1 all", "cpu") == [1, cores]
    with pytest.raises(UserError, match=f"there are {there} here"):
        rank_launcher.counts(f"1 {cores + 1}", "cpu")
    for text in ("0", "two", "-1", " "):
        with pytest.raises(UserError, match="from 1 up"):
            rank_launcher.counts(text, "cpu")
    monkeypatch.setattr(cpu, "cgroup_limits", lambda: (1.5, math.inf))  # a container's quota
    assert device_choice.available("cpu") == (1, "1 core")
    with pytest.raises(UserError, match="give one number"):
        rank_launcher.counts("1 1", "cpu", several=False)


LAUNCH = """
import sys
from pathlib import Path
from Utils.launch import rank_launcher
path = Path(sys.argv[1])
sys.exit(rank_launcher.launch(path.stem, [str(path), *sys.argv[3:]], int(sys.argv[2])))
"""
LOOP = "in run.steps(batches):\n"


def at_step_3(what):
    """A change of a script: rank 1 does that in the fourth step."""
    line = f"            if args.rank == 1 and len(run.losses) == 3: {what}\n"
    return {LOOP: LOOP + line}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("import os; os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL (out of memory?)"),
        ("import time; time.sleep(99)", "rank 1 hung: the others waited for 6 s"),
    ],
    ids=["killed", "hangs"],
)
def test_a_rank_that_is_killed_or_hangs_ends_the_run_with_one_line(what, line, tmp_path):
    file = tmp_path / "results.csv"
    rows_file.initialize(file)
    before = file.read_bytes()
    script = in_float32(NAMES[0], tmp_path, **at_step_3(what))
    command = [sys.executable, "-c", LAUNCH, str(script), "2", *FLAGS, f"--results-file={file}"]
    start = time.monotonic()
    environment = without_ranks(TAG=str(start), PATIENCE_S="6")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=45)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and f"{NAMES[0]}: {line}; nothing was recorded\n" in said
    assert said.count("nothing was recorded") == 1 and "Traceback" not in said
    assert file.read_bytes() == before and not records_in(tmp_path)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            assert process.environ().get("TAG") != str(start) or process.status() == "zombie"


@pytest.mark.slow
def test_a_rank_out_of_memory_says_so_and_nothing_is_recorded(tmp_path):
    file = tmp_path / "results.csv"
    script = in_float32(NAMES[0], tmp_path, **at_step_3("raise MemoryError"))
    told = tmp_path / "error.json"

    def before(rank):
        if rank == 0:
            os.environ["TORCHELASTIC_ERROR_FILE"] = str(told)

    flags = [*FLAGS, f"--results-file={file}"]
    codes, said = run_ranks(2, script, *flags, agent=False, before=before)
    assert codes == [NOTICED, 1] and not file.exists()
    assert "distributed_data_parallel: rank 1: out of memory: 8x16 does not fit" in said
    assert "on 2 ranks; try --batch-size 4; nothing was recorded" in said
    assert said.count("nothing was recorded") == 1 and "Traceback" not in said
    assert json.loads(told.read_text())["noticed"] == "gone"


@pytest.mark.slow
def test_two_agents_are_two_nodes_of_one_run(trained, tmp_path):
    file, port = tmp_path / "results.csv", free_port()
    script = in_float32(NAMES[0], tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=two"]
    command += [str(script), *FLAGS, f"--results-file={file}"]
    agents = [
        subprocess.Popen(command, env=without_ranks(), stdout=-1, stderr=-2, text=True)
        for _ in range(2)
    ]
    said = [agent.communicate(timeout=100)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    rows = rows_file.read(file)
    assert list(rows.step) == list(range(5)) and set(rows.world_size) == {2}
    alone = trained("asynchronous_logging", 1).rows
    assert list(rows.loss) == pytest.approx(list(alone.loss), rel=2e-6)
    (kept,) = rows_file.read_records(file, rows.run_id.unique()).values()
    assert [one["node"] for one in kept["ranks"]] == [0, 1]


@pytest.mark.parametrize(
    ("codes", "noticed", "says"),
    [
        ({0: -15, 1: -9, 2: -15}, {}, "rank 1 was killed by SIGKILL (out of memory?)"),
        ({0: 75, 1: -11}, {0: "gone"}, "rank 1 was killed by SIGSEGV"),
        ({0: 75, 1: -15, 2: 75}, {0: "late", 2: "gone"}, "rank 1 hung: the others"),
        ({0: 75, 1: -9}, {0: "late"}, "rank 1 hung: the others"),  # as it slept through SIGTERM
        ({0: -6, 1: -15, 2: -6}, {}, "rank 1 hung: the others"),  # NCCL's watchdog
        ({0: 75, 1: 3}, {0: "gone"}, "rank 1 ended with exit code 3 before"),
        ({0: 75, 1: 1}, {0: "gone", 1: None}, ""),  # it has said why
        ({0: 2, 1: -15}, {}, ""),
    ],
)
def test_the_rank_at_fault_is_named(codes, noticed, says):
    assert rank_launcher.diagnosis(codes, noticed).startswith(says)
    assert bool(says) == bool(rank_launcher.diagnosis(codes, noticed))


@pytest.mark.parametrize("on_gpu", [False, True], ids=["gloo", "nccl"])
def test_what_of_an_exchange_is_hidden_behind_computation(on_gpu):
    """Each step exchanges for 40 us, of which 25 are behind the computation."""
    events = profiler_events.steps(3, 100)
    for start in (0, 100, 200):
        if on_gpu:
            events += profiler_events.launched("gemm", start + 5, start + 10, 60)
            events += profiler_events.launched("ncclDevKernel_AllReduce", start + 9, start + 45, 40)
            continue
        events.append(profiler_events.event("aten::mm", start + 10, 60))
        for thread, offset in enumerate((45, 65, 60), start=7):  # two after another, one with both
            name = "gloo:all_reduce"
            events.append(profiler_events.annotation(name, start + offset, 20, thread=thread))
    breakdown = break_down(events)
    assert breakdown.communication_ms == pytest.approx(0.04)
    assert breakdown.hidden == pytest.approx(25 / 40)
    alone = [*profiler_events.steps(3, 100), profiler_events.event("aten::mm", 10, 10)]
    assert break_down(alone).communication_ms is None


@pytest.mark.slow
def test_a_run_of_two_is_profiled_by_rank_0(tmp_path):
    """Without compiling and of few tokens, as more would only take longer."""
    command = f"{sys.executable} -m tools.profile {NAMES[0]} --gpus=2".split()
    command += [*FLAGS, "--batch-size=2", "--seq-len=16"]
    command.append(f"--results-file={tmp_path / 'results.csv'}")
    environment = without_ranks(TORCHDYNAMO_DISABLE="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "profiles" / f"{NAMES[0]}.json").read_text())
    assert summary["profile"]["communication_ms"] > 0
    assert done.stdout.count("overlapped with computation") == 1
    rows = rows_file.text_rows(tmp_path / "profiles" / "results.csv")
    assert {row["world_size"] for row in rows} == {"2"}


@pytest.mark.parametrize("seconds", ["soon", "0", "nan"])
def test_a_patience_that_is_none_is_refused(seconds, monkeypatch):
    monkeypatch.setenv("PATIENCE_S", seconds)
    with pytest.raises(UserError, match=f"PATIENCE_S={seconds}: not a duration"):
        ranks.patience()
