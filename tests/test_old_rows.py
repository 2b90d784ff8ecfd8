"""Results files from before the columns suite, parent and change: read, converted, refused."""

import csv
import io
import json
import subprocess
import sys

import pytest

from tests.helpers.rows import rows_of, write_record
from tests.helpers.stand_ins import full_disk
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.results import old_rows, rows_file
from Utils.scripts.identity import Identity
from Utils.scripts.ladder import FLOAT16

MS = [9.0, 9.0, 5.0]
OWN = {"base": "train", "unit": "images", "model": "", "commit": ""}


def lines_of(runs):
    """Runs, lists of rows, as lines of an old file."""
    lines = io.StringIO()
    options = {"extrasaction": "ignore", "lineterminator": "\n"}
    csv.DictWriter(lines, rows_file.OLD_COLUMNS, **options).writerows(sum(runs, []))
    return lines.getvalue()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.csv"


def write(path, *runs):
    """Write an old file with the rows of runs."""
    path.write_text(f"{rows_file.OLD_HEADER}\n{lines_of(runs)}")


def identities(path):
    """The Identity of each technique of a file, by name, which read() and text_rows() agree on."""
    rows = rows_file.read(path)
    names = ["technique", *old_rows.ADDED]
    texts = {tuple(row[name] for name in names) for row in rows_file.text_rows(path)}
    assert {*rows[names].astype(str).itertuples(index=False, name=None)} == texts
    assert len({technique for technique, *_ in texts}) == len(texts)
    return {technique: Identity(*place) for technique, *place in texts}


def test_old_file_has_the_header_of_before():
    assert rows_file.OLD_HEADER == (
        "run_id,base,round,seed,technique,status,step,phase,step_ms,data_ms,loss,held_out_loss,"
        "batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,torch,commit,"
        "grade,first_step_s,peak_memory_mib,reserved_memory_mib,note"
    )


def test_scripts_of_ours_get_what_their_docstrings_say(path, capsys):
    names = ("no_optimization", "tensorFloat32", "torch_compile", "padded_vocabulary")
    variants = ("no_optimization+flash_attention", "fused_optimizer-flash_attention")
    unsupported = rows_of("no_sync", [], status="unsupported")
    write(path, *(rows_of(name, MS) for name in (*names, *variants)), unsupported)
    assert identities(path) == {
        "no_optimization": Identity("ladder"),
        "tensorFloat32": Identity("ladder", "no_optimization", "+tensorFloat32"),
        "torch_compile": Identity("ladder", "brainFloat16", "+torch_compile"),
        "padded_vocabulary": Identity("beyond", "fused_optimizer", "+padded_vocabulary"),
        "no_sync": Identity("beyond", "distributed_data_parallel", "+no_sync"),
        variants[0]: Identity("ablation", "no_optimization", "+flash_attention"),
        variants[1]: Identity("ablation", "fused_optimizer", "-flash_attention"),
    }
    assert not capsys.readouterr().err


def test_several_techniques_of_a_variant_are_one_change(path):
    name = "fused_optimizer-torch_compile-flash_attention"
    write(path, rows_of(name, MS))
    change = "-torch_compile-flash_attention"
    assert identities(path) == {name: Identity("ablation", "fused_optimizer", change)}


@pytest.mark.parametrize("note", ["in float16", "in float16; waits for data 20% of the time", ""])
def test_rows_of_a_device_without_bfloat16_are_of_the_float16_ladder(path, note):
    """By a note of a run, or as no script with bfloat16 has timings. Other devices stay apart."""
    t4 = {"device": "Tesla T4"}
    write(
        path,
        rows_of("float16_compile", MS, **t4),
        rows_of("padded_vocabulary", MS, note=note, **t4),
        rows_of("torch_compile", [], status="unsupported", **t4),
        rows_of("fused_optimizer", MS),
        rows_of("float16_attention", MS),
    )
    rows = rows_file.read(path)
    of_device = {
        device: group.groupby("technique", observed=True)[["suite", "parent"]].first()
        for device, group in rows.groupby("device", observed=True)
    }
    assert [*of_device["Tesla T4"].loc["float16_compile"]] == ["ladder", "float16_grad_scaler"]
    assert [*of_device["Tesla T4"].loc["torch_compile"]] == ["ladder", "float16_grad_scaler"]
    padded = of_device["Tesla T4"].loc["padded_vocabulary"]
    assert [*padded] == ["beyond", FLOAT16["fused_optimizer"]]
    assert [*of_device["Test GPU"].loc["fused_optimizer"]] == ["ladder", "flash_attention"]
    assert [*of_device["Test GPU"].loc["float16_attention"]] == ["beyond", "float16_compile"]


def own(*switches, steps_ms=MS, **columns):
    return rows_of("+".join(["train", *switches]), steps_ms, **OWN | columns)


