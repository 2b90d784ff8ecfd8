"""The field report: a block to paste, with what identifies a device and nothing else."""

import re

from tests.helpers.rows import rows_of, write_record
from Utils.commands import __main__ as commands
from Utils.results import rows_file


def test_field_report_has_device_versions_and_the_table(tmp_path, capsys):
    """README: "prints device, versions and the table, without names or paths"."""
    path = tmp_path / "results.csv"
    rows_file.append(path, rows_of("cuda_graphs", [], status="unsupported"))
    for r, grade in enumerate(("clean", "clean", "clean", "clean", "tainted")):
        rows_file.append(path, rows_of("no_optimization", [9, 9, 30], round=r, grade=grade))
        newest = rows_of("tensorFloat32", [9, 9, 15], round=r)
        rows_file.append(path, newest)
    write_record(
        path,
        newest,
        device={"memory_mib": 81_559, "driver": "580.1"},
        versions={"python": "3.12.1", "torch": "2.13.0", "cudnn": None},
        platform="Linux",
        variables={"SECRET": "not for others"},
    )
    commands.main("field-report", f"RESULTS_FILE={path}")
    assert (
        re.sub(" +|-{4,}", " ", capsys.readouterr().out)
        == """\
- device: Test GPU
- memory: 81,559 MiB
- versions: python 3.12.1, torch 2.13.0, driver 580.1
- platform: Linux
- runs: 9 with timings

| script | time a step | over the script before | over the baseline | peak memory | loss |
|: | :| :| :| :| :|
| no_optimization | 30.00 ms | | 1.00x | 900 MiB | 5.000 |
| tensorFloat32 | 15.00 ms | **2.00x (2.00-2.00)** | 2.00x (2.00-2.00) | 900 MiB | 5.000 |
| cuda_graphs | unsupported | | | | |

Test GPU, torch 2.13.0, gpt2, 1x64 tokens a step, stdlib, 4 to 5 rounds, commit abc1234. Times \
are medians, rates and costs by the mean step. In brackets the 95% interval over \
rounds; bold: a real difference, corrected for the number of comparisons. \
no_optimization sets its own seed, so rounds have the same loss.

not shown: 1 disturbed run

- tensorFloat32: ratio to no_optimization from 4 common rounds: it has 4, this 5
- cuda_graphs: unsupported

Recipe: the smallest measured set statistically indistinguishable from the fastest: \
tensorFloat32, 2.00x (2.00-2.00) over no_optimization, 900 MiB, loss same.
"""
    )
