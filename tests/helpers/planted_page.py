"""The report's page of rows whose answers are known beforehand."""

import json

from tests.helpers.rows import rows_of, write_record
from Utils.draw import report_page
from Utils.results import rows_file

GPU = {"device": "Test GPU", "batch_size": 4}
TIMES = {"no_optimization": 400, "tensorFloat32": 200, "brainFloat16": 250}
TIMES |= {"flash_attention": 240, "fused_optimizer": 160}
VARIANTS = {"no_optimization+fused_optimizer": 320}
LIMITS = {"flops_per_token": 10**9, "precision": "tf32", "datasheet_tflops": 16, "floor_ms": 50.0}
RECORD = {
    "memory": {"weights_mib": 475.0, "gradients_mib": 475.0, "optimizer_state_mib": 949.0},
    "limits": LIMITS | {"ceilings": None},
    "versions": {"cudnn": 91002, "python": "3.12.1"},
}


def page_of(folder):
    """The page of two rounds whose step times are those in TIMES, the second slower by a tenth."""
    path = folder / "results.csv"
    for r in range(2):
        for name, ms in (TIMES | VARIANTS).items():
            steps = [3 * ms, *[ms * (1 + 0.1 * r)] * 4]
            tainted = (name, r) == ("brainFloat16", 1)
            grade = "tainted" if tainted else "clean"
            loss = 4.9 if name == "brainFloat16" else 5.0
            run = rows_of(name, steps, loss=loss, round=r, grade=grade, **GPU)
            rows_file.append(path, run)
            quality = {"drift": 0.01 * r, "mean_power_w": 100.0, "other_cpu_share": None}
            quality["reasons"] = ["slowed by 8%"] if tainted else []
            write_record(path, run, quality=quality, **RECORD)
    write_profile(folder, "no_optimization")
    note = "needs an NVIDIA GPU of a later compute capability than this one has, " * 3
    rows_file.append(path, rows_of("float8_linear", [], status="unsupported", note=note, **GPU))
    return report_page.report(path)


def write_profile(folder, name, **facts):
    """Write a profile of steps of 15 ms of matrix products and 25 ms of attention."""
    profile = {"status": "ok", "note": "", "device": "Test GPU", "torch": "2.13.0", "model": "gpt2"}
    profile |= {"seq_len": 64, "batch_size": 2, "asked_batch_size": 1, "commit": "abc1234"}
    kinds = {"matmul": {"ms": 30.0, "forecast_ms": 11.0}, "attention": {"ms": 50.0}}
    profile |= {"profile": {"kinds": kinds, "steps": 8}, "advice": ["Half of it waits."]}
    profile |= {"dataset": "stdlib", "technique": name, **facts}
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "profiles" / f"{name}.json").write_text(json.dumps(profile))
