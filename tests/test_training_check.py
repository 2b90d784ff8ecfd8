"""Whether a changed script still trains the same: notes on its steps, and the verdict on them."""

import copy
import json
import math

import numpy as np
import pytest

from tests.helpers.own_scripts import fork_runs
from tests.training_changes import __main__ as changes
from tools.own_script.training_check import TrainingCheck
from tools.own_script.training_verdict import Comparison, Notes

JUDGE = TrainingCheck.judge
SAME = {
    "none": ("identical",),
    "rounding": ("identical", "same up to rounding"),
    "random": ("identical", "same up to", "not told"),
    "other_large": ("other",),
    "other_small": ("other",),
}
QUICK = (
    "none/small_language_model-comment",
    "rounding/small_language_model-fused",
    "rounding/small_language_model-bfloat16_autocast",
    "random/small_language_model-two_halves",
    "random/small_language_model-shuffle_by_a_generator",
    "other_large/small_language_model-half_a_batch.",
    "other_small/small_language_model-no_dropout.",
    "other_small/small_language_model-mask_off_by_one",
    "other_small/small_language_model-frozen_biases",
    "other_small/small_language_model-no_validation",
)


@pytest.fixture
def forks(tmp_path, monkeypatch):
    fork_runs(monkeypatch, tmp_path)
    monkeypatch.setattr("tools.own_script.training_check.TrainingCheck.judge", JUDGE)


def wrong_verdicts(*words, every=1):
    """Return the changes with another verdict than the one that their folder names.

    every: one of so many is judged; `python -m tests.training_changes` judges all.
    """
    return {
        patch.stem: training
        for (script, arguments), patches in changes.changes(*words).items()
        for patch, training in changes.judged(script, arguments, patches[::every])
        if not training["kind"].startswith(SAME[patch.parent.name])
    }


def test_verdicts_on_changes(forks):
    """SAME_TRAINING: "Is it still the same training?"."""
    assert wrong_verdicts(*QUICK) == {}


# A step of a model with two parameters.
STEP = {
    "forwards": 1,
    "backwards": 1,
    "updates": 1,
    "inputs": {
        "loader": {"samples": 8, "elements": 64, "digests": [{"int64": "a"}]},
        "model": {"samples": 8, "elements": 64, "digests": [{"int64": "a"}]},
    },
    "indices": [],
    "dropout": {},
    "options": [[{"lr": 0.1, "weight_decay": 0.0}, [0, 1]]],
    "clipping": [["clip_grad_norm_", 1.0, False]],
    "loss": 2.0,
    "gradients": [0, 1],
    "gradient norm": 1.0,
    "changed": [0, 1],
    "update": 0.5,
    "input": 3.0,
    "random numbers": "a",
}


def notes(file, seed=0, steps=4, **changed):
    """Return Notes whose figures differ by noise of 1e-6 for seeds other than 0."""
    generator = np.random.default_rng(seed)
    noise = 1e-6 * bool(seed)
    written = {
        "steps": [],
        "names": ["GPT.a", "GPT.b"],
        "shapes": [[4, 4], [4]],
        "draws": False,
        "has_workers": False,
        "types": ["float32"],
        "flop": 100,
        "is_compiled": False,
        "has_8_bits": False,
        "failures": [],
    }

    for _ in range(steps):
        step = copy.deepcopy(STEP)
        step["loss"] += noise * generator.normal()
        written["steps"].append(step)
    gradients = {f"gradient {n}": np.ones(4) + noise * generator.normal(size=4) for n in (0, 1)}
    values = {f"value {n}": np.ones(4) for n in (0, 1)}
    np.savez(file, notes=json.dumps(written | changed), **gradients, **values)
    return Notes(file)


def verdict(tmp_path, change, of_both=lambda notes: None):
    """Return the Verdict on notes after functions have changed them."""
    runs = {}

    def noted_a(kind="", number=0):
        if (kind, number) not in runs:
            seed = 1 + number if kind else 0
            runs[kind, number] = notes(tmp_path / "a.npz", seed)
            of_both(runs[kind, number])
        return runs[kind, number]

    b = notes(tmp_path / "b.npz")
    of_both(b)
    change(b)
    return Comparison(noted_a, lambda kind="", number=0: b).verdict()


def of_each(**values):
    """Return a function that changes each step of notes from the second on."""

    def change(b):
        for step in b.steps[1:]:
            step.update(copy.deepcopy(values))

    return change


