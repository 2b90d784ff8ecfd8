"""Rows -> medians, ratios, intervals, verdicts, table."""

import itertools
import re

from tests.helpers.rows import append_run, frame, rows_of, study_of
from tests.helpers.terminal import printed
from Utils.analysis.recommendation import recommend
from Utils.analysis.summary import summarize
from Utils.results import rows_file, study
from Utils.scripts import ladder


def lines_of(runs, records=None):
    """The figures of runs that are all shown, by name."""
    return summarize(study_of(frame(runs), records)).scripts


MEMORY = {"weights_mib": 475.0, "gradients_mib": 470.0, "optimizer_state_mib": 950.0}
QUALITY = {"mean_power_w": 500.0, "power_limit_w": 700.0, "sm_clock_mhz": 1980}
RECORD = {
    "memory": MEMORY | {"rest_mib": 705.0, "reserved_mib": None},
    "compile": None,
    "limits": {
        "flops_per_token": 10**9,
        "precision": "bfloat16",
        "datasheet_tflops": 400.0,
        "ceilings": {"matmul_tflops": {"bfloat16": 250.0}},
        "floor_ms": 25.0,
    },
    "quality": QUALITY,
}
CAPPED = {"quality": QUALITY | {"sm_clock_mhz": 1900, "throttle_reasons": ["sw power cap"]}}
EFFECT = "TF32: no effect expected on this device"
SHAPE = {"batch_size": 10, "seq_len": 1000, "reserved_memory_mib": 3000.0}
COMPILED = {"compile": {"graphs": 1, "recompilations": 2, "cache": "cold"}}
LOUD = {"note": f"{EFFECT}; loud"}
SMALL = {"memory": MEMORY | {"optimizer_state_mib": 242.0, "rest_mib": 1413.0}}
RUNS = (  # technique, milliseconds of its steps, columns, parts of the record
    ("no_optimization", [350, 150, 49, 90, 50, 55], {}, {}),
    ("tensorFloat32", [150, 125, 25, 25, 25], {"note": EFFECT}, CAPPED),
    ("brainFloat16", [50, 50, 25, 25, 25], {"note": EFFECT, "loss": 5.001}, {}),
    ("torch_compile", [1500, 10, 6.25, 6.25, 6.25], {"loss": 5.5}, COMPILED),
    ("flash_attention", [450, 10, 12.5, 12.5, 12.5], LOUD, COMPILED),
    ("8bit_optimizer", [5, 5, 5, 5, 5], {"peak_memory_mib": 1024.0}, SMALL),
    ("float8_linear", [], {"status": "unsupported", "note": "needs FP8"}, {}),
    ("larger_batch", [9, 9, 50, 9, 50, 50], {"batch_size": 40, "requested_batch_size": 10}, {}),
)
UNLIKE = {
    "device": "Old GPU",
    "commit": "0000000",
    "torch": "2.11",
    "model": "gpt2-xl",
    "dataset": "synthetic",
    "seq_len": 128,
}
PRINTED = """\
script           time a step     over the script   over the baseline       peak                 loss
                                          before                         memory
---------------  -----------  ------------------  ------------------  ---------  -------------------
no_optimization     100.0 ms                                   1.00x    900 MiB                5.000
tensorFloat32       50.00 ms  *2.00x (2.00-2.00)*  2.00x (2.00-2.00)    900 MiB                5.000
brainFloat16        50.00 ms   1.00x (1.00-1.00)   2.00x (2.00-2.00)    900 MiB                5.001
torch_compile       12.50 ms  *4.00x (4.00-4.00)*  8.00x (8.00-8.00)    900 MiB         5.500, model
                                                                                             changed
flash_attention     25.00 ms  *0.50x (0.50-0.50)*  4.00x (4.00-4.00)    900 MiB                5.000
float8_linear    unsupported
larger_batch        25.00 ms                       4.00x (4.00-4.00)    900 MiB                5.000
8bit_optimizer      10.00 ms  *2.50x (2.50-2.50)*             10.00x  1,024 MiB                5.000
                                           *over*      (10.00-10.00)
                                *flash_attention*
my_own              10.00 ms                                  10.00x    900 MiB                5.000

At the power limit of 700 W: tensorFloat32. Clocks at the end of runs: 1,900 to 1,980 MHz (medians
of scripts).
10^9 tokens take 1.78 kWh with no_optimization, 0.17 kWh with 8bit_optimizer.
Clocks and energy: 1 of 29 runs have no record of them.
Runs were timed for 0.0 to 0.6 s, in turns of 0.0 to 0.3 s.

Test GPU, torch 2.13.0, gpt2, 10x1000 tokens a step, stdlib, 1 to 4 rounds, commit abc1234,
abc1234-dirty. Times are medians, rates and costs by the mean step. In brackets 95% intervals, which
hold for all ratios of the table together; bold: the interval excludes 1. The baseline's loss varies
by 0.000 (standard deviation) over seeds.

not shown: 1 run of gpt2 10x1000 on Old GPU (torch 2.13.0, stdlib, commit abc1234); 1 run of gpt2
10x1000 on Test GPU (torch 2.11, stdlib, commit abc1234); 1 run of gpt2 1x64 on 2 x Test GPU (torch
2.13.0, stdlib, commit abc1234); 1 run of gpt2 10x128 on Test GPU (torch 2.13.0, stdlib, commit
abc1234); 1 run of gpt2 10x1000 on Test GPU (torch 2.13.0, stdlib, commit 0000000); 1 run of gpt2
10x1000 on Test GPU (torch 2.13.0, synthetic, commit abc1234); 1 run of gpt2-xl 10x1000 on Test GPU
(torch 2.13.0, stdlib, commit abc1234); 1 run repeated since

- tensorFloat32: TF32: no effect expected on this device
- flash_attention: loud
- float8_linear: unsupported: needs FP8

Time and loss:

script               p20-p80   tokens/s  rounds  verdict             loss  parity        quality
                        (ms)                                   difference
---------------  -----------  ---------  ------  -----------  -----------  ------------  -----------
no_optimization  98.80-106.0     77,922       4                                          undisturbed
tensorFloat32    50.00-50.00    160,000       4  faster                 0  exact         undisturbed
brainFloat16     50.00-50.00    160,000       4  no               +0.0010  numerics      undisturbed
                                                 detectable   (+0.0010 to  changed
                                                 difference     +0.0010),
                                                                     same
torch_compile    12.50-12.50    640,000       4  faster           +0.5000  model         undisturbed
                                                              (+0.5000 to  changed
                                                                +0.5000),
                                                                    worse
flash_attention  25.00-25.00    320,000       4  slower                 0  exact         undisturbed
larger_batch     25.00-25.00    320,000       4                                          undisturbed
8bit_optimizer   10.00-10.00    800,000       4  faster                 0  exact         undisturbed
my_own           10.00-10.00  1,000,000       1                         0  exact         undisturbed

Peak memory by kind:

script           weights  gradients  optimizer   rest   peak
                   (MiB)      (MiB)      state  (MiB)  (GiB)
                                         (MiB)
---------------  -------  ---------  ---------  -----  -----
no_optimization      475        470        950    705   0.88
tensorFloat32        475        470        950    705   0.88
brainFloat16         475        470        950    705   0.88
torch_compile        475        470        950    705   0.88
flash_attention      475        470        950    705   0.88
larger_batch         475        470        950    705   0.88
8bit_optimizer       475        470        242  1,413   1.00
my_own                                                  0.88

Compilation:

script           first  compiled                             breaks
                  step                                         even
                   (s)                                        after
---------------  -----  ---------------------------------  --------
no_optimization    0.9
tensorFloat32      0.4
brainFloat16       0.1
torch_compile      3.8  1 graph, cold cache; 2 recompiled  97 steps
flash_attention    1.1  1 graph, cold cache; 2 recompiled
larger_batch       0.0
8bit_optimizer     0.0
my_own             0.0

Distance from the limit:

script              matmul  TFLOP/s    of the     MFU (of  modelled  headroom
                 precision           measured         the     floor
                                      ceiling  datasheet)      (ms)
---------------  ---------  -------  --------  ----------  --------  --------
no_optimization   bfloat16     77.9       31%         19%     25.00      4.0x
tensorFloat32     bfloat16      160       64%         40%     25.00      2.0x
brainFloat16      bfloat16      160       64%         40%     25.00      2.0x
torch_compile     bfloat16      640      256%        160%     25.00      0.5x
flash_attention   bfloat16      320      128%         80%     25.00      1.0x
larger_batch      bfloat16      320      128%         80%     6.250      4.0x
8bit_optimizer    bfloat16      800      320%        200%
my_own

Cost of 10^9 tokens:

script           hours   mean   kWh  cost
                        power          at
                          (W)        2.50
                                       an
                                     hour
---------------  -----  -----  ----  ----
no_optimization    3.6    500  1.78  8.91
tensorFloat32      1.7    500  0.87  4.34
brainFloat16       1.7    500  0.87  4.34
torch_compile      0.4    500  0.22  1.09
flash_attention    0.9    500  0.43  2.17
larger_batch       0.9    500  0.43  2.17
8bit_optimizer     0.3    500  0.17  0.87
my_own             0.3               0.69

Recipe: the measured set with the largest certain speedup: tensorFloat32, 2.00x (2.00-2.00) over
no_optimization, 900 MiB, loss same; faster, but with flash_attention, slower by itself:
8bit_optimizer, 10.00x (10.00-10.00); make ablate T=8bit_optimizer ROUNDS=4 measures it without.
"""


