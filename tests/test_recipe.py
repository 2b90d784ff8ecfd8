"""The recipe from rows whose truth is known: which set, as a script, as lines for other loops."""

import ast
import dataclasses
import importlib
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.helpers import forked
from tests.helpers.rows import identity_of, rows_of, techniques_of
from tools.calibration.known import changed
from Utils.analysis import intervals, lines_to_copy, recipe_pages, recommendation
from Utils.analysis.lines_to_copy import LINES
from Utils.analysis.recommendation import IN, LEAST_MEMORY, NEAR, NO_DIFFERENCE, OUT
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.commands import __main__ as commands
from Utils.device import capabilities
from Utils.device.cpu import CPU
from Utils.results import rows_file, selection, study
from Utils.results.study import Study
from Utils.scripts import ladder, variants
from Utils.scripts.ladder import Ladder, Technique

REPOSITORY = ladder.Ladder(ladder.tracked())
WHOLE = "fused_optimizer"
LINE = REPOSITORY.line(WHOLE)[1:]
PLAN = list(variants.ablation(WHOLE, REPOSITORY).scripts)
KNOWN = REPOSITORY.scripts
BASE = "no_optimization"
TF32, BF16, COMPILE, FLASH, FUSED = LINE
LIBRARIES = ("PyTorch", "Hugging Face Trainer", "Lightning")


def rows_from(ms, names=PLAN, mib=lambda techniques: 900, rounds=4, noise=0.002, first=0):
    """Rows of those scripts and variants, in rounds that drift; ms, mib: of a set of techniques."""
    random, made = np.random.default_rng(first), []
    sets = {name: techniques_of(name) for name in names}
    for r in range(first, first + rounds):
        for name, techniques in sets.items():
            level = ms(techniques) * (1 + 0.1 * r) * np.exp(noise * random.standard_normal())
            own = rows_of(name, list(level * np.exp(noise * random.standard_normal(6))), round=r)
            made += [row | {"peak_memory_mib": mib(techniques), "note": ""} for row in own]
    return pd.DataFrame(made)


def renamed(rows, name):
    """Rows of a script as if they were of runs of another one."""
    return rows.assign(technique=name, run_id=rows.run_id + "x", **vars(identity_of(name)))


def study_of(rows, records=None):
    """The Study of comparable rows; those of an ablation are for the recipe alone."""
    return Study(rows[rows.suite != "ablation"], rows, records=records or {})


def recommend(rows, records=None):
    return recommendation.recommend(summarize(study_of(rows, records)))


def halving(*without_effect):
    """Every technique halves the step, but those and 8bit_optimizer."""
    without_effect = {*without_effect, "8bit_optimizer"}
    return lambda techniques: 1600 / 2 ** len(techniques - without_effect)


def shared(*others_without_effect):
    """Like that, and of torch_compile and flash_attention each saves what the other would."""

    def ms(techniques):
        both = {COMPILE, FLASH} <= techniques
        return halving(*others_without_effect)(techniques) * (2 if both else 1)

    return ms


def together(techniques):
    """torch_compile and fused_optimizer pay together and not at all by themselves."""
    alone = len({COMPILE, FUSED} & techniques) == 1
    return halving()(techniques) * (2 if alone else 1)


def harmful(techniques):
    return halving()(techniques) * (4 if BF16 in techniques else 1)


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (halving(), [{*LINE}]),
        (halving(TF32), [{BF16, COMPILE, FLASH, FUSED}]),
        (halving(FUSED), [{TF32, BF16, COMPILE, FLASH}]),
        # Several that can be spared are left out one at a time: nothing else was measured.
        (halving(TF32, COMPILE), [{*LINE} - {TF32}, {*LINE} - {COMPILE}]),
        (shared(), [{*LINE} - {COMPILE}, {*LINE} - {FLASH}]),
        (together, [{*LINE}]),
        (harmful, [{TF32, COMPILE, FLASH, FUSED}]),
    ],
)
def test_known_effects_give_the_known_recipe(ms, expected):
    recipe = recommend(rows_from(ms)).fastest
    assert {*recipe.techniques} in expected
    true = ms(frozenset()) / ms(frozenset(recipe.techniques))
    assert recipe.speedup.value == pytest.approx(true, rel=0.01)
    assert techniques_of(recipe.name) == {*recipe.techniques}
    assert recipe.script.code == variants.find(recipe.name, REPOSITORY).code
    assert {*recipe.evidence[IN]} | {*recipe.evidence[NO_DIFFERENCE]} == {*recipe.techniques}
    assert {*recipe.evidence[OUT]} == {*LINE, "8bit_optimizer"} - {*recipe.techniques}


