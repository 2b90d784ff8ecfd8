"""What a forecast counts, what it says of it, and that runs confirm it."""

import csv
import dataclasses
import os
import re
from argparse import Namespace

import numpy as np
import pytest
import torch

from tests.helpers.rows import rows_of
from tools.forecast import __main__ as forecast_command
from tools.forecast import fake_run, forecast_plan, forecast_table
from tools.forecast.__main__ import memory_size
from tools.forecast.fake_run import KINDS, Recording, batch_multiple
from tools.forecast.forecast_plan import MemoryForecast, StepForecast
from tools.forecast.forks import in_processes
from tools.forecast.gpus import ImaginedGPU, workspace_bytes
from tools.forecast.step_time import StepTime
from tools.profile import profiled_run
from Utils.analysis import summary
from Utils.base import paths
from Utils.base.command_line import OF_A_RUN, Parser
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.units import GIB, MIB
from Utils.device import device_choice
from Utils.device.cpu import CPU
from Utils.results import rows_file
from Utils.scripts import ladder

GPU = ImaginedGPU("an imagined GPU", 80 * GIB)
TINY = ["--model=gpt2-tiny", "--dataset=synthetic", "--seq-len=64"]


def recorded(*names, batch_size=4, device=GPU, flags=TINY):
    """Recordings of techniques, given by name or as they are, each in a process of its own."""
    forecast_plan.import_compiler()
    techniques = [ladder.get(name) if isinstance(name, str) else name for name in names]
    flags = [*flags, f"--batch-size={batch_size}"]
    return in_processes(fake_run.recording, [(t, flags, device) for t in techniques])


def peak(recording):
    return int(recording.live.sum(axis=1).max())


def test_memory_can_be_given_in_binary_and_in_decimal_units():
    sizes = {"10 gib": 10 * 2**30, "24GB": 24 * 10**9, "8e9": 8 * 10**9, "1.5GiB": 3 * 2**29}
    assert {text: memory_size(text) for text in sizes} == sizes
    for text in ("ten", "10G", "-1GiB", "0", "GiB", "1e", "10 GiB of it"):
        with pytest.raises(UserError, match="10GiB"):
            memory_size(text)


def made(constant, slopes, multiple=1):
    """A recording of operations after which so many bytes are there, and so many a sequence."""
    batch, slopes = 97 * multiple, np.array(slopes)
    live = np.zeros((len(slopes), len(KINDS)), dtype=np.int64)
    live[:, 0], live[:, -1] = constant, slopes * batch
    phase = np.zeros(len(slopes), dtype=np.int8)
    return Recording(batch, multiple, live, phase, slopes * batch)


def test_the_largest_batch_is_the_last_that_fits():
    # 10 + 3 B at one operation and 40 + B at another: which is the peak depends on B.
    found = made([10, 40], [3, 1])
    for size in range(42, 200):
        largest = found.largest_batch(size)
        peaks = [max(10 + 3 * B, 40 + B) for B in (largest, largest + 1)]
        assert peaks[0] <= size < peaks[1]
        assert [peak(found.at(largest)), peak(found.at(largest + 1))] == peaks
    assert found.largest_batch(39) == 0  # not even without a batch


def test_a_batch_that_comes_in_parts_is_a_multiple_of_them():
    found = made([0], [10], multiple=4)
    assert found.largest_batch(119) == 8
    assert found.largest_batch(120) == 12