def test_table_in_a_terminal(path, capsys, monkeypatch):
    """DESIGN: "A result fits the terminal: at most 100 columns; a table of measured scripts has the
    six columns", and unlike runs are never mixed. METHOD: of larger_batch, "Its times are compared
    per token; its losses, of other tokens, get no verdict".

    By hand: the mean of 50 and 200 ms is 100. The mean step of 8bit_optimizer is 12.5 ms, so 10,000
    tokens are 800,000 tokens/s, at 10^9 FLOP each 800 TFLOP/s of the datasheet's 400.
    """
    for column, value in UNLIKE.items():
        append_run(path, "no_optimization", [1] * 5, **SHAPE | {column: value})
    repeated = SHAPE | {"run_id": "20260101T0-before"}
    append_run(path, "tensorFloat32", [1] * 5, **repeated)
    for r in range(4):
        for name, steps, columns, parts in RUNS:
            ms = [ms * (1, 4)[r % 2] for ms in steps]  # on a machine that is slow in odd rounds
            rows = rows_of(name, ms, round=r, **SHAPE | columns)
            if len(rows) == 6:
                rows[3]["phase"] = "warmup"  # a second turn
            rows_file.append(path, rows, RECORD | parts)
    append_run(path, "my_own", [9, 9, 5], **SHAPE, commit="abc1234-dirty")
    append_run(path, "distributed_data_parallel", [5] * 5, world_size=2)

    words = ["table", f"RESULTS_FILE={path}", "PRICE=2.5", "ALL=1"]
    assert printed(capsys, monkeypatch, *words, columns=140) == PRINTED
    narrow = printed(capsys, monkeypatch, *words, columns=60)
    assert max(map(len, narrow.splitlines())) == 60