def test_a_set_without_rows_is_recommended_when_it_has_run():
    ms = halving(TF32, COMPILE)
    name = f"{WHOLE}-{TF32}-{COMPILE}"
    rows = rows_from(ms, [BASE, WHOLE, FLASH, *(f"{WHOLE}-{name}" for name in LINE[:-1])])
    assert len(recommend(rows).fastest.techniques) == 4
    more = rows_from(ms, [BASE, WHOLE, name], first=4)
    recipe = recommend(pd.concat([rows, more])).fastest
    assert recipe.name == name and recipe.to_best.value == pytest.approx(1, rel=0.01)


def test_the_best_of_few_rounds_sets_no_measure():
    rows = rows_from(halving(), rounds=6, noise=0.02)
    lucky = rows_from(lambda t: 99, ["tensorFloat32"], rounds=2, first=0)
    lucky.step_ms /= 3
    lucky = renamed(lucky, "untied_weights").assign(loss=5.0)
    found = recommend(pd.concat([rows, lucky]))
    assert found.best == WHOLE
    assert {*found.fastest.techniques} == {*LINE}


def test_drifting_rounds_that_one_has_not_seen_do_not_make_it_best():
    rows = rows_from(halving(FUSED), rounds=4)
    slow_start = (rows.technique == "flash_attention") & (rows["round"] >= 2)
    rows.loc[slow_start, "grade"] = "tainted"
    rows.loc[rows["round"] >= 2, "step_ms"] *= 0.5  # flash_attention was timed in slow rounds only
    found = recommend(rows)
    assert found.fastest.name == "flash_attention"
    assert found.fastest.to_best.value == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda r: r.assign(loss=r.loss.where(r.step > 0, r.loss + 0.5)), "model changed"),
        (lambda r: r.assign(loss=r.loss.where(r.step == 0, r.loss + 0.5)), "worse"),
        (lambda r: r.assign(loss=r.loss.where(r.step < 4, np.nan)), "diverged"),
        (lambda r: r.assign(grade="tainted"), "tainted in 4 of 4 rounds"),
    ],
)
def test_what_is_fastest_by_other_means_is_not_the_best(spoil, words):
    rows = rows_from(halving(), REPOSITORY.line(WHOLE))
    own = rows.technique == WHOLE
    found = recommend(pd.concat([rows[~own], spoil(rows[own])]))
    assert found.best == found.fastest.name == "flash_attention"
    assert words in found.fastest.evidence[OUT][FUSED]


def test_a_technique_that_failed_in_a_round_is_not_recommended():
    rows = rows_from(halving(), REPOSITORY.line(WHOLE))
    failed = rows_of(WHOLE, [], round=4, status="out_of_memory", note="too big")
    numbers = ["loss", "step", "step_ms", "first_step_s", "peak_memory_mib"]
    failed = pd.DataFrame(failed).astype(dict.fromkeys(numbers, float))
    found = recommend(pd.concat([rows, failed]))
    assert found.best == "flash_attention"
    assert found.fastest.evidence[OUT][FUSED] == "out of memory in round 4"


def test_a_variant_that_cannot_be_used_says_nothing_of_its_technique():
    rows = rows_from(halving(FUSED))
    rows.loc[rows.technique == f"{BASE}+{FUSED}", "grade"] = "tainted"
    evidence = recommend(rows).fastest.evidence[OUT][FUSED]
    assert evidence.startswith("1.00x") and "against" in evidence


def test_rounds_in_which_a_run_was_tainted_are_not_used_for_it():
    rows = rows_from(halving(FUSED), REPOSITORY.line(WHOLE))
    own = (rows.technique == WHOLE) & (rows["round"] == 1)
    rows.loc[own, "step_ms"] /= 10
    assert recommend(rows).best == WHOLE
    rows.loc[own, "grade"] = "tainted"
    found = recommend(rows)
    assert found.fastest.name == "flash_attention"
    assert "1 of 24 runs are tainted; their times are not used" in found.says


def test_where_nothing_is_clean_or_comparable_one_line_says_so():
    rows = rows_from(halving(), REPOSITORY.line(WHOLE))
    for bad, words in (
        (rows.assign(grade="tainted"), f"{BASE}: tainted in 4 of 4 rounds"),
        (rows[rows.technique != BASE], f"not measured with {BASE}"),
    ):
        found = recommend(bad)
        assert found.fastest is None and not found.best
        said = recipe_pages.page(found, {})
        assert words in said and "\n" not in said and "make all ROUNDS=5" in said


