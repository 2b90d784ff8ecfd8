"""Results files from before the columns suite, parent and change: read, converted, refused."""

import csv
import io

import pytest

from tests.helpers.rows import rows_of, write_record
from tests.helpers.stand_ins import full_disk
from Utils.base.errors import UserError
from Utils.results import old_rows, rows_file

MS = [9.0, 9.0, 5.0]
OWN = {"base": "train", "unit": "images", "model": "", "commit": "aaaaaaa"}
T4 = {"device": "Tesla T4"}
HEADER = (
    "run_id,base,round,seed,technique,status,step,phase,step_ms,data_ms,loss,held_out_loss,"
    "batch_size,requested_batch_size,seq_len,unit,model,dataset,world_size,device,torch,commit,"
    "grade,first_step_s,peak_memory_mib,reserved_memory_mib,note\n"
)


def lines_of(runs):
    """Runs, lists of rows, as lines of an old file."""
    lines = io.StringIO()
    options = {"extrasaction": "ignore", "lineterminator": "\n"}
    csv.DictWriter(lines, HEADER.strip().split(","), **options).writerows(sum(runs, []))
    return lines.getvalue()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.csv"


def write(path, *runs):
    path.write_text(HEADER + lines_of(runs))


def identities(path):
    """Return "suite parent change" of each technique, on which read() and text_rows() agree."""
    rows = rows_file.read(path)
    names = ["technique", *old_rows.ADDED]
    texts = {tuple(row[name] for name in names) for row in rows_file.text_rows(path)}
    assert {*rows[names].astype(str).itertuples(index=False, name=None)} == texts
    assert len({technique for technique, *_ in texts}) == len(texts)
    return {technique: " ".join(identity).strip() for technique, *identity in texts}


def test_old_scripts_of_ours_get_what_their_docstrings_say(path, capsys):
    expected = {
        "no_optimization": "ladder",
        "tensorFloat32": "ladder no_optimization +tensorFloat32",
        "torch_compile": "ladder brainFloat16 +torch_compile",
        "padded_vocabulary": "beyond fused_optimizer +padded_vocabulary",
        "no_optimization+flash_attention": "ablation no_optimization +flash_attention",
        "fused_optimizer-torch_compile-flash_attention": (
            "ablation fused_optimizer -torch_compile-flash_attention"
        ),
    }
    write(path, *(rows_of(name, MS) for name in expected), rows_of("no_sync", [], status="failed"))
    expected["no_sync"] = "beyond distributed_data_parallel +no_sync"
    assert identities(path) == expected and not capsys.readouterr().err


@pytest.mark.parametrize("note", ["in float16; waits for data 20% of the time", ""])
def test_old_rows_without_bfloat16_are_of_the_float16_ladder(path, note):
    """By a note of a run, or as no script with bfloat16 has timings. Other devices stay apart."""
    write(
        path,
        rows_of("float16_compile", MS, **T4),
        rows_of("padded_vocabulary", MS, note=note, **T4),
        rows_of("torch_compile", [], status="unsupported", **T4),
        rows_of("fused_optimizer", MS),
        rows_of("float16_attention", MS),
    )
    assert identities(path) == {
        "float16_compile": "ladder float16_grad_scaler +float16_compile",
        "padded_vocabulary": "beyond float16_fused_optimizer +padded_vocabulary",
        "torch_compile": "ladder float16_grad_scaler +torch_compile",
        "fused_optimizer": "ladder flash_attention +fused_optimizer",
        "float16_attention": "beyond float16_compile +float16_attention",
    }


