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

from tests import forked
from tests.known import changed
from tests.rows import rows_of
from Utils.analysis import (
    attribution,
    candidates,
    intervals,
    recipe_lines,
    recipe_page,
    recommendation,
)
from Utils.analysis.candidates import Candidate
from Utils.analysis.recipe_lines import LINES
from Utils.analysis.recommendation import NEAR
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.commands import recipe as recipe_command
from Utils.device.cpu import CPU
from Utils.launch import turn_taking
from Utils.results import records_file, rows_file, selection
from Utils.scripts import ladder, variants
from Utils.scripts.ladder import Technique

WHOLE = "fused_optimizer"
LINE = ladder.line(WHOLE)[1:]
PLAN = attribution.plan(WHOLE)
BASE = "no_optimization"
TF32, BF16, COMPILE, FLASH, FUSED = LINE
LEFT_OUT = [BASE, WHOLE, FLASH, *(f"{WHOLE}-{name}" for name in LINE[:-1])]
LIBRARIES = ("PyTorch", "Hugging Face Trainer", "Lightning")


def rows_from(ms, names=PLAN, mib=lambda techniques: 900, rounds=4, noise=0.002, first=0):
    """Rows of those scripts and variants, in rounds that drift; ms, mib: of a set of techniques."""
    random, made = np.random.default_rng(first), []
    sets = {name: variants.parts(name) for name in names}
    for r in range(first, first + rounds):
        for name, techniques in sets.items():
            level = ms(techniques) * (1 + 0.1 * r) * np.exp(noise * random.standard_normal())
            own = rows_of(name, list(level * np.exp(noise * random.standard_normal(6))), round=r)
            made += [row | {"peak_memory_mib": mib(techniques), "note": ""} for row in own]
    return pd.DataFrame(made)


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


# The set ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "expected", "forecast"),
    [
        (halving(), [{*LINE}], False),
        (halving(TF32), [{BF16, COMPILE, FLASH, FUSED}], False),
        (halving(FUSED), [{TF32, BF16, COMPILE, FLASH}], False),
        (halving(TF32, COMPILE), [{BF16, FLASH, FUSED}], True),
        (halving(TF32, COMPILE, FUSED), [{BF16, FLASH}], True),
        (shared(), [{*LINE} - {COMPILE}, {*LINE} - {FLASH}], False),
        (shared(TF32), [{BF16, COMPILE, FUSED}, {BF16, FLASH, FUSED}], True),
        (together, [{*LINE}], False),
        (harmful, [{TF32, COMPILE, FLASH, FUSED}], False),
    ],
)
def test_known_effects_give_the_known_recipe(ms, expected, forecast):
    found = recommendation.recommend(rows_from(ms))
    entry = found["fastest"]
    assert {*entry["techniques"]} in expected and entry["forecast"] == forecast
    true = ms(frozenset()) / ms(frozenset(entry["techniques"]))
    assert entry["speedup"].value == pytest.approx(true, rel=0.01)
    assert variants.parts(entry["name"]) == {*entry["techniques"]}
    assert entry["code"] == variants.find(entry["name"]).code
    assert {*entry["evidence"]} == {*entry["techniques"]}
    assert {*entry["left_out"]} == {*LINE, "8bit_optimizer"} - {*entry["techniques"]}
    assert any("is a forecast until" in text for text in found["says"]) == forecast
    assert not found["measured"]["forecast"]


def test_rows_of_a_set_take_the_place_of_its_forecast():
    """Together the two are missed, which nothing in the rows of each by itself shows."""

    def ms(techniques):
        return halving(TF32, COMPILE)(techniques) * (1 if {TF32, COMPILE} & techniques else 2)

    rows = rows_from(ms, LEFT_OUT)
    name = f"{WHOLE}-{TF32}-{COMPILE}"
    assert recommendation.recommend(rows)["fastest"]["name"] == name
    more = rows_from(ms, ["no_optimization", WHOLE, name], first=4)
    found = recommendation.recommend(pd.concat([rows, more]))
    assert not found["fastest"]["forecast"] and len(found["fastest"]["techniques"]) == 4
    assert found["fastest"]["to_best"].value == pytest.approx(1, rel=0.01)


def test_what_was_slower_together_is_not_dropped_together_with_more():
    """One of three is enough, which nothing but rows without all of them shows."""
    three = {TF32, BF16, COMPILE}

    def forecasts(names):
        rows = rows_from(lambda techniques: 200 if techniques & three else 400, names)
        measured = candidates.measured(rows, {name: variants.parts(name) for name in names})
        return [c.techniques for c in candidates.forecasts(measured, candidates.effects(measured))]

    assert any(not techniques & three for techniques in forecasts(LEFT_OUT))
    found = forecasts([*LEFT_OUT, f"{WHOLE}-{TF32}-{BF16}-{COMPILE}"])
    assert len(found) > 10 and all(techniques & three for techniques in found)


