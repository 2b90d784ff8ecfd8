"""The field report: a block to paste, with what identifies a device and nothing else."""

from tests.helpers.rows import rows_of, write_record
from tools.share.field_report import main as field_report
from Utils.results import rows_file


def test_field_report_has_device_and_versions_and_no_names(tmp_path, capsys):
    """README: "prints device, versions and the table, without names or paths"."""
    path = tmp_path / "results.csv"
    rows_file.append(path, rows_of("tensorFloat32", [9, 9, 15], grade="tainted"))
    newest = rows_of("no_optimization", [9, 9, 30])
    rows_file.append(path, newest)
    write_record(
        path,
        newest,
        device={"memory_mib": 81_559, "driver": "580.1"},
        versions={"python": "3.12.1", "torch": "2.13.0", "cudnn": None},
        platform="Linux",
        variables={"SECRET": "not for others"},
    )
    field_report(f"RESULTS_FILE={path}")
    facts, _, table = capsys.readouterr().out.partition("\n\n")
    assert "SECRET" not in table and "| tensorFloat32 " in table
    assert (
        facts
        == """\
- device: Test GPU
- memory: 81,559 MiB
- versions: python 3.12.1, torch 2.13.0, driver 580.1
- platform: Linux
- runs: 2 with timings, 1 disturbed"""
    )