def of_run(**values):
    return lambda b: vars(b).update(values)


def options(**values):
    return of_each(options=[[STEP["options"][0][0] | values, [0, 1]]])


SMALLER = {"samples": 4, "elements": 32, "digests": [{"int64": "b"}]}
OTHER_INPUTS = {"samples": 8, "elements": 64, "digests": [{"int64": "b"}]}
REASONS = [
    (options(lr=0.05), "learning rate 0.05 for 0.1 from step 2 on"),
    (options(weight_decay=0.1), "weight decay 0.1 for 0 from step 2 on"),
    (of_each(clipping=[]), "clipping: none for clip_grad_norm_ at 1 from step 2 on"),
    (
        of_each(inputs={"loader": SMALLER, "model": SMALLER}),
        "4 samples a step for 8 from step 2 on",
    ),
    (
        of_each(inputs={"loader": OTHER_INPUTS, "model": OTHER_INPUTS}),
        "other inputs from step 2 on",
    ),
    (of_each(updates=2), "7 updates for 4"),
    (of_each(loss=math.nan), "losses differ from step 2 on"),
    (of_each(loss=2.01), "losses differ from step 2 on"),
    (of_each(update=0.4), "sizes of updates differ from step 2 on"),
    (of_each(**{"forwards without gradients": 1}), "validation in 3 of 4 steps for 0"),
    (of_run(draws=True), "its forward draws random numbers"),
    (of_run(has_8_bits=True), "moments in 8 bits"),
    (of_run(trained={0}), "1 of 2 parameters no longer trained"),
    (of_run(names=["c", "d"], shapes=[[4, 2], [4]]), "12 numbers trained for 20"),
    (
        of_run(gradients={0: np.ones(4), 1: 2 * np.ones(4)}),
        "first gradients differ by 70.7% of their norm, float32 by",
    ),
]


@pytest.mark.parametrize("change, reason", REASONS, ids=[reason for _, reason in REASONS])
def test_verdict_names_what_differs(change, reason, tmp_path):
    answer = verdict(tmp_path, change)
    assert answer.kind == "other"
    assert answer.reasons[0].startswith(reason)


def prefetches(b):
    """Let a loader be one batch ahead of the model."""
    b.steps[0]["inputs"]["loader"]["samples"] = 16


def renamed(b):
    b.names = ["Net.a", "Net.b"]


@pytest.mark.parametrize("change", [prefetches, renamed, of_run(flop=130), of_each(backwards=2)])
def test_verdict_is_the_same_for_other_forms_of_the_same(change, tmp_path):
    assert verdict(tmp_path, change).kind == "identical"


def test_verdict_is_not_told_of_other_parameters(tmp_path):
    answer = verdict(tmp_path, of_run(values={0: np.zeros(4), 1: np.ones(4)}))
    assert answer.kind == "not told" and "starts from other parameters" in answer.reasons[0]


def test_verdict_takes_the_limit_of_a_norm_that_is_clipped(tmp_path, monkeypatch):
    """Otherwise a norm with almost no noise makes rounding a difference."""
    monkeypatch.setitem(STEP, "clipping", [["clip_grad_norm_", 1.001, True]])
    assert notes(tmp_path / "a.npz").curve("gradient norm")[0] == 1.001


# Changes after the steps that are compared, of the validation alone, of data that only the loop of
# a GAN draws, numbers drawn in another order, and parameters that start from others.
NOT_SEEN = {
    "vision-eval_mode_after_the_first_epoch",
    "vision-no_validation",
    "small_vision-smaller_validation",
    "small_language_model-validation_with_dropout",
    "gan-same_noise",
    "gan-noise_before_angles",
    "small_vision-augmentation_in_another_order",
    "small_language_model-dropout_masks_drawn_before",
    "small_language_model-larger_start",
}


@pytest.mark.parametrize("changed", [{"update": 1e-9}, {"gradient norm": 0.0}])
def test_verdict_on_a_script_that_does_not_train(changed, tmp_path):
    def untrained(run):
        for step in run.steps:
            step |= changed

    assert verdict(tmp_path, options(lr=0.05), untrained).kind == "neither trained"


@pytest.mark.slow
@pytest.mark.parametrize("script", changes.ARGUMENTS)
def test_verdicts_on_many_changes(script, forks):
    wrong = wrong_verdicts(f"/{script}-", every=4)
    assert wrong.keys() <= NOT_SEEN