def test_a_forecast_is_as_uncertain_as_it_is():
    """The interval holds the truth 19 times of 20, though the whole's noise is in each ratio."""
    random, n, held = np.random.default_rng(1), 400, 0
    whole = frozenset("abc")
    effects = {}
    for _ in range(n):

        def candidate(techniques, name):
            logs = pd.Series(0.02 * random.standard_normal(5))
            return Candidate(frozenset(techniques), logs, logs * 0, name)

        usable = {name: candidate(name, name) for name in ("abc", "ab", "ac")}
        # what is told slower by chance is no candidate, which would be a selection
        found = [
            c for c in candidates.forecasts(usable, effects) if c.techniques == whole - {"b", "c"}
        ]
        ms = usable["abc"].ms
        logs = usable["ab"].ms + usable["ac"].ms - 2 * ms
        if found:
            assert np.allclose(found[0].ms - ms, logs)
        estimate = intervals.interval(logs)
        low, high = estimate.low, estimate.high
        held += low < 0 < high
    assert 0.92 < held / n < 0.98


def test_the_best_of_few_rounds_sets_no_measure():
    rows = rows_from(halving(), rounds=6, noise=0.02)
    lucky = rows_from(lambda t: 99, ["tensorFloat32"], rounds=2, first=0)
    lucky.step_ms /= 3
    lucky = lucky.assign(technique="untied_weights", loss=5.0)
    found = recommendation.recommend(pd.concat([rows, lucky]))
    assert found["best"]["name"] == WHOLE
    assert {*found["fastest"]["techniques"]} == {*LINE}


def test_drifting_rounds_that_one_has_not_seen_do_not_make_it_best():
    rows = rows_from(halving(FUSED), rounds=4)
    slow_start = (rows.technique == "flash_attention") & (rows["round"] >= 2)
    rows.loc[slow_start, "grade"] = "tainted"
    rows.loc[rows["round"] >= 2, "step_ms"] *= 0.5  # flash_attention was timed in slow rounds only
    found = recommendation.recommend(rows)
    assert found["fastest"]["name"] == "flash_attention"
    assert found["fastest"]["to_best"].value == pytest.approx(1, rel=0.02)


# What is not recommended ------------------------------------------------------------------------


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
    rows = rows_from(halving(), ladder.line(WHOLE))
    own = rows.technique == WHOLE
    found = recommendation.recommend(pd.concat([rows[~own], spoil(rows[own])]))
    assert found["best"]["name"] == found["fastest"]["name"] == "flash_attention"
    assert words in found["fastest"]["left_out"][FUSED]


def test_a_technique_that_failed_in_a_round_is_not_recommended():
    rows = rows_from(halving(), ladder.line(WHOLE))
    failed = rows_of(WHOLE, [], round=4, status="out_of_memory", note="too big")
    numbers = ["loss", "step", "step_ms", "first_step_s", "peak_memory_mib"]
    failed = pd.DataFrame(failed).astype(dict.fromkeys(numbers, float))
    found = recommendation.recommend(pd.concat([rows, failed]))
    assert found["best"]["name"] == "flash_attention"
    assert found["fastest"]["left_out"][FUSED] == "out of memory in round 4"


def test_rounds_in_which_a_run_was_tainted_are_not_used_for_it():
    rows = rows_from(halving(FUSED), ladder.line(WHOLE))
    own = (rows.technique == WHOLE) & (rows["round"] == 1)
    rows.loc[own, "step_ms"] /= 10
    assert recommendation.recommend(rows)["best"]["name"] == WHOLE
    rows.loc[own, "grade"] = "tainted"
    found = recommendation.recommend(rows)
    assert found["fastest"]["name"] == "flash_attention"
    assert "1 of 24 runs are tainted; their times are not used" in found["says"]


def test_where_nothing_is_clean_or_comparable_one_line_says_so():
    rows = rows_from(halving(), ladder.line(WHOLE))
    for bad, words in (
        (rows.assign(grade="tainted"), "all 24 runs are tainted"),
        (rows[rows.technique != BASE], "no_optimization was not measured"),
    ):
        found = recommendation.recommend(bad)
        assert found["fastest"] is found["best"] is found["least_memory"] is None
        said = recipe_page.text(found, {})
        assert words in said and "\n" not in said and "make all ROUNDS=5" in said


