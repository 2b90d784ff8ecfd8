"""The recipe from rows whose truth is known: which set, as a script, as lines for other loops."""

import ast
import dataclasses
import pydoc
import re
import sys

import numpy as np
import pandas as pd
import pytest

from tests.helpers.refusal import refused
from tests.helpers.rows import REPOSITORY, frame, identity_of, rows_of, techniques_of
from tests.helpers.terminal import printed
from Utils.analysis import lines_to_copy, recipe_pages, recommendation
from Utils.analysis.recipe_evidence import IN, NO_DIFFERENCE, OUT
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.results import rows_file, study
from Utils.scripts import ladder, variants

WHOLE = "fused_optimizer"
LINE = REPOSITORY.lineage(WHOLE)[1:]
PLAN = list(variants.ablation(WHOLE, REPOSITORY).scripts)
BASE = "no_optimization"
RUNGS = [BASE, *LINE]
TF32, BF16, COMPILE, FLASH, FUSED = LINE


def rows_from(ms, names=PLAN, mib=lambda techniques: 900, rounds=4, noise=0.002):
    """Rows of those scripts and variants, in rounds that drift; ms, mib: of a set of techniques."""
    random = np.random.default_rng(0)
    runs = []
    for r in range(rounds):
        for name in names:
            techniques = techniques_of(name)
            level = ms(techniques) * (1 + 0.1 * r) * np.exp(noise * random.standard_normal())
            steps = level * np.exp(noise * random.standard_normal(6))
            runs.append(rows_of(name, list(steps), round=r, peak_memory_mib=mib(techniques)))
    return frame(runs)


def renamed(rows, name, **columns):
    """Rows of WHOLE as if they were of runs of another script."""
    rows = rows[rows.technique == WHOLE].assign(technique=name, **identity_of(name).place)
    return rows.assign(run_id=rows.run_id.str.replace("-", "5-"), **columns)


def recommend(*rows, records=None):
    chosen = study.of_group(pd.concat(rows), [], records or {})
    return recommendation.recommend(summarize(chosen))


def halving(*without_effect):
    """Every technique halves the step, but those and 8bit_optimizer."""
    without_effect = {*without_effect, "8bit_optimizer"}
    return lambda techniques: 1600 / 2 ** len(techniques - without_effect)


def together(techniques):
    """torch_compile and fused_optimizer pay together and not at all by themselves."""
    alone = len({COMPILE, FUSED} & techniques) == 1
    return halving()(techniques) * (2 if alone else 1)


def harmful(techniques):
    return halving()(techniques) * (4 if BF16 in techniques else 1)


@pytest.mark.parametrize(
    "ms, expected",
    [
        (halving(FUSED), [{TF32, BF16, COMPILE, FLASH}]),
        # Several that can be spared are left out one at a time: nothing else was measured.
        (halving(TF32, COMPILE), [{*LINE} - {TF32}, {*LINE} - {COMPILE}]),
        (together, [{*LINE}]),
        (harmful, [{TF32, COMPILE, FLASH, FUSED}]),
    ],
)
def test_recipe_of_known_effects(ms, expected):
    """README: "the changes with the largest certain speedup"."""
    recipe = recommend(rows_from(ms)).fastest
    techniques = {*recipe.techniques}
    assert techniques in expected and techniques_of(recipe.name) == techniques
    true = ms(frozenset()) / ms(techniques)
    assert recipe.speedup.value == pytest.approx(true, rel=0.01)
    assert {*recipe.evidence[IN]} | {*recipe.evidence[NO_DIFFERENCE]} == techniques