# Technique; its loss minus the baseline's in three rounds, at 5; the norm of its first gradients
# over the baseline's; its parity, and the verdict on its loss. Three rounds of bfloat16 explain
# 0.00504 nats, or with a norm 0.00592 nats or 0.27% of it.
LOSSES = """\
tensorFloat32         0        nan     exact              same
brainFloat16          0.0050   nan     numerics changed   same
torch_compile         -0.0051  nan     model changed      same
flash_attention       1e-15    1.0026  numerics changed   same
fused_optimizer       1e-15    nan     model changed      same
regional_compilation  1e-15    1.0027  model changed      same
explicit_mask         0.0055   0.9973  model changed      same
float8_linear         0.057    1.02    numerics changed   worse
float8_head           1e-15    0.93    model changed      same
linear_cross_entropy  0.06     1.1     numerics changed   worse
8bit_optimizer        nan      1       numerics changed   diverged
muon                  -0.5     2       another optimizer  -
padded_vocabulary     0        1       other batches      -
untied_weights        0.1      2       numerics changed   worse
"""
PARTS = {  # parts of the records
    "fused_optimizer": {"updated_parameters": 123},
    "padded_vocabulary": {"dataset_facts": {"streamed": True}},
}


def test_parity_of_losses():
    """METHOD: "`exact`: the losses of all steps equal the baseline's to the last bit", "`model
    changed`: the first losses or gradients differ by more than rounding explains, or fewer
    parameters are updated", "`other batches`: the script streams its text",
    "`another optimizer`: the script says so; its loss is shown and not judged", "`numerics
    changed`: none of these".
    """
    expected = {"no_optimization": ("0", "1", "", "-")}
    for line in LOSSES.splitlines():
        name, *facts = re.split("  +", line)
        expected[name] = tuple(facts)

    runs = []
    records = {}
    for r, (name, (difference, norm, *_)) in itertools.product(range(3), expected.items()):
        seed = r + (name == "untied_weights")  # other batches, of which nothing follows
        runs.append(rows_of(name, [9] * 3, loss=5 + float(difference), round=r, seed=seed))
        record = {"run_id": runs[-1][0]["run_id"], "updated_parameters": 124}
        record["before_update"] = {"gradient_norm": 134 * float(norm)}
        records[record["run_id"]] = record | PARTS.get(name, {})
    lines = lines_of(runs, records)
    for name, (*_, parity, verdict) in expected.items():
        line = lines[name]
        assert (line.parity, line.loss_difference.verdict or "-") == (parity, verdict), name
    assert lines["muon"].loss == 4.5