def test_one_round_tells_nothing_and_says_so():
    rows = rows_from(halving(TF32), rounds=1)
    found = recommendation.recommend(rows)
    assert found["best"] is found["fastest"] and len(found["fastest"]["techniques"]) in (4, 5)
    said = recipe_page.text(found, {})
    assert "one clean round, so inconclusive" in said and "faster" not in said
    assert found["more"] == "make ablate ROUNDS=5 BATCH_SIZE=1 SEQ_LEN=64 STEPS=6 WARMUP=2"


def test_a_wide_interval_is_pointed_out_with_a_remedy():
    names = ladder.line(WHOLE)
    found = recommendation.recommend(rows_from(halving(*LINE), names, rounds=3, noise=0.1))
    said = " ".join(found["says"])
    assert found["fastest"]["name"] == BASE and "nothing is significantly faster than" in said
    assert re.search(r"no_optimization may be up to \d+% slower", said)
    assert "make all ROUNDS=5" in said


def test_a_batch_of_its_own_is_compared_for_as_many_tokens():
    rows = rows_from(halving(), ladder.line(WHOLE))
    own = rows[rows.technique == WHOLE].assign(technique="larger_batch", batch_size=4)
    own = own.assign(run_id=own.run_id + "x")
    for factor, best in ((3, "larger_batch"), (5, WHOLE)):
        found = recommendation.recommend(
            pd.concat([rows, own.assign(step_ms=own.step_ms * factor)])
        )
        assert found["best"]["name"] == best
    found = recommendation.recommend(pd.concat([rows, own.assign(step_ms=own.step_ms * 3)]))
    assert found["fastest"]["batch"] == 4
    said = recipe_page.text(found, {})
    assert "per_device_train_batch_size=4" in said and "which changes training" in said


@pytest.mark.parametrize("without_fused", [1.05, 1.3])
def test_least_memory_is_sought_near_the_best_speed(without_fused):
    """The optimizer's kernel costs memory; tensorFloat32 costs nothing and brings nothing."""

    def ms(techniques):
        return halving(TF32, FUSED)(techniques) * (1 if FUSED in techniques else without_fused)

    def mib(techniques):
        return 900 - 100 * (FLASH in techniques) + 50 * (FUSED in techniques)

    found = recommendation.recommend(rows_from(ms, mib=mib))
    lean = found["least_memory"]
    near = without_fused < 1 / NEAR
    assert (FUSED in lean["techniques"]) != near
    assert TF32 not in lean["techniques"] and FLASH in lean["techniques"]
    assert lean["peak_mib"] == pytest.approx(mib({*lean["techniques"]}))
    assert FUSED in found["fastest"]["techniques"]
    assert "-100 MiB" in lean["evidence"][FLASH]


def test_the_reference_results_give_what_they_show():
    path = paths.ROOT / "results.csv"
    rows, _ = selection.select(rows_file.read(path), with_variants=True)
    records = records_file.read(path, rows.run_id.unique())
    # A recipe balances rounds in which not all scripts ran, a table does not.
    scripts = rows.groupby("round").technique.transform("nunique")
    balanced = rows[scripts == scripts.max()]
    best = recommendation.recommend(balanced, records)["best"]
    assert best["name"] == intervals.numbers(summarize(balanced).speedup).value.idxmax()
    found = recommendation.recommend(rows, records)
    said = recipe_page.text(found, {})
    assert ("tainted" in said) == rows.grade.eq("tainted").any()
    assert "8bit_optimizer" in found["fastest"]["left_out"]


# The new rows -----------------------------------------------------------------------------------


def test_new_rows_bear_out_a_forecast_or_do_not():
    found = recommendation.recommend(rows_from(halving(TF32, COMPILE)))
    entry, best = found["fastest"], found["best"]["name"]
    names = [BASE, best, entry["name"]]
    right = rows_from(halving(TF32, COMPILE), names, first=4)
    assert recommendation.agreement(entry, right).endswith("; they agree")
    wrong = rows_from(lambda t: 130 if t == {*entry["techniques"]} else 100, names, first=4)
    said = recommendation.agreement(entry, wrong)
    assert re.search(
        r"forecast 1\.00x .* now 0\.77x .*; they do not agree, now / then is 0\.77x", said
    )
    alone = rows_from(halving(TF32, COMPILE), names, first=4, rounds=1)
    assert recommendation.agreement(entry, alone).endswith("inconclusive: too few rounds")
    tainted = right.assign(grade="tainted")
    assert "inconclusive, no clean rows" in recommendation.agreement(entry, tainted)