PAGE = f"""\
Test GPU, torch 2.13.0, gpt2, 1x64 tokens a step, stdlib, 4 rounds, commit abc1234
- undecided: tensorFloat32, 1.00x (0.99-1.01): at most 1% either way
- least memory within 10% of that speed: flash_attention, 800 MiB

## Recipe: the measured set with the largest certain speedup

fused_optimizer-tensorFloat32: 850 MiB at the peak.
Against no_optimization: 8.71x (8.63-8.78).
Loss minus the baseline's: 0 (exact).

switch on        evidence
---------------  -----------------------------------------------------------------------------------
brainFloat16     2.00x (1.99-2.01), faster; +0 MiB: fused_optimizer against
                 fused_optimizer-brainFloat16
torch_compile    2.00x (1.98-2.01), faster; +0 MiB: fused_optimizer against
                 fused_optimizer-torch_compile
flash_attention  2.00x (1.98-2.01), faster; -100 MiB: fused_optimizer against
                 fused_optimizer-flash_attention
fused_optimizer  1.09x (1.08-1.10), faster; +50 MiB: fused_optimizer-tensorFloat32 against
                 flash_attention-tensorFloat32

leave out       evidence
--------------  ------------------------------------------------------------------------------------
tensorFloat32   1.00x (0.99-1.01), no detectable difference; +0 MiB: fused_optimizer against
                fused_optimizer-tensorFloat32
8bit_optimizer  failed: on purpose

As code, FOLDER/mine.py:

    PYTHONPATH={paths.ROOT} {sys.executable} FOLDER/mine.py

Lines for PyTorch:

    # brainFloat16
    with torch.autocast(device.type, dtype=torch.bfloat16):  # the forward pass only
        logits, loss = model(idx, targets)
    # torch_compile
    model = torch.compile(model)
    # flash_attention
    # in the model's attention, in place of softmax(q @ k.T) @ v and its mask
    mix = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    # fused_optimizer
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

Lines for Hugging Face Trainer:

    TrainingArguments(
        bf16=True,  # brainFloat16
        torch_compile=True,  # torch_compile
        optim="adamw_torch_fused",  # fused_optimizer
    )
    # flash_attention
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")

Lines for Lightning:

    Trainer(
        precision="bf16-mixed",  # brainFloat16
    )
    # torch_compile
    model = torch.compile(model)  # before trainer.fit(model)
    # flash_attention: no switch; in the model's or the loop's own code
    # fused_optimizer
    # in configure_optimizers
    return torch.optim.AdamW(self.parameters(), fused=True)

next: copy the lines into your training loop
"""


def test_recipe_page_and_script(tmp_path, path, capsys, monkeypatch):
    """TF32 has no effect, the fused optimizer gains 10% and costs 50 MiB, two runs were
    disturbed, 8 bits failed. A line names the least memory near that speed.
    """

    def ms(techniques):
        return halving(TF32, FUSED)(techniques) / (1.09 if FUSED in techniques else 1)

    def mib(techniques):
        return 900 - 100 * (FLASH in techniques) + 50 * (FUSED in techniques)

    rows = rows_from(ms, [*PLAN, f"{FLASH}-{TF32}"], mib=mib)
    disturbed = (rows.technique == f"{BASE}+{BF16}") & (rows["round"] > 1)
    rows.loc[disturbed, "grade"] = "tainted"
    rows = rows[rows.technique != "8bit_optimizer"]
    rows_file.append(path, rows.to_dict("records"))
    failed = rows_of("8bit_optimizer", [], status="failed", note="on purpose")
    rows_file.append(path, failed)

    out = tmp_path / "mine.py"
    words = ["recipe", f"RESULTS_FILE={path}", f"RECIPE={out}"]
    page = printed(capsys, monkeypatch, *words)
    assert page.replace(str(tmp_path), "FOLDER") == PAGE
    source = out.read_text()
    doc, code = ladder.split(source)
    assert code == variants.find(f"{WHOLE}-{TF32}", REPOSITORY).code
    assert "\nMeasured: 8.71x (8.63-8.78), against no_optimization\n(Test GPU, " in doc
    assert "\n- flash_attention: 2.00x (1.98-2.01), faster; -100 MiB: " in doc

    printed(capsys, monkeypatch, *words)  # again, over what it has written
    out.write_text(source + "# an idea\n")
    with refused("mine.py: exists .*; move it"):
        printed(capsys, monkeypatch, *words)
    assert out.read_text() == source + "# an idea\n"
    with refused(f"{out}/r.py: "):
        printed(capsys, monkeypatch, *words, f"RECIPE={out}/r.py")


def test_recipe_of_measured_scripts_needs_no_git(monkeypatch):
    """git merges diffs, by which a shorter recipe would be named."""

    def merge(*texts):
        raise UserError("merging variants needs git")

    with_git = recommend(rows_from(halving(), RUNGS))
    monkeypatch.setattr("Utils.scripts.diffs.merge", merge)
    without_git = recommend(rows_from(halving(), RUNGS))
    assert without_git.headline == with_git.headline
    assert without_git.caveats == with_git.caveats[:-1]


@pytest.mark.parametrize(
    "columns, reason",
    [
        (lambda r: {"loss": r.loss.where(r.step > 0, r.loss + 0.5)}, "model changed"),
        (
            lambda r: {"loss": r.loss.where(r.step == 0, r.loss + 0.5)},
            "its loss: +0.5000 (+0.5000 to +0.5000), worse",
        ),
        (lambda r: {"status": r.status.mask(r["round"] > 2, "failed")}, "failed in round 3"),
    ],
)
def test_recipe_is_not_faster_by_other_means(columns, reason):
    rows = rows_from(halving(), RUNGS)
    of_whole = rows[rows.technique == WHOLE]
    recommendation = recommend(rows[rows.technique != WHOLE], of_whole.assign(**columns(of_whole)))
    assert recommendation.fastest.name == FLASH
    assert recommendation.fastest.evidence[OUT][FUSED] == reason