def test_switches_of_a_users_script_are_in_turn(path, capsys):
    """One that failed or is refused is skipped by the next."""
    rungs = ("tensorFloat32", "torch_compile", "fused_optimizer")
    write(
        path,
        own(),
        own(rungs[0]),
        own(rungs[0], "brainFloat16", steps_ms=[], status="unsupported"),
        own(*rungs[:2]),
        own(*rungs),
        own(*rungs[:2], "8bit_optimizer"),
        own(*rungs, "channels_last"),
        own(rungs[0], rungs[2], "cuda_graphs"),
    )
    assert identities(path) == {
        "train": Identity("own"),
        "train+tensorFloat32": Identity("own", "train", "+tensorFloat32"),
        "train+tensorFloat32+brainFloat16": Identity("own", "train+tensorFloat32", "+brainFloat16"),
        "train+tensorFloat32+torch_compile": Identity(
            "own", "train+tensorFloat32", "+torch_compile"
        ),
        "train+tensorFloat32+torch_compile+fused_optimizer": Identity(
            "own", "train+tensorFloat32+torch_compile", "+fused_optimizer"
        ),
        "train+tensorFloat32+torch_compile+8bit_optimizer": Identity(
            "own", "train+tensorFloat32+torch_compile", "+8bit_optimizer"
        ),
        "train+tensorFloat32+torch_compile+fused_optimizer+channels_last": Identity(
            "own", "train+tensorFloat32+torch_compile+fused_optimizer", "+channels_last"
        ),
        "train+tensorFloat32+fused_optimizer+cuda_graphs": Identity(
            "own",
            "train+tensorFloat32+torch_compile+fused_optimizer",
            "+cuda_graphs-torch_compile",
        ),
    }
    assert not capsys.readouterr().err


def test_ablation_of_a_users_script_has_one_switch_alone_or_all_but_one(path):
    rungs = ("tensorFloat32", "torch_compile", "fused_optimizer")
    line = [own(*rungs[:n]) for n in range(4)]
    write(path, *line, own("fused_optimizer"), own("tensorFloat32", "fused_optimizer"))
    found = identities(path)
    assert found["train+fused_optimizer"] == Identity("ablation", "train", "+fused_optimizer")
    without = found["train+tensorFloat32+fused_optimizer"]
    assert without == Identity("ablation", "train+" + "+".join(rungs), "-torch_compile")
    assert found["train+" + "+".join(rungs)].suite == "own"


def test_switches_of_a_users_script_are_of_one_version(path):
    """A technique that took effect in another version of the script is not missing in this one."""
    write(
        path,
        own(commit="aaaaaaa"),
        own("torch_compile", commit="aaaaaaa"),
        own("torch_compile", "fused_optimizer", commit="aaaaaaa"),
        own(commit="bbbbbbb"),
        own("fused_optimizer", commit="bbbbbbb-dirty"),
    )
    found = identities(path)
    assert found["train+fused_optimizer"] == Identity("own", "train", "+fused_optimizer")
    assert found["train+torch_compile+fused_optimizer"].suite == "own"


def test_unknown_names_are_told_in_one_line_and_their_rows_are_kept(path, capsys):
    names = ("no_optimization", "renamed_since", "no_optimization+gone", "renamed_since")
    strange = rows_of("train.fast+torch_compile", MS, **OWN)
    write(path, *(rows_of(name, MS) for name in names), strange)
    rows = rows_file.read(path)
    (line,) = capsys.readouterr().err.splitlines()
    told = "renamed_since, no_optimization+gone, train.fast+torch_compile"
    assert line.startswith(f"{path}: ")
    assert {*told.split(", ")} == {*line.split("named ")[1].split(": ")[0].split(", ")}
    places = rows.groupby("technique", observed=True)[["suite", "parent", "change"]].first()
    assert [*places.loc["renamed_since"]] == ["ladder", "", ""]
    assert len(rows) == 5 * len(MS)


def test_text_rows_of_an_old_file_after_an_offset(path):
    write(path, rows_of("tensorFloat32", MS))
    offset = path.stat().st_size
    with path.open("a") as file:
        file.write(lines_of([rows_of("torch_compile", MS[:2])]))
    rows = rows_file.text_rows(path, offset)
    assert [(row["technique"], row["parent"]) for row in rows] == [
        ("torch_compile", "brainFloat16")
    ] * 2
    assert [*rows[0]] == [*rows_file.OLD_COLUMNS, *old_rows.ADDED]