def test_weights_gradients_and_state_are_counted_to_the_byte():
    """And tied weights once; the baseline's peak on a GPU is what auto shapes take it to be."""
    config, (found,) = CONFIGS["gpt2-tiny"], recorded("no_optimization")
    parameters = config.parameters()
    last = found.live[found.phase == 2][-1]
    assert last[0] == last[1] == 4 * parameters
    scalars = last[2] - 8 * parameters  # how many steps there were, for each of 28 tensors
    assert 0 <= scalars <= 4 * 28
    about = device_choice.baseline_bytes(config, 4, 64)
    assert about == pytest.approx(peak(found), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no_optimization", "gradient_accumulation"])
def test_one_recording_gives_the_peak_at_any_batch(name):
    batches = 97 * batch_multiple(ladder.get(name).needs), 32
    (at_97,), (at_32,) = (recorded(name, batch_size=B) for B in batches)
    assert peak(at_97.at(32)) == pytest.approx(peak(at_32), rel=1e-4)
    assert at_97.largest_batch(peak(at_32) + 1000) == 32


@pytest.mark.slow
def test_techniques_differ_in_what_they_are_about():
    names = ["no_optimization", "flash_attention", "8bit_optimizer", "gradient_checkpointing"]
    names += ["fused_cross_entropy", "float16_grad_scaler"]
    flags = [*TINY[:2], "--seq-len=512"]
    answers = dict(zip(names, recorded(*names, batch_size=2, flags=flags), strict=True))
    assert {name: a for name, a in answers.items() if not isinstance(a, Recording)} == {}
    plain, flash = answers["no_optimization"], answers["flash_attention"]
    scores = 4 * 2 * 2 * 512**2  # bytes of one layer's, of 2 sequences and 2 heads
    assert peak(plain) - peak(flash) > 2 * scores
    state = {name: answer.live[-1, 2] for name, answer in answers.items()}
    assert state["8bit_optimizer"] < 0.3 * state["flash_attention"]
    assert state["flash_attention"] == state["no_optimization"]
    logits = 2 * 2 * 512 * 50_257  # bytes, in 16 bits
    # fused_cross_entropy keeps a few numbers per token more.
    assert peak(flash) - peak(answers["fused_cross_entropy"]) > 0.99 * logits


@pytest.mark.slow
def test_a_compiled_loss_takes_the_logits_and_their_gradient_alone():
    """In 16 bits, of a GPU: no one-hot of the targets, and no logarithms in 32 bits."""
    found = recorded("flash_attention", "padded_vocabulary", batch_size=97)
    for recording, columns in zip(found, (50_257, 50_304), strict=True):
        assert 2 < recording.growing.max() / (97 * 64 * columns * 2) < 2.2


@pytest.mark.slow
def test_peaks_are_those_of_torchs_allocator_on_a_virtual_gpu():
    """Within 2%, of docs/virtual_gpu.csv; three are tried here, make virtual-gpu tries all."""
    with (paths.ROOT / "docs/virtual_gpu.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["profile"] == "h100"]
    known = {row["technique"]: row for row in rows if row["model"] == "gpt2"}
    names = ("brainFloat16", "padded_vocabulary", "gradient_checkpointing")
    flags = ["--model=gpt2", "--dataset=synthetic", "--seq-len=1024"]
    for name, found in zip(names, recorded(*names, batch_size=34, flags=flags), strict=True):
        assert known[name]["batch_size"] == "16" and known[name]["seq_len"] == "1024"
        forecast = forecast_plan.memory_forecast([found], 16, 80 * GIB, GPU)
        assert forecast.peak / MIB == pytest.approx(float(known[name]["peak_mib"]), rel=0.02)


@pytest.mark.parametrize(
    ("capability", "setting", "mib"),
    [
        *((newer, None, 64) for newer in ((9, 0), (10, 0), (12, 0))),
        *((older, None, 16.25) for older in ((7, 5), (8, 9))),
        ((9, 0), ":16:8", 0.25),
    ],
)
def test_cublas_has_a_workspace_in_each_of_two_threads(capability, setting, mib, monkeypatch):
    """The virtual GPU's allocator shows them with torch 2.13."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if setting:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", setting)
    assert workspace_bytes(ImaginedGPU("", GIB, capability)) == mib * MIB


def test_what_cannot_run_says_why_and_a_broken_script_is_named(tmp_path):
    broken = ladder.get("no_optimization")
    text = broken.path.read_text().replace("loss.backward()", "loss.nothing()")
    file = tmp_path / "broken_script.py"
    file.write_text(text)
    broken = dataclasses.replace(broken, path=file)
    found = (
        *recorded("gradient_accumulation", batch_size=97),
        *recorded(broken, "no_sync", "chunked_loss"),
    )
    reasons = [forecast_plan.memory_forecast([each], 2, GIB, GPU).reason for each in found]
    assert "multiple of 4" in reasons[0]
    assert "AttributeError" in reasons[1] and "nothing" in reasons[1]
    assert "several processes" in reasons[2]
    assert "not forecast: a loss" in reasons[3]


def test_a_process_that_dies_stops_nothing_else():
    def end(code):
        return code or os._exit(1)

    assert in_processes(end, [(3,), (0,), (4,)]) == [3, None, 4]


def in_float32(name, folder):
    """A technique whose script is that one's without compiling and autocast."""
    technique = ladder.get(name)
    text = technique.path.read_text().replace("model = torch.compile(model)\n", "pass\n")
    text = re.sub(r"torch\.autocast\(.*?\)", "torch.enable_grad()", text)
    file = folder / f"float32_{name}.py"
    file.write_text(text)
    return dataclasses.replace(technique, name=file.stem, path=file)


def tensors_mib(technique, flags, folder):
    """The peak of tensors in a profiled run, in MiB, from a process that was forked: with one
    thread, as OpenMP's others are gone."""
    torch.set_num_threads(1)
    parser = Parser("", "", *OF_A_RUN)
    wanted = parser.parse_args([*flags, "--device=cpu", "--steps=2", "--warmup=1"])
    more = {"name": "", "gpus": "", "cpu": False, "memory": False, "output": folder}
    return profiled_run.profile(technique, Namespace(**vars(wanted), **more))["tensors_mib"]


@pytest.mark.slow
def test_the_tensors_of_a_run_in_float32_are_what_was_forecast(tmp_path):
    names = ("no_optimization", "flash_attention", "gradient_checkpointing")
    techniques = [in_float32(name, tmp_path) for name in names]
    shape = ["--model=gpt2-tiny", "--dataset=synthetic", "--seq-len=256"]
    found = recorded(*techniques, batch_size=1, device=CPU(), flags=shape)
    tasks = [(technique, [*shape, "--batch-size=1"], tmp_path) for technique in techniques]
    taken = in_processes(tensors_mib, tasks)
    for recording, size in zip(found, taken, strict=True):
        assert peak(recording) / MIB == pytest.approx(size, rel=0.001)


def step_of(name, *bytes_of_kinds, largest_batch=0, time=None):
    """A StepForecast with so many GiB of each of KINDS."""
    kinds = dict(zip(KINDS, (size * GIB for size in bytes_of_kinds), strict=True))
    memory = MemoryForecast(
        sum(kinds.values()), kinds, "backward", largest_batch, 13 * GIB, batch=16
    )
    return StepForecast("a GPU", name, 1024, memory, time, "")


MISSING = StepForecast("a GPU", "e", 1024, MemoryForecast(), None, "needs a thing")


def test_advice_names_what_dominates_and_who_takes_less_of_it():
    forecasts = [
        step_of("a", 1, 0, 2, 7, largest_batch=20),
        step_of("b", 1, 0, 2, 3, largest_batch=50),
        step_of("c", 1, 0, 0.5, 3, largest_batch=60),
        step_of("d", 9, 0, 0.1, 9, largest_batch=1),  # less state, a higher peak
        MISSING,
    ]
    lines = forecast_table.advice(forecasts, 1024, 12 * GIB)
    assert lines[0].startswith("a fits at 16x1024: 2.00 GiB are left; its largest batch is 20")
    assert "70% of its peak" in lines[1]
    assert lines[1].endswith("7.00 GiB; less with b (3.00), c (3.00)")
    assert lines[2].endswith("2.00 GiB; less with c (0.50)")
    lines = forecast_table.advice(forecasts, 1024, 9 * GIB)
    assert "does not fit at 16x1024: 1.00 GiB too much" in lines[0]
    assert forecast_table.advice([MISSING], 1024, 9 * GIB) == []


def test_a_technique_has_one_row_of_memory_and_time_or_its_reason():
    slow, fast = (StepTime(s, {"optimizer": s}, 0.8 * s, 1.25 * s) for s in (0.4, 0.1))
    forecasts = [
        step_of("base", 1, 0, 2, 7, time=slow),
        step_of("fast", 1, 0, 2, 3, largest_batch=50, time=fast),
    ]
    lines = forecast_table.technique_table([*forecasts, MISSING], "base").splitlines()
    assert lines[-1] == "e: needs a thing"
    cells = re.split(r"\s{2,}", lines[-2].strip())
    assert cells[:4] == ["fast", "6.00", "50", "100.0 (80.0-125.0)"]
    assert cells[4].startswith("4.00x (") and cells[5:] == ["10,240", "optimizer 100%"]
    cells = forecast_table.technique_table(forecasts, None).splitlines()[-1].split()
    assert cells[2] == "16" and "speedup" not in cells  # each at a batch of its own
    line = forecast_table.fastest_line([*forecasts, MISSING], 64, 9 * GIB)
    assert line.startswith("most tokens/s in 9.00 GiB: fast at 16x64, 10,240 (8,192-12,800)")


def test_a_measured_step_stands_beside_the_forecast(tmp_path):
    """Of this device and the newest code, without tainted runs."""
    args = Namespace(base="no_optimization", model="gpt2", batch_size=1, seq_len=64)
    args.hardware, args.results_file = ImaginedGPU("a GPU", 24 * GIB), tmp_path / "results.csv"
    assert summary.measured_steps(args) == {}
    for commit, last_ms, columns in (
        ("old", 90.0, {"device": "a GPU"}),
        ("new", 9.0, {"device": "a GPU"}),
        ("new", 90.0, {"device": "a GPU", "grade": "tainted"}),
        ("new", 90.0, {"device": "a CPU"}),
        ("new", 90.0, {"device": "a GPU", "requested_batch_size": 2}),
    ):
        rows = rows_of("no_optimization", [90.0, 90.0, last_ms], commit=commit, **columns)
        rows_file.append(args.results_file, rows)
    measured = summary.measured_steps(args)
    time = StepTime(0.018, {})
    forecasts = [step_of("no_optimization", 0.25, 0, 0.25, 0.25, time=time), MISSING]
    (line,) = forecast_table.measured_lines(forecasts, measured, with_memory=True)
    assert line.endswith("measured 9.0 ms (forecast +100%), 0.88 GiB (forecast -14.7%)")
    (line,) = forecast_table.measured_lines(forecasts, measured, with_memory=False)
    assert line.endswith("(forecast +100%)")


def test_it_ends_in_one_line_where_there_is_no_such_device():
    with pytest.raises(UserError, match="MEMORY=80GiB"):
        forecast_command.main("no_optimization", "--device=cuda:99")


def test_the_command_forecasts_for_a_gpu_that_is_not_there(tmp_path, capsys):
    file = tmp_path / "results.csv"
    command = ["no_optimization", "gradient_accumulation", *TINY, "--batch-size=2"]
    command += ["--device=cuda:99", "--memory=4GiB", f"--results-file={file}"]
    forecast_command.main(*command)
    said = capsys.readouterr().out
    assert "Estimates for an imagined GPU: gpt2-tiny, 2x64 tokens" in said
    largest = int(re.search(r"^no_optimization +[\d.]+ +(\d+)", said, re.MULTILINE)[1])
    following = float(re.search(rf"largest batch is {largest}, the next needs ([\d.]+)", said)[1])
    assert largest > 2 and following > device_choice.usable_bytes(4 * GIB) / GIB - 0.01
    assert "gradient_accumulation: needs a batch size that is a multiple of 4" in said
    assert not file.exists()