def test_one_round_tells_nothing_and_asks_for_more_with_the_settings_of_these_runs():
    rows = rows_from(halving(TF32), rounds=1)
    command = ["fused_optimizer", "--steps=6", "--warmup", "2", "--model=gpt2", "--round=3"]
    records = {rows.run_id.max(): {"command": [*command, "--dataset=a b"]}}
    found = recommend(rows, records)
    assert found.best == found.fastest.name and len(found.fastest.techniques) in (4, 5)
    page = recipe_pages.page(found, {})
    assert "16.0" in found.headline
    assert "one clean round, so inconclusive" in page and "faster" not in page
    assert found.says[-1].endswith("make ablate ROUNDS=5 DATASET=a STEPS=6 WARMUP=2")


def test_a_wide_interval_is_pointed_out_with_a_remedy():
    names = REPOSITORY.line(WHOLE)
    found = recommend(rows_from(halving(*LINE), names, rounds=3, noise=0.1))
    said = " ".join(found.says)
    assert found.fastest.name == BASE and "nothing is significantly faster than" in said
    assert found.headline == ""
    assert re.search(r"no_optimization may be up to \d+% slower", said)
    assert "make all ROUNDS=5" in said


def test_a_batch_of_its_own_is_compared_for_as_many_tokens():
    rows = rows_from(halving(), REPOSITORY.line(WHOLE))
    own = renamed(rows[rows.technique == WHOLE], "larger_batch").assign(batch_size=4)
    for factor, best in ((5, WHOLE), (3, "larger_batch")):
        slower = own.assign(step_ms=own.step_ms * factor)
        found = recommend(pd.concat([rows, slower]))
        assert found.best == best
    page = recipe_pages.page(found, {})
    assert "per_device_train_batch_size=4" in page and "trains on 4 sequences a step" in page


@pytest.mark.parametrize("without_fused", [1.05, 1.3])
def test_least_memory_is_sought_near_the_best_speed(without_fused):
    """The optimizer's kernel costs memory; tensorFloat32 costs nothing and brings nothing."""

    def ms(techniques):
        return halving(TF32, FUSED)(techniques) * (1 if FUSED in techniques else without_fused)

    def mib(techniques):
        return 900 - 100 * (FLASH in techniques) + 50 * (FUSED in techniques)

    names = [*PLAN, f"{FLASH}-{TF32}"]
    found = recommend(rows_from(ms, names, mib=mib))
    lean = found.recipes.get(LEAST_MEMORY, found.fastest)
    near = without_fused < 1 / NEAR
    assert (FUSED in lean.techniques) != near
    assert TF32 not in lean.techniques and FLASH in lean.techniques
    assert lean.line.peak_memory_mib == pytest.approx(mib({*lean.techniques}))
    assert FUSED in found.fastest.techniques
    assert "-100 MiB" in lean.evidence[IN][FLASH]


@pytest.mark.parametrize("path", selection.shared_files(), ids=lambda path: path.parent.parent.name)
def test_the_reference_results_give_what_they_show(path):
    chosen = study.newest(rows_file.read(path), path)
    rows = chosen.all_rows
    # A recipe balances rounds in which not all scripts ran, a table does not.
    scripts = rows.groupby("round").technique.transform("nunique")
    balanced = rows[scripts == scripts.max()]
    best = recommend(balanced, chosen.records).best
    lines = summarize(study_of(balanced)).all_lines
    assert best == intervals.numbers(lines.speedup).value.idxmax()
    found = recommendation.recommend(summarize(chosen))
    said = recipe_pages.page(found, {})
    assert ("tainted" in said) == rows.grade.eq("tainted").any()
    assert "8bit_optimizer" in found.fastest.evidence[OUT]


def test_the_script_of_a_recipe_runs(tmp_path):
    found = recommend(rows_from(halving(COMPILE)))
    path = tmp_path / "recipe.py"
    recipe_pages.write(path, recipe_pages.script(found.fastest, found.described))
    source = path.read_text()
    assert "torch.compile" not in source and "fused=True" in source and "bfloat16" in source
    assert not re.search("^Parent:", source, re.MULTILINE)  # it is no rung beside the others
    file = tmp_path / "results.csv"
    flags = ["--model=gpt2-tiny", "--steps=4", "--warmup=1", "--dataset=synthetic"]
    flags += ["--device=cpu", "--seq-len=16", f"--results-file={file}"]
    done = forked.python(path, *flags)
    assert done.returncode == 0, done.stderr
    rows = rows_file.read(file)
    assert list(rows.technique.unique()) == ["recipe"] and len(rows) == 4