@pytest.mark.parametrize(("now", "verdict"), [(1, "they agree"), (1.3, "they do not agree")])
def test_run_adds_rounds_of_the_recipe_the_best_and_the_baseline(
    now, verdict, tmp_path, monkeypatch, capsys
):
    """The suite itself, but for its processes, whose rows are made here."""
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    path, device, commands = tmp_path / "results.csv", CPU().name, []
    name, best = f"{WHOLE}-{TF32}-{COMPILE}", f"{WHOLE}-{TF32}"

    def shaped(rows):
        return rows.assign(device=device, model="gpt2-tiny", dataset="synthetic", seq_len=16)

    def process(command, suite, minutes=None):
        script, *flags = command
        commands.append((Path(script).stem, dict(flag[2:].split("=", 1) for flag in flags)))
        technique, flags = commands[-1]
        rows = rows_from(ms, [technique], rounds=1, first=int(flags["round"]))
        rows.step_ms *= now if technique == name else 1
        rows_file.append(path, shaped(rows).to_dict("records"))
        return 0

    def ms(techniques):
        return halving(TF32, COMPILE)(techniques) * (1 if TF32 in techniques else 0.999)

    def in_turns(first, joins, flags, suite, minutes, say):
        names, technique = [], first
        while technique:
            process([technique.name, *flags], suite)
            names.append(technique.name)
            technique = joins(names)
        return dict.fromkeys(names, 0), False

    monkeypatch.setattr(turn_taking, "run", in_turns)
    rows_file.append(path, shaped(rows_from(ms, noise=0.004)).to_dict("records"))
    argv = ["--results-file", str(path), "--run", "1", "--rounds", "3", "--device", "cpu"]
    assert recipe_command.main([*argv, "--seed", "7"]) == 0
    ran = sorted((int(flags["round"]), technique) for technique, flags in commands)
    assert ran == sorted((r, technique) for r in (4, 5, 6) for technique in (BASE, best, name))
    assert {flags["seed"] for _, flags in commands} == {"11", "12", "13"}
    wanted = {"model": "gpt2-tiny", "batch-size": "1", "seq-len": "16", "dataset": "synthetic"}
    wanted |= {"steps": "6", "warmup": "2", "device": "cpu", "results-file": str(path)}
    for _, flags in commands:
        assert {key: flags[key] for key in wanted} == wanted
    said = capsys.readouterr().out
    assert f"{name} against {best}: forecast 1.0" in said and verdict in said


def test_run_needs_the_device_of_the_rows_and_something_to_run():
    found = recommendation.recommend(rows_from(halving(), [BASE, TF32]))
    args = type("Arguments", (), {"device": "cpu"})
    rows = pd.DataFrame(rows_of(BASE, [9, 9, 9]))
    with pytest.raises(UserError, match="the rows are of Test GPU, and this is"):
        recipe_command.run(found, args, rows)
    found["fastest"] = found["best"] = recommendation.recommend(rows_from(halving(), [BASE]))[
        "best"
    ]
    found["least_memory"] = None
    rows["device"] = CPU().name
    assert recipe_command.run(found, args, rows) == (["no_optimization is all there is to run"], 0)


# The script and the lines -----------------------------------------------------------------------


def test_the_script_of_a_forecast_runs(tmp_path):
    found = recommendation.recommend(rows_from(halving(TF32, COMPILE)))
    path = tmp_path / "recipe.py"
    recipe_lines.write(path, recipe_lines.script(found["fastest"], found["described"]))
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


def test_only_a_recipe_that_nobody_changed_is_written_over(tmp_path):
    found = recommendation.recommend(rows_from(halving(), ladder.line(WHOLE)))
    text, path = recipe_lines.script(found["fastest"], found["described"]), tmp_path / "recipe.py"
    recipe_lines.write(path, text)
    recipe_lines.write(path, text)
    path.write_text(text + "# mine\n")
    with pytest.raises(UserError, match="was changed by hand"):
        recipe_lines.write(path, text)
    for mine in ("mine\n", (paths.ROOT / "no_optimization.py").read_text()):
        path.write_text(mine)
        with pytest.raises(UserError, match="exists and is no recipe"):
            recipe_lines.write(path, text)
        assert path.read_text() == mine
    with pytest.raises(UserError, match="Is a directory"):
        recipe_lines.write(tmp_path, text)
    with pytest.raises(UserError, match="nowhere/recipe.py: No such file or directory"):
        recipe_lines.write(tmp_path / "nowhere" / "recipe.py", text)
    assert not (tmp_path / "nowhere").exists()