def test_old_switches_of_a_users_script_are_in_turn(path, capsys):
    """One that failed is skipped by the next; of an ablation one is alone, or all but one."""
    compiled = "train+tensorFloat32+torch_compile"
    fused = f"{compiled}+fused_optimizer"
    expected = {
        "train": "own",
        "train+tensorFloat32": "own train +tensorFloat32",
        compiled: "own train+tensorFloat32 +torch_compile",
        fused: f"own {compiled} +fused_optimizer",
        f"{compiled}+8bit_optimizer": f"own {compiled} +8bit_optimizer",
        f"{fused}+channels_last": f"own {fused} +channels_last",
        "train+tensorFloat32+fused_optimizer+cuda_graphs": (
            f"own {fused} +cuda_graphs-torch_compile"
        ),
        "train+fused_optimizer": "ablation train +fused_optimizer",
        "train+torch_compile+fused_optimizer": f"ablation {fused} -tensorFloat32",
    }
    failed = "train+tensorFloat32+brainFloat16"
    runs = [rows_of(name, MS, **OWN) for name in expected]
    # In another version of the script, only this technique took effect.
    later = [rows_of("train+flash_attention", MS, **OWN | {"commit": "bbbbbbb-dirty"})]
    write(path, *runs, rows_of(failed, [], status="unsupported", **OWN), *later)

    expected[failed] = "own train+tensorFloat32 +brainFloat16"
    expected["train+flash_attention"] = "own train +flash_attention"
    assert identities(path) == expected and not capsys.readouterr().err


def test_old_names_that_are_unknown_are_told_in_one_line_and_kept(path, capsys):
    names = ("no_optimization+gone", "renamed_since", "renamed_since")
    runs = [rows_of(name, MS) for name in names]
    write(path, *runs, rows_of("train.fast+torch_compile", MS, **OWN))
    rows = rows_file.read(path)
    assert len(rows) == 4 * len(MS) and {*rows.parent} == {*rows.change} == {""}
    assert [*rows.suite[::3]] == ["ladder"] * 3 + ["own"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: no script here is named ")
    assert all(line.count(name) == 1 for name in rows.technique)


def test_append_converts_an_old_file_once_and_keeps_it(path, monkeypatch, capsys):
    monkeypatch.setattr(rows_file, "CHUNK", 4)
    runs = [rows_of("tensorFloat32", MS, note='a, "b"\nc', torch="2.10")]
    write(path, *runs, rows_of("train+torch_compile", MS, **OWN))
    write_record(path, runs[0], settings={"steps": 3})
    before = path.read_bytes()
    read_before = rows_file.read(path)
    texts_before = rows_file.text_rows(path)
    records = rows_file.records_path(path).read_bytes()
    offset = before.index(b"2026", -200)  # of the last row
    assert rows_file.text_rows(path, offset) == texts_before[-1:]

    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)
    rows_file.append(path, [])
    (archive,) = path.parent.glob("results-2*.csv")
    assert capsys.readouterr().err == (
        f"{path}: now with the columns suite, parent, change; the file of before is {archive}\n"
    )
    assert archive.read_bytes() == before and path.is_symlink()
    assert target.read_text().startswith(f"{rows_file.HEADER}\n")
    assert rows_file.read(path).astype(str).equals(read_before.astype(str))
    assert rows_file.text_rows(path) == texts_before
    assert rows_file.records_path(path).read_bytes() == records

    rows_file.append(path, rows_of("torch_compile", MS))
    assert rows_file.read(path).technique.iloc[-1] == "torch_compile"
    assert len([*path.parent.glob("*.csv")]) == 2 and not capsys.readouterr().err


def append_a_run(path):
    rows_file.append(path, rows_of("no_optimization", MS), {"run_id": "a"})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-1], ":4: is cut off"),
        (lambda text: text.replace(",gpt2,", ",", 1), ":2: has 26 fields instead of 27"),
        (lambda text: text.replace(",ok,", ",fine,", 1), ":2: status cannot be 'fine'"),
    ],
)
def test_append_refuses_a_damaged_old_file_which_stays(path, damage, words):
    write(path, rows_of("tensorFloat32", MS))
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    for function in (rows_file.read, rows_file.initialize, append_a_run):
        with pytest.raises(UserError, match=f"{words}.*make reset RESULTS_FILE={path}"):
            function(path)
    assert path.read_bytes() == before and [*path.parent.iterdir()] == [path]


def test_append_on_a_full_disk_leaves_an_old_file(path):
    write(path, *(rows_of("tensorFloat32", MS, round=n) for n in range(50)))
    before = path.read_bytes()
    with full_disk(len(before) - 1000), pytest.raises(UserError, match="nothing was converted"):
        append_a_run(path)
    assert path.read_bytes() == before and [*path.parent.iterdir()] == [path]