def test_a_recipe_is_written_over_no_file_of_others(tmp_path):
    found = recommend(rows_from(halving(COMPILE)))
    text, path = recipe_pages.script(found.fastest, found.described), tmp_path / "recipe.py"
    recipe_pages.write(path, text)
    recipe_pages.write(path, text)
    for mine in (text + "print('an idea')\n", (paths.ROOT / "no_optimization.py").read_text()):
        path.write_text(mine)
        with pytest.raises(UserError, match="recipe.py: exists, .* name another file with RECIPE="):
            recipe_pages.write(path, text)
        assert path.read_text() == mine
    for folder in (tmp_path, tmp_path / "nowhere" / "recipe.py"):
        with pytest.raises(UserError, match=f"{folder}: "):
            recipe_pages.write(folder, text)


def blocks(techniques, scripts=REPOSITORY):
    lines_of = lines_to_copy.lines_of(techniques, scripts)
    return {library: "\n".join(lines) for library, lines in lines_of.items()}


@pytest.mark.parametrize("name", [script.name for script in REPOSITORY if script.parent])
def test_every_technique_has_lines_or_says_that_there_is_no_switch(name):
    for library, code in blocks([name]).items():
        if library != "PyTorch":  # there, a return may stand by itself
            code = re.sub(r"^return ", "", code, flags=re.MULTILINE)
        ast.parse(code)
        assert f"# {name}" in code


SWITCHES = tomllib.loads(LINES.read_text())


@pytest.mark.parametrize("name", [name for name in SWITCHES if "pytorch" in SWITCHES[name]])
def test_lines_of_pytorch_name_what_there_is_and_the_script_uses(name):
    code = REPOSITORY.get(name).code
    lines = SWITCHES[name]["pytorch"]
    for used in re.findall(r"torch(?:\.\w+)+", lines):
        parts = used.split(".")
        found = importlib.import_module(parts[0])
        for n, part in enumerate(parts[1:], 2):
            if not hasattr(found, part):  # a module that nobody has imported yet
                importlib.import_module(".".join(parts[:n]))
            found = getattr(found, part)
        assert used in code or used == "torch.stack" or "import" in lines


def test_lines_are_of_scripts_and_have_known_keys():
    keys = {key for _, call, *switches in lines_to_copy.LIBRARIES for key in switches}
    for name, entry in SWITCHES.items():
        assert name in KNOWN
        assert entry.keys() <= keys | {"replaces"}, name
        assert {*entry.get("replaces", ())} <= KNOWN.keys(), name


def keywords(library):
    """Values of each argument that lines.toml sets in a library's call."""
    values = {}
    for lines in tomllib.loads(LINES.read_text()).values():
        code = f"f({lines.get(library, '')})".replace("{batch}", "1")
        for keyword in ast.parse(code, mode="eval").body.keywords:
            values.setdefault(keyword.arg, set()).add(keyword.value.value)
    return values


def test_the_arguments_of_other_libraries_are_documented():
    from transformers import TrainingArguments
    from transformers.training_args import OptimizerNames

    arguments = keywords("arguments")
    assert arguments.keys() <= {field.name for field in dataclasses.fields(TrainingArguments)}
    assert arguments["optim"] <= {name.value for name in OptimizerNames}
    assert {"bf16", "torch_compile", "gradient_accumulation_steps"} <= arguments.keys()
    # https://lightning.ai/docs/pytorch/2.5.1/api/lightning.pytorch.trainer.trainer.Trainer.html
    assert keywords("trainer") == {
        "precision": {"bf16-mixed", "16-mixed", "bf16-true"},
        "accumulate_grad_batches": {2, 4},
        "deterministic": {True},
        "gradient_clip_val": {1.0},
        "strategy": {"ddp", "fsdp"},
    }


def test_a_technique_that_builds_on_another_replaces_its_lines():
    for code in blocks(["torch_compile", "max_autotune"]).values():
        assert code.count("compile(") + code.count("compile=") == 1 and "max-autotune" in code
    both = blocks(["torch_compile", "fused_optimizer", "optimizer_in_backward"])
    assert "model = torch.compile" not in both["PyTorch"]
    assert "torch_compile=True" in both["Hugging Face Trainer"]  # which has nothing in its place


def test_an_idea_of_ones_own_is_shown_by_its_diff():
    mine = changed(("AdamW(model.parameters(), lr=4e-5)", "SGD(model.parameters(), lr=0.1)"),
                   parent="Parent: no_optimization")  # fmt: skip
    doc, code = ladder.split(mine)
    idea = Technique("my_idea", Path("my_idea.py"), doc, code, **ladder.facts(doc))
    shown = blocks(["my_idea"], Ladder(REPOSITORY.scripts | {"my_idea": idea}))
    assert "#   +    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)" in shown["PyTorch"]
    assert "my_idea: no switch" in shown["Lightning"]