def test_table_shows_what_is_emulated_once(path):
    """DESIGN: "What this machine only emulates is shown once and then left out of the line".

    The losses of a round in which a run was cut are left out.
    """
    for r, script in itertools.product(range(4), ladder.repository("float32").group("ladder")):
        ms = 60.0 if script.name == "fused_optimizer" else 90.0
        steps = [900.0] * 2 if script.is_emulated else [ms] * 6
        rows = rows_of(script.name, steps, round=r, **script.identity.place)
        rows[1]["phase"] = "timed"
        if r == 0 or not script.is_emulated:
            cut = script.name == "fused_optimizer" and r == 3
            settings = {"steps": len(steps) - cut}
            record = {"round": r, "settings": settings, "precision": "float32"}
            rows_file.append(path, rows, record)

    summary = summarize(study.choose(rows_file.read(path), path))
    scripts = summary.scripts
    line = scripts["brainFloat16"]
    assert line.notes == ("emulated: 10 times slower here",) and line.parity == "other steps"
    assert recommend(summary).fastest and scripts["torch_compile"].parent == "tensorFloat32"


def test_rounds_that_failed_or_lack_a_partner_are_notes():
    runs = [rows_of("no_optimization", [9] * 3, round=r) for r in range(3)]
    runs += [rows_of("tensorFloat32", [9] * 3, note="loud; hot; loud", round=r) for r in range(2)]
    failed = rows_of("tensorFloat32", [], round=2, status="out_of_memory", note="too big")
    alone = rows_of("brainFloat16", [9] * 3, run_id="20260102T0-alone")
    lines = lines_of([*runs, failed, alone])
    line = lines["tensorFloat32"]
    assert line.notes == ("loud", "hot", "round 2: out_of_memory: too big")
    assert (line.status, line.rounds) == ("ok", 2)
    line = lines["brainFloat16"]
    assert line.notes == ("ran alone, not in turns: its ratios have no interval",)
    assert str(line.speedup) == "1.00x"
    assert lines_of([failed])["tensorFloat32"].reason == "out of memory: too big"