def blocks(techniques):
    found = recipe_lines.lines_of(techniques)
    return {library: "\n".join(lines) for library, lines in found.items()}


def calls_of(code):
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("name", [t.name for t in ladder.techniques().values() if t.parent])
def test_every_technique_has_lines_or_says_that_there_is_no_switch(name):
    known = tomllib.loads(LINES.read_text())
    assert name in known and "pytorch" in known[name]
    for library, code in blocks([name]).items():
        if library != "PyTorch":  # there, a return may stand by itself
            code = re.sub(r"^return ", "", code, flags=re.MULTILINE)
        ast.parse(code)
        assert f"# {name}" in code
    own = ladder.techniques()[name].code
    for used in re.findall(r"torch(?:\.\w+)+", known[name]["pytorch"]):
        parts = used.split(".")
        found = importlib.import_module(parts[0])
        for n, part in enumerate(parts[1:], 2):
            if not hasattr(found, part):  # a module that nobody has imported yet
                importlib.import_module(".".join(parts[:n]))
            found = getattr(found, part)
        assert used in own or used == "torch.stack" or "import" in known[name]["pytorch"]


def test_what_is_said_of_hugging_face_is_there():
    from transformers import TrainingArguments
    from transformers.training_args import OptimizerNames

    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    optimizers = {name.value for name in OptimizerNames}
    seen = set()
    for name, own in tomllib.loads(LINES.read_text()).items():
        (call,) = calls_of(f"f({own.get('arguments', '')})".replace("{batch}", "1"))
        for keyword in call.keywords:
            assert keyword.arg in known, name
            seen.add(keyword.arg)
            if keyword.arg == "optim":
                assert keyword.value.value in optimizers
    assert {"bf16", "optim", "torch_compile", "gradient_accumulation_steps"} <= seen


def test_what_is_said_of_lightning_is_documented():
    # https://lightning.ai/docs/pytorch/2.5.1/api/lightning.pytorch.trainer.trainer.Trainer.html
    documented = {
        "precision": {"bf16-mixed", "16-mixed", "bf16-true"},
        "accumulate_grad_batches": {2, 4},
        "deterministic": {True},
        "strategy": {"ddp", "fsdp"},
    }
    seen = {}
    for own in tomllib.loads(LINES.read_text()).values():
        (call,) = calls_of(f"f({own.get('trainer', '')})")
        for keyword in call.keywords:
            seen.setdefault(keyword.arg, set()).add(keyword.value.value)
    assert seen == documented


def test_a_technique_that_builds_on_another_replaces_its_lines():
    for code in blocks(["torch_compile", "max_autotune"]).values():
        assert code.count("compile(") + code.count("compile=") == 1 and "max-autotune" in code
    both = blocks(["torch_compile", "fused_optimizer", "optimizer_in_backward"])
    assert "model = torch.compile" not in both["PyTorch"]
    assert "torch_compile=True" in both["Hugging Face Trainer"]  # which has nothing in its place


def test_an_idea_of_ones_own_is_shown_by_its_diff(tmp_path, monkeypatch):
    mine = changed(("AdamW(model.parameters(), lr=4e-5)", "SGD(model.parameters(), lr=0.1)"),
                   parent="Parent: no_optimization")  # fmt: skip
    known = ladder.techniques()
    doc, code = ladder.split(mine)
    idea = Technique("my_idea", Path("my_idea.py"), doc, code, ladder.facts(doc))
    monkeypatch.setattr(ladder, "techniques", lambda: known | {"my_idea": idea})
    shown = blocks(["my_idea"])
    assert "#   +    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)" in shown["PyTorch"]
    assert "no switch is known" in shown["Lightning"]


def test_the_page_has_all_three_parts(tmp_path, capsys):
    path = tmp_path / "results.csv"
    rows_file.append(path, rows_from(halving(TF32)).to_dict("records"))
    out = tmp_path / "mine.py"
    assert recipe_command.main(["--results-file", str(path), "--recipe", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"fused_optimizer-{TF32}, measured: 900 MiB at the peak.\n" in said
    assert re.search(
        r"^Against no_optimization: 1[56]\.\d\dx \(.*\), faster\.$", said, re.MULTILINE
    )
    assert "| flash_attention" in said and f"python {out}" in said and out.exists()
    for library in LIBRARIES:
        assert f"Lines for your own loop, {library}:" in said
    assert "        bf16=True,  # brainFloat16" in said and 'precision="bf16-mixed",' in said
    assert "nan" not in said.lower()