def test_recipe_of_nothing_comparable_is_one_line():
    apart = rows_from(halving(), RUNGS)
    apart = apart[(apart.technique == BASE) == (apart["round"] < 2)]
    nothing = "no recommendation: "
    for rows, line in (
        (rows_from(halving(), RUNGS[1:]), f"{nothing}{TF32}: not measured with {BASE}"),
        (apart, f"too few rounds in turns: likely {WHOLE}, 26.9x over {BASE}"),
    ):
        recommended = recommend(rows)
        assert recipe_pages.page(recommended, {}) == f"{line}; make all ROUNDS=4"


def test_recipe_has_no_technique_that_the_table_shows_slower():
    """bfloat16 is twice as slow, and no set was measured without it."""
    recommended = recommend(rows_from(harmful, RUNGS))
    assert recommended.fastest.techniques == [TF32]
    left_out = recommended.fastest.evidence[OUT]
    assert left_out[BF16].startswith("0.502x (0.499-0.505), slower; ")
    assert left_out[FUSED].startswith(f"measured only with {BF16}, which is slower; 2.00x")


def test_recipe_with_a_wide_interval_asks_for_rounds():
    """METHOD: "rounds grow with the square of half width over distance"."""

    def undecided(end):
        def ms(techniques):
            return 100 / (1.2 if FLASH in techniques else 1)

        rows = rows_from(ms, RUNGS, rounds=3, noise=0.1)
        records = {run_id: {"ended": f"2026-01-01T00:00{end}"} for run_id in rows.run_id}
        (line,) = recommend(rows, records=records).caveats
        return line

    line = f"no recommendation: no interval is above 1; {FLASH}, 1.3x (0.8-2.1)"
    after = ", decided after about 8 min; make all MINUTES=8"  # 3 rounds x (0.48 / 0.29)^2
    assert undecided(":59Z") == line + after
    assert undecided(" o'clock") == f"{line}: at most 109% either way"


@pytest.mark.parametrize(
    "name, factor, columns, best",
    [
        ("larger_batch", 5, {"batch_size": 4}, WHOLE),
        ("larger_batch", 3, {"batch_size": 4}, "larger_batch"),  # for as many tokens
        ("asynchronous_logging", 0.9, {}, WHOLE),
        ("asynchronous_logging", 0.9, {"reserved_memory_mib": 900.0}, "asynchronous_logging"),
    ],
)
def test_recipe_counts_tokens_and_no_wait_for_a_device_on_a_cpu(name, factor, columns, best):
    rows = rows_from(halving(), RUNGS)
    more = renamed(rows, name, **columns)
    recommendation = recommend(rows, more.assign(step_ms=more.step_ms * factor))
    assert f": {best}, " in recommendation.headline
    if best == "larger_batch":
        page = recipe_pages.page(recommendation, {})
        assert "per_device_train_batch_size=4" in page and "trains on 4 sequences a step" in page


def blocks(techniques, scripts=REPOSITORY):
    lines_of = lines_to_copy.lines_by_library(techniques, scripts)
    return {library: "\n".join(lines) for library, lines in lines_of.items()}


@pytest.mark.parametrize("name", [script.name for script in REPOSITORY if script.parent])
def test_recipe_has_lines_of_every_technique(name):
    """README: "which lines to copy"."""
    for library, code in blocks([name]).items():
        if library != "PyTorch":  # there, a return may stand by itself
            code = re.sub(r"^return ", "", code, flags=re.MULTILINE)
        ast.parse(code)
        assert f"# {name}" in code


SWITCHES = lines_to_copy.SWITCHES


def test_recipe_lines_name_what_torch_has():
    for entry in SWITCHES.values():
        for name in re.findall(r"torch(?:\.\w+)+", entry.get("pytorch", "")):
            assert pydoc.locate(name), name


def test_recipe_lines_for_hugging_face_are_its_arguments():
    from transformers import TrainingArguments
    from transformers.training_args import OptimizerNames

    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    for lines in SWITCHES.values():
        code = f"f({lines.get('arguments', '')})".replace("{batch}", "1")
        keywords = ast.parse(code, mode="eval").body.keywords
        values = {keyword.arg: keyword.value.value for keyword in keywords}
        assert values.keys() <= fields
        assert values.get("optim", "adamw_torch") in {*OptimizerNames}


def test_recipe_lines_of_a_technique_replace_those_that_it_builds_on():
    for code in blocks(["torch_compile", "max_autotune"]).values():
        assert code.count("compile(") + code.count("compile=") == 1 and "max-autotune" in code
        assert "# max_autotune, in place of torch_compile" in code
    both = blocks(["torch_compile", "optimizer_in_backward"])
    assert "model = torch.compile" not in both["PyTorch"]
    assert "torch_compile=True" in both["Hugging Face Trainer"]  # which has nothing in its place
