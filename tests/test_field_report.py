"""The field report: a block to paste, with what identifies a device and nothing else."""

import pytest

from tests.helpers.rows import rows_of, write_record
from Utils.commands import __main__ as commands
from Utils.results import rows_file


@pytest.fixture
def report(tmp_path, capsys):
    def report(*runs, record=None):
        path = tmp_path / "results.csv"
        rows = [row for run in runs for row in run]
        rows_file.append(path, rows)
        if record:
            write_record(path, rows[-1:], **record)
        commands.main("field-report", "--results-file", str(path))
        return capsys.readouterr().out

    return report


def two_rounds(**columns):
    for round in range(2):
        yield rows_of("no_optimization", [20, 20, 10, 10], round=round, **columns)
        yield rows_of("tensorFloat32", [20, 20, 5, 5], round=round, **columns)


def test_it_names_device_driver_versions_and_quality(report):
    record = {
        "device": {"memory_mib": 81_559, "driver": "580.1"},
        "versions": {"python": "3.12.1", "torch": "2.13.0", "cudnn": None},
        "platform": "Linux",
        "variables": {"SECRET": "not for others"},
    }
    text = report(*two_rounds(), record=record)
    for line in ("device: Test GPU", "memory: 81,559 MiB", "driver: 580.1", "platform: Linux"):
        assert f"- {line}\n" in text
    assert "- versions: python 3.12.1, torch 2.13.0\n" in text
    assert "- runs: 4 with timings, 0 tainted\n" in text
    assert "SECRET" not in text


def test_its_table_has_the_ratios_and_unsupported_techniques(report):
    text = report(*two_rounds(), rows_of("float8_linear", [], status="unsupported", note="why"))
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in text.replace("<wbr>", "").splitlines()
        if line.startswith("|")
    }
    assert cells["tensorFloat32"][:3] == ["5.000 ms", "**2.00x (2.00-2.00)**", "2.00x (2.00-2.00)"]
    assert cells["float8_linear"][0] == "unsupported"
    assert "- float8_linear: unsupported: why\n" in text and "tensorFloat32, 2.00x" in text
    assert "- versions: torch 2.13.0\n" in text  # without a record, what the rows say