def test_the_page_has_all_three_parts(tmp_path, capsys):
    path = tmp_path / "results.csv"
    rows_file.append(path, rows_from(halving(TF32)).to_dict("records"))
    out = tmp_path / "mine.py"
    commands.main("recipe", "--results-file", str(path), "--recipe", str(out))
    said = capsys.readouterr().out
    assert f"fused_optimizer-{TF32}: 900 MiB at the peak.\n" in said
    assert re.search(r"^Against no_optimization: 1[56]\.\d\dx \(.*\)\.$", said, re.MULTILINE)
    assert "| flash_attention" in said and f"python {out}" in said and out.exists()
    for library in LIBRARIES:
        assert f"Lines for {library}:" in said
    assert "        bf16=True,  # brainFloat16" in said and 'precision="bf16-mixed",' in said
    assert "nan" not in said.lower()


def own_rows(graphs_ms):
    """A user's script with switches: cuda_graphs takes the place of torch_compile."""
    compiled = "train+tensorFloat32+torch_compile"
    graphs = {"parent": compiled, "change": "+cuda_graphs-torch_compile"}
    runs = {
        "train": (400, {}),
        "train+tensorFloat32": (399, {}),
        compiled: (100, {}),
        "train+tensorFloat32+cuda_graphs": (graphs_ms, graphs),
        "train+torch_compile": (100, {"suite": "ablation"}),
        "train+fused_optimizer": ([], {"status": "unsupported", "note": "no AdamW"}),
    }
    random = np.random.default_rng(1)
    made = []
    for r in range(4):
        for name, (ms, columns) in runs.items():
            steps = list(ms * np.exp(0.01 * random.standard_normal(6))) if ms else []
            made += rows_of(name, steps, round=r, base="train", **columns)
    return pd.DataFrame(made).assign(reserved_memory_mib=900.0)


LINES_SEEN = {
    "torch_compile": [["model = torch.compile(model)", "train.py:9"]],
    "tensorFloat32": [["torch.set_float32_matmul_precision('high')", ""]],
}


@pytest.mark.parametrize(
    ("graphs_ms", "name", "techniques"),
    [
        (100, "train+torch_compile", ["torch_compile"]),
        (50, "train+tensorFloat32+cuda_graphs", ["tensorFloat32", "cuda_graphs"]),
    ],
)
def test_the_recipe_for_a_users_script_is_of_its_switches(graphs_ms, name, techniques):
    rows = own_rows(graphs_ms=graphs_ms)
    records = {rows.run_id.max(): {"own_script": {"lines": LINES_SEEN}}}
    found = recommend(rows, records)
    recipe = found.fastest
    assert (recipe.name, recipe.techniques, recipe.script) == (name, techniques, None)
    assert recipe.evidence[OUT]["fused_optimizer"] == "unsupported: no AdamW"
    place = {"torch_compile": "train.py:9: model = torch.compile(model)  # torch_compile",
             "cuda_graphs": "the loop: torch.set_float32_matmul_precision('high')  # tensorFloat32",
             }[techniques[-1]]  # fmt: skip
    assert recipe.lines == {"your script": [place]}
    assert "make ablate BASE=train" in recommendation.make_line(study_of(rows), 4)
    ladder_alone = rows[rows.suite == "own"]
    assert "make everything BASE=train" in recommendation.make_line(study_of(ladder_alone), 4)


@pytest.mark.parametrize(("reserved", "best"), [(None, WHOLE), (900.0, "asynchronous_logging")])
def test_what_saves_a_wait_for_a_device_is_no_recipe_on_a_cpu(reserved, best):
    """The luckiest script has no effect there: it is neither the best, nor the headline."""
    rows = rows_from(halving(), REPOSITORY.line(WHOLE))
    lucky = renamed(rows[rows.technique == WHOLE], "asynchronous_logging")
    lucky = lucky.assign(step_ms=lucky.step_ms * 0.9)
    rows = pd.concat([rows, lucky]).assign(reserved_memory_mib=reserved)
    found = recommend(rows)
    assert found.best == best
    assert found.headline.startswith("Recipe") and best in found.headline
    if reserved is None:
        assert found.fastest.evidence[OUT]["asynchronous_logging"] == "no effect here"


@pytest.mark.parametrize("need", sorted(recommendation.WAITS))
def test_those_needs_are_checked_where_a_script_runs(need):
    assert isinstance(capabilities.check(need, CPU()), capabilities.WithoutEffect)
    assert any(need in script.needs for script in REPOSITORY)
