"""A sweep's controls: arms of the baseline's method with other rewards, in every form of the axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.prepare import find_same_gradient_arms, prepare_sweep, write_sweep
from rlvr_cli.sweeps.rows import trial_rows
from rlvr_cli.sweeps.spec import read_sweep
from tests.sweeps.files import names, problems, sweep

SPLIT = "set: {update.mini_batches: 2}\n"
# The text of a sweep -> the names of its trials, in order.
CASES = {
    # Of the first method without modifiers that has rewards, and of no other.
    f"methods: [sft, dgpo+lopti, grpo, dapo]\ncontrols: [random, majority]\n{SPLIT}": [
        *("sft", "dgpo+lopti", "grpo", "dapo", "grpo+random-reward", "grpo+majority-reward")
    ],
    f"methods: [dgpo+lopti]\ncontrols: incorrect\n{SPLIT}": ["dgpo+lopti", "dgpo+lopti+incorrect-reward"],
    # With each value of the other axes.
    "methods: [grpo]\ncontrols: [format]\ngrid: {optimizer.lr: [1e-4, 1e-3]}\nseeds: 2": [
        *("grpo-lr1e-4-s0", "grpo-lr1e-4-s1", "grpo-lr1e-3-s0", "grpo-lr1e-3-s1"),
        *(f"grpo+format-reward-lr{lr}-s{seed}" for lr in ("1e-4", "1e-3") for seed in (0, 1)),
    ],
    # Without an axis of methods.
    "controls: [random]\nseeds: 2": ["grpo-s0", "grpo-s1", "random-reward-s0", "random-reward-s1"],
    # Of each task of a list, with the settings of its baseline.
    "list:\n- {name: a, method: grpo, task.name: kk}\n- {name: b, method: dapo, task.name: kk}\n"
    "- {name: c, method: dapo, task.name: countdown, method.policy_loss.eps_high: 0.4}\ncontrols: [random]\n" + SPLIT: [
        *("a", "b", "c", "a+random-reward", "c+random-reward")
    ],
    "methods: [grpo]\ncontrols: [random, format]\nexclude: [{method: grpo+format-reward}]": [
        *("grpo", "grpo+random-reward")
    ],
}


@pytest.mark.parametrize("text", CASES)
def test_control_arms_by_name(tmp_path: Path, text: str) -> None:
    assert names(tmp_path, text) == CASES[text]


def test_a_control_differs_from_its_baseline_in_the_reward_alone(tmp_path: Path) -> None:
    text = "list: [{method: dapo, method.policy_loss.eps_high: 0.4, optimizer.lr: 1e-4}]\ncontrols: [random, format]"
    base, *controls = (trial.config for trial in sweep(tmp_path, text).trials)
    for config, source in zip(controls, ("random", "format"), strict=True):
        assert config.method.policy is not None and config.method.policy.reward.source == source
        reward = {"name": base.method.name, "reward": base.method.policy and base.method.policy.reward}
        assert config.model_copy(update={"method": config.method.model_copy(update=reward)}) == base


REFUSED = {
    "methods: [sft]\ncontrols: [random]": "s.yaml:2 controls: need a method with rewards, which sft has not.",
    "methods: [grpo]\ncontrols: [coin]": "s.yaml:2 controls: must be a list of random, format, incorrect, majority",
    "methods: [grpo, grpo+random-reward]\ncontrols: [random]": "are the same trial",
    "methods: [grpo]\ncontrols: [random]\nsearch: {trials: 3}\nobjective: accuracy": "s.yaml:2 controls: a search",
    "methods: [grpo+entropy-min]\ncontrols: [random]": "both set method.reward.source",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_controls_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    assert REFUSED[text] in " ".join(problems(tmp_path, text))


def test_the_plan_and_the_rows_of_the_file_know_controls(tmp_path: Path) -> None:
    """The same file prepares to the same plan, which is how a killed sweep goes on; no arm is another's twin."""
    text = "methods: [grpo]\ncontrols: [random, majority]\nseeds: 2"
    made = sweep(tmp_path, text)
    folder = SweepDir(made.folder)
    folder.path.mkdir(parents=True)
    plan = prepare_sweep(made, folder).plan
    write_sweep(made, folder, plan)
    again = prepare_sweep(sweep(tmp_path, text), folder)
    assert again.plan == plan and again.notes == ()
    assert [entry.method for entry in plan.named][2:] == ["grpo+random-reward"] * 2 + ["grpo+majority-reward"] * 2
    assert find_same_gradient_arms(made) == []
    rows = ["grpo", "grpo+random-reward", "grpo+majority-reward"]
    assert list(trial_rows(read_sweep(tmp_path / "s.yaml"))) == rows