def test_append_converts_an_old_file_once_and_keeps_it(path, capsys):
    runs = [rows_of("tensorFloat32", MS, note='a, "b"\nc', torch="2.10"), own("torch_compile")]
    write(path, *runs)
    write_record(path, runs[0], settings={"steps": 3})
    before = path.read_bytes()
    read_before = rows_file.read(path)
    texts_before = rows_file.text_rows(path)
    records = rows_file.records_path(path).read_bytes()

    rows_file.append(path, [])
    (archive,) = (other for other in path.parent.glob("*.csv") if other != path)
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and str(archive) in line
    assert archive.stem.startswith("results-2") and archive.read_bytes() == before
    assert path.read_text().startswith(f"{rows_file.HEADER}\n")
    assert rows_file.read(path).astype(str).equals(read_before.astype(str))
    assert rows_file.text_rows(path) == texts_before
    assert rows_file.records_path(path).read_bytes() == records

    rows_file.append(path, rows_of("torch_compile", MS))
    assert rows_file.read(path).technique.iloc[-1] == "torch_compile"
    assert len([*path.parent.glob("*.csv")]) == 2 and not capsys.readouterr().err


def test_append_keeps_all_rows_of_a_large_old_file(path, monkeypatch):
    monkeypatch.setattr(rows_file, "CHUNK", 7)
    write(path, *(rows_of("tensorFloat32", MS, round=n) for n in range(9)))
    rows_file.append(path, [])
    rows = rows_file.read(path)
    assert len(rows) == 9 * len(MS) and {*rows.parent} == {"no_optimization"}


def test_append_converts_the_file_that_a_link_names(path, tmp_path):
    target = tmp_path / "elsewhere.csv"
    write(target, rows_of("no_optimization", MS))
    path.symlink_to(target)
    rows_file.append(path, rows_of("tensorFloat32", MS))
    assert path.is_symlink() and rows_file.columns_of(target) == rows_file.COLUMNS
    assert len(rows_file.text_rows(target)) == 2 * len(MS)


def test_append_converts_an_old_file_without_rows(path, capsys):
    write(path)
    assert not rows_file.has_rows(path)
    rows_file.append(path, rows_of("no_optimization", MS))
    assert rows_file.text_rows(path)[0]["suite"] == "ladder"
    assert "now with the columns suite, parent, change" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-1], "is cut off"),
        (lambda text: text.replace(",gpt2,", ",", 1), "has 26 fields instead of 27"),
        (lambda text: text.replace(",gpt2,", ",gpt2,gpt2,", 1), "has 28 fields instead of 27"),
        (lambda text: text.replace(",ok,", ",fine,", 1), "status cannot be 'fine'"),
        (lambda text: text.replace(",timed,5.0,", ",timed,five,", 1), "step_ms cannot be 'five'"),
    ],
)
def test_damaged_old_file_is_refused_and_nothing_changes(path, damage, words, capsys):
    write(path, rows_of("tensorFloat32", MS), rows_of("torch_compile", MS))
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    for function in (rows_file.read, rows_file.initialize, append_a_run):
        with pytest.raises(UserError) as caught:
            function(path)
        assert words in str(caught.value) and f"make reset RESULTS_FILE={path}" in str(caught.value)
    assert path.read_bytes() == before and [*path.parent.iterdir()] == [path]
    assert not capsys.readouterr().err


def append_a_run(path):
    rows_file.append(path, rows_of("no_optimization", MS), {"run_id": "a"})


def test_full_disk_leaves_an_old_file_as_it_is(path):
    write(path, *(rows_of("tensorFloat32", MS, round=n) for n in range(50)))
    before = path.read_bytes()
    with full_disk(len(before) - 1000), pytest.raises(UserError, match="nothing was converted"):
        append_a_run(path)
    assert path.read_bytes() == before and [*path.parent.iterdir()] == [path]


def test_runs_that_end_together_convert_an_old_file_once(path):
    write(path, rows_of("tensorFloat32", MS))
    code = (
        "import sys; from tests.helpers.rows import rows_of; from Utils.results import rows_file\n"
        "rows_file.append(sys.argv[1], rows_of(sys.argv[2], [1.0] * 9), {'run_id': sys.argv[2]})"
    )
    names = ("torch_compile", "flash_attention", "fused_optimizer")
    words = [[sys.executable, "-c", code, str(path), name] for name in names]
    processes = [subprocess.Popen(command, cwd=paths.ROOT) for command in words]
    assert [process.wait() for process in processes] == [0, 0, 0]
    rows = rows_file.read(path)
    assert {*rows.technique} == {"tensorFloat32", *names} and len(rows) == len(MS) + 27
    assert len([*path.parent.glob("*.csv")]) == 2
    records = rows_file.records_path(path).read_text().splitlines()
    assert {json.loads(line)["run_id"] for line in records} == {*names}


def test_reset_archives_an_old_file_and_starts_a_new_one(path):
    write(path, rows_of("tensorFloat32", MS))
    archive = rows_file.reset(path)
    assert archive.read_text().startswith(rows_file.OLD_HEADER)
    assert path.read_text() == f"{rows_file.HEADER}\n"
